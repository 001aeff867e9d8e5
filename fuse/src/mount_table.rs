//! The mount table: `/proc/self/mountinfo`.

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
    /// The source.
    pub(crate) source: String,
}

/// The topmost mount exactly at `path`, which must be canonical.
pub(crate) fn mounted_at(path: &Path) -> Option<MountEntry> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    find(&table, path)
}

/// Whether the file system of this device is mounted anywhere in this process's tree. A table that
/// cannot be read counts as yes.
pub(crate) fn is_mounted(minor: u32) -> bool {
    let table = std::fs::read("/proc/self/mountinfo");
    table.map_or(true, |table| place_of(&table, minor).is_some())
}

/// The last place in this table at which the file system of this device is mounted. Such file
/// systems have the major number 0, like all that lie on no disk.
pub(crate) fn place_of(table: &[u8], minor: u32) -> Option<PathBuf> {
    let wanted = format!("0:{minor}");
    lines(table).find_map(|line| {
        let mut mount = words(line);
        let (device, place) = (mount.nth(2)?, mount.nth(1)?);
        let place = || PathBuf::from(OsString::from_vec(unescape(place)));
        (device == wanted.as_bytes()).then(place)
    })
}

/// The lines, newest mount first. They may hold any bytes.
fn lines(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.rsplit(|byte| *byte == b'\n')
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ')
}

fn find(table: &[u8], path: &Path) -> Option<MountEntry> {
    lines(table).find_map(|line| {
        let mut mount = words(line);
        let (device, place) = (mount.nth(2)?, mount.nth(1)?);
        if unescape(place) != path.as_os_str().as_bytes() {
            return None;
        }
        // Optional fields, and the separator after them.
        let mut source = mount.skip_while(|word| *word != b"-").skip(1);
        let (kind, source) = (source.next()?, source.next()?);
        let (_, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
        Some(MountEntry {
            minor: minor.parse().ok()?,
            kind: String::from_utf8_lossy(kind).into_owned(),
            source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        })
    })
}

/// Undoes the kernel's octal escapes of blanks, line ends and backslashes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut rest = text;
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
        let table = b"22 1 0:21 / /proc rw shared:5 - proc proc rw\n\
            30 1 0:44 / /mnt/a\\040b rw,nosuid shared:9 master:1 - fuse.x first rw\n\
            31 1 0:45 / /mnt/a\\040b rw - fuse.quorumfs my\\040volume rw\n\
            32 1 0:46 / /mnt/\xff rw - fuse.quorumfs bytes rw\n";
        let found = find(table, Path::new("/mnt/a b")).unwrap();
        assert_eq!((found.minor, found.kind.as_str()), (45, "fuse.quorumfs"));
        assert_eq!(found.source, "my volume");
        assert_eq!(find(table, Path::new("/mnt")), None);
        assert_eq!(place_of(table, 44).as_deref(), Some(Path::new("/mnt/a b")));
        assert_eq!(place_of(table, 4), None);
        let bytes = Path::new(std::ffi::OsStr::from_bytes(b"/mnt/\xff"));
        assert_eq!(find(table, bytes).map(|it| it.minor), Some(46));
        assert_eq!(place_of(table, 46).as_deref(), Some(bytes));
    }
}
