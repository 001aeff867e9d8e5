//! Places of shards and of slices in packs, as operations name them.

use crate::identity::{CloudIndex, Home, ObjectId, ShardIndex, SliceId};
use crate::placement::{MovedClaim, Receipt};
use crate::row::FaultKind;
use borsh::{BorshDeserialize, BorshSerialize};

/// A slice that moves from one pack into another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SliceMove {
    /// The home of the slice's row.
    pub home: Home,
    /// The slice.
    pub slice: SliceId,
    /// The pack that it was in.
    pub from: ObjectId,
    /// Its offset in that pack's sealed stream.
    pub from_offset: u32,
    /// Its sealed bytes.
    pub sealed_length: u32,
    /// The pack that it is in from now on, one of the operation's objects.
    pub to: ObjectId,
    /// Its offset in that pack's sealed stream, disjoint from all other slices.
    pub to_offset: u32,
}

/// A shard at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PlacedShard {
    /// The object.
    pub object: ObjectId,
    /// The shard.
    pub shard: ShardIndex,
    /// The cloud.
    pub cloud: CloudIndex,
    /// The object's generation. With another one the shard has moved.
    pub generation: u8,
    /// The attempt, which determines the name.
    pub attempt: u8,
    /// The cloud's receipt. `None` in a withdrawal, and from a client that found a shard which
    /// others put.
    pub receipt: Option<Receipt>,
}

/// A shard that moves to another cloud.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ShardMove {
    /// The cloud that it was on.
    pub from: CloudIndex,
    /// The attempt that it had there.
    pub from_attempt: u8,
    /// Its new place, on an active cloud.
    pub to: PlacedShard,
    /// What is claimed about the new place.
    pub claim: MovedClaim,
}

impl ShardMove {
    /// Whether the new place has acknowledged the shard.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.claim == MovedClaim::Acknowledged
    }
}

/// A cloud's wrong answer about a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Finding {
    /// The object.
    pub object: ObjectId,
    /// The shard.
    pub shard: ShardIndex,
    /// The object's generation.
    pub generation: u8,
    /// The attempt, which determines the name.
    pub attempt: u8,
    /// The fault.
    pub fault: FaultKind,
    /// The checksum of the wrong answer, of the receipt's kind if there is one.
    pub found: Option<Receipt>,
    /// The receipt that the answer was compared with. If the shard is still at its place, the row's
    /// receipt replaces it.
    pub receipt: Option<Receipt>,
}
