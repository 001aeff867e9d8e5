//! The candidates: a database, and how the tree's leaves hold rows.

#[cfg(feature = "fjall")]
use super::fjall::FjallStore;
use bytes::{BufMut, Bytes, BytesMut};
use clap::ValueEnum;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::state::{Area, KeySpace, StateError, Store, WriteBatch};
use quorumfs_bft_runtime::disk::DiskError;
use quorumfs_bft_runtime::store::DiskStore;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Memory for verified nodes, the same for all.
const CACHE_BYTES: usize = 32 << 20;

/// A database.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Engine {
    /// A log-structured merge tree; needs the feature `fjall`.
    #[cfg(feature = "fjall")]
    Fjall,
    /// A copy-on-write B-tree, which the product uses.
    Redb,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            #[cfg(feature = "fjall")]
            Self::Fjall => "fjall",
            Self::Redb => "redb",
        })
    }
}

/// How leaves hold rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// Copy-on-write leaves that contain the rows.
    Contained,
    /// Leaves that hold birth sequence and digest; the row is in the store, under key ‖ birth.
    Hashed,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contained => "contained",
            Self::Hashed => "hashed",
        })
    }
}

/// A store of either kind.
#[derive(Clone)]
pub(crate) enum AnyStore {
    #[cfg(feature = "fjall")]
    Fjall(FjallStore),
    Redb(DiskStore),
}

impl AnyStore {
    pub(crate) fn open(engine: Engine, directory: &Path) -> Result<Self, StateError> {
        match engine {
            #[cfg(feature = "fjall")]
            Engine::Fjall => FjallStore::open(directory).map(Self::Fjall),
            Engine::Redb => {
                let opened = DiskStore::open(directory).map_err(|error| failed(&error))?;
                Ok(Self::Redb(opened))
            }
        }
    }

    fn apply(&self, batch: &WriteBatch) -> Result<(), StateError> {
        match self {
            #[cfg(feature = "fjall")]
            Self::Fjall(store) => store.apply(batch),
            Self::Redb(store) => store.apply(batch).map_err(|error| failed(&error)),
        }
    }
}

fn failed(error: &DiskError) -> StateError {
    StateError::Store {
        doing: "using redb",
        reason: error.to_string(),
    }
}

impl Store for AnyStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        match self {
            #[cfg(feature = "fjall")]
            Self::Fjall(store) => store.get(key),
            Self::Redb(store) => store.get(key),
        }
    }
}

/// A key space under one layout. `Hashed` is an emulation with the same accesses: the tree's values
/// are birth and digest; the rows are written next to the tree in the same atomic batch, which also
/// removes the version before.
pub(crate) struct Candidate {
    space: KeySpace<AnyStore>,
    store: AnyStore,
    layout: Layout,
    sequence: u64,
    rows: BTreeMap<Bytes, Option<Bytes>>,
}

impl Candidate {
    pub(crate) fn open(
        engine: Engine,
        layout: Layout,
        leaf_bytes: u64,
        directory: &Path,
    ) -> Result<Self, StateError> {
        let store = AnyStore::open(engine, directory)?;
        let space = KeySpace::open_shaped(store.clone(), CACHE_BYTES, leaf_bytes)?;
        let sequence = space.durable_root().map_or(0, |root| root.sequence.0);
        Ok(Self {
            space,
            store,
            layout,
            sequence,
            rows: BTreeMap::new(),
        })
    }

    /// Executes one batch.
    pub(crate) fn batch(&mut self, writes: &[(Bytes, Option<Bytes>)]) -> Result<(), StateError> {
        self.sequence += 1;
        let mut txn = self.space.begin(Area::Service, Sequence(self.sequence));
        for (key, value) in writes {
            if self.layout == Layout::Hashed {
                if let Some(old) = txn.get(key)? {
                    self.rows.insert(versioned(key, &old), None);
                }
                if let Some(value) = value {
                    let mut leaf = BytesMut::with_capacity(40);
                    leaf.put_u64(self.sequence);
                    leaf.put_slice(blake3::hash(value).as_bytes());
                    let leaf = leaf.freeze();
                    self.rows.insert(versioned(key, &leaf), Some(value.clone()));
                    txn.put(key, leaf)?;
                    continue;
                }
            }
            match value {
                Some(value) => txn.put(key, value.clone())?,
                None => txn.delete(key)?,
            }
        }
        txn.commit();
        Ok(())
    }

    /// Makes a root durable.
    pub(crate) fn flush(&mut self) -> Result<(), StateError> {
        let rows = std::mem::take(&mut self.rows).into_iter().collect();
        let (batch, root) = self.space.flush(Sequence(self.sequence), rows)?;
        self.store.apply(&batch)?;
        self.space.flushed(root.sequence);
        Ok(())
    }

    fn row(&self, key: &[u8], value: Bytes) -> Result<Bytes, StateError> {
        if self.layout == Layout::Contained {
            return Ok(value);
        }
        let missing = || StateError::Damaged {
            place: "a row".to_owned(),
            reason: "it is missing".to_owned(),
        };
        let row = self
            .space
            .extra(&versioned(key, &value))?
            .ok_or_else(missing)?;
        if value.get(8..) != Some(blake3::hash(&row).as_bytes().as_slice()) {
            return Err(missing());
        }
        Ok(row)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let found = self.space.view(Area::Service).get(key)?;
        found.map(|value| self.row(key, value)).transpose()
    }

    /// How many rows there are from `from` on, at most `limit`.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<usize, StateError> {
        let rows = self.space.view(Area::Service).scan(from..to, limit)?;
        let count = rows.len();
        for (key, value) in rows {
            self.row(&key, value)?;
        }
        Ok(count)
    }
}

fn versioned(key: &[u8], leaf: &[u8]) -> Bytes {
    [key, leaf.get(..8).unwrap_or_default()].concat().into()
}
