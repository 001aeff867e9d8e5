//! The ordered key space that all replicated rows live in, with a Merkle digest over it.
//!
//! # Purpose
//!
//! A service reads and writes rows (key → value, ordered by key) through [`Txn`] and [`View`]; the
//! library keeps its own rows (sessions, replies, the clock) in the same space under a prefix that
//! no key of the service can reach ([`Area`]). One digest covers all of it, so that replicas can
//! compare their states, and a part can be checked against the digest without the rest.
//!
//! # Structure
//!
//! ```text
//!   Txn / View ──► pending rows (since the last settling, sorted)
//!                     │ settle: apply in one pass, hash what changed
//!                     ▼
//!                  tree: fresh nodes ─► nodes in flight ─► cache ─► Store
//!                                   flush            flushed
//! ```
//!
//! * [`txn`] and [`view`]: the interface of a service.
//! * [`key_space`]: owns everything, settles, flushes.
//! * `tree`: the shape, and how changes are applied to it; [`cursor`](self) scans it.
//! * `node`: leaves and branches as bytes, and their digests.
//! * [`import`]: a tree that is fetched from other replicas.
//! * [`Changes`]: the rows that differ between two trees.  * [`proof`]: all rows of the service,
//!   with what proves that they are all.
//! * [`memory`]: a store for tests and the simulator.
//!
//! # Invariants
//!
//! * **The shape follows from the rows alone.** A set of rows is a *leaf* if it is a single row or
//!   if its rows together are within `LEAF_BYTES_MAX`; otherwise it is a *branch* at the longest
//!   common prefix of the keys, which fans out by the next nibble (and a slot for the key that ends
//!   there). Two replicas with equal rows have equal roots, whatever their histories.
//! * **Rows have a birth**: the sequence of the last batch that wrote them, part of the digest. A
//!   [`View`] can note the highest birth of the rows that are read through it, the version of an
//!   answer.
//! * **Nodes never change.** A node that is written gets a new node id; a parent names its children
//!   by id (where to read) and by digest (the expected content). Ids are local to a replica and not
//!   hashed.
//! * **The last two durable roots stay readable**, also after a restart: a flush removes only nodes
//!   that neither it nor the flush before it needs.
//! * **Reads are verified**: every node from the store is checked against the digest that its
//!   parent names, up to the root record; a mismatch is [`StateError::Damaged`].
//! * **Memory is bounded** by the rows that changed since the last flush and by the cache's budget.
//!   A row is read in O(depth) nodes; applying changes recurses at most once per nibble of a key.
//!
//! # Failures
//!
//! The store can fail or lie: [`StateError`], and the replica stops. A key or value beyond the
//! limits is a defect of the service, which must check the input of clients before it gets here.
//!
//! Source: design of this project; tries with path compression go back to D. Morrison, "PATRICIA"
//! (1968), authenticated ones to R. Merkle (1987).

pub mod import;
pub mod key_space;
pub mod memory;
pub mod proof;
pub mod txn;
pub mod view;

mod builder;
mod cache;
mod changes;
mod cursor;
mod exchange;
mod nibbles;
mod node;
mod root_record;
mod tree;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

pub use changes::{ChangedRow, Changes};
pub use import::{Path, Taken};
pub use key_space::{Area, KeySpace, LEAF_BYTES_MAX};
pub use memory::MemoryStore;
pub use node::{Born, BornRow};
pub use proof::{Proof, ProofError, Proving};
pub use txn::{Savepoint, Txn};
pub use view::{LastChange, View, prefix_end};

use crate::identity::{Digest, Sequence};
use bytes::Bytes;

/// The largest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// The largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Reads rows that were made durable earlier. The driver applies [`WriteBatch`]es to it.
pub trait Store {
    /// The value under `key`.
    ///
    /// # Errors
    /// If the medium fails or the bytes that it returns are damaged.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError>;
}

/// Writes that become durable together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    /// Puts (`Some`) and deletions (`None`); later entries win.
    pub entries: Vec<(Bytes, Option<Bytes>)>,
}

/// A root that can be read again after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableRoot {
    /// The last sequence whose effects it contains.
    pub sequence: Sequence,
    /// The digest of all rows.
    pub digest: Digest,
}

/// This replica's own state cannot be read or written: it must stop and stay silent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The medium failed.
    #[error("the state store failed while {doing}: {reason}")]
    Store {
        /// The action that failed.
        doing: &'static str,
        /// The error of the medium.
        reason: String,
    },
    /// The store returned something else than was written.
    #[error(
        "the state store is damaged at {place}: {reason}; remove the state of this replica, and \
         nothing else (its journal has to stay): it comes back from the others"
    )]
    Damaged {
        /// Which node or row.
        place: String,
        /// The damage.
        reason: String,
    },
    /// The store was written by a newer release.
    #[error(
        "the state store has format {found}, this release knows formats up to {known}: run the \
         newer release"
    )]
    Newer {
        /// The format of the store.
        found: u32,
        /// The newest format that this release knows.
        known: u32,
    },
    /// The journal has a record that only a newer release can have written: its checksum holds.
    #[error(
        "the journal has a record that this release does not know: run the newer release that \
         wrote it; nothing is lost"
    )]
    NewerJournal,
    /// A defect of the caller: a key or value beyond the limits.
    #[error("a {what} of {length} bytes was given to the key space, which takes {max} at most")]
    TooLong {
        /// "key" or "value".
        what: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// A defect of the caller: a second flush before the first one was durable, or out of order.
    #[error("the state was flushed at sequence {sequence} although {why}")]
    FlushOrder {
        /// The sequence that was asked for.
        sequence: Sequence,
        /// The reason.
        why: &'static str,
    },
}

/// A row: its key and its value.
pub type Row = (Bytes, Bytes);
