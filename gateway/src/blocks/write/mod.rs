//! The write: slices become an object on at least w clouds.
//!
//! ```text
//!   slices ─► sealed and coded (slices) ─► put on n clouds (quorum) ─► w acknowledged: returned
//!                                                  │
//!                                                  └─► the other puts go on (in_flight)
//!                                                         │ after the object's own commit
//!                                                         ▼
//!                                                  queue of confirmations ─► the reconciler
//! ```
//!
//! [`Writes`] has the objects whose puts are under way and the queue of placed shards that await
//! their order. Nothing of it survives the process, and nothing has to: the metadata lists objects
//! that lack shards.
//!
//! | Module | Content |
//! |---|---|
//! | `slices` | sealing slices and describing their object |
//! | `quorum` | the quorum write |
//! | `in_flight` | puts that go on after their write has returned, and the confirmations |

mod in_flight;
mod quorum;
mod slices;

use super::clouds::Clouds;
use super::object::Compression;
use crate::keys::Sealing;
use in_flight::{Confirmations, InFlight};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// What writes need of a block store's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteConfig {
    /// The most plain bytes in one block.
    pub(super) block_bytes_max: u32,
    /// The most bytes of shards in flight after their writes have returned.
    pub(super) background_bytes_max: usize,
    /// Whether new slices are compressed.
    pub(super) compression: Compression,
    /// Whether content is encrypted.
    pub(super) sealing: Sealing,
}

/// The writes of a block store.
pub(super) struct Writes {
    clouds: Arc<Clouds>,
    config: WriteConfig,
    /// Sealing keeps a core busy: at most one task for each core.
    sealers: Arc<Semaphore>,
    in_flight: Mutex<InFlight>,
    confirmations: Confirmations,
}

impl Writes {
    pub(super) fn new(config: WriteConfig, clouds: Arc<Clouds>) -> Self {
        Self {
            sealers: Arc::new(Semaphore::new(clouds.config().workers.at_a_time())),
            in_flight: Mutex::new(InFlight::new(config.background_bytes_max)),
            confirmations: Confirmations::default(),
            config,
            clouds,
        }
    }

    /// The most plain bytes in one block.
    pub(super) fn block_bytes_max(&self) -> u32 {
        self.config.block_bytes_max
    }

    /// The placed shards that await their order.
    pub(super) fn confirmations(&self) -> &Confirmations {
        &self.confirmations
    }
}
