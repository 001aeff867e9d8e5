//! Where a replica's state is kept: an embedded database behind the library's store trait.
//!
//! What it must do is little: point reads, and batches that are durable as a whole or not at all.
//! Order, digests, versions and caching of what was verified are the key space's own.

mod fjall;
mod redb;

pub use fjall::FjallStore;
pub use redb::RedbStore;

use quorumfs_bft::state::StateError;

/// Memory for blocks of the database. Small: the key space caches the nodes that it has verified.
const CACHE_BYTES: u64 = 16 << 20;

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> StateError {
    move |error| StateError::Store {
        doing,
        reason: error.to_string(),
    }
}
