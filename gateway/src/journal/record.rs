//! The records of the journal: bytes that were written, and their fate.
//!
//! An inode's bytes *wait* from their record until a later one voids everything up to it, because
//! the servers have it or because it was given up. Waiting bytes rest on a *ground*: the last known
//! state of the inode. After a crash the ground is compared with the inode's present state, which
//! shows whether another client has changed the file ([`verdict`](super::verdict)).
//!
//! A change of length has no record: it is ordered at once, after all waiting bytes of the inode
//! were committed and the journal has recorded that.

use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use quorumfs_metadata::attributes::{Attributes, Mode, Timestamp};
use quorumfs_metadata::identity::{InodeId, InodeVersion};

/// A record's number in the journal: it rises by one from record to record, over all files.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The next number.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The known state of an inode beneath its waiting bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Ground {
    /// Its version.
    pub version: InodeVersion,
    /// The last change of its content.
    pub mtime: Timestamp,
}

impl Ground {
    /// The ground of an inode as the servers have it.
    #[must_use]
    pub const fn of(attributes: &Attributes) -> Self {
        Self {
            version: attributes.version,
            mtime: attributes.mtime,
        }
    }
}

/// A record; the bytes of a write follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Record {
    /// The servers have this state, and all records of the inode up to `through` are void: they are
    /// in it.
    Stands {
        /// The inode.
        inode: InodeId,
        /// The last void record; 0 if all count.
        through: Sequence,
        /// The servers' state.
        ground: Ground,
    },
    /// Bytes were written, at `offset`.
    Write {
        /// The file.
        inode: InodeId,
        /// The position.
        offset: u64,
        /// The time, by the gateway's clock.
        mtime: Timestamp,
    },
    /// Attributes were set that go with the next commit.
    Attributes {
        /// The file.
        inode: InodeId,
        /// Permission bits.
        mode: Option<Mode>,
        /// Last access.
        atime: Option<Timestamp>,
        /// Last change of content.
        mtime: Option<Timestamp>,
    },
    /// An operation of this mount on the inode is sent. It may be executed without an answer; then
    /// the inode has a higher version than this, and this mtime or the one before.
    Ordering {
        /// The inode.
        inode: InodeId,
        /// Its version before the operation.
        version: InodeVersion,
        /// Its mtime after the operation, if that changes.
        mtime: Option<Timestamp>,
    },
    /// All earlier records of the inode are void: it was deleted, or its loss was reported.
    GivenUp {
        /// The inode.
        inode: InodeId,
    },
}

impl Record {
    /// The inode of the record.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        match *self {
            Self::Stands { inode, .. }
            | Self::Write { inode, .. }
            | Self::Attributes { inode, .. }
            | Self::Ordering { inode, .. }
            | Self::GivenUp { inode } => inode,
        }
    }

    /// Whether the record has to be committed.
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Attributes { .. })
    }
}

/// A record with the bytes of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The record.
    pub record: Record,
    /// The bytes of a write; otherwise empty.
    pub bytes: Bytes,
}

impl From<Record> for Entry {
    fn from(record: Record) -> Self {
        Self {
            record,
            bytes: Bytes::new(),
        }
    }
}

/// The longest plain record, in bytes; a longer one is invalid.
pub(super) const RECORD_BYTES_MAX: usize = WRITE_BYTES_MAX + 64;
/// The most bytes in one record of a write.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;

impl Entry {
    /// Appends the plain bytes: the record as in borsh, then the bytes of the write.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = self.record.serialize(to);
        to.extend_from_slice(&self.bytes);
    }

    /// Parses plain bytes; `None` if they are no record.
    pub(super) fn decode(plain: &[u8]) -> Option<Self> {
        let mut rest = plain;
        let record = Record::deserialize(&mut rest).ok()?;
        let has_bytes = matches!(record, Record::Write { .. });
        (has_bytes != rest.is_empty()).then(|| Self {
            record,
            bytes: Bytes::copy_from_slice(rest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_nothing_else_passes_for_one() {
        let inode = InodeId(7);
        let ground = Ground {
            version: InodeVersion(3),
            mtime: Timestamp {
                seconds: -5,
                nanos: 9,
            },
        };
        let write = Record::Write {
            inode,
            offset: 12,
            mtime: ground.mtime,
        };
        let all = [
            Entry {
                record: write,
                bytes: Bytes::from_static(b"bytes"),
            },
            Entry::from(Record::Stands {
                inode,
                through: Sequence(9),
                ground,
            }),
            Entry::from(Record::Attributes {
                inode,
                mode: Some(Mode(0o644)),
                atime: None,
                mtime: Some(ground.mtime),
            }),
            Entry::from(Record::Ordering {
                inode,
                version: ground.version,
                mtime: None,
            }),
            Entry::from(Record::GivenUp { inode }),
        ];
        for entry in all {
            let mut plain = Vec::new();
            entry.encode(&mut plain);
            assert_eq!(Entry::decode(&plain), Some(entry.clone()));
            assert!(plain.len() < 64 + entry.bytes.len());
            assert_eq!(entry.record.inode(), inode);
            for cut in 0..plain.len() - entry.bytes.len() {
                assert_eq!(Entry::decode(&plain[..cut]), None);
            }
        }
        assert_eq!(Entry::decode(&[9, 0, 0]), None);
        let mut nothing_written = Vec::new();
        Entry::from(write).encode(&mut nothing_written);
        assert_eq!(Entry::decode(&nothing_written), None);
        let mut with_more = Vec::new();
        Entry::from(Record::GivenUp { inode }).encode(&mut with_more);
        with_more.push(0);
        assert_eq!(Entry::decode(&with_more), None);
    }
}
