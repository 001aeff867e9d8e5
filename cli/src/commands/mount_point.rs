//! What a mount leaves behind whose process was killed: a path on which every call fails.
//!
//! Everything else about mount points is examined by `quorumfs-fuse` when it mounts.

use crate::failure::{Failure, Outcome};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The kernel's name for our mounts, in `/proc/self/mountinfo`.
const KIND: &str = "fuse.quorumfs";

/// Clears away what lies at `point` if it is one of our mounts whose process is dead.
pub(crate) fn clear_if_dead(point: &Path) -> Outcome<()> {
    if is_dead(point) {
        tracing::warn!(point = %point.display(), "clearing a mount whose process is dead");
        detach(point)?;
    }
    Ok(())
}

/// Whether one of our mounts lies here whose process is dead.
pub(crate) fn is_dead(point: &Path) -> bool {
    let not_connected = Some(rustix::io::Errno::NOTCONN.raw_os_error());
    let dead = fs::metadata(point).is_err_and(|error| error.raw_os_error() == not_connected);
    dead && mounted(point).as_deref() == Some(KIND)
}

/// Unmounts, even while it is in use: by the kernel if we may, else by FUSE's own program.
pub(crate) fn detach(point: &Path) -> Outcome<()> {
    let direct = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    let Err(error) = direct else { return Ok(()) };
    let helped = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(point)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match helped {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Failure::file("unmount", point, &error.into())
            .hint("install fuse3, whose fusermount3 unmounts for those who are not root")),
    }
}

/// What is mounted on exactly this path: the kind of the topmost file system.
fn mounted(point: &Path) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table).into_owned();
    let wanted = escaped(point);
    let of_line = |line: &str| -> Option<String> {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?.to_string();
        (before.split(' ').nth(4)? == wanted).then_some(kind)
    };
    table.lines().rev().find_map(of_line)
}

/// A path as the kernel writes it in `mountinfo`.
fn escaped(path: &Path) -> String {
    let mut text = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => text.extend(format!("\\{byte:03o}").into_bytes()),
            _ => text.push(*byte),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_exact_path() {
        assert_eq!(mounted(Path::new("/proc")).as_deref(), Some("proc"));
        assert_eq!(mounted(Path::new("/pro")), None);
        assert_eq!(escaped(Path::new("/a b\\c")), "/a\\040b\\134c");
    }

    #[test]
    fn what_is_alive_or_not_ours_is_left_alone() {
        for path in ["/proc", "/tmp", "/nothing-of-this-name"] {
            assert!(!is_dead(Path::new(path)));
        }
    }
}
