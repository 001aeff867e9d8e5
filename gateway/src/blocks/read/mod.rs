//! The verified read: a range of a slice from the clouds that answer first and do not lie.
//!
//! ```text
//!   range ─► locate ─► cells of the data shards (fetch) ─► opened
//!              │           │ bad, missing, failing, late
//!              │           └─► any k shards (gather) ─► rebuilt, cached (rebuilt_cache)
//!              └─ index of a compressed slice, cached (index_cache)
//! ```
//!
//! [`Reads`] has what readers share: rebuilt objects, indexes, the results of consistency checks,
//! and the names of principals. All of them are caches with bounds. The reconciler fetches and
//! gathers through this wing as well, so what a repair or a scrub uses has passed the same checks.
//!
//! | Module | Content |
//! |---|---|
//! | `range` | the read of a range |
//! | `locate`, `index_cache` | where a slice's segments lie |
//! | `fetch`, `gather` | one shard or its cells, checked; an object from any k shards |
//! | `rebuilt_cache` | rebuilt objects, shared by concurrent readers |
//! | `consistency_check` | whether the shards of another principal's object are consistent |
//! | `principals` | this process's own principal, and the names of others |

mod consistency_check;
mod fetch;
mod gather;
mod index_cache;
mod locate;
mod principals;
mod range;
mod rebuilt_cache;

pub use consistency_check::Poisoned;

use super::clouds::{ByteBudget, Clouds};
use super::object::PlainBuffers;
use crate::keys::Sealing;
use consistency_check::ConsistencyChecks;
use index_cache::IndexCache;
use principals::Principals;
pub(super) use rebuilt_cache::RebuiltCache;
use std::sync::Arc;

/// Bytes of cached indexes of compressed slices: those of some thousand slices.
const INDEX_BYTES_MAX: usize = 1 << 20;

/// What reads need of a block store's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadConfig {
    /// The most bytes that rebuilding objects holds.
    pub(super) rebuild_bytes_max: usize,
    /// Bytes of rebuilt objects that are cached for the next read.
    pub(super) rebuilt_bytes_max: usize,
    /// Bytes of buffers of plaintext that are pooled.
    pub(super) buffer_bytes_max: usize,
    /// Whether content is encrypted.
    pub(super) sealing: Sealing,
}

/// The reads of a block store.
pub(super) struct Reads {
    clouds: Arc<Clouds>,
    sealing: Sealing,
    /// The budget of objects that are being rebuilt. It is apart from the memory of foreground
    /// reads, of which a reader that waits for a rebuild holds a part already.
    rebuilds: ByteBudget,
    rebuilt: RebuiltCache,
    plain_buffers: PlainBuffers,
    /// The results of consistency checks.
    consistency: ConsistencyChecks,
    principals: Principals,
    indexes: IndexCache,
}

impl Reads {
    pub(super) fn new(config: ReadConfig, clouds: Arc<Clouds>) -> Self {
        Self {
            clouds,
            sealing: config.sealing,
            rebuilds: ByteBudget::new(config.rebuild_bytes_max),
            rebuilt: RebuiltCache::new(config.rebuilt_bytes_max),
            plain_buffers: PlainBuffers::new(config.buffer_bytes_max),
            consistency: ConsistencyChecks::default(),
            principals: Principals::default(),
            indexes: IndexCache::new(INDEX_BYTES_MAX),
        }
    }
}
