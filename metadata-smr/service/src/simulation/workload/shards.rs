//! Claims about shards: acknowledged, replaced, withdrawn.
//!
//! Only a session that is alone brings in objects, for ids are granted to sessions; others claim
//! things of objects that are not there, which is passed over. Clouds, attempts and shards are
//! often wrong.

use super::{Chance, pick};
use crate::identity::{
    AllocationId, CloudIndex, Codec, InodeId, ObjectClass, ObjectId, RealmEpoch, ShardIndex,
    SliceId,
};
use crate::operation::{
    Commit, NewContent, NewExtent, NewObject, NewSlice, Operation, PlacedShard,
};
use crate::placement::{Policy, Shard};
use crate::query::Question;
use crate::row::SliceKey;
use quorumfs_bft::identity::Digest;

/// Ids that are asked for at once.
const IDS: u32 = 1024;
/// Objects that claims are made about.
const OBJECTS_MAX: usize = 6;
const SEALED_BYTES: u32 = 4016;
const PLAIN_BYTES: u32 = 4000;

/// The objects that the workload brought in.
#[derive(Clone, Debug, Default)]
pub(super) struct Shards {
    /// The allocation, the next of its ids, and how many there are.
    ids: Option<(AllocationId, u32, u32)>,
    objects: Vec<ObjectId>,
}

impl Shards {
    /// Learns which ids there are.
    pub(super) fn allocated(&mut self, allocation: AllocationId, count: u32) {
        self.ids = Some((allocation, 0, count));
    }

    /// The next claim, or the wish for ids.
    pub(super) fn operation(&self, alone: bool, chance: Chance<'_>) -> Operation {
        if alone && self.ids.is_none() {
            return Operation::Allocate { count: IDS };
        }
        let shards = (0..=chance(3)).map(|_| self.placed(chance)).collect();
        match chance(5) {
            0 | 1 => Operation::WithdrawPlaced { shards },
            2 | 3 => Operation::ConfirmPlaced { shards },
            _ => Operation::ReplacePlacement {
                shard: self.placed(chance),
                acknowledged: chance(2) == 0,
            },
        }
    }

    fn placed(&self, chance: Chance<'_>) -> PlacedShard {
        let nobodys = ObjectId {
            allocation: AllocationId(chance(3)),
            counter: u32::try_from(chance(4)).unwrap_or(0),
        };
        let index = u8::try_from(chance(5)).unwrap_or(0);
        PlacedShard {
            object: pick(&self.objects, chance).unwrap_or(nobodys),
            shard: ShardIndex(index),
            cloud: CloudIndex(if chance(8) == 0 { 0 } else { index }),
            attempt: u8::try_from(chance(3)).unwrap_or(0),
        }
    }

    /// A commit that brings in an object, with most of its shards acknowledged; `None` without ids.
    pub(super) fn commit(&mut self, inode: InodeId, chance: Chance<'_>) -> Option<Commit> {
        let (allocation, counter) = match &mut self.ids {
            Some((allocation, next, count)) if *next < *count => {
                *next += 1;
                (*allocation, *next - 1)
            }
            _ => return None,
        };
        let object = ObjectId {
            allocation,
            counter,
        };
        let acknowledged = 3 + u8::try_from(chance(2)).unwrap_or(0);
        let shard = |index: u8| Shard {
            digest: Digest([index; 32]),
            cloud: CloudIndex(index),
            attempt: 0,
            acknowledged: index < acknowledged,
            withdrawn: false,
        };
        let new = NewObject {
            id: object,
            class: ObjectClass::BLOCK,
            policy: Policy::new(4, 1, 2, 4).ok()?,
            length: SEALED_BYTES,
            shard_length: 2100,
            shards: (0..4).map(shard).collect(),
        };
        let slice = NewSlice {
            id: SliceId {
                allocation,
                counter,
            },
            object,
            offset: 0,
            length: PLAIN_BYTES,
            sealed_length: SEALED_BYTES,
            codec: Codec::NONE,
            key: SliceKey::Derived(RealmEpoch(0)),
        };
        let extent = NewExtent {
            offset: 0,
            slice: slice.id,
            slice_offset: 0,
            length: 64,
        };
        self.objects.push(object);
        if self.objects.len() > OBJECTS_MAX {
            self.objects.remove(0);
        }
        Some(Commit {
            inode,
            expected: None,
            objects: vec![new],
            slices: vec![slice],
            content: NewContent::Extents(vec![extent]),
            size: None,
            mtime: None,
        })
    }

    /// A page of all objects.
    pub(super) fn question(&self, chance: Chance<'_>) -> Question {
        Question::Objects {
            after: pick(&self.objects, chance).filter(|_| chance(2) == 0),
            limit: u32::try_from(1 + chance(5)).unwrap_or(1),
        }
    }
}
