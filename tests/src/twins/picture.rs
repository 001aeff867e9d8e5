//! The state of an inode, as the superuser sees it.

use super::step::Text;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, lgetxattr, llistxattr, openat,
    readlinkat, seek, statat,
};
use rustix::io::{Errno, pread};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Longer files are read only where they have data.
const READ_WHOLE_MAX: u64 = 1 << 20;
const BLOCK: usize = 4096;
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Beyond this a file has more data than any step writes.
const BLOCKS_MAX: usize = 4096;
/// The longest list of names, and the longest value, that the kernel returns.
const ATTRIBUTE_MAX: usize = 1 << 16;

/// Seconds and nanoseconds.
pub type Time = (i64, u32);

/// The state of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// Its number, which is meaningful within one twin only.
    pub inode: u64,
    /// Its file type.
    pub kind: u32,
    /// Permissions and set-id bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u64,
    /// Bytes; meaningless for a directory.
    pub length: u64,
    /// The number of a device node.
    pub device: u64,
    /// The target of a symbolic link.
    pub target: Option<Text>,
    /// Extended attributes, access control lists among them.
    pub attributes: BTreeMap<Text, Text>,
    /// The fingerprint of the content, if it was read.
    pub content: Option<String>,
    /// When it was read last.
    pub accessed: Time,
    /// When its content changed last.
    pub modified: Time,
    /// When anything changed last.
    pub changed: Time,
}

impl Picture {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.kind) == FileType::Directory
    }

    /// Whether it is a file with content.
    #[must_use]
    pub fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.kind) == FileType::RegularFile
    }

    /// Whether it is a named pipe.
    #[must_use]
    pub fn is_pipe(&self) -> bool {
        FileType::from_raw_mode(self.kind) == FileType::Fifo
    }

    /// The result of `stat`.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        let time = |seconds: i64, nanos: u64| (seconds, u32::try_from(nanos).unwrap_or(u32::MAX));
        let file = stat.st_mode & 0o170_000;
        Self {
            inode: stat.st_ino,
            kind: file,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: stat.st_nlink,
            length: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            device: stat.st_rdev,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
            ..Self::default()
        }
    }
}

/// The state at a path; `None` if there is nothing.
///
/// # Errors
/// Those of the system calls, which the superuser should not see, and the path.
pub fn look(path: &Text, content: bool) -> Result<Option<Picture>, String> {
    let stat = match statat(CWD, &path.0[..], AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(format!("stat of {path:?}: {error}")),
    };
    let mut picture = Picture::of(&stat);
    let describe = |what: &'static str| move |error| format!("{what} of {path:?}: {error}");
    if FileType::from_raw_mode(picture.kind) == FileType::Symlink {
        let target = readlinkat(CWD, &path.0[..], Vec::new()).map_err(describe("target"))?;
        picture.target = Some(Text(target.into_bytes()));
    }
    for name in attribute_names(path).map_err(describe("names of attributes"))? {
        let value = attribute(path, &name).map_err(describe("an attribute"))?;
        picture.attributes.insert(name, value);
    }
    if content && picture.is_file() {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, &path.0[..], flags, Mode::empty()).map_err(describe("open"))?;
        let found = fingerprint(&file, picture.length).map_err(describe("content"))?;
        picture.content = Some(found);
    }
    Ok(Some(picture))
}

/// The names of a path's attributes.
///
/// # Errors
/// Those of the system call.
pub fn attribute_names(path: &Text) -> Result<Vec<Text>, Errno> {
    let mut names = vec![0; ATTRIBUTE_MAX];
    let length = llistxattr(&path.0[..], &mut names[..])?;
    let names = names[..length].split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    Ok(names.map(|name| Text(name.to_vec())).collect())
}

fn attribute(path: &Text, name: &Text) -> Result<Text, Errno> {
    let mut value = vec![0; ATTRIBUTE_MAX];
    let length = lgetxattr(&path.0[..], &name.0[..], &mut value[..])?;
    value.truncate(length);
    Ok(Text(value))
}

/// A fingerprint of a file's bytes: of all blocks that are not zero, with their positions. A long
/// file is read only where it has data.
fn fingerprint(file: &OwnedFd, length: u64) -> Result<String, Errno> {
    let (mut hasher, mut place, mut blocks) = (blake3::Hasher::new(), 0, 0);
    let last = length.saturating_sub(1) / BLOCK as u64 * BLOCK as u64;
    while place < length && blocks < BLOCKS_MAX {
        if length > READ_WHOLE_MAX {
            match seek(file, SeekFrom::Data(place)) {
                Ok(data) => place = data / BLOCK as u64 * BLOCK as u64,
                // tmpfs finds no data in the last page that a file can have: it is read anyway.
                Err(Errno::NXIO) if place < last => place = last,
                Err(Errno::NXIO) => {}
                Err(error) => return Err(error),
            }
        }
        let mut block = [0; BLOCK];
        // Reads must not extend beyond the longest file.
        let most = OFFSET_MAX.saturating_sub(place).min(BLOCK as u64) as usize;
        let got = pread(file, &mut block[..most], place)?;
        let due = (length - place).min(BLOCK as u64);
        if (got as u64) < due {
            hasher.update(format!("only {got} bytes at {place}").as_bytes());
        }
        if block.iter().any(|byte| *byte != 0) {
            hasher.update(&place.to_le_bytes());
            hasher.update(&block);
        }
        blocks += 1;
        place = place.saturating_add(BLOCK as u64);
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// The state of everything below the twin's directory, by path.
///
/// # Errors
/// Those of the system calls, and the path.
pub fn scan(content: bool) -> Result<BTreeMap<Text, Picture>, String> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![Text::from(".")]);
    while let Some(path) = waiting.pop() {
        let picture = look(&path, content)?;
        let picture = picture.ok_or_else(|| format!("{path:?} is listed, but missing"))?;
        if picture.is_directory() {
            for (name, _) in list(&path).map_err(|error| format!("list {path:?}: {error}"))? {
                waiting.push(path.join(&name));
            }
        }
        if found.insert(path.clone(), picture).is_some() {
            return Err(format!("{path:?} is listed twice"));
        }
    }
    Ok(found)
}

/// The entries of a directory with their types, sorted.
///
/// # Errors
/// Those of the system calls.
pub fn list(path: &Text) -> Result<Vec<(Text, u32)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, &path.0[..], flags, Mode::empty())?;
    let mut entries = Vec::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = Text(entry.file_name().to_bytes().to_vec());
        if name.0 != b"." && name.0 != b".." {
            entries.push((name, entry.file_type().as_raw_mode()));
        }
    }
    entries.sort();
    Ok(entries)
}
