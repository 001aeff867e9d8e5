//! Gathering: k good shards of an object from any clouds that have them, and the object from those.
//!
//! The k most promising shards are requested at once. A bad, missing or failing one is followed by
//! the next at once, a slow one after its hedge delay, until k were checked against their digests
//! or no cloud is left. Background work does not hedge.

use super::Reads;
use crate::blocks::object::{BlockError, Failures, Rebuilt, Sabotage, ShardFault, StoredObject};
use quorumfs_metadata::placement::Shard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

impl Reads {
    /// Rebuilds an object from any k shards except those in `known`, whose faults have been
    /// counted. Those in `late` are overdue and are asked after all others.
    pub(in crate::blocks) async fn gather(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        late: &BTreeSet<usize>,
    ) -> Result<Rebuilt, BlockError> {
        let whole = |shard| (shard, object.layout().stored_length(shard as u64));
        let hedge = self
            .clouds
            .hedge_delay_of(object, (0..object.shards().len()).map(whole));
        self.gather_within(object, known, late, hedge).await
    }

    /// The same for background work: a slow cloud has until its deadline, so that no more than k
    /// shards are read.
    pub(in crate::blocks) async fn gather_unhedged(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
    ) -> Result<Rebuilt, BlockError> {
        let patience = self.clouds.config().timeouts.get.saturating_mul(2);
        self.gather_within(object, known, &BTreeSet::new(), patience)
            .await
    }

    /// The same, with those in `last` asked after all others.
    pub(in crate::blocks) async fn gather_with_last(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        last: &BTreeSet<usize>,
    ) -> Result<Rebuilt, BlockError> {
        let patience = self.clouds.config().timeouts.get.saturating_mul(2);
        self.gather_within(object, known, last, patience).await
    }

    async fn gather_within(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        late: &BTreeSet<usize>,
        patience: Duration,
    ) -> Result<Rebuilt, BlockError> {
        let k = object.layout().data();
        // The answers of k clouds, and of one more for a hedge.
        let held = object.layout().stored_length(0).saturating_mul(k + 1);
        let _memory = self.rebuilds.hold(held).await?;
        let wanted = usize::from(object.policy().data());
        let mut candidates: Vec<usize> = (0..object.shards().len())
            .filter(|shard| {
                !known
                    .iter()
                    .any(|(bad, fault)| bad == shard && fault.wants_repair())
            })
            .collect();
        candidates
            .sort_by_cached_key(|shard| (late.contains(shard), self.clouds.rank(object, *shard)));
        let mut candidates = candidates.into_iter();

        let mut payloads: Vec<Option<Vec<u8>>> = vec![None; object.shards().len()];
        let mut faults = known;
        let (mut good, mut replaced) = (0, 0);
        let mut fetches = JoinSet::new();
        let mut awaited = BTreeMap::new();
        let mut launch =
            |fetches: &mut JoinSet<_>, awaited: &mut BTreeMap<_, _>| match candidates.next() {
                None => false,
                Some(shard) => {
                    awaited.insert(shard, Instant::now());
                    let (reads, object) = (Arc::clone(self), Arc::clone(object));
                    fetches.spawn(async move { (shard, reads.fetch_whole(&object, shard).await) });
                    true
                }
            };
        while fetches.len() < wanted && launch(&mut fetches, &mut awaited) {}
        while good < wanted {
            tokio::select! {
                biased;
                done = fetches.join_next() => match done {
                    None => return Err(self.too_few_shards(object, good, wanted, &faults)),
                    Some(Ok((shard, Ok(payload)))) => {
                        awaited.remove(&shard);
                        if let Some(place) = payloads.get_mut(shard) {
                            *place = Some(payload);
                        }
                        good += 1;
                    }
                    Some(Ok((shard, Err(fault)))) => {
                        awaited.remove(&shard);
                        self.clouds.order_repair(object, shard, &fault);
                        faults.push((shard, fault));
                        replaced += u64::from(launch(&mut fetches, &mut awaited));
                    }
                    Some(Err(_)) => faults.push((usize::MAX, ShardFault::Defect)),
                },
                () = tokio::time::sleep(patience) => {
                    for (shard, begin) in std::mem::take(&mut awaited) {
                        self.clouds.are_overdue(object, begin, std::iter::once(shard));
                    }
                    replaced += u64::from(launch(&mut fetches, &mut awaited));
                }
            }
        }
        fetches.abort_all();
        for (shard, fault) in faults {
            if fault.claims_newer() {
                let fault = fault.disproved();
                self.clouds.note_fault(object, shard, &fault, None);
                self.clouds.order_repair(object, shard, &fault);
            }
        }
        self.clouds.counters().shards_replaced.add(replaced);
        self.clouds.counters().objects_rebuilt.add(1);
        let (headers, code) = (
            self.clouds.headers(object),
            self.clouds.code(object.policy())?,
        );
        let (object, checked) = (Arc::clone(object), Arc::clone(object));
        let unverified = self.clouds.is_sabotaged(Sabotage::ParityBelieved);
        let rebuild = move || Rebuilt::new(&object, &code, &headers, payloads, unverified);
        let rebuilt = self.clouds.config().workers.run(rebuild).await?;
        self.accept_rebuilt(&checked, rebuilt).await
    }

    /// The rebuilt object, if its reader may have it. Wrong parity does not keep a principal from
    /// its own object; it keeps all others from all of it.
    async fn accept_rebuilt(
        &self,
        object: &StoredObject,
        rebuilt: Result<Rebuilt, BlockError>,
    ) -> Result<Rebuilt, BlockError> {
        let wrong = match &rebuilt {
            Ok(rebuilt) => rebuilt.wrong_parity.first().copied(),
            Err(BlockError::WrittenWrong { shard, .. }) => Some(*shard),
            Err(_) => return rebuilt,
        };
        self.record_check(object, wrong).await;
        let rebuilt = match rebuilt {
            Ok(rebuilt) => rebuilt,
            Err(error) => {
                self.clouds.counters().written_wrong.add(1);
                return Err(error);
            }
        };
        self.clouds
            .counters()
            .written_wrong
            .add(rebuilt.wrong_parity.len() as u64);
        let skips_check = self
            .clouds
            .is_sabotaged(Sabotage::ForeignDataShardsBelieved);
        match wrong {
            Some(shard) if !skips_check && !self.is_own(object).await => {
                Err(BlockError::WrittenWrong {
                    object: object.id(),
                    writer: object.writer(),
                    shard,
                })
            }
            _ => Ok(rebuilt),
        }
    }

    /// Chooses the error: a newer format only if more clouds claim it than may lie.
    fn too_few_shards(
        &self,
        object: &StoredObject,
        good: usize,
        wanted: usize,
        faults: &[(usize, ShardFault)],
    ) -> BlockError {
        let newer: Vec<u16> = faults
            .iter()
            .filter_map(|(_, fault)| fault.newer())
            .collect();
        if newer.len() > usize::from(object.policy().faulty())
            && let Some(format) = newer.iter().copied().min()
        {
            return BlockError::NewerFormat {
                object: object.id(),
                format,
            };
        }
        let failures = Failures(faults.iter().map(|(_, fault)| fault.to_string()).collect());
        // Of the clouds that are recorded as having acknowledged a shard, f may lie about it.
        let denied: BTreeSet<usize> = faults
            .iter()
            .filter(|(shard, fault)| {
                fault.wants_repair() && object.shard(*shard).is_some_and(Shard::is_claimed)
            })
            .map(|(shard, _)| *shard)
            .collect();
        let faulty = usize::from(object.policy().faulty());
        // A suspended cloud may have been asked later: its answer counts.
        let last: BTreeMap<usize, &ShardFault> = faults
            .iter()
            .map(|(shard, fault)| (*shard, fault))
            .collect();
        let passing = last.values().filter(|fault| fault.is_passing()).count();
        BlockError::TooFewShards {
            object: object.id(),
            good,
            wanted,
            passing: good + passing >= wanted,
            writer: (denied.len() > faulty).then(|| object.writer()),
            failures,
        }
    }
}
