//! The state on redb, a copy-on-write B-tree in one file.

use super::{CACHE_BYTES, failed};
use bytes::Bytes;
use quorumfs_bft::state::{StateError, Store, WriteBatch};
use redb::ReadableDatabase;
use redb::{Builder, Database, Durability, TableDefinition, TableError};
use std::path::Path;
use std::sync::Arc;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("state");

/// The rows of one replica. A clone is another handle.
#[derive(Clone)]
pub struct RedbStore {
    database: Arc<Database>,
    quick_repair: bool,
}

impl RedbStore {
    /// Opens the store in `directory`, or creates it. With `quick_repair` a commit costs more and
    /// opening after a crash does not walk the whole file.
    ///
    /// # Errors
    /// If the directory cannot be used or what is in it is damaged.
    pub fn open(directory: &Path, quick_repair: bool) -> Result<Self, StateError> {
        std::fs::create_dir_all(directory).map_err(failed("creating its directory"))?;
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES as usize)
            .create(directory.join("state.redb"))
            .map_err(failed("opening it"))?;
        Ok(Self {
            database: Arc::new(database),
            quick_repair,
        })
    }

    /// Makes a batch durable, all of it or nothing.
    ///
    /// # Errors
    /// If the medium fails; the store must not be used any more then.
    pub fn apply(&self, batch: &WriteBatch) -> Result<(), StateError> {
        let doing = "writing a batch";
        let mut writes = self.database.begin_write().map_err(failed(doing))?;
        writes
            .set_durability(Durability::Immediate)
            .map_err(failed(doing))?;
        writes.set_quick_repair(self.quick_repair);
        {
            let mut rows = writes.open_table(ROWS).map_err(failed(doing))?;
            for (key, value) in &batch.entries {
                match value {
                    Some(value) => rows.insert(key.as_ref(), value.as_ref()),
                    None => rows.remove(key.as_ref()),
                }
                .map_err(failed(doing))?;
            }
        }
        writes.commit().map_err(failed(doing))
    }
}

impl Store for RedbStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let doing = "reading a row";
        let reads = self.database.begin_read().map_err(failed(doing))?;
        let rows = match reads.open_table(ROWS) {
            Ok(rows) => rows,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(failed(doing)(error)),
        };
        let found = rows.get(key).map_err(failed(doing))?;
        Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
    }
}
