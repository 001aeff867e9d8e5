//! The shared state of the block store's parts: clouds, codes, bounds and counters.

use super::clouds::{Cloud, Counters, Link, Notes, PlacementLog, Preference, Timeouts, Workers};
use super::object::{
    BlockError, Buffers, Code, Compression, HeaderBytes, PlainBuffers, Planted, Principals,
    Sabotage, ShardFault, StoredObject,
};
use super::read::{ConsistencyChecks, IndexCache, RebuiltCache};
use super::reconcile::{Compaction, InFlight, RepairBackoff, Repairs, ScrubReport};
use crate::keys::Sealing;
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind;
use quorumfs_metadata::identity::{CloudIndex, ObjectId, VolumeId};
use quorumfs_metadata::operation::PlacedShard;
use quorumfs_metadata::placement::Policy;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, Semaphore, mpsc};

/// How many names a shard is tried under before a writer gives up because all are taken.
const ATTEMPTS_MAX: u8 = 4;
/// Bytes of cached indexes of compressed slices: those of some thousand slices.
const INDEX_BYTES_MAX: usize = 1 << 20;

/// The configuration of a block store.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// The volume that everything is bound to.
    pub volume: VolumeId,
    /// How new objects are spread.
    pub policy: Policy,
    /// The most plain bytes in one block.
    pub block_bytes_max: u32,
    /// The most bytes that foreground reads and writes hold together.
    pub memory_bytes_max: usize,
    /// The most bytes of shards in flight after their writes have returned.
    pub background_bytes_max: usize,
    /// The most bytes that rebuilding objects holds.
    pub rebuild_bytes_max: usize,
    /// Bytes of rebuilt objects that are cached for the next read.
    pub rebuilt_bytes_max: usize,
    /// Bytes of buffers that are pooled for the next write and read.
    pub buffer_bytes_max: usize,
    /// Which clouds are asked first.
    pub preference: Preference,
    /// Deadlines and delays of requests to clouds.
    pub timeouts: Timeouts,
    /// Whether new slices are compressed.
    pub compression: Compression,
    /// Whether content is encrypted; see [`Sealing`].
    pub sealing: Sealing,
    /// Whether missing and bad shards are restored; not with read-only access.
    pub restores: bool,
    /// Where sealing and rebuilding run.
    pub workers: Workers,
    /// Whether and how sparse packs are compacted in the background.
    pub compaction: Option<Compaction>,
    /// A defect that a simulation has planted, to show that the tests find it.
    #[doc(hidden)]
    pub sabotage: Planted,
}

impl BlockConfig {
    /// The defaults for a volume.
    #[must_use]
    pub fn new(volume: VolumeId, policy: Policy) -> Self {
        Self {
            volume,
            policy,
            block_bytes_max: 4 << 20,
            memory_bytes_max: 192 << 20,
            background_bytes_max: 64 << 20,
            rebuild_bytes_max: 96 << 20,
            rebuilt_bytes_max: 64 << 20,
            buffer_bytes_max: 48 << 20,
            preference: Preference::default(),
            timeouts: Timeouts::default(),
            compression: Compression::Off,
            sealing: Sealing::On,
            restores: true,
            workers: Workers::Threads,
            compaction: None,
            sabotage: Planted::NONE,
        }
    }
}

/// A byte budget, counted in KiB so that it fits the semaphore.
#[derive(Debug)]
pub(super) struct ByteBudget {
    kib: Semaphore,
    most: u32,
}

impl ByteBudget {
    fn new(bytes: usize) -> Self {
        let most = u32::try_from(bytes >> 10)
            .unwrap_or(u32::MAX >> 4)
            .clamp(1, u32::MAX >> 4);
        Self {
            kib: Semaphore::new(most as usize),
            most,
        }
    }

    /// Waits until so many bytes are available. A request above the whole budget gets all of it.
    pub(super) async fn hold(
        &self,
        bytes: u64,
    ) -> Result<tokio::sync::SemaphorePermit<'_>, BlockError> {
        let kib = u32::try_from(bytes.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .min(self.most);
        self.kib
            .acquire_many(kib)
            .await
            .map_err(|_| BlockError::Shut)
    }
}

pub(super) struct Engine {
    pub(super) config: BlockConfig,
    pub(super) links: Vec<Arc<Link>>,
    /// Notified when one of them is suspended.
    pub(super) suspensions: Arc<Notify>,
    pub(super) log: Arc<dyn PlacementLog>,
    pub(super) counters: Counters,
    pub(super) memory: ByteBudget,
    pub(super) buffers: Buffers,
    pub(super) plain_buffers: PlainBuffers,
    /// Sealing keeps a core busy: at most one task for each core.
    pub(super) sealers: Arc<Semaphore>,
    /// The budget of objects that are being rebuilt. It is apart from `memory`, of which a reader
    /// that waits for a rebuild holds a part already.
    pub(super) rebuilds: ByteBudget,
    pub(super) rebuilt: RebuiltCache,
    /// The results of consistency checks.
    pub(super) consistency: ConsistencyChecks,
    pub(super) principals: Principals,
    pub(super) indexes: IndexCache,
    pub(super) in_flight: Mutex<InFlight>,
    pub(super) repairs: Repairs,
    /// Faults of clouds that await an order.
    pub(super) notes: Notes,
    pub(super) confirmations: mpsc::Sender<PlacedShard>,
    /// Placed shards that await their confirmation by order.
    pub(super) unconfirmed: AtomicUsize,
    /// Objects that the last sweep found under-replicated.
    pub(super) under_replicated: AtomicUsize,
    /// Held by the running sweep: a second one would repeat its work.
    pub(super) sweeping: tokio::sync::Mutex<()>,
    /// Sparse packs of the last round of compaction; held by the running round.
    pub(super) seen_sparse: tokio::sync::Mutex<BTreeSet<ObjectId>>,
    /// Their number.
    pub(super) sparse: AtomicUsize,
    /// Keeps a lying cloud from causing endless repairs.
    pub(super) repair_backoff: RepairBackoff,
    /// The report of the running or the last scrub.
    pub(super) scrub: Mutex<Option<ScrubReport>>,
    pub(super) shut: AtomicBool,
    codes: Mutex<BTreeMap<(u8, u8), Arc<Code>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn new(
        config: BlockConfig,
        clouds: &[Cloud],
        log: Arc<dyn PlacementLog>,
        confirmations: mpsc::Sender<PlacedShard>,
        repairs: Repairs,
    ) -> Result<Self, BlockError> {
        crate::blocks::object::check_processor()?;
        let indexes: BTreeSet<CloudIndex> = clouds.iter().map(|cloud| cloud.index).collect();
        if indexes.len() != clouds.len() {
            let reason = "two of them have the same index".to_owned();
            return Err(BlockError::Configuration { reason });
        }
        if clouds.len() != usize::from(config.policy.clouds()) {
            let reason = format!(
                "there are {} of them, and the policy spreads over {}",
                clouds.len(),
                config.policy.clouds()
            );
            return Err(BlockError::Configuration { reason });
        }
        let suspensions = Arc::new(Notify::new());
        let link = |cloud| Arc::new(Link::new(cloud, config.timeouts, &suspensions));
        // A read holds as many bytes as the block has, a write n / k times as many.
        let plain_bytes_max = config.buffer_bytes_max / 3;
        let engine = Self {
            links: clouds.iter().map(link).collect(),
            suspensions: Arc::clone(&suspensions),
            log,
            counters: Counters::default(),
            memory: ByteBudget::new(config.memory_bytes_max),
            buffers: Buffers::new(config.buffer_bytes_max - plain_bytes_max),
            plain_buffers: PlainBuffers::new(plain_bytes_max),
            sealers: Arc::new(Semaphore::new(config.workers.at_a_time())),
            rebuilds: ByteBudget::new(config.rebuild_bytes_max),
            rebuilt: RebuiltCache::new(config.rebuilt_bytes_max),
            consistency: ConsistencyChecks::default(),
            principals: Principals::default(),
            indexes: IndexCache::new(INDEX_BYTES_MAX),
            in_flight: Mutex::new(InFlight::new(config.background_bytes_max)),
            repairs,
            notes: Notes::default(),
            confirmations,
            unconfirmed: AtomicUsize::new(0),
            under_replicated: AtomicUsize::new(0),
            sweeping: tokio::sync::Mutex::new(()),
            seen_sparse: tokio::sync::Mutex::default(),
            sparse: AtomicUsize::new(0),
            repair_backoff: RepairBackoff::new(config.timeouts.completion),
            scrub: Mutex::default(),
            shut: AtomicBool::new(false),
            codes: Mutex::default(),
            config,
        };
        engine.code(config.policy)?;
        Ok(engine)
    }

    pub(super) fn is_sabotaged(&self, with: Sabotage) -> bool {
        self.config.sabotage.is(with)
    }

    pub(super) fn code(&self, policy: Policy) -> Result<Arc<Code>, BlockError> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (policy.clouds(), policy.data());
        if let Some(code) = codes.get(&key) {
            return Ok(Arc::clone(code));
        }
        let code = Arc::new(Code::new(policy)?);
        codes.insert(key, Arc::clone(&code));
        Ok(code)
    }

    pub(super) fn link(&self, index: CloudIndex) -> Option<&Arc<Link>> {
        self.links.iter().find(|link| link.index == index)
    }

    pub(super) fn link_of(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<&Arc<Link>, ShardFault> {
        let cloud = object.shard(shard).ok_or(ShardFault::Defect)?.cloud;
        self.link(cloud).ok_or(ShardFault::NoCloud(cloud.0))
    }

    /// Whether requests to a shard's cloud should be avoided now.
    pub(super) fn is_suspended(&self, object: &StoredObject, shard: usize) -> bool {
        self.link_of(object, shard)
            .map_or(true, |link| link.health.is_suspended())
    }

    /// The headers of all shards of an object, whether or not their clouds answer. The header for a
    /// cloud that is not configured cannot be made and matches nothing.
    pub(super) fn headers(&self, object: &StoredObject) -> Vec<HeaderBytes> {
        (0..object.shards().len())
            .map(|shard| {
                let link = self.link_of(object, shard).ok();
                let header = object.header(self.config.volume, shard);
                match (link, header) {
                    (Some(link), Some(header)) => header.encode(&link.keys),
                    _ => [0; crate::blocks::object::HEADER_BYTES as usize],
                }
            })
            .collect()
    }

    /// Puts a shard under the first of its names, from `attempt` on, that is free or already holds
    /// the same bytes. Create-only puts merely save a read here: every reader checks the bytes.
    pub(super) async fn place(
        &self,
        object: &StoredObject,
        shard: usize,
        body: Bytes,
        attempt: u8,
    ) -> Result<PlacedShard, ShardFault> {
        let link = self.link_of(object, shard)?;
        let mut last = ShardFault::Defect;
        for attempt in attempt..=attempt.saturating_add(ATTEMPTS_MAX - 1) {
            let named = object.named(shard, attempt);
            let mut placed = PlacedShard {
                object: object.id(),
                shard: named.shard,
                cloud: link.index,
                attempt,
                receipt: None,
            };
            match link.put(&named, body.clone()).await {
                Ok(receipt) => {
                    placed.receipt = receipt;
                    return Ok(placed);
                }
                Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::AlreadyExists => {
                    match link.get(&named, body.len() as u64).await {
                        Ok(found) if found == body => return Ok(placed),
                        Ok(_) => last = ShardFault::Store(error),
                        Err(ShardFault::Store(read)) if read.kind.concerns_the_cloud() => {
                            return Err(ShardFault::Store(read));
                        }
                        Err(fault) => last = fault,
                    }
                }
                Err(fault) => {
                    if let ShardFault::WrongReceipt { said, sent, .. } = &fault {
                        self.note_wrong_receipt(object, &named, link.index, (*said, *sent));
                    }
                    return Err(fault);
                }
            }
        }
        Err(last)
    }
}
