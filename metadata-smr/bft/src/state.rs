//! The ordered key space that a service's rows live in, with a Merkle digest over it.
//!
//! The shape of the tree follows from the rows alone, so two replicas with equal rows have equal
//! roots whatever their histories. It reads through [`Store`] and hands its writes to the driver
//! as one atomic [`WriteBatch`] at a time.

use crate::identity::{Digest, Sequence};
use bytes::Bytes;

/// The largest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// The largest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Reads what was made durable earlier. The driver applies [`WriteBatch`]es to it.
pub trait Store {
    /// The value under `key`.
    ///
    /// # Errors
    /// If the medium fails or what it returns is damaged.
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

/// This replica's own state cannot be read: it must stop and stay silent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The medium failed.
    #[error("the state store failed while {doing}: {reason}")]
    Store {
        /// What was being done.
        doing: &'static str,
        /// What the medium said.
        reason: String,
    },
    /// Something that was read back is not what was written.
    #[error("the state store is damaged at {place}: {reason}")]
    Damaged {
        /// Which node or row.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A row: its key and its value.
pub type Row = (Bytes, Bytes);

/// A batch's view of the state: reads see earlier writes of the same batch.
///
/// The service sees its own rows only; the library's (sessions, replies, clock) lie under a
/// prefix that no key of the service can reach.
pub struct Txn<'a> {
    _space: std::marker::PhantomData<&'a mut ()>,
}

/// A place in a transaction to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(usize);

/// What a query sees: the same rows, and no way to write.
pub struct View<'a> {
    _space: std::marker::PhantomData<&'a ()>,
}
