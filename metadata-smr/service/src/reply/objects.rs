//! What is known of objects, in answers.

use crate::identity::ObjectId;
use crate::row::Object;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// An object that lacks shards.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct UnderReplicatedObject {
    /// Its priority: the shards that may still be lost.
    pub priority: u8,
    /// The object.
    pub object: ObjectId,
    /// Its row.
    pub row: Object,
    /// Whether its writer is another session than the asking one, which is open and was not
    /// fenced: it may be about to put the rest.
    pub writer_lives: bool,
}

/// An object that nothing refers to.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Garbage {
    /// The object.
    pub object: ObjectId,
    /// The time since which nothing refers to it.
    pub since: Time,
    /// Whether its allocation is open, so that a commit may refer to it again.
    pub open: bool,
    /// Whether a retained point in the past needs it, or a capsule.
    pub retained: bool,
    /// Its row.
    pub row: Object,
}

impl Garbage {
    /// Whether its row may go, and its shards before. Once it is so, it stays so.
    #[must_use]
    pub const fn is_forgettable(&self) -> bool {
        !self.open && !self.retained && self.row.slices == 0
    }
}

/// What the metadata know of an object's id.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Fate {
    /// Whether its allocation was ever granted.
    pub granted: bool,
    /// Whether its allocation is open.
    pub open: bool,
    /// Its row.
    pub row: Option<Object>,
}
