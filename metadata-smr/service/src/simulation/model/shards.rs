//! Where shards are, as a list would keep it: no queues, no counts.

use crate::error::Error;
use crate::identity::{CloudIndex, ObjectId, ShardIndex};
use crate::operation::{NewObject, Operation, PlacedShard};
use crate::reply::{Done, Response};
use crate::row::Object;
use std::collections::BTreeMap;

/// What is claimed of a shard at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Awaited,
    Acknowledged,
    Withdrawn,
}

/// Every object that was brought in: each of its shards' cloud, attempt and claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shards(BTreeMap<ObjectId, Vec<(CloudIndex, u8, Claim)>>);

fn claim(acknowledged: bool, withdrawn: bool) -> Claim {
    match (acknowledged, withdrawn) {
        (true, _) => Claim::Acknowledged,
        (false, true) => Claim::Withdrawn,
        (false, false) => Claim::Awaited,
    }
}

impl Shards {
    pub(super) fn bring_in(&mut self, objects: &[NewObject]) {
        for object in objects {
            let shards = object.shards.iter();
            let shards = shards.map(|it| (it.cloud, it.attempt, claim(it.acknowledged, false)));
            self.0.insert(object.id, shards.collect());
        }
    }

    /// Applies an operation that is no compound, and says whether it can have been answered so.
    pub(super) fn execute(&mut self, operation: &Operation, answer: Option<&[u8]>) -> bool {
        let expected = match operation {
            Operation::ConfirmPlaced { shards } => {
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
            _ => return true,
        };
        match answer.map(Response::from_bytes) {
            None => true,
            Some(Ok(response)) => response.0.map_err(|refusal| refusal.error) == expected,
            Some(Err(_)) => false,
        }
    }

    /// Objects of which not every shard is acknowledged.
    fn lacking(&self) -> u32 {
        let lacks = |shards: &&Vec<(CloudIndex, u8, Claim)>| {
            shards.iter().any(|(_, _, it)| *it != Claim::Acknowledged)
        };
        u32::try_from(self.0.values().filter(lacks).count()).unwrap_or(u32::MAX)
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
        self.0.get_mut(&object)?.get_mut(usize::from(shard.0))
    }

    /// The clouds of the model's volume are those of its objects: a shard cannot go anywhere else,
    /// for each of the others has one already.
    fn replace(&mut self, placed: &PlacedShard, acknowledged: bool) -> Result<Done, Error> {
        let id = placed.object;
        if !self.0.contains_key(&id) {
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

    /// Whether a page of all objects can look like this.
    pub(super) fn shows(
        &self,
        after: Option<ObjectId>,
        limit: u32,
        objects: &[(ObjectId, Object)],
        more: bool,
    ) -> bool {
        let behind = self
            .0
            .iter()
            .filter(|(id, _)| after.is_none_or(|it| **id > it));
        let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
        let shown = objects.iter().map(|(id, row)| {
            let shards = row.shards.iter();
            let claims =
                shards.map(|it| (it.cloud, it.attempt, claim(it.acknowledged, it.withdrawn)));
            (*id, claims.collect::<Vec<_>>())
        });
        let expected = behind
            .clone()
            .take(limit)
            .map(|(id, row)| (*id, row.clone()));
        shown.eq(expected) && more == (behind.count() > limit)
    }
}
