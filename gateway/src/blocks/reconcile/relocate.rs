//! Relocation: the shards of one object that lie on clouds which take nothing new move to clouds
//! that do.
//!
//! ```text
//!   plan      each shard that is not on an active cloud gets one that the object does not use
//!     │       the acknowledged first; no more than t of an object are put
//!     ▼
//!   bytes     the replaced cloud answers, quickly and truly: its shard, proved    (1 read)
//!     │       otherwise: rebuilt from k others, its own shard asked last          (k reads)
//!     ▼
//!   put       under the next attempt's name on the new cloud
//!     ▼
//!   a move    to be ordered; until then the old place counts
//! ```
//!
//! Invariants:
//! * **A shard that moves keeps its bytes**: what is put has the digest of the row. If the bytes
//!   that were rebuilt have not, the writer is at fault, and nothing is put.
//! * **No more than k shards of an object are read**, whatever the replaced cloud does: one that
//!   gave a wrong answer once is not asked again, except for objects that lack other shards.
//! * A crash between the put and the order leaves a shard that the next try finds and takes.
//!
//! An object whose writer is at fault has no content that could be rebuilt. Shards of it that the
//! replaced cloud still gives move as they are, since they convict the writer. The places of the
//! others are exchanged without a put, so that no writer can keep a cloud from being retired. What
//! was claimed about those stays claimed, as withdrawn: a replaced cloud takes no conviction away.
//! The place of a shard that is not needed, since enough others are kept, is exchanged without any
//! claim: nothing about it speaks against its writer.

use super::Reconciler;
use super::completion::Completed;
use super::repair::ATTEMPTS_MAX;
use super::throttle::Throttle;
use crate::blocks::clouds::Exchange;
use crate::blocks::object::{ShardBytes, ShardFault, StoredObject, assemble};
use quorumfs_metadata::fleet::{CloudState, Fleet};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::operation::{PlacedShard, ShardMove};
use quorumfs_metadata::placement::{MovedClaim, Shard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many times slower than the others a replaced cloud may be and still be asked for its shards.
const SLOWER_MAX: u32 = 4;
/// An answer that usually comes within this time is quick, however quick the others are.
const QUICK: Duration = Duration::from_millis(50);

/// A shard that has to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Relocation {
    /// The shard.
    pub(super) shard: usize,
    /// Its new cloud.
    pub(super) to: CloudIndex,
    /// Whether it is put there; otherwise enough other shards are kept.
    pub(super) is_put: bool,
}

/// The shards of an object that lie on clouds which take nothing new, each with a new cloud that
/// the object does not use yet.
pub(super) fn plan(shards: &[Shard], target: usize, fleet: &Fleet) -> Vec<Relocation> {
    let is_active = |shard: &Shard| fleet.state(shard.cloud) == CloudState::Active;
    let uses = |cloud: CloudIndex| shards.iter().any(|shard| shard.cloud == cloud);
    let free = fleet.active.iter().copied().filter(|cloud| !uses(*cloud));
    let mut leaving: Vec<(usize, &Shard)> = shards
        .iter()
        .enumerate()
        .filter(|(_, shard)| !is_active(shard))
        .collect();
    leaving.sort_by_key(|(index, shard)| (!shard.acknowledged, *index));
    let there = shards.iter().filter(|it| it.acknowledged && is_active(it));
    let lacking = target.saturating_sub(there.count());
    let placed = leaving.into_iter().zip(free).enumerate();
    placed
        .map(|(turn, ((shard, _), to))| Relocation {
            shard,
            to,
            is_put: turn < lacking,
        })
        .collect()
}

/// The bytes of shards that leave their clouds.
#[derive(Default)]
struct Bodies {
    made: BTreeMap<usize, ShardBytes>,
    /// The writer is at fault: the others cannot be made.
    is_poisoned: bool,
}

/// The moves of an object, to be ordered together, and what is left of it.
pub(super) struct Relocated {
    pub(super) moves: Vec<ShardMove>,
    pub(super) outcome: Completed,
}

impl Reconciler {
    /// The shards of an object that have to move.
    pub(super) fn relocations(&self, object: &StoredObject) -> Vec<Relocation> {
        let target = usize::from(object.policy().target());
        let attached = self.clouds.attached();
        plan(object.shards(), target, attached.fleet())
    }

    /// Puts the shards of an object that have to move on their new clouds. The shards in `known`
    /// were just found missing or bad.
    pub(super) async fn relocate(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: &[(usize, ShardFault)],
        throttle: &Throttle,
    ) -> Relocated {
        let mut relocated = Relocated {
            moves: Vec::new(),
            outcome: Completed::Whole,
        };
        let plan = self.relocations(object);
        let (puts, rest): (Vec<_>, Vec<_>) = plan.into_iter().partition(|it| it.is_put);
        let unput = |it: &Relocation, claim| unput(object, it, claim);
        let unneeded = rest.iter().filter_map(|it| unput(it, MovedClaim::Awaited));
        relocated.moves.extend(unneeded);
        let mut ready = Vec::new();
        for it in puts {
            let mut moved = StoredObject::clone(object);
            moved.relocate(it.shard, it.to);
            let attempt = moved
                .shard(it.shard)
                .map_or(ATTEMPTS_MAX, |row| row.attempt);
            let is_allowed = self.repair_backoff.allows(object.id(), it.shard);
            if attempt >= ATTEMPTS_MAX || !is_allowed {
                relocated.outcome = relocated.outcome.max(Completed::Lacking);
            } else if self.clouds.is_suspended(&moved, it.shard) {
                relocated.outcome = relocated.outcome.max(Completed::Unreachable);
            } else {
                ready.push((it, moved, attempt));
            }
        }
        let shards: Vec<usize> = ready.iter().map(|(it, ..)| it.shard).collect();
        let mut bodies = match self.bodies(object, &shards, known, throttle).await {
            Ok(bodies) => bodies,
            Err(why) => {
                relocated.outcome = relocated.outcome.max(why);
                return relocated;
            }
        };
        for (it, moved, attempt) in ready {
            let (Some(made), Some(row)) = (bodies.made.remove(&it.shard), object.shard(it.shard))
            else {
                let exchanged = unput(&it, MovedClaim::Denied).filter(|_| bodies.is_poisoned);
                relocated.moves.extend(exchanged);
                continue;
            };
            throttle.pass(made.body.len() as u64).await;
            match self
                .clouds
                .place(&moved, it.shard, made.body, attempt)
                .await
            {
                Ok(placed) => relocated.moves.push(ShardMove {
                    from: row.cloud,
                    from_attempt: row.attempt,
                    to: placed,
                    claim: MovedClaim::Acknowledged,
                }),
                Err(fault) => {
                    let (object, shard) = (object.id(), it.shard);
                    tracing::warn!(%object, shard, %fault, "a shard is not moved");
                    relocated.outcome = relocated.outcome.max(Completed::Unreachable);
                }
            }
        }
        relocated
    }

    /// The bytes of some shards of an object that leave their clouds.
    async fn bodies(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        shards: &[usize],
        known: &[(usize, ShardFault)],
        throttle: &Throttle,
    ) -> Result<Bodies, Completed> {
        let mut bodies = Bodies::default();
        let mut known = known.to_vec();
        let stored = object.layout().stored_length(0);
        let copied: Vec<usize> = shards
            .iter()
            .copied()
            .filter(|shard| self.is_copied(object, *shard, &known))
            .collect();
        // From k of them on, rebuilding is no dearer.
        if copied.len() < usize::from(object.policy().data()) {
            for shard in copied {
                throttle.pass(stored).await;
                match self.copy(object, shard).await {
                    Ok(made) => drop(bodies.made.insert(shard, made)),
                    Err(fault) => known.push((shard, fault)),
                }
            }
        }
        let rest: Vec<usize> = shards
            .iter()
            .copied()
            .filter(|shard| !bodies.made.contains_key(shard))
            .collect();
        if rest.is_empty() {
            return Ok(bodies);
        }
        throttle
            .pass(stored.saturating_mul(object.layout().data()))
            .await;
        let last: BTreeSet<usize> = (0..object.shards().len())
            .filter(|shard| self.leaves(object, *shard))
            .collect();
        let untried: Vec<usize> = rest
            .iter()
            .copied()
            .filter(|shard| known.iter().all(|(bad, _)| bad != shard))
            .collect();
        let gathered = self.reads.gather_with_last(object, known, &last).await;
        let rebuilt = match gathered {
            Ok(rebuilt) => rebuilt,
            Err(error) if error.writer().is_some() => {
                for shard in untried {
                    throttle.pass(stored).await;
                    if let Ok(made) = self.copy(object, shard).await {
                        bodies.made.insert(shard, made);
                    }
                }
                bodies.is_poisoned = true;
                return Ok(bodies);
            }
            Err(error) => {
                let error = self.reads.named(error).await;
                tracing::warn!(%error, "the shards of an object cannot be moved now");
                let suspended = |shard| self.clouds.is_suspended(object, shard);
                if (0..object.shards().len()).any(suspended) {
                    return Err(Completed::Lacking);
                }
                for shard in rest {
                    self.repair_backoff.tried(object.id(), shard);
                }
                return Err(Completed::Lost);
            }
        };
        let headers = self.clouds.headers(object);
        for shard in rest {
            let (Some(header), Some(digest)) = (headers.get(shard), object.digest(shard)) else {
                continue;
            };
            let made = rebuilt.shard(shard, header, self.clouds.buffers());
            if made.digest != *digest {
                self.clouds.counters().written_wrong.add(1);
                bodies.is_poisoned = true;
                continue;
            }
            bodies.made.insert(shard, made);
        }
        Ok(bodies)
    }

    /// Whether a shard lies on a cloud that takes nothing new.
    pub(super) fn leaves(&self, object: &StoredObject, shard: usize) -> bool {
        let attached = self.clouds.attached();
        let row = object.shard(shard);
        row.is_some_and(|row| attached.fleet().state(row.cloud) != CloudState::Active)
    }

    /// Whether a shard's own cloud is asked for it.
    fn is_copied(
        &self,
        object: &StoredObject,
        shard: usize,
        known: &[(usize, ShardFault)],
    ) -> bool {
        let acknowledged = object.shard(shard).is_some_and(|row| row.acknowledged);
        let is_known = known.iter().any(|(bad, _)| *bad == shard);
        let Ok(link) = self.clouds.link_of(object, shard) else {
            return false;
        };
        let whole = Exchange::Get(object.layout().stored_length(shard as u64));
        let others = (0..object.shards().len()).filter(|other| !self.leaves(object, *other));
        let usual = others.filter_map(|other| {
            let link = self.clouds.link_of(object, other).ok()?;
            Some(link.health.usual(whole))
        });
        let slowest = usual.max().unwrap_or_default();
        let patience = slowest.saturating_mul(SLOWER_MAX).max(QUICK);
        acknowledged
            && !is_known
            && link.health.is_trusted()
            && link.refused.get() == 0
            && link.health.usual(whole) <= patience
    }

    /// A shard from its own cloud, proved.
    async fn copy(&self, object: &StoredObject, shard: usize) -> Result<ShardBytes, ShardFault> {
        let payload = self.reads.fetch_whole(object, shard).await?;
        let header = self.clouds.header(object, shard)?;
        let buffers = self.clouds.buffers();
        let index = shard as u64;
        let made = assemble(object.layout(), index, &header, &payload, buffers);
        match object.digest(shard) {
            Some(digest) if *digest == made.digest => Ok(made),
            _ => Err(ShardFault::Defect),
        }
    }
}

/// The exchange of a shard's place without a put.
fn unput(object: &StoredObject, it: &Relocation, claim: MovedClaim) -> Option<ShardMove> {
    let row = object.shard(it.shard)?;
    let placed = object.placed(it.shard)?;
    Some(ShardMove {
        from: row.cloud,
        from_attempt: row.attempt,
        to: PlacedShard {
            cloud: it.to,
            attempt: row.attempt.checked_add(1)?,
            ..placed
        },
        claim,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::Digest;

    /// Shards on these clouds, acknowledged if so marked.
    fn shards(on: &[(u8, bool)]) -> Vec<Shard> {
        let shard = |(cloud, acknowledged): &(u8, bool)| Shard {
            digest: Digest([0; 32]),
            cloud: CloudIndex(*cloud),
            attempt: 0,
            acknowledged: *acknowledged,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        };
        on.iter().map(shard).collect()
    }

    fn fleet(active: [u8; 4], former: &[u8]) -> Fleet {
        Fleet {
            active: active.map(CloudIndex).to_vec(),
            former: former.iter().copied().map(CloudIndex).collect(),
            ..Fleet::default()
        }
    }

    fn planned(on: &[(u8, bool)], target: usize, fleet: &Fleet) -> Vec<(usize, u8, bool)> {
        let plan = plan(&shards(on), target, fleet);
        plan.iter()
            .map(|it| (it.shard, it.to.0, it.is_put))
            .collect()
    }

    const GOOD: bool = true;
    const AWAITED: bool = false;

    #[test]
    fn a_shard_goes_to_an_active_cloud_that_its_object_does_not_use() {
        let one = fleet([4, 1, 2, 3], &[0]);
        let all = [(0, GOOD), (1, GOOD), (2, GOOD), (3, GOOD)];
        assert_eq!(planned(&all, 4, &one), [(0, 4, true)]);
        let new = [(4, GOOD), (1, GOOD), (2, GOOD), (3, GOOD)];
        assert_eq!(planned(&new, 4, &one), []);
        // Replaced twice in a row, and back again: an object may use the cloud already.
        let twice = fleet([5, 0, 2, 3], &[1, 4]);
        assert_eq!(planned(&all, 4, &twice), [(1, 5, true)]);
        let mixed = [(4, GOOD), (1, GOOD), (2, GOOD), (3, GOOD)];
        assert_eq!(planned(&mixed, 4, &twice), [(0, 5, true), (1, 0, true)]);
    }

    #[test]
    fn no_more_shards_are_put_than_are_kept_and_the_acknowledged_are_first() {
        let two = fleet([4, 5, 2, 3], &[0, 1]);
        let some = [(0, AWAITED), (1, GOOD), (2, GOOD), (3, GOOD)];
        assert_eq!(planned(&some, 3, &two), [(1, 4, true), (0, 5, false)]);
        assert_eq!(planned(&some, 4, &two), [(1, 4, true), (0, 5, true)]);
        let enough = [(0, AWAITED), (4, GOOD), (2, GOOD), (3, GOOD)];
        assert_eq!(planned(&enough, 3, &two), [(0, 5, false)]);
    }
}
