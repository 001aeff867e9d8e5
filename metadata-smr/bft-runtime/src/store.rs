//! Where a replica's state is kept: redb behind the library's store trait.
//!
//! What a store must do is little: point reads, and batches that are durable as a whole or not at
//! all. Order, digests, versions and the caching of what was verified are the key space's own.
//!
//! redb is a copy-on-write B-tree in one file: a batch writes pages that nothing refers to yet,
//! syncs, then switches one root. With *quick repair* it also writes down which pages are free, so
//! that opening after a crash does not walk the file. Node ids rise, so new nodes are appended side
//! by side at the right edge of the tree. It was chosen by `bench_store`; see docs/ARCHITECTURE.md.

use crate::disk::{DiskError, failed};
use bytes::Bytes;
use quorumfs_bft::state::{StateError, Store, WriteBatch};
use redb::{Builder, Database, Durability, ReadableDatabase, TableDefinition, TableError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("state");
const FILE: &str = "state.redb";

/// Memory for pages of the database. Small: the key space caches the nodes that it has verified.
const CACHE_BYTES: usize = 16 << 20;

/// The rows of one replica. A clone is another handle; the file is closed with the last one.
#[derive(Clone)]
pub struct DiskStore {
    database: Arc<Database>,
    path: Arc<PathBuf>,
}

impl DiskStore {
    /// Opens the store in `directory`, or creates it.
    ///
    /// # Errors
    /// If the directory cannot be used, another process uses it, or what is in it is damaged.
    pub fn open(directory: &Path) -> Result<Self, DiskError> {
        let path = directory.join(FILE);
        std::fs::create_dir_all(directory).map_err(failed("creating", directory))?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create(&path);
        let database = database.map_err(|error| broken("opening", &path, error.into()))?;
        Ok(Self {
            database: Arc::new(database),
            path: Arc::new(path),
        })
    }

    /// Makes a batch durable, all of it or nothing.
    ///
    /// # Errors
    /// If the medium fails; the store must not be used any more then.
    pub fn apply(&self, batch: &WriteBatch) -> Result<(), DiskError> {
        let written = self.write(batch);
        written.map_err(|error| broken("writing a batch to", &self.path, error))
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), redb::Error> {
        let mut writes = self.database.begin_write()?;
        writes.set_durability(Durability::Immediate)?;
        writes.set_quick_repair(true);
        {
            let mut rows = writes.open_table(ROWS)?;
            for (key, value) in &batch.entries {
                match value {
                    Some(value) => rows.insert(key.as_ref(), value.as_ref())?,
                    None => rows.remove(key.as_ref())?,
                };
            }
        }
        Ok(writes.commit()?)
    }
}

impl Store for DiskStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let doing = "reading a row";
        let reads = self.database.begin_read().map_err(unread(doing))?;
        let rows = match reads.open_table(ROWS) {
            Ok(rows) => rows,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(unread(doing)(error)),
        };
        let found = rows.get(key).map_err(unread(doing))?;
        Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
    }
}

/// What the system said is passed on as such: a full disk is known by its error number, not by
/// words.
fn broken(doing: &'static str, path: &Path, error: redb::Error) -> DiskError {
    match error {
        redb::Error::Io(error) => failed(doing, path)(error),
        error => DiskError::State(StateError::Store {
            doing,
            reason: format!("{}: {error}", path.display()),
        }),
    }
}

fn unread<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> StateError {
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
        let mut txn = space.begin(Area::Service, Sequence(sequence));
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
