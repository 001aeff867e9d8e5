//! New objects, claims about their shards, and compaction of packs.
//!
//! Only a session that is alone creates objects, because ids are granted to sessions; others make
//! claims about objects that do not exist, which are skipped. Clouds, attempts and shards are often
//! wrong, and so are the old places of moved slices.

use super::{Chance, pick};
use crate::identity::{
    AllocationId, CloudIndex, Codec, Home, InodeId, ObjectClass, ObjectId, RealmEpoch, RealmId,
    ShardIndex, SliceId,
};
use crate::operation::{
    Commit, NewContent, NewExtent, NewObject, NewSlice, Operation, PlacedShard, SliceMove,
};
use crate::placement::{Policy, Shard};
use crate::query::Question;
use crate::row::{SliceKey, SliceSalt};
use quorumfs_bft::identity::Digest;

/// Ids that are requested at once.
const IDS: u32 = 1024;
/// Objects that claims are made about.
const OBJECTS_MAX: usize = 6;
/// Objects that are named to be forgotten.
const NAMED_MAX: usize = 64;
/// Packs that are filled, and slices that are moved.
const PACKS_MAX: usize = 3;
const PLACES_MAX: usize = 12;
const SEALED_BYTES: u32 = 4016;
const PLAIN_BYTES: u32 = 4000;
/// Slices that fit a pack.
const SLOTS: u32 = 5;

/// The objects that the workload created.
#[derive(Clone, Debug, Default)]
pub(super) struct Shards {
    /// The allocation, the next of its ids, and their number.
    ids: Option<(AllocationId, u32, u32)>,
    objects: Vec<ObjectId>,
    /// The same, and earlier ones.
    named: Vec<ObjectId>,
    /// Packs, and the next free slot of each.
    packs: Vec<(NewObject, u32)>,
    /// The last known places of slices of packs.
    places: Vec<(SliceId, ObjectId, u32)>,
}

fn keep_last<T>(list: &mut Vec<T>, most: usize) {
    if list.len() > most {
        list.remove(0);
    }
}

/// An object that may not exist.
fn absent(chance: Chance<'_>) -> ObjectId {
    ObjectId {
        allocation: AllocationId(chance(3)),
        counter: u32::try_from(chance(4)).unwrap_or(0),
    }
}

impl Shards {
    /// Learns the granted ids.
    pub(super) fn allocated(&mut self, allocation: AllocationId, count: u32) {
        self.ids = Some((allocation, 0, count));
    }

    /// The next claim, or a request for ids.
    pub(super) fn operation(&mut self, alone: bool, chance: Chance<'_>) -> Operation {
        if alone && self.ids.is_none() {
            return Operation::Allocate { count: IDS };
        }
        if alone
            && chance(2) == 0
            && let Some(operation) = self.compaction(chance)
        {
            return operation;
        }
        let shards = (0..=chance(3)).map(|_| self.placed(chance)).collect();
        match chance(5) {
            0 | 1 => Operation::WithdrawPlaced { shards },
            2 | 3 => Operation::ConfirmPlaced {
                shards,
                checked: Vec::new(),
            },
            _ => Operation::ReplacePlacement {
                shard: self.placed(chance),
                acknowledged: chance(2) == 0,
            },
        }
    }

    /// Gives the granted ids up, and with them the packs that could be filled.
    pub(super) fn close(&mut self) -> Option<AllocationId> {
        self.packs.clear();
        self.ids.take().map(|(allocation, _, _)| allocation)
    }

    /// One of the objects.
    pub(super) fn any(&self, chance: Chance<'_>) -> ObjectId {
        pick(&self.named, chance).unwrap_or_else(|| absent(chance))
    }

    /// One of the newest objects.
    pub(super) fn newest(&self, chance: Chance<'_>) -> ObjectId {
        pick(&self.objects, chance).unwrap_or_else(|| absent(chance))
    }

    fn placed(&self, chance: Chance<'_>) -> PlacedShard {
        let absent = absent(chance);
        let index = u8::try_from(chance(5)).unwrap_or(0);
        PlacedShard {
            object: pick(&self.objects, chance).unwrap_or(absent),
            shard: ShardIndex(index),
            cloud: CloudIndex(if chance(8) == 0 { 0 } else { index }),
            generation: 0,
            attempt: u8::try_from(chance(3)).unwrap_or(0),
            receipt: None,
        }
    }

    fn next_id(&mut self) -> Option<(AllocationId, u32)> {
        match &mut self.ids {
            Some((allocation, next, count)) if *next < *count => {
                *next += 1;
                Some((*allocation, *next - 1))
            }
            _ => None,
        }
    }

    /// An unused object, with most of its shards acknowledged.
    fn object(&mut self, class: ObjectClass, length: u32, chance: Chance<'_>) -> Option<NewObject> {
        let (allocation, counter) = self.next_id()?;
        let acknowledged = 3 + u8::try_from(chance(2)).unwrap_or(0);
        let shard = |index: u8| Shard {
            digest: Digest([index; 32]),
            cloud: CloudIndex(index),
            attempt: 0,
            acknowledged: index < acknowledged,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        };
        let id = ObjectId {
            allocation,
            counter,
        };
        self.objects.push(id);
        keep_last(&mut self.objects, OBJECTS_MAX);
        self.named.push(id);
        keep_last(&mut self.named, NAMED_MAX);
        Some(NewObject {
            id,
            class,
            policy: Policy::new(4, 1, 2, 4).ok()?,
            length,
            shard_length: 2100,
            shards: (0..4).map(shard).collect(),
        })
    }

    /// A pack with a free slot, new or as it was named before; and the slot.
    fn slot(&mut self, chance: Chance<'_>) -> Option<(NewObject, u32)> {
        if self.packs.is_empty() || chance(4) == 0 {
            self.new_pack(chance)?;
        }
        self.next_slot()
    }

    fn new_pack(&mut self, chance: Chance<'_>) -> Option<()> {
        let pack = self.object(ObjectClass::PACK, SLOTS * SEALED_BYTES, chance)?;
        self.packs.push((pack, 0));
        keep_last(&mut self.packs, PACKS_MAX);
        Some(())
    }

    fn next_slot(&mut self) -> Option<(NewObject, u32)> {
        let (pack, next) = self.packs.last_mut().filter(|(_, next)| *next < SLOTS)?;
        *next += 1;
        Some((pack.clone(), *next - 1))
    }

    /// A commit that creates an object, or a slice of a pack; `None` without ids or free slots.
    pub(super) fn commit(&mut self, inode: InodeId, chance: Chance<'_>) -> Option<Commit> {
        let (new, slot) = if chance(3) == 0 {
            (self.object(ObjectClass::BLOCK, SEALED_BYTES, chance)?, 0)
        } else {
            self.slot(chance)?
        };
        let (allocation, counter) = self.next_id()?;
        let slice = NewSlice {
            id: SliceId {
                allocation,
                counter,
            },
            object: new.id,
            offset: slot * SEALED_BYTES,
            length: PLAIN_BYTES,
            sealed_length: SEALED_BYTES,
            codec: Codec::NONE,
            keys: vec![SliceKey::Derived {
                realm: RealmId::ROOT,
                epoch: RealmEpoch(0),
                salt: SliceSalt::default(),
            }],
        };
        if new.class == ObjectClass::PACK {
            self.places.push((slice.id, new.id, slice.offset));
            keep_last(&mut self.places, PLACES_MAX);
        }
        let extent = NewExtent {
            offset: 64 * chance(4),
            slice: slice.id,
            slice_offset: 0,
            length: 64,
        };
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

    /// Moves a few slices into a pack, and assumes that this succeeds.
    fn compaction(&mut self, chance: Chance<'_>) -> Option<Operation> {
        if self.places.is_empty() {
            return None;
        }
        if chance(3) > 0 {
            self.new_pack(chance)?;
        }
        let mut moves = Vec::new();
        let mut to = None;
        for _ in 0..=chance(3) {
            let Some((pack, slot)) = self.next_slot() else {
                break;
            };
            to = Some(pack.clone());
            let length = u64::try_from(self.places.len()).unwrap_or(1);
            let index = usize::try_from(chance(length)).unwrap_or(0);
            let place = self.places.get_mut(index)?;
            let (slice, from, from_offset) = *place;
            let slot = if chance(12) == 0 { SLOTS - 1 } else { slot };
            let to_offset = slot * SEALED_BYTES;
            *place = (slice, pack.id, to_offset);
            moves.push(SliceMove {
                home: Home(0),
                slice,
                from,
                from_offset: from_offset + u32::from(chance(12) == 0),
                sealed_length: SEALED_BYTES,
                to: pack.id,
                to_offset,
            });
        }
        Some(Operation::MoveSlices {
            realm: RealmId::ROOT,
            objects: to.into_iter().filter(|_| chance(20) > 0).collect(),
            moves,
        })
    }

    /// A page of all objects, of the sparse packs, or of a pack's slices.
    pub(super) fn question(&self, chance: Chance<'_>) -> Question {
        let limit = u32::try_from(1 + chance(5)).unwrap_or(1);
        let known = pick(&self.objects, chance);
        let after = known.filter(|_| chance(2) == 0);
        match (chance(3), known) {
            (0, _) => Question::SparsePacks { after, limit },
            (1, Some(pack)) => Question::PackedSlices {
                pack,
                after: None,
                limit,
            },
            _ => Question::Objects { after, limit },
        }
    }
}
