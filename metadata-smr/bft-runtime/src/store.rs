//! The storage of a replica's state: redb behind the library's store trait.
//!
//! A store has to offer little: point reads, and batches that are durable as a whole or not at all.
//! The key space itself handles order, digests, versions and the caching of verified nodes.
//!
//! redb is a copy-on-write B-tree in one file: a batch writes unreferenced pages, syncs, then
//! switches one root. With *quick repair* it also stores which pages are free, so that opening
//! after a crash does not walk the file. Node ids rise, so new nodes are appended next to each
//! other at the right edge of the tree. It was chosen by `quorumfs-bench store`; see
//! docs/architecture/decisions.md. Committed batches are in files next to it (`batches`).

mod batches;

use crate::disk::{DiskError, failed};
use batches::{BatchFiles, BatchLocation};
use bytes::Bytes;
use quorumfs_bft::replica::is_batch_row;
use quorumfs_bft::state::{StateError, Store, WriteBatch};
use redb::{Builder, Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use redb::{TableDefinition, TableError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

type Table = TableDefinition<'static, &'static [u8], &'static [u8]>;

const ROWS: Table = TableDefinition::new("state");
/// The locations of committed batches.
const PLACES: Table = TableDefinition::new("batches");
const FILE: &str = "state.redb";
const READING: &str = "reading a row";

/// Memory for pages of the database. Small: the key space caches the nodes that it has verified.
const CACHE_BYTES: usize = 16 << 20;

/// The rows of one replica. A clone is another handle; the file is closed with the last one.
#[derive(Clone)]
pub struct DiskStore {
    database: Arc<Database>,
    path: Arc<PathBuf>,
    batches: Arc<BatchFiles>,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DiskStore").field(&self.path).finish()
    }
}

impl DiskStore {
    /// Opens the store in `directory`, or creates it.
    ///
    /// # Errors
    /// If the directory cannot be used, another process uses it, or its content is damaged.
    pub fn open(directory: &Path) -> Result<Self, DiskError> {
        let path = directory.join(FILE);
        std::fs::create_dir_all(directory).map_err(failed("creating", directory))?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create(&path);
        let database = database.map_err(|error| broken("opening", &path, error.into()))?;
        let named = places(&database).map_err(|error| broken("reading", &path, error))?;
        Ok(Self {
            database: Arc::new(database),
            path: Arc::new(path),
            batches: Arc::new(BatchFiles::open(directory, named.into_iter())?),
        })
    }

    /// The reusable space in its file, for users that must not keep it open.
    pub(crate) fn spare(&self) -> ReusableSpace {
        ReusableSpace {
            database: Arc::downgrade(&self.database),
            path: Arc::clone(&self.path),
        }
    }

    /// Makes a batch durable, all of it or nothing.
    ///
    /// # Errors
    /// If the medium fails; the store must not be used any more then.
    pub fn apply(&self, batch: &WriteBatch) -> Result<(), DiskError> {
        let new = batch.entries.iter().filter(|(key, _)| is_batch_row(key));
        let new = new.filter_map(|(_, value)| value.as_ref());
        let new = self.batches.write(new)?;
        let gone = self.write(batch, &new);
        let gone = gone.map_err(|error| broken("writing a batch to", &self.path, error))?;
        self.batches.settle(&new, &gone);
        Ok(())
    }

    /// Writes the rows; the committed batches among them are at `new` already. Returns the
    /// locations that no row names any more.
    fn write(
        &self,
        batch: &WriteBatch,
        new: &[BatchLocation],
    ) -> Result<Vec<BatchLocation>, redb::Error> {
        let mut writes = self.database.begin_write()?;
        writes.set_durability(Durability::Immediate)?;
        writes.set_quick_repair(true);
        let (mut new, mut gone) = (new.iter(), Vec::new());
        {
            let mut rows = writes.open_table(ROWS)?;
            let mut places = writes.open_table(PLACES)?;
            for (key, value) in &batch.entries {
                let key = key.as_ref();
                if is_batch_row(key) {
                    let place = value.as_ref().and_then(|_| new.next());
                    let before = match place {
                        Some(place) => places.insert(key, place.encode().as_slice())?,
                        None => places.remove(key)?,
                    };
                    if let Some(row) = before {
                        gone.push(BatchLocation::decode(row.value()).ok_or_else(no_place)?);
                    }
                    continue;
                }
                match value {
                    Some(value) => rows.insert(key, value.as_ref())?,
                    None => rows.remove(key)?,
                };
            }
        }
        writes.commit()?;
        Ok(gone)
    }

    fn row<R>(
        &self,
        (table, key): (Table, &[u8]),
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, StateError> {
        let reads = self.database.begin_read().map_err(unread(READING))?;
        let rows = match reads.open_table(table) {
            Ok(rows) => rows,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(unread(READING)(error)),
        };
        let found = rows.get(key).map_err(unread(READING))?;
        Ok(found.map(|value| read(value.value())))
    }

    fn place(&self, key: &[u8]) -> Result<Option<BatchLocation>, StateError> {
        let place = |row: &[u8]| BatchLocation::decode(row).ok_or_else(no_place);
        let found = self.row((PLACES, key), place)?;
        found.transpose().map_err(unread(READING))
    }

    /// A committed batch.
    fn batch(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let mut found = self.place(key)?;
        while let Some(at) = found {
            let error = match self.batches.read(at) {
                Ok(batch) => return Ok(Some(batch)),
                Err(error) => error,
            };
            // A flush that was applied in between may have removed it.
            found = self.place(key)?;
            if found == Some(at) {
                let path = self.batches.path(at);
                return Err(unread(READING)(format!("{}: {error}", path.display())));
            }
        }
        Ok(None)
    }
}

impl Store for DiskStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        if is_batch_row(key) {
            return self.batch(key);
        }
        self.row((ROWS, key), Bytes::copy_from_slice)
    }
}

/// The space that removed rows have left in a database's file, which does not shrink.
#[derive(Clone, Debug)]
pub(crate) struct ReusableSpace {
    database: Weak<Database>,
    path: Arc<PathBuf>,
}

impl ReusableSpace {
    /// How many bytes the next rows can take before the file grows; nothing if that is unknown, or
    /// the store is closed. All pages are read for it.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let database = self.database.upgrade()?;
        let reads = database.begin_read().ok()?;
        let mut used = 0_u64;
        for table in [ROWS, PLACES] {
            match reads.open_table(table) {
                Ok(table) => {
                    let stats = table.stats().ok()?;
                    let parts = [stats.metadata_bytes(), stats.fragmented_bytes()];
                    used = parts.into_iter().fold(used, u64::saturating_add);
                    used = used.saturating_add(stats.stored_bytes());
                }
                Err(TableError::TableDoesNotExist(_)) => {}
                Err(_) => return None,
            }
        }
        let on_disk = std::fs::metadata(&*self.path).ok()?.blocks() * 512;
        Some(on_disk.saturating_sub(used))
    }
}

/// The locations of committed batches.
fn places(database: &Database) -> Result<Vec<BatchLocation>, redb::Error> {
    let reads = database.begin_read()?;
    let rows = match reads.open_table(PLACES) {
        Ok(rows) => rows,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut places = Vec::new();
    for row in rows.iter()? {
        places.push(BatchLocation::decode(row?.1.value()).ok_or_else(no_place)?);
    }
    Ok(places)
}

fn no_place() -> redb::Error {
    redb::Error::Corrupted("the row with the location of a batch is malformed".to_owned())
}

/// The system's error is passed on as such: a full disk is recognised by its error number, not by
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
    fn applied_flushes_survive_whole_and_others_not_at_all() {
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
    fn removed_rows_leave_space_that_the_next_rows_use() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = DiskStore::open(directory.path()).expect("opened");
        let spare = store.spare();
        let rows = |value: Option<Bytes>| {
            let row = |number: u64| (Bytes::copy_from_slice(&number.to_be_bytes()), value.clone());
            let entries = (0..2_000).map(row).collect();
            store.apply(&WriteBatch { entries }).expect("applied");
        };
        let long = || Some(Bytes::from(vec![1; 10_000]));
        rows(long());
        let filled = spare.bytes().expect("open");
        rows(None);
        // Pages are free once the commit after it has released them.
        rows(None);
        let emptied = spare.bytes().expect("open");
        assert!(emptied > filled + 16_000_000, "{filled} and then {emptied}");
        let file = directory.path().join(FILE);
        let on_disk = || std::fs::metadata(&file).expect("there").blocks() * 512;
        let before = on_disk();
        rows(long());
        let again = spare.bytes().expect("open");
        assert!(again + 16_000_000 < emptied, "{again} of {emptied}");
        assert!(on_disk() < before + 4_000_000, "the file has grown");
        drop(store);
        assert_eq!(spare.bytes(), None, "it keeps nothing open");
    }

    fn batch_key(sequence: u8) -> Bytes {
        let key = Bytes::from(format!("xb0000000{}", char::from(b'a' + sequence)));
        assert!(is_batch_row(&key));
        key
    }

    fn batch(sequence: u8) -> Bytes {
        Bytes::from(vec![sequence; 1_000 * usize::from(sequence)])
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).expect("listed");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_batches = |path: &PathBuf| path.extension().is_some_and(|it| it == "batches");
        let mut files: Vec<PathBuf> = paths.filter(is_batches).collect();
        files.sort();
        files
    }

    fn put(sequences: std::ops::Range<u8>) -> Vec<(Bytes, Option<Bytes>)> {
        let row = |sequence| (batch_key(sequence), Some(batch(sequence)));
        sequences.map(row).collect()
    }

    fn remove(sequences: std::ops::Range<u8>) -> Vec<(Bytes, Option<Bytes>)> {
        sequences
            .map(|sequence| (batch_key(sequence), None))
            .collect()
    }

    fn open_and(directory: &Path, entries: Vec<(Bytes, Option<Bytes>)>) -> DiskStore {
        let store = DiskStore::open(directory).expect("opened");
        store.apply(&WriteBatch { entries }).expect("applied");
        store
    }

    #[test]
    fn batches_are_read_back_and_their_files_are_removed_with_the_last_row() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut open_store = None;
        let mut flush = |entries, again: bool| {
            let open = || DiskStore::open(directory.path()).expect("opened");
            let store = open_store.get_or_insert_with(open);
            store.apply(&WriteBatch { entries }).expect("applied");
            if again {
                open_store = None;
            }
            let store = open_store.get_or_insert_with(open);
            let read = |it| store.get(&batch_key(it)).expect("read");
            let found: Vec<_> = (0..10).map(read).collect();
            (found, files(directory.path()).len())
        };
        let these = |there: std::ops::Range<u8>| {
            let there = |it| there.contains(&it).then(|| batch(it));
            (0..10).map(there).collect::<Vec<_>>()
        };
        for again in [false, true] {
            assert_eq!(flush(put(0..4), again), (these(0..4), 1));
            assert_eq!(flush(put(4..8), again), (these(0..8), 2));
            assert_eq!(flush(remove(0..3), again), (these(3..8), 2));
            let both = [remove(3..5), put(8..9)].concat();
            assert_eq!(flush(both, again), (these(5..9), 2));
            // Written once more, by a replica that fetches a state.
            assert_eq!(flush(put(5..9), again), (these(5..9), 1));
            assert_eq!(flush(remove(0..9), again), (these(0..0), 0));
        }
    }

    #[test]
    fn opening_a_store_removes_files_that_no_row_names() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open_and(directory.path(), put(1..3));
        drop(store);
        // The process ended after the file was written, and before the rows were.
        let torn = directory.path().join("00000000000000000009.batches");
        std::fs::write(&torn, b"half a ba").expect("written");
        let store = open_and(directory.path(), put(3..4));
        assert!(!torn.exists());
        for sequence in 1..4 {
            let found = store.get(&batch_key(sequence)).expect("read");
            assert_eq!(found, Some(batch(sequence)));
        }
    }

    #[test]
    fn a_batch_is_read_while_flushes_remove_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open_and(directory.path(), put(1..2));
        let flush = |entries| store.apply(&WriteBatch { entries }).expect("applied");
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let found = store.get(&batch_key(1)).expect("read");
                    assert_eq!(found, Some(batch(1)));
                }
            });
            (0..200).for_each(|_| flush(put(1..2)));
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().expect("it was always there");
        });
    }

    #[test]
    fn a_missing_or_short_batch_is_reported_with_the_name_of_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = open_and(directory.path(), put(1..3));
        let [file] = files(directory.path()).try_into().expect("one for a flush");
        let shorten = |length| {
            let opened = std::fs::OpenOptions::new().write(true).open(&file);
            opened.expect("opened").set_len(length).expect("shortened");
        };
        shorten(2_999);
        assert_eq!(
            store.get(&batch_key(1)).expect("read").map(|it| it.len()),
            Some(1_000)
        );
        let short = store.get(&batch_key(2)).expect_err("short");
        std::fs::remove_file(&file).expect("removed");
        let gone = store.get(&batch_key(1)).expect_err("gone");
        for error in [short, gone] {
            assert!(matches!(error, StateError::Store { .. }), "{error}");
            let name = file.file_name().and_then(|it| it.to_str()).expect("a name");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_database_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join(FILE), vec![7; 10_000]).expect("written");
        let Err(error) = DiskStore::open(directory.path()) else {
            panic!("garbage was opened");
        };
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
