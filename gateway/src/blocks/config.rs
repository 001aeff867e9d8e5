//! The configuration of a block store, and the part of it that each wing gets.

use super::backup::Lineage;
use super::clouds::{CloudsConfig, Preference, Timeouts, Workers};
use super::object::{Compression, Planted};
use super::read::ReadConfig;
use super::reconcile::{Collection, Compaction, Draining};
use super::write::WriteConfig;
use crate::keys::Sealing;
use quorumfs_metadata::identity::VolumeId;
use quorumfs_metadata::placement::Policy;

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
    /// Whether and how what nothing needs is deleted in the background. The clouds must have been
    /// opened with credentials that may list and delete.
    pub collection: Option<Collection>,
    /// The incarnation of the volume that this process belongs to: once a later one has begun,
    /// nothing is deleted any more. `None`: it is not looked for.
    pub lineage: Option<Lineage>,
    /// Whether and how shards of clouds that were replaced are moved in the background.
    pub draining: Option<Draining>,
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
            collection: None,
            lineage: None,
            draining: None,
            sabotage: Planted::NONE,
        }
    }
}

impl BlockConfig {
    /// Bytes of buffers for plaintext; the others are for shards. A read holds as many bytes as the
    /// block has, a write n / k times as many.
    const fn plain_buffer_bytes_max(&self) -> usize {
        self.buffer_bytes_max / 3
    }

    pub(super) const fn clouds(&self) -> CloudsConfig {
        CloudsConfig {
            volume: self.volume,
            policy: self.policy,
            preference: self.preference,
            timeouts: self.timeouts,
            restores: self.restores,
            workers: self.workers,
            memory_bytes_max: self.memory_bytes_max,
            buffer_bytes_max: self.buffer_bytes_max - self.plain_buffer_bytes_max(),
            sabotage: self.sabotage,
        }
    }

    pub(super) const fn writes(&self) -> WriteConfig {
        WriteConfig {
            block_bytes_max: self.block_bytes_max,
            background_bytes_max: self.background_bytes_max,
            compression: self.compression,
            sealing: self.sealing,
        }
    }

    pub(super) const fn reads(&self) -> ReadConfig {
        ReadConfig {
            rebuild_bytes_max: self.rebuild_bytes_max,
            rebuilt_bytes_max: self.rebuilt_bytes_max,
            buffer_bytes_max: self.plain_buffer_bytes_max(),
            sealing: self.sealing,
        }
    }
}
