//! The change log of a realm, and the bell that says that there is something in it.

use crate::identity::{InodeId, LogPosition};
use crate::limits::LOG_SLOTS;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{SessionId, Time};

/// The end of a realm's change log. It is written with every entry, so no answer depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Changes {
    /// The position of the last entry; 0: there was none.
    pub last: LogPosition,
    /// When the bell was last rung for an entry, by the agreed clock.
    pub rung: Time,
    /// Whether it has yet to be rung for the last entry. Then there is an [`OwedBell`].
    pub owed: bool,
}

/// What one operation has changed. The slot in the key is its position modulo the number of slots.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Changed {
    /// Its position in the log. An older position than the expected one: the entry is not written
    /// yet. A newer one: it was overwritten.
    pub position: LogPosition,
    /// The session whose operation it was; `None`: a tick.
    pub by: Option<SessionId>,
    /// The inodes, in the order of their numbers; `None`: any may have changed.
    pub inodes: Option<Vec<InodeId>>,
}

/// The bell of a realm: the only row that mounts watch. It is written when it rings, and when a
/// mount begins or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Bell {
    /// The position of the last entry for which it was rung.
    pub position: LogPosition,
    /// The number of mounts of the realm.
    pub mounts: u32,
    /// The number of slots of the log's ring.
    pub slots: u16,
}

impl Default for Bell {
    fn default() -> Self {
        Self {
            position: LogPosition(0),
            mounts: 0,
            slots: LOG_SLOTS,
        }
    }
}

/// A bell that has yet to be rung. The time when it is due, and the realm, are in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct OwedBell;
