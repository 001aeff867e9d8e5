//! Capsules, and what is forgotten while there are some.
//!
//! When a capsule is ordered the model writes down which objects some file needs, and that list is
//! what it judges by: it knows of no points. It is told the time of each batch, and of each tick.
//! A pack that no file needs then, and that comes back to life later, is retained too: the servers
//! do not remember that it was idle.
//!
//! All capsules are of the root directory, by the superuser and the first principal.

use super::Model;
use crate::error::Error;
use crate::identity::{
    AllocationId, InodeId, ObjectId, PrincipalNumber, RealmEpoch, ShareId, SliceId, Uid,
};
use crate::limits::{CAPSULE_SECONDS_MAX, MANIFEST_OBJECTS_MAX};
use crate::operation::{NewShareWith, Operation};
use crate::reply::{Done, ListedShare, QueryResult, Response};
use crate::row::{Sealed, Share, ShareWith};
use quorumfs_bft::identity::{Nanos, Sequence, Time};
use std::collections::{BTreeMap, BTreeSet};

/// The capsules that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Capsules {
    /// The batch of the next operation; `None`: the model knows no time, and judges none of this.
    batch: Option<(Sequence, Time)>,
    live: BTreeMap<ShareId, Capsule>,
    /// The number of the last one.
    last: u64,
    /// Allocations under which a commit may name an object again.
    open: BTreeSet<AllocationId>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Capsule {
    manifest: Vec<ObjectId>,
    needs: BTreeSet<ObjectId>,
    idle: BTreeSet<ObjectId>,
    begun: (Sequence, Time),
    expires: Time,
}

impl Capsules {
    /// Objects that have got a slice.
    pub(super) fn came_back(&mut self, objects: impl Iterator<Item = ObjectId>) {
        for id in objects {
            for capsule in self.live.values_mut() {
                if capsule.idle.remove(&id) {
                    capsule.needs.insert(id);
                }
            }
        }
    }
}

/// The place of a capsule.
pub(crate) fn place() -> Sealed {
    Sealed {
        epoch: RealmEpoch(0),
        bytes: b"place".to_vec(),
    }
}

impl Model {
    /// A model of a service with capsules, to be told the times of all batches and ticks.
    #[must_use]
    pub fn with_capsules() -> Self {
        let mut model = Self::default();
        model.capsules.batch = Some((Sequence(0), Time(0)));
        model
    }

    /// Says which batch the next operation is in.
    pub fn next_batch(&mut self, sequence: Sequence, time: Time) {
        if let Some(batch) = &mut self.capsules.batch {
            *batch = (sequence, time);
        }
    }

    /// A tick has done what was due at this time.
    pub fn ticked(&mut self, time: Time) {
        let capsules = &mut self.capsules.live;
        capsules.retain(|_, capsule| capsule.expires > time);
    }

    /// Applies an operation that is not a compound, and returns whether the answer is possible.
    pub(super) fn about_objects(&mut self, operation: &Operation, answer: Option<&[u8]>) -> bool {
        let live_slices = self.live_slices();
        let judged = self.capsules.batch;
        let expected = judged.and_then(|batch| self.outcome(batch, operation, &live_slices));
        let Some(expected) = expected else {
            if judged.is_some()
                && let Some(Ok(Response(Ok(done)))) = answer.map(Response::from_bytes)
                && let Done::Allocated { allocation, .. } = done
            {
                self.capsules.open.insert(allocation);
            }
            let possible = self.shards.execute(operation, &live_slices, answer);
            if judged.is_some() {
                let needed = self.shards.needed(&live_slices);
                let needed = needed.filter(|(_, is)| *is).map(|(id, _)| id);
                self.capsules.came_back(needed);
            }
            return possible;
        };
        match answer.map(Response::from_bytes) {
            None => true,
            Some(Ok(response)) => response.0.map_err(|refusal| refusal.error) == expected,
            Some(Err(_)) => false,
        }
    }

    /// What an operation on capsules, or on what they retain, leads to; `None` if it is another.
    fn outcome(
        &mut self,
        (sequence, now): (Sequence, Time),
        operation: &Operation,
        live_slices: &BTreeSet<SliceId>,
    ) -> Option<Result<Done, Error>> {
        let capsules = &mut self.capsules;
        Some(match operation {
            Operation::Share(new) => {
                let NewShareWith::Capsule { manifest } = &new.with else {
                    return None;
                };
                let latest = now.plus(Nanos::from_secs(CAPSULE_SECONDS_MAX));
                let expires = new.expires.filter(|at| now < *at && *at <= latest);
                let (Some(expires), false) = (expires, manifest.is_empty()) else {
                    return Some(Err(Error::Invalid));
                };
                if manifest.len() > MANIFEST_OBJECTS_MAX {
                    let limit = u32::try_from(MANIFEST_OBJECTS_MAX).unwrap_or(u32::MAX);
                    return Some(Err(Error::TooMany { limit }));
                }
                let (mut needs, mut idle) = (BTreeSet::new(), BTreeSet::new());
                for (id, is_needed) in self.shards.needed(live_slices) {
                    match is_needed {
                        true => needs.insert(id),
                        false => idle.insert(id),
                    };
                }
                if let Some(lost) = manifest.iter().find(|id| !needs.contains(id)) {
                    return Some(Err(Error::NoObject(*lost)));
                }
                capsules.last = capsules.last.saturating_add(1);
                let id = ShareId(capsules.last);
                let capsule = Capsule {
                    manifest: manifest.clone(),
                    needs,
                    idle,
                    begun: (sequence, now),
                    expires,
                };
                capsules.live.insert(id, capsule);
                Ok(Done::Shared { id })
            }
            Operation::EndShare(asked) => match capsules.live.remove(&asked.id) {
                Some(_) => Ok(Done::ShareEnded),
                None => Err(Error::NotFound),
            },
            Operation::ForgetShare(asked) => match capsules.live.contains_key(&asked.id) {
                true => Err(Error::Changed),
                false => Err(Error::NotFound),
            },
            Operation::CloseAllocation { allocation } => {
                capsules.open.remove(allocation);
                Ok(Done::AllocationClosed)
            }
            Operation::Forget { objects } => {
                let named: BTreeSet<_> = objects.iter().copied().collect();
                let garbage: Vec<_> = self
                    .garbage(live_slices)
                    .filter(|(id, open, retained)| named.contains(id) && !open && !retained)
                    .map(|(id, _, _)| id)
                    .collect();
                for id in &garbage {
                    self.shards.forget(*id);
                }
                let objects = u32::try_from(garbage.len()).unwrap_or(u32::MAX);
                Ok(Done::Forgotten { objects })
            }
            _ => return None,
        })
    }

    /// Each object that no file needs: whether its allocation is open, and whether a capsule
    /// retains it.
    fn garbage(
        &self,
        live_slices: &BTreeSet<SliceId>,
    ) -> impl Iterator<Item = (ObjectId, bool, bool)> {
        let capsules = &self.capsules;
        let idle = self.shards.needed(live_slices).filter(|(_, is)| !is);
        idle.map(|(id, _)| {
            let mut all = capsules.live.values();
            let retained = all.any(|capsule| capsule.needs.contains(&id));
            (id, capsules.open.contains(&id.allocation), retained)
        })
    }

    /// Whether all shares, or all objects that nothing refers to, are these.
    pub(super) fn shows_capsules(&self, answer: &QueryResult) -> bool {
        match answer {
            QueryResult::Shares { shares, next: None } => {
                let capsules = self.capsules.live.iter();
                capsules.map(|(id, it)| listed(*id, it)).eq(shares.clone())
            }
            QueryResult::Unreferenced {
                objects,
                more: false,
            } => {
                let shown = objects.iter();
                let shown = shown.map(|it| (it.object, it.open, it.retained));
                self.garbage(&self.live_slices()).eq(shown)
            }
            _ => false,
        }
    }
}

fn listed(id: ShareId, capsule: &Capsule) -> ListedShare {
    let (point, created) = capsule.begun;
    ListedShare {
        id,
        share: Share {
            by: PrincipalNumber(0),
            uid: Uid::ROOT,
            inode: InodeId::ROOT,
            with: ShareWith::Capsule {
                manifest: capsule.manifest.clone(),
                point,
            },
            expires: Some(capsule.expires),
            created,
            ended: false,
            place: place(),
        },
        exists: true,
    }
}
