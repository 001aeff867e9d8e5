//! The places of shards and slices as simple lists: no queues, no counts.
//!
//! Live slices are not recorded here: the caller, which has the files' bytes, passes them.

use crate::error::Error;
use crate::identity::{CloudIndex, Home, ObjectClass, ObjectId, ShardIndex, SliceId};
use crate::operation::{NewObject, NewSlice, Operation, PlacedShard, SliceMove};
use crate::query::Question;
use crate::reply::{Done, QueryResult, Response};
use crate::row::{Object, PackedSlice};
use std::collections::{BTreeMap, BTreeSet};

/// The claim about a shard at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Awaited,
    Acknowledged,
    Withdrawn,
}

/// An object: each of its shards' cloud, attempt and claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    is_pack: bool,
    length: u32,
    shards: Vec<(CloudIndex, u8, Claim)>,
}

/// The place of a slice: its object, its offset there and its length.
type SlicePlace = (ObjectId, u32, u32);

/// Every object and every slice that was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shards {
    objects: BTreeMap<ObjectId, Row>,
    slices: BTreeMap<SliceId, SlicePlace>,
    /// Ids of packs that were named but got no slice.
    burned: BTreeSet<ObjectId>,
}

fn claim(acknowledged: bool, withdrawn: bool) -> Claim {
    match (acknowledged, withdrawn) {
        (true, _) => Claim::Acknowledged,
        (false, true) => Claim::Withdrawn,
        (false, false) => Claim::Awaited,
    }
}

fn row(object: &NewObject) -> Row {
    let shards = object.shards.iter();
    let shards = shards.map(|it| (it.cloud, it.attempt, claim(it.acknowledged, false)));
    Row {
        is_pack: object.class == ObjectClass::PACK,
        length: object.length,
        shards: shards.collect(),
    }
}

/// The beginning of a page, and whether there are more.
fn page<T>(all: impl Iterator<Item = T>, limit: u32) -> (Vec<T>, bool) {
    let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    let mut found: Vec<T> = all.take(limit.saturating_add(1)).collect();
    let more = found.len() > limit;
    found.truncate(limit);
    (found, more)
}

impl Shards {
    /// An object of these that cannot be created any more.
    pub(super) fn burned(&self, objects: &[NewObject]) -> Option<ObjectId> {
        let mut ids = objects.iter().map(|object| object.id);
        ids.find(|id| self.burned.contains(id))
    }

    /// Adds the objects and slices of a commit; packs may exist already.
    pub(super) fn bring_in(&mut self, objects: &[NewObject], slices: &[NewSlice]) {
        for object in objects {
            self.objects.entry(object.id).or_insert_with(|| row(object));
        }
        for slice in slices {
            let lies = (slice.object, slice.offset, slice.sealed_length);
            self.slices.insert(slice.id, lies);
        }
    }

    /// Applies an operation that is not a compound, and returns whether the answer is possible.
    pub(super) fn execute(
        &mut self,
        operation: &Operation,
        live_slices: &BTreeSet<SliceId>,
        answer: Option<&[u8]>,
    ) -> bool {
        self.slices.retain(|slice, _| live_slices.contains(slice));
        let expected = match operation {
            Operation::ConfirmPlaced { shards, .. } => {
                let lacking = self.lacking();
                self.each(shards, |_| Claim::Acknowledged);
                let completed = lacking.saturating_sub(self.lacking());
                Ok(Done::Confirmed { completed })
            }
            Operation::WithdrawPlaced { shards } => {
                let mut withdrawn = 0;
                self.each(shards, |before| match before {
                    Claim::Acknowledged => {
                        withdrawn += 1;
                        Claim::Withdrawn
                    }
                    other => other,
                });
                Ok(Done::Withdrawn { shards: withdrawn })
            }
            Operation::ReplacePlacement {
                shard,
                acknowledged,
            } => self.replace(shard, *acknowledged),
            Operation::MoveSlices { objects, moves, .. } => self.move_slices(objects, moves),
            _ => return true,
        };
        match answer.map(Response::from_bytes) {
            None => true,
            Some(Ok(response)) => response.0.map_err(|refusal| refusal.error) == expected,
            Some(Err(_)) => false,
        }
    }

    fn move_slices(&mut self, objects: &[NewObject], moves: &[SliceMove]) -> Result<Done, Error> {
        if let Some(burned) = self.burned(objects) {
            return Err(Error::ObjectUsed(burned));
        }
        let mut next = self.clone();
        next.bring_in(objects, &[]);
        let mut moved = 0;
        for step in moves {
            let named = objects.iter().find(|object| object.id == step.to);
            let pack = named.filter(|_| step.from != step.to);
            let pack = pack.ok_or(Error::BadContent)?;
            let lies = next.slices.get(&step.slice).copied();
            if lies != Some((step.from, step.from_offset, step.sealed_length)) {
                continue;
            }
            let run = |offset: u32, length: u32| offset..offset.saturating_add(length);
            let to = run(step.to_offset, step.sealed_length);
            let overlaps = next.slices.values().any(|(object, offset, length)| {
                let other = run(*offset, *length);
                *object == step.to && other.start < to.end && to.start < other.end
            });
            let from_pack = next.objects.get(&step.from).is_some_and(|row| row.is_pack);
            if to.end > pack.length || overlaps || !from_pack {
                return Err(Error::BadContent);
            }
            let lies = (step.to, step.to_offset, step.sealed_length);
            next.slices.insert(step.slice, lies);
            moved += 1;
        }
        for object in objects.iter().map(|object| object.id) {
            let is_used = next.slices.values().any(|lies| lies.0 == object);
            if !is_used && !self.objects.contains_key(&object) {
                next.objects.remove(&object);
                next.burned.insert(object);
            }
        }
        *self = next;
        Ok(Done::Moved { slices: moved })
    }

    /// The number of objects with an unacknowledged shard.
    fn lacking(&self) -> u32 {
        let lacks = |row: &&Row| {
            let mut shards = row.shards.iter();
            shards.any(|(_, _, it)| *it != Claim::Acknowledged)
        };
        u32::try_from(self.objects.values().filter(lacks).count()).unwrap_or(u32::MAX)
    }

    fn each(&mut self, shards: &[PlacedShard], mut change: impl FnMut(Claim) -> Claim) {
        for placed in shards {
            if let Some((cloud, attempt, claim)) = self.shard(placed.object, placed.shard)
                && (*cloud, *attempt) == (placed.cloud, placed.attempt)
            {
                *claim = change(*claim);
            }
        }
    }

    fn shard(
        &mut self,
        object: ObjectId,
        shard: ShardIndex,
    ) -> Option<&mut (CloudIndex, u8, Claim)> {
        let row = self.objects.get_mut(&object)?;
        row.shards.get_mut(usize::from(shard.0))
    }

    /// The clouds of the model's volume are those of its objects: a shard cannot move to another
    /// cloud, because each of the others has one already.
    fn replace(&mut self, placed: &PlacedShard, acknowledged: bool) -> Result<Done, Error> {
        let id = placed.object;
        if !self.objects.contains_key(&id) {
            return Err(Error::NoObject(id));
        }
        let shard = self.shard(id, placed.shard).ok_or(Error::Invalid)?;
        if shard.0 != placed.cloud {
            return Err(Error::BadPlacement(id));
        }
        if placed.attempt <= shard.1 {
            return Err(Error::Changed);
        }
        *shard = (placed.cloud, placed.attempt, claim(acknowledged, false));
        Ok(Done::Replaced)
    }

    /// The number of an object's live slices, and their bytes.
    fn count(&self, id: ObjectId, live_slices: &BTreeSet<SliceId>) -> (u32, u64) {
        let lies = self
            .slices
            .iter()
            .filter(|(slice, (object, _, _))| *object == id && live_slices.contains(slice));
        lies.fold((0, 0), |(count, bytes), (_, (_, _, length))| {
            (count + 1, bytes + u64::from(*length))
        })
    }

    fn objects_after(&self, after: Option<ObjectId>) -> impl Iterator<Item = (ObjectId, &Row)> {
        let all = self.objects.iter().map(|(id, row)| (*id, row));
        all.filter(move |(id, _)| after.is_none_or(|it| *id > it))
    }

    /// Whether a question about objects can have this answer.
    pub(super) fn answers(
        &self,
        question: &Question,
        answer: &QueryResult,
        live_slices: &BTreeSet<SliceId>,
    ) -> bool {
        match (question, answer) {
            (Question::Objects { after, limit }, QueryResult::Objects { objects, more }) => {
                self.shows(*after, *limit, live_slices, (objects, *more))
            }
            (Question::SparsePacks { after, limit }, QueryResult::SparsePacks { packs, more }) => {
                let ids: Vec<_> = packs.iter().map(|(id, _, _)| *id).collect();
                self.shows_sparse(*after, *limit, live_slices, (&ids, *more))
            }
            (
                Question::PackedSlices { pack, after, limit },
                QueryResult::PackedSlices { slices, more },
            ) => {
                let after = after.map(|(_, slice)| slice);
                let shown = (slices.as_slice(), *more);
                self.shows_packed((*pack, after), *limit, live_slices, shown)
            }
            _ => false,
        }
    }

    /// The objects, and whether each has a slice.
    pub(super) fn needed(
        &self,
        live_slices: &BTreeSet<SliceId>,
    ) -> impl Iterator<Item = (ObjectId, bool)> {
        let all = self.objects.keys();
        all.map(|id| (*id, self.count(*id, live_slices).0 > 0))
    }

    /// An object's row goes.
    pub(super) fn forget(&mut self, id: ObjectId) {
        self.objects.remove(&id);
    }

    /// Whether a page of all objects can look like this.
    fn shows(
        &self,
        after: Option<ObjectId>,
        limit: u32,
        live_slices: &BTreeSet<SliceId>,
        (objects, more): (&[(ObjectId, Object)], bool),
    ) -> bool {
        let shown = objects.iter().map(|(id, row)| {
            let shards = row.shards.iter();
            let claims =
                shards.map(|it| (it.cloud, it.attempt, claim(it.acknowledged, it.withdrawn)));
            (
                *id,
                claims.collect::<Vec<_>>(),
                (row.slices, row.live_bytes),
            )
        });
        let expected = self
            .objects_after(after)
            .map(|(id, row)| (id, row.shards.clone(), self.count(id, live_slices)));
        page(expected, limit) == (shown.collect(), more)
    }

    /// Whether a page of the sparse packs can look like this.
    fn shows_sparse(
        &self,
        after: Option<ObjectId>,
        limit: u32,
        live_slices: &BTreeSet<SliceId>,
        (packs, more): (&[ObjectId], bool),
    ) -> bool {
        let sparse = self.objects_after(after).filter(|(id, row)| {
            let (slices, bytes) = self.count(*id, live_slices);
            row.is_pack && slices > 0 && 2 * bytes < u64::from(row.length)
        });
        page(sparse.map(|(id, _)| id), limit) == (packs.to_vec(), more)
    }

    /// Whether a page of the slices in a pack can look like this.
    fn shows_packed(
        &self,
        (pack, after): (ObjectId, Option<SliceId>),
        limit: u32,
        live_slices: &BTreeSet<SliceId>,
        (slices, more): (&[(Home, SliceId, PackedSlice)], bool),
    ) -> bool {
        let is_pack = self.objects.get(&pack).is_some_and(|row| row.is_pack);
        let lies = self.slices.iter().filter(|(slice, (object, _, _))| {
            is_pack
                && *object == pack
                && live_slices.contains(slice)
                && after.is_none_or(|it| **slice > it)
        });
        let lies = lies.map(|(slice, (_, offset, sealed_length))| {
            let (offset, sealed_length) = (*offset, *sealed_length);
            let place = PackedSlice {
                offset,
                sealed_length,
            };
            (Home(0), *slice, place)
        });
        page(lies, limit) == (slices.to_vec(), more)
    }
}
