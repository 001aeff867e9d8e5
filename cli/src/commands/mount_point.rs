//! Dead mounts, whose process was killed and on which every call fails; and paths within a live
//! mount.
//!
//! `quorumfs-fuse` checks everything else about mount points when it mounts.

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use rustix::io::Errno;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The type of our mounts in `/proc/self/mountinfo`.
const KIND: &str = "fuse.quorumfs";
/// Type and source of mounts that root made with an earlier release, which may still exist.
const EARLIER: (&str, &str) = ("fuse", "quorumfs");

/// The most links to follow.
const LINKS_MAX: usize = 40;

/// The place that a user's path names, without links, `.`, `..` and slashes at its end. The mount
/// that may be there is not asked, since it may be dead or stuck; so a mount has the same path,
/// however it is named.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut here = absolute.clone();
    for _ in 0..LINKS_MAX {
        // A path that ends with `..` has no name of its own.
        let (Some(parent), Some(name)) = (here.parent(), here.file_name()) else {
            return here.canonicalize().unwrap_or(here);
        };
        let Ok(parent) = parent.canonicalize() else {
            break;
        };
        let place = parent.join(name);
        // A directory is no link, and the kernel answers that without asking the mount's process.
        match fs::read_link(&place) {
            Ok(leads_to) => here = parent.join(leads_to),
            Err(_) => return place,
        }
    }
    absolute.components().collect()
}

/// Removes the mount at `point` if it is one of ours and its process is dead.
pub(crate) fn clear_if_dead(point: &Path) -> CommandResult<()> {
    if is_dead(point) {
        tracing::warn!(point = %point.display(), "clearing a mount whose process is dead");
        detach(point)?;
    }
    Ok(())
}

/// The resolved path of a user's path, which has to lie in the mount at `point`.
pub(super) fn within(point: &Path, path: &Path) -> CommandResult<PathBuf> {
    let cannot = |error| Failure {
        exit: Exit::Path,
        ..Failure::file("look at", path, &error)
    };
    let device = |path: &Path| fs::symlink_metadata(path).map(|found| found.dev());
    let found = path.canonicalize().map_err(cannot)?;
    if device(&found).map_err(cannot)? == device(point).map_err(cannot)? {
        return Ok(found);
    }
    let (path, point) = (path.display(), point.display());
    let message = format!("{path} is not in the mount on {point}");
    Err(Failure::new(Exit::Path, message).hint("name a path in there"))
}

/// Whether one of our mounts is here and its process is dead.
pub(crate) fn is_dead(point: &Path) -> bool {
    let dead = fs::metadata(point).is_err_and(|error| is_dead_mount_error(&error));
    dead && mounted(point).is_some_and(|(kind, source)| is_ours(&kind, &source))
}

/// Whether one of our mounts is here, dead or alive. The mount is not asked, so this never hangs.
pub(super) fn is_ours_at(point: &Path) -> bool {
    mounted(point).is_some_and(|(kind, source)| is_ours(&kind, &source))
}

/// The kernel's error for a mount whose process has ended, or whose connection was aborted.
fn is_dead_mount_error(error: &std::io::Error) -> bool {
    let answers = [Errno::NOTCONN, Errno::CONNABORTED];
    let code = error.raw_os_error();
    answers
        .iter()
        .any(|errno| code == Some(errno.raw_os_error()))
}

fn is_ours(kind: &str, source: &str) -> bool {
    kind == KIND || (kind, source) == EARLIER
}

/// Unmounts, even while it is in use: through the kernel if permitted, else with FUSE's own
/// program.
pub(crate) fn detach(point: &Path) -> CommandResult<()> {
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
            .hint("install fuse3, whose fusermount3 unmounts for users other than root")),
    }
}

/// The topmost mount on exactly this path: its type and source.
fn mounted(point: &Path) -> Option<(String, String)> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    find(&String::from_utf8_lossy(&table), point)
}

fn find(table: &str, point: &Path) -> Option<(String, String)> {
    let wanted = escaped(point);
    let of_line = |line: &str| -> Option<(String, String)> {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let found = (after.next()?.to_string(), after.next()?.to_string());
        (before.split(' ').nth(4)? == wanted).then_some(found)
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
        let kind = |path| mounted(Path::new(path)).map(|(kind, _)| kind);
        assert_eq!(kind("/proc").as_deref(), Some("proc"));
        assert_eq!(kind("/pro"), None);
        assert_eq!(escaped(Path::new("/a b\\c")), "/a\\040b\\134c");
    }

    #[test]
    fn our_mounts_of_any_user_are_recognised_and_no_others() {
        let table = "\
            42 27 0:39 / /earlier rw,nosuid - fuse quorumfs rw,user_id=0\n\
            43 27 0:40 / /now rw,nosuid - fuse.quorumfs /var/lib/docs rw,user_id=1000\n\
            44 27 0:41 / /another rw,nosuid - fuse sshfs rw,user_id=0\n\
            45 27 0:42 / /one/more rw,nosuid - fuse.sshfs quorumfs rw,user_id=0\n";
        for (path, ours) in [
            ("/earlier", true),
            ("/now", true),
            ("/another", false),
            ("/one/more", false),
        ] {
            let (kind, source) = find(table, Path::new(path)).unwrap();
            assert_eq!(is_ours(&kind, &source), ours, "{path}");
        }
    }

    #[test]
    fn a_place_is_the_same_however_it_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir(root.join("point")).unwrap();
        std::os::unix::fs::symlink("point", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("link"), root.join("again")).unwrap();
        std::os::unix::fs::symlink("round", root.join("round")).unwrap();
        for named in [
            "point",
            "point/",
            "./point//",
            "link",
            "again/",
            "point/../point",
            "point/.",
        ] {
            assert_eq!(resolve(&root.join(named)), root.join("point"), "{named}");
        }
        assert_eq!(resolve(&root.join("point/..")), root);
        assert_eq!(resolve(&root.join("absent/")), root.join("absent"));
        assert_eq!(resolve(&root.join("no/such/")), root.join("no/such"));
        assert_eq!(resolve(&root.join("round")), root.join("round"));
        assert_eq!(resolve(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn what_is_alive_or_not_ours_is_left_alone() {
        for path in ["/proc", "/tmp", "/nothing-of-this-name"] {
            assert!(!is_dead(Path::new(path)));
        }
    }
}
