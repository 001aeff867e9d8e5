//! What is mounted where: `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// The minor number of its device, which names a FUSE connection.
    pub(crate) minor: u32,
    /// The type, such as `fuse.quorumfs`.
    pub(crate) kind: String,
    /// What is mounted.
    pub(crate) source: String,
}

/// The topmost mount exactly at `path`, which must be canonical.
pub(crate) fn mounted_at(path: &Path) -> Option<MountEntry> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    find(&table, path)
}

/// Whether the file system of this device is mounted anywhere in this process's tree. What cannot
/// be read counts as mounted.
pub(crate) fn is_mounted(minor: u32) -> bool {
    let table = std::fs::read("/proc/self/mountinfo");
    table.map_or(true, |table| {
        place_of(&String::from_utf8_lossy(&table), minor).is_some()
    })
}

/// Where in this table the file system of this device is mounted last. Such file systems have the
/// major number 0, as all have that lie on no disk.
pub(crate) fn place_of(table: &str, minor: u32) -> Option<PathBuf> {
    let wanted = format!("0:{minor}");
    table.lines().rev().find_map(|line| {
        let mut mount = line.split(' ');
        let (device, place) = (mount.nth(2)?, mount.nth(1)?);
        let place = || PathBuf::from(OsString::from_vec(unescape(place)));
        (device == wanted).then(place)
    })
}

fn find(table: &str, path: &Path) -> Option<MountEntry> {
    table.lines().rev().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let (device, place) = (mount.nth(2)?, mount.nth(1)?);
        let mut source = source.split(' ');
        (unescape(place) == path.as_os_str().as_bytes()).then(|| {
            let minor = device
                .split_once(':')
                .and_then(|(_, minor)| minor.parse().ok());
            Some(MountEntry {
                minor: minor?,
                kind: source.next()?.to_owned(),
                source: String::from_utf8_lossy(&unescape(source.next()?)).into_owned(),
            })
        })?
    })
}

/// Undoes the kernel's octal escapes of blanks, line ends and backslashes.
fn unescape(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = octal {
            plain.push(byte);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_a_path_is_found() {
        let table = "22 1 0:21 / /proc rw shared:5 - proc proc rw\n\
            30 1 0:44 / /mnt/a\\040b rw,nosuid shared:9 master:1 - fuse.x first rw\n\
            31 1 0:45 / /mnt/a\\040b rw - fuse.quorumfs my\\040volume rw\n";
        let found = find(table, Path::new("/mnt/a b")).unwrap();
        assert_eq!((found.minor, found.kind.as_str()), (45, "fuse.quorumfs"));
        assert_eq!(found.source, "my volume");
        assert_eq!(find(table, Path::new("/mnt")), None);
        assert_eq!(place_of(table, 44).as_deref(), Some(Path::new("/mnt/a b")));
        assert_eq!(place_of(table, 4), None);
    }
}
