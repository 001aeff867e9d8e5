//! The state on fjall, a log-structured merge tree: the candidate that was not chosen.

use bytes::Bytes;
use fjall::config::BlockSizePolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use quorumfs_bft::state::{StateError, Store, WriteBatch};
use std::path::Path;

/// The same amount as the product gives to its database.
const CACHE_BYTES: u64 = 16 << 20;

/// The rows of one replica. A clone is another handle.
#[derive(Clone)]
pub(crate) struct FjallStore {
    database: Database,
    rows: Keyspace,
}

impl FjallStore {
    /// Opens the store in `directory`, or creates it.
    ///
    /// # Errors
    /// If the directory cannot be used or its content is damaged.
    pub(crate) fn open(directory: &Path) -> Result<Self, StateError> {
        let database = Database::builder(directory)
            .cache_size(CACHE_BYTES)
            .worker_threads(1)
            .manual_journal_persist(true)
            .open()
            .map_err(failed("opening it"))?;
        let options = || {
            KeyspaceCreateOptions::default()
                .expect_point_read_hits(true)
                .max_memtable_size(16 << 20)
                .data_block_size_policy(BlockSizePolicy::all(8 << 10))
        };
        let rows = database
            .keyspace("state", options)
            .map_err(failed("opening it"))?;
        Ok(Self { database, rows })
    }

    /// Makes a batch durable, entirely or not at all.
    ///
    /// # Errors
    /// If the medium fails; the store must not be used after that.
    pub(crate) fn apply(&self, batch: &WriteBatch) -> Result<(), StateError> {
        let mut writes = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for (key, value) in &batch.entries {
            match value {
                Some(value) => writes.insert(&self.rows, key.as_ref(), value.as_ref()),
                None => writes.remove(&self.rows, key.as_ref()),
            }
        }
        writes.commit().map_err(failed("writing a batch"))
    }
}

impl Store for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let found = self.rows.get(key).map_err(failed("reading a row"))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }
}

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> StateError {
    move |error| StateError::Store {
        doing,
        reason: error.to_string(),
    }
}
