//! Where a replica's state is kept: redb behind the library's store trait.
//!
//! What a store must do is little: point reads, and batches that are durable as a whole or not at
//! all. Order, digests, versions and the caching of what was verified are the key space's own.
//!
//! redb is a copy-on-write B-tree in one file: a batch writes pages that nothing refers to yet,
//! syncs, then switches one root. With *quick repair* it also writes down which pages are free, so
//! that opening after a crash does not walk the file. Node ids rise, so new nodes are appended side
//! by side at the right edge of the tree. It was chosen by `bench_store`; see docs/ARCHITECTURE.md.

use bytes::Bytes;
use quorumfs_bft::state::{StateError, Store, WriteBatch};
use redb::{Builder, Database, Durability, ReadableDatabase, TableDefinition, TableError};
use std::path::Path;
use std::sync::Arc;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("state");
const FILE: &str = "state.redb";

/// Memory for pages of the database. Small: the key space caches the nodes that it has verified.
const CACHE_BYTES: usize = 16 << 20;

/// The rows of one replica. A clone is another handle; the file is closed with the last one.
#[derive(Clone)]
pub struct DiskStore {
    database: Arc<Database>,
}

impl DiskStore {
    /// Opens the store in `directory`, or creates it.
    ///
    /// # Errors
    /// If the directory cannot be used, another process uses it, or what is in it is damaged.
    pub fn open(directory: &Path) -> Result<Self, StateError> {
        let path = directory.join(FILE);
        let named = |error: &dyn std::fmt::Display| StateError::Store {
            doing: "opening it",
            reason: format!("{}: {error}", path.display()),
        };
        std::fs::create_dir_all(directory).map_err(|error| named(&error))?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create(&path);
        Ok(Self {
            database: Arc::new(database.map_err(|error| named(&error))?),
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
        writes.set_quick_repair(true);
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

impl Store for DiskStore {
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

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> StateError {
    move |error| StateError::Store {
        doing,
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::Sequence;
    use quorumfs_bft::state::{Area, KeySpace, prefix_end};

    fn write(space: &mut KeySpace<DiskStore>, sequence: u64) {
        let mut txn = space.begin(Area::Service);
        for row in 0..200_u64 {
            let key = (row * 7919 % 1009).to_be_bytes();
            txn.put(&key, vec![u8::try_from(sequence).expect("small"); 60])
                .expect("put");
        }
        txn.commit();
    }

    #[test]
    fn only_flushes_that_were_applied_survive_and_they_survive_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut digest = None;
        for sequence in 1..=6_u64 {
            let store = DiskStore::open(directory.path()).expect("opened");
            let mut space = KeySpace::open(store.clone()).expect("sound");
            assert_eq!(space.durable_root().map(|root| root.digest), digest);
            write(&mut space, sequence);
            let (batch, root) = space.flush(Sequence(sequence), Vec::new()).expect("flush");
            if sequence.is_multiple_of(2) {
                store.apply(&batch).expect("applied");
                digest = Some(root.digest);
            }
        }
        let store = DiskStore::open(directory.path()).expect("opened");
        let space = KeySpace::open(store).expect("sound");
        let rows = space.view(Area::Service).scan(&[]..&prefix_end(&[]), 1_000);
        assert_eq!(rows.expect("read").len(), 200);
    }

    #[test]
    fn what_is_no_database_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join(FILE), vec![7; 10_000]).expect("written");
        let Err(error) = DiskStore::open(directory.path()) else {
            panic!("garbage was opened");
        };
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
