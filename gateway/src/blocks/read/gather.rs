//! Gathering: k good shards of an object from any clouds that have them, and the object from those.
//!
//! The k most promising shards are requested at once. A bad, missing or failing one is followed by
//! the next at once, a slow one after its hedge delay, until k were checked against their digests
//! or no cloud is left. Background work does not hedge.

use crate::blocks::clouds::{Exchange, comparable};
use crate::blocks::engine::Engine;
use crate::blocks::object::{
    BlockError, Failures, HeaderBytes, Rebuilt, Sabotage, ShardFault, StoredObject, cells_range,
    check_cells, check_whole, unchecked,
};
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::placement::{Receipt, Shard};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

impl Engine {
    fn header(&self, object: &StoredObject, shard: usize) -> Result<HeaderBytes, ShardFault> {
        let link = self.link_of(object, shard)?;
        let header = object
            .header(self.config.volume, shard)
            .ok_or(ShardFault::Defect)?;
        Ok(header.encode(&link.keys))
    }

    /// Counts a fault, and leaves a note of it; `found` is the checksum of the answer.
    fn count_fault(
        &self,
        object: &StoredObject,
        shard: usize,
        fault: &ShardFault,
        found: Option<Receipt>,
    ) {
        self.note_fault(object, shard, fault, found);
        if fault.is_refused() {
            self.counters.shards_refused.add(1);
            if let Ok(link) = self.link_of(object, shard) {
                link.refused.add(1);
            }
        }
        if matches!(fault, ShardFault::Store(error) if error.kind == StoreErrorKind::NotFound) {
            self.counters.shards_missing.add(1);
        }
    }

    /// Whether these are the bytes of a shard.
    pub(in crate::blocks) fn is_shard(
        &self,
        object: &StoredObject,
        shard: usize,
        body: &[u8],
    ) -> bool {
        let layout = object.layout();
        let header = self.header(object, shard).ok();
        let proved = header
            .zip(object.digest(shard))
            .and_then(|(header, digest)| check_whole(layout, shard as u64, &header, digest, body));
        proved.is_some()
    }

    /// Fetches one whole shard and checks it; returns its payload.
    pub(in crate::blocks) async fn fetch_whole(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<Vec<u8>, ShardFault> {
        let mut found = None;
        let result = async {
            let link = self.link_of(object, shard)?;
            let row = object.shard(shard).ok_or(ShardFault::Defect)?;
            let named = object.named(shard, row.attempt);
            let header = self.header(object, shard)?;
            let layout = object.layout();
            let body = link.get(&named, layout.stored_length(shard as u64)).await?;
            if self.is_sabotaged(Sabotage::DigestCheckedAfterDecode)
                && let Some(payload) = unchecked(layout, shard as u64, &body)
            {
                return Ok(payload);
            }
            check_whole(layout, shard as u64, &header, &row.digest, &body).ok_or_else(|| {
                found = row.acknowledged.then(|| comparable(row.receipt, &body));
                link.refuse(&named, &body)
            })
        };
        let result = result.await;
        result.inspect_err(|fault| self.count_fault(object, shard, fault, found))
    }

    /// Asks whether a shard is there with its right length.
    pub(in crate::blocks) async fn fetch_length(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<(), ShardFault> {
        let result = async {
            let link = self.link_of(object, shard)?;
            let row = object.shard(shard).ok_or(ShardFault::Defect)?;
            let named = object.named(shard, row.attempt);
            let length = link.head(&named).await?;
            if length == object.layout().stored_length(shard as u64) {
                Ok(())
            } else {
                Err(link.refuse(&named, &[]))
            }
        };
        let count = |fault: &ShardFault| self.count_fault(object, shard, fault, None);
        result.await.inspect_err(count)
    }

    /// Fetches the cells of some rows of one shard and checks them.
    pub(in crate::blocks) async fn fetch_cells(
        &self,
        object: &StoredObject,
        shard: usize,
        rows: Range<u64>,
    ) -> Result<Vec<Bytes>, ShardFault> {
        let result = async {
            let link = self.link_of(object, shard)?;
            let row = object.shard(shard).ok_or(ShardFault::Defect)?;
            let named = object.named(shard, row.attempt);
            let header = self.header(object, shard)?;
            let layout = object.layout();
            let range = cells_range(layout, shard as u64, &rows);
            let bytes = link.get_range(&named, range).await?;
            check_cells(layout, shard as u64, &rows, &header, &row.digest, &bytes)
                .ok_or_else(|| link.refuse(&named, &[]))
        };
        let count = |fault: &ShardFault| self.count_fault(object, shard, fault, None);
        result.await.inspect_err(count)
    }

    /// The longest hedge delay of these shards, for so many bytes of each.
    pub(in crate::blocks) fn hedge_delay_of(
        &self,
        object: &StoredObject,
        wanted: impl Iterator<Item = (usize, u64)>,
    ) -> Duration {
        let delays = wanted.map(|(shard, bytes)| {
            let link = self.link_of(object, shard);
            link.map_or(self.config.timeouts.hedge_min, |link| {
                link.health.hedge_delay(Exchange::Get(bytes))
            })
        });
        delays.max().unwrap_or(self.config.timeouts.hedge_min)
    }

    /// Marks these shards as overdue: requested at `begin`, and now requested elsewhere too.
    pub(in crate::blocks) fn are_overdue(
        &self,
        object: &StoredObject,
        begin: Instant,
        shards: impl Iterator<Item = usize>,
    ) {
        for shard in shards {
            if let Ok(link) = self.link_of(object, shard) {
                link.health.overdue(begin);
            }
        }
    }

    /// Rebuilds an object from any k shards except those in `known`, whose faults have been
    /// counted. Those in `late` are overdue and are asked after all others.
    pub(in crate::blocks) async fn gather(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
        late: &BTreeSet<usize>,
    ) -> Result<Rebuilt, BlockError> {
        let whole = |shard| (shard, object.layout().stored_length(shard as u64));
        let hedge = self.hedge_delay_of(object, (0..object.shards().len()).map(whole));
        self.gather_within(object, known, late, hedge).await
    }

    /// The same for background work: a slow cloud has until its deadline, so that no more than k
    /// shards are read.
    pub(in crate::blocks) async fn gather_unhedged(
        self: &Arc<Self>,
        object: &Arc<StoredObject>,
        known: Vec<(usize, ShardFault)>,
    ) -> Result<Rebuilt, BlockError> {
        let patience = self.config.timeouts.get.saturating_mul(2);
        self.gather_within(object, known, &BTreeSet::new(), patience)
            .await
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
        candidates.sort_by_cached_key(|shard| (late.contains(shard), self.rank(object, *shard)));
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
                    let (engine, object) = (Arc::clone(self), Arc::clone(object));
                    fetches.spawn(async move { (shard, engine.fetch_whole(&object, shard).await) });
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
                        self.order_repair(object, shard, &fault);
                        faults.push((shard, fault));
                        replaced += u64::from(launch(&mut fetches, &mut awaited));
                    }
                    Some(Err(_)) => faults.push((usize::MAX, ShardFault::Defect)),
                },
                () = tokio::time::sleep(patience) => {
                    for (shard, begin) in std::mem::take(&mut awaited) {
                        self.are_overdue(object, begin, std::iter::once(shard));
                    }
                    replaced += u64::from(launch(&mut fetches, &mut awaited));
                }
            }
        }
        fetches.abort_all();
        for (shard, fault) in faults {
            if fault.claims_newer() {
                let fault = fault.disproved();
                self.note_fault(object, shard, &fault, None);
                self.order_repair(object, shard, &fault);
            }
        }
        self.counters.shards_replaced.add(replaced);
        self.counters.objects_rebuilt.add(1);
        let (headers, code) = (self.headers(object), self.code(object.policy())?);
        let (object, checked) = (Arc::clone(object), Arc::clone(object));
        let unverified = self.is_sabotaged(Sabotage::ParityBelieved);
        let rebuild = move || Rebuilt::new(&object, &code, &headers, payloads, unverified);
        let rebuilt = self.config.workers.run(rebuild).await?;
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
                self.counters.written_wrong.add(1);
                return Err(error);
            }
        };
        self.counters
            .written_wrong
            .add(rebuilt.wrong_parity.len() as u64);
        let skips_check = self.is_sabotaged(Sabotage::ForeignDataShardsBelieved);
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
        let is_claimed = |row: &Shard| row.acknowledged || row.withdrawn;
        let denied: BTreeSet<usize> = faults
            .iter()
            .filter(|(shard, fault)| {
                fault.wants_repair() && object.shard(*shard).is_some_and(is_claimed)
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
