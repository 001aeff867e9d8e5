//! The clouds of a volume, and what all wings above share.
//!
//! [`Clouds`] has a [`Link`] to each cloud: the cloud's keys, its health, its latencies. It answers
//! questions about them (which is suspended, which is asked first, when a request is late), puts a
//! shard under a free name, and has the bounds of memory, the codes and the counters. It decides
//! nothing about objects: what is written, read or restored is the matter of the wings above.
//!
//! ```text
//!   write ─┐   place, put_delay        ┌─► Link ─► cloud 0
//!   read ──┼─► Clouds ─────────────────┼─► Link ─► cloud 1
//!   shares ┘     │ faults, bad shards  └─► Link ─► …
//!                ▼
//!        notes, bounded ──► the reconciler takes them
//! ```
//!
//! Every wing may leave a note here: about a fault of a cloud (`evidence`), about a shard that has
//! to be written again (`repair_notes`). The notes wait in bounded queues and may be lost, since a
//! fault that persists is found again. So no wing has to know the worker that works them off.
//!
//! Invariants:
//! * Only `cloud` talks to an object store, and every request has a deadline.
//! * A suspension is a hint: an operation that needs a cloud asks it all the same.
//!
//! | Module | Content |
//! |---|---|
//! | `attached` | the clouds as they are now, and which of them take new shards |
//! | `cloud`, `health`, `latency` | one cloud, and predictions from its behaviour |
//! | `preference`, `hedge` | which clouds are asked first, and when another one is asked as well |
//! | `place` | putting a shard under a free name |
//! | `capacity`, `status` | the free space of all clouds; each cloud as an operator sees it |
//! | `evidence`, `repair_notes` | notes about faults, and about shards to write again |
//! | `placement_log` | the whole interface to the metadata |
//! | `byte_budget`, `workers`, `counters` | bounds of memory, threads for long work, counts |

mod attached;
mod byte_budget;
mod capacity;
mod cloud;
mod counters;
mod evidence;
mod health;
mod hedge;
mod latency;
mod place;
mod placement_log;
mod preference;
mod repair_notes;
mod status;
mod workers;

pub use cloud::Cloud;
pub use counters::CounterValues;
pub use health::{Refusal, Timeouts};
pub use placement_log::{
    GarbageObject, GarbagePage, HeldObjectId, ObjectsPage, PackedCursor, PackedPage,
    PlacementError, PlacementLog, SparsePack, SparsePage, UnderReplicatedCursor,
    UnderReplicatedPage,
};
pub use preference::Preference;
pub use status::CloudStatus;
pub use workers::Workers;

pub(super) use byte_budget::ByteBudget;
pub(super) use cloud::Link;
pub(super) use counters::Counters;
pub(super) use evidence::{FaultNote, FaultNotes, comparable};
pub(super) use latency::Exchange;
pub(super) use place::put_whole;
pub(super) use repair_notes::RepairNotes;

use super::object::{
    BlockError, Buffers, Code, HEADER_BYTES, HeaderBytes, Planted, Sabotage, ShardFault,
    StoredObject, check_processor, check_whole,
};
use attached::Attached;
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::identity::{CloudIndex, VolumeId};
use quorumfs_metadata::placement::Policy;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::{Notify, SemaphorePermit};

/// What all wings need of a block store's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct CloudsConfig {
    /// The volume that everything is bound to.
    pub(super) volume: VolumeId,
    /// How new objects are spread.
    pub(super) policy: Policy,
    /// Which clouds are asked first.
    pub(super) preference: Preference,
    /// Deadlines and delays of requests.
    pub(super) timeouts: Timeouts,
    /// Whether missing and bad shards are restored.
    pub(super) restores: bool,
    /// Where sealing and rebuilding run.
    pub(super) workers: Workers,
    /// The most bytes that foreground reads and writes hold together.
    pub(super) memory_bytes_max: usize,
    /// Bytes of buffers of shards that are pooled.
    pub(super) buffer_bytes_max: usize,
    /// A planted defect.
    pub(super) sabotage: Planted,
}

/// The clouds of a volume and what all users of them share.
pub(super) struct Clouds {
    config: CloudsConfig,
    attached: RwLock<Arc<Attached>>,
    fleet_changed: Notify,
    /// Notified when one of them is suspended.
    suspensions: Arc<Notify>,
    log: Arc<dyn PlacementLog>,
    counters: Counters,
    memory: ByteBudget,
    buffers: Buffers,
    codes: Mutex<BTreeMap<(u8, u8), Arc<Code>>>,
    /// Faults of clouds that await an order.
    fault_notes: FaultNotes,
    /// Shards that have to be written again, and their new names.
    repair_notes: RepairNotes,
    /// Probes that were sent to suspended clouds.
    probes_sent: AtomicU64,
}

impl Clouds {
    /// The volume's clouds, which need not be reachable.
    pub(super) fn new(
        config: CloudsConfig,
        clouds: &[Cloud],
        fleet: Fleet,
        log: Arc<dyn PlacementLog>,
    ) -> Result<Self, BlockError> {
        check_processor()?;
        let suspensions = Arc::new(Notify::new());
        let attached = Attached::new(&config, clouds, fleet, &[], &suspensions)?;
        let clouds = Self {
            attached: RwLock::new(Arc::new(attached)),
            fleet_changed: Notify::new(),
            suspensions,
            log,
            counters: Counters::default(),
            memory: ByteBudget::new(config.memory_bytes_max),
            buffers: Buffers::new(config.buffer_bytes_max),
            codes: Mutex::default(),
            fault_notes: FaultNotes::default(),
            repair_notes: RepairNotes::default(),
            probes_sent: AtomicU64::new(0),
            config,
        };
        clouds.code(config.policy)?;
        Ok(clouds)
    }

    pub(super) fn config(&self) -> &CloudsConfig {
        &self.config
    }

    pub(super) fn is_sabotaged(&self, with: Sabotage) -> bool {
        self.config.sabotage.is(with)
    }

    /// Notified when a cloud is suspended.
    pub(super) fn suspensions(&self) -> &Notify {
        &self.suspensions
    }

    pub(super) fn log(&self) -> &dyn PlacementLog {
        &*self.log
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(super) fn fault_notes(&self) -> &FaultNotes {
        &self.fault_notes
    }

    pub(super) fn repair_notes(&self) -> &RepairNotes {
        &self.repair_notes
    }

    /// Waits for so much of the memory that foreground reads and writes share.
    pub(super) async fn hold(&self, bytes: u64) -> Result<SemaphorePermit<'_>, BlockError> {
        self.memory.hold(bytes).await
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

    fn link(&self, index: CloudIndex) -> Result<Arc<Link>, ShardFault> {
        let attached = self.attached();
        let link = attached.link(index).cloned();
        link.ok_or(ShardFault::NoCloud(index.0))
    }

    pub(super) fn link_of(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<Arc<Link>, ShardFault> {
        self.link(object.shard(shard).ok_or(ShardFault::Defect)?.cloud)
    }

    /// Whether requests to a shard's cloud should be avoided now.
    pub(super) fn is_suspended(&self, object: &StoredObject, shard: usize) -> bool {
        self.link_of(object, shard)
            .map_or(true, |link| link.health.is_suspended())
    }

    /// The fault of a shard whose cloud is avoided, or is not configured.
    pub(super) fn suspended(&self, object: &StoredObject, shard: usize) -> ShardFault {
        match self.link_of(object, shard) {
            Err(fault) => fault,
            Ok(link) => ShardFault::Suspended {
                cloud: link.describe(),
                error: link.health.last_error().unwrap_or_default(),
            },
        }
    }

    /// The header of one shard.
    pub(super) fn header(
        &self,
        object: &StoredObject,
        shard: usize,
    ) -> Result<HeaderBytes, ShardFault> {
        let header = object
            .header(self.config.volume, shard)
            .ok_or(ShardFault::Defect)?;
        let link = self.link(header.cloud)?;
        Ok(header.encode(&link.keys))
    }

    /// The headers of all shards of an object, whether or not their clouds answer. The header for a
    /// cloud that is not configured cannot be made and matches nothing.
    pub(super) fn headers(&self, object: &StoredObject) -> Vec<HeaderBytes> {
        let header = |shard| self.header(object, shard);
        (0..object.shards().len())
            .map(|shard| header(shard).unwrap_or([0; HEADER_BYTES as usize]))
            .collect()
    }

    /// Whether these are the bytes of a shard.
    pub(super) fn is_shard(&self, object: &StoredObject, shard: usize, body: &[u8]) -> bool {
        let layout = object.layout();
        let header = self.header(object, shard).ok();
        let proved = header
            .zip(object.digest(shard))
            .and_then(|(header, digest)| check_whole(layout, shard as u64, &header, digest, body));
        proved.is_some()
    }
}
