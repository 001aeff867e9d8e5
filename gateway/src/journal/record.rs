//! What the journal says: bytes that were written, and what became of them.
//!
//! An inode's bytes *wait* from the record that tells of them until one says that everything up to
//! it is void: because the servers have it, or because it was given up. What waits rests on a
//! *ground*: the inode as it was when we last heard of it. Whoever finds waiting bytes after a
//! crash compares the ground with the inode as it is then, and knows whether anybody else was there
//! ([`verdict`](super::verdict)).
//!
//! A change of length is not among the records: it is ordered at once, after everything that waited
//! for the inode was committed and the journal said so.

use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use quorumfs_metadata::attributes::{Attributes, Mode, Timestamp};
use quorumfs_metadata::identity::{InodeId, InodeVersion};

/// A record's place in the journal: it rises by one from record to record, over all files.
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
    /// The place after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// What is known of an inode beneath the bytes that wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Ground {
    /// Its version.
    pub version: InodeVersion,
    /// When its content was last changed.
    pub mtime: Timestamp,
}

impl Ground {
    /// That of an inode as the servers have it.
    #[must_use]
    pub const fn of(attributes: &Attributes) -> Self {
        Self {
            version: attributes.version,
            mtime: attributes.mtime,
        }
    }
}

/// One thing that the journal says; the bytes of a write are beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Record {
    /// The inode stands there, and everything said of it up to `through` is void: it is in there.
    Stands {
        /// Which one.
        inode: InodeId,
        /// The last record that counts no more; 0 if all count.
        through: Sequence,
        /// What the servers have.
        ground: Ground,
    },
    /// Bytes were written, at `offset`.
    Write {
        /// To which file.
        inode: InodeId,
        /// Where.
        offset: u64,
        /// When, by the gateway's clock.
        mtime: Timestamp,
    },
    /// Attributes were set that ride with the next commit.
    Attributes {
        /// Of which file.
        inode: InodeId,
        /// Permission bits.
        mode: Option<Mode>,
        /// Last access.
        atime: Option<Timestamp>,
        /// Last change of content.
        mtime: Option<Timestamp>,
    },
    /// An operation of this mount on the inode goes out. It may be executed without our hearing of
    /// it; then the inode has a higher version than this, and this mtime or the one before.
    Ordering {
        /// Which inode.
        inode: InodeId,
        /// What it had then.
        version: InodeVersion,
        /// What it will have, if that changes.
        mtime: Option<Timestamp>,
    },
    /// Nothing said of it before counts any more: it was deleted, or its loss was reported.
    GivenUp {
        /// Which one.
        inode: InodeId,
    },
}

impl Record {
    /// Which inode it is about.
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

    /// Whether something waits to be committed because of it.
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Attributes { .. })
    }
}

/// A record with the bytes that were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The record.
    pub record: Record,
    /// Of a write what was written; else nothing.
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

/// The longest plain record, in bytes: one whose length says more is none.
pub(super) const RECORD_BYTES_MAX: usize = WRITE_BYTES_MAX + 64;
/// The most bytes in one record of a write.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;

impl Entry {
    /// Appends its plain bytes: the record as in borsh, then what was written.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = self.record.serialize(to);
        to.extend_from_slice(&self.bytes);
    }

    /// Takes plain bytes apart; nothing if they are no record.
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
