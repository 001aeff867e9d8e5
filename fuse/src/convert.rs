//! Attributes, flags and errors, translated between the kernel and the file system.

use fuser::{Errno, FileAttr, INodeNo, TimeOrNow};
use quorumfs_gateway::vfs::{
    Attributes, Detail, FileType, Identities, InodeId, OpenMode, TimeChange, Timestamp, VfsError,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The block size that `stat` reports: the preferred size of a slice.
const BLOCK_BYTES: u32 = 128 << 10;
/// What the names of access control lists begin with, among the extended attributes.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

pub(crate) fn errno(error: &VfsError) -> Errno {
    Errno::from_i32(error.errno().raw_os_error())
}

pub(crate) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::File => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let base = if time.seconds >= 0 {
        UNIX_EPOCH.checked_add(whole)
    } else {
        UNIX_EPOCH.checked_sub(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(time.nanos.into())))
        .unwrap_or(UNIX_EPOCH)
}

/// The time of a kernel request: the reverse of [`system_time`]. Nanoseconds count forward from the
/// second, also before 1970.
fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let seconds = 0_i64.saturating_sub_unsigned(before.as_secs());
            match before.subsec_nanos() {
                0 => Timestamp { seconds, nanos: 0 },
                nanos => Timestamp {
                    seconds: seconds.saturating_sub(1),
                    nanos: 1_000_000_000 - nanos,
                },
            }
        }
    }
}

pub(crate) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::At(timestamp(time)),
    }
}

/// The kernel's number of an inode: ours, except that the mount's root is 1.
pub(crate) fn number(inode: InodeId, root: InodeId) -> INodeNo {
    if inode == root {
        INodeNo::ROOT
    } else {
        INodeNo(inode.0)
    }
}

/// How a mount shows inodes to its kernel.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) root: InodeId,
    /// Whom the machine's user is in the volume, if its number is not the volume's.
    pub(crate) identities: Option<Arc<Identities>>,
}

impl Shown {
    /// The volume's number of a user of the machine.
    pub(crate) fn user(&self, uid: u32) -> u32 {
        self.identities.as_ref().map_or(uid, |it| it.user(uid))
    }

    /// The same of a group.
    pub(crate) fn group(&self, gid: u32) -> u32 {
        self.identities.as_ref().map_or(gid, |it| it.group(gid))
    }

    /// An access control list, likewise.
    pub(crate) fn acl(&self, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        match &self.identities {
            Some(identities) if name.starts_with(ACL_PREFIX) => identities.acl(&value),
            _ => value,
        }
    }

    pub(crate) fn attributes(&self, attributes: &Attributes) -> FileAttr {
        let (uid, gid) = (attributes.uid.0, attributes.gid.0);
        let owner = match &self.identities {
            Some(identities) => (identities.user(uid), identities.shown_group(gid)),
            None => (uid, gid),
        };
        file_attributes(attributes, self.root, owner)
    }
}

fn file_attributes(attributes: &Attributes, root: InodeId, (uid, gid): (u32, u32)) -> FileAttr {
    FileAttr {
        ino: number(attributes.inode, root),
        size: attributes.size,
        blocks: attributes.blocks(),
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: system_time(attributes.created),
        kind: kind(attributes.file_type()),
        perm: attributes.mode.0,
        nlink: attributes.links,
        uid,
        gid,
        rdev: device(attributes),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// An answer that the name does not exist, which the kernel may cache: inode 0.
#[must_use]
pub fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The device number, for device inodes.
fn device(attributes: &Attributes) -> u32 {
    match attributes.detail {
        Detail::CharacterDevice(number) | Detail::BlockDevice(number) => number.0,
        _ => 0,
    }
}

/// Whether reading leaves the time of access unchanged, from the flags of `open(2)`.
pub(crate) const fn preserves_atime(flags: i32) -> bool {
    const NO_ACCESS_TIME: i32 = 0o1_000_000;
    flags & NO_ACCESS_TIME != 0
}

/// Whether the flags of `open(2)`, or those of an open file, say that it is written at its end.
pub(crate) const fn appends(flags: i32) -> bool {
    flags & 0o2000 != 0
}

/// How a file is opened, from the flags of `open(2)`.
pub(crate) fn open_mode(flags: i32) -> OpenMode {
    const ACCESS_MODE: i32 = 3;
    const WRITE_ONLY: i32 = 1;
    const READ_WRITE: i32 = 2;
    OpenMode {
        read: flags & ACCESS_MODE != WRITE_ONLY,
        write: matches!(flags & ACCESS_MODE, WRITE_ONLY | READ_WRITE),
        truncate: flags & 0o1000 != 0,
        keep_atime: preserves_atime(flags),
        append: appends(flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_same_to_the_kernel_and_back_however_early_it_is() {
        let before = |seconds, nanos| UNIX_EPOCH - Duration::new(seconds, nanos);
        for (seconds, nanos, told) in [
            (0, 0, UNIX_EPOCH),
            (
                1_700_000_000,
                123_456_789,
                UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
            ),
            (-1, 0, before(1, 0)),
            (-1, 1, before(0, 999_999_999)),
            (-5, 999_999_999, before(4, 1)),
            (i64::MIN, 0, before(1 << 63, 0)),
            (i64::MIN, 1, before((1 << 63) - 1, 999_999_999)),
        ] {
            let time = Timestamp { seconds, nanos };
            assert_eq!(system_time(time), told);
            assert_eq!(timestamp(told), time);
        }
    }

    #[test]
    fn access_modes_are_told_apart() {
        assert_eq!(
            open_mode(0),
            OpenMode {
                read: true,
                write: false,
                truncate: false,
                keep_atime: false,
                append: false,
            }
        );
        assert_eq!(
            open_mode(0o1001),
            OpenMode {
                read: false,
                write: true,
                truncate: true,
                keep_atime: false,
                append: false,
            }
        );
        assert_eq!(
            open_mode(0o2002),
            OpenMode {
                read: true,
                write: true,
                truncate: false,
                keep_atime: false,
                append: true,
            }
        );
    }
}
