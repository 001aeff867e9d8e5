//! The key space of a replica: transactions in, durable roots out.
//!
//! Committed rows wait in a sorted map. They are *settled* (applied to the tree in one pass, each
//! changed node written and hashed once) when a root digest is asked for or the state is flushed,
//! so a row that changes in every batch costs one leaf per flush and not one per batch.
//!
//! A flush returns everything that is needed to read its root after a restart, as one atomic batch;
//! until the driver reports it durable the nodes are served from memory. One flush is under way at
//! a time. The batch also removes nodes that only the root before the previous one needed:
//!
//! ```text
//! durable roots   … k−1   k   k+1        flush k+1 writes the nodes new in k+1,
//! retained after flush k+1: k, k+1       removes those that k no longer needed,
//!                                        and lists those that k+1 no longer needs
//! ```

use super::import::{IMPORT_KEY, Import};
use super::node::NodeId;
use super::root_record::{ROOT_KEY, Retained, RootRecord, garbage_digest, rows_digest};
use super::tree::{Tree, node_key};
use super::txn::Txn;
use super::view::{PendingWrites, View};
use super::{DurableRoot, StateError, Store, WriteBatch};
use crate::identity::{Digest, Sequence};
use crate::sabotage::Flag;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;

/// The bound on the rows of one leaf. Part of the format: it decides the shape of the tree.
pub const LEAF_BYTES_MAX: u64 = 4_096;
/// The default size of the cache for clean nodes.
const CACHE_BYTES: usize = 64 << 20;
/// The store's key of the list of nodes that the newest root no longer needs.
pub(super) const GARBAGE_KEY: &[u8] = b"g";
/// The prefix of the store's key of every row outside the tree.
const EXTRA_KEY: u8 = b'x';

/// The owner of rows: the keys of one area cannot reach into the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// The library's rows: sessions, replies, the clock.
    Library,
    /// The service's rows.
    Service,
}

impl Area {
    const fn prefix(self) -> u8 {
        match self {
            Self::Library => 0,
            Self::Service => 1,
        }
    }

    /// Calls a function with the whole key. Short keys, as most are, cause no allocation.
    pub(super) fn with_key<T>(self, key: &[u8], run: impl FnOnce(&[u8]) -> T) -> T {
        let mut short = [0; 64];
        if let Some(whole) = short.get_mut(..=key.len())
            && let Some((first, rest)) = whole.split_first_mut()
        {
            *first = self.prefix();
            rest.copy_from_slice(key);
            return run(whole);
        }
        run(&self.key(key))
    }

    /// Whether a whole key is in this area.
    pub(super) fn owns(self, key: &[u8]) -> bool {
        key.first() == Some(&self.prefix())
    }

    pub(super) fn key(self, key: &[u8]) -> Bytes {
        let mut whole = BytesMut::with_capacity(key.len() + 1);
        whole.put_u8(self.prefix());
        whole.put_slice(key);
        whole.freeze()
    }
}

#[derive(Debug)]
pub(super) struct Flush {
    pub(super) retained: Retained,
    pub(super) extra: BTreeMap<Bytes, Option<Bytes>>,
}

/// All rows of a replica, over a store.
#[derive(Debug)]
pub struct KeySpace<D> {
    pub(super) store: D,
    pub(super) tree: Tree,
    pub(super) pending: PendingWrites,
    pub(super) durable: Option<Retained>,
    pub(super) previous: Option<Retained>,
    /// Nodes that `durable` no longer needs: the next flush removes them.
    pub(super) garbage: Vec<NodeId>,
    pub(super) in_flight: Option<Flush>,
    /// A tree that is being imported from other replicas.
    pub(super) import: Option<Import>,
    /// The service's rows that were written since they were last taken, if they are collected.
    changed: Option<Vec<Bytes>>,
    /// A planted defect: nodes are accepted without verification.
    pub(super) trusting: Flag,
}

impl<D: Store> KeySpace<D> {
    /// Opens the content of the store: the newest durable root, or no rows at all.
    ///
    /// # Errors
    /// If the store fails, is damaged or was written by a newer release.
    pub fn open(store: D) -> Result<Self, StateError> {
        Self::open_with(store, CACHE_BYTES)
    }

    /// The same with `cache_bytes` of memory for clean nodes.
    ///
    /// # Errors
    /// As [`KeySpace::open`].
    pub fn open_with(store: D, cache_bytes: usize) -> Result<Self, StateError> {
        Self::open_shaped(store, cache_bytes, LEAF_BYTES_MAX)
    }

    /// The same with the default cache and another bound on the rows of one leaf.
    pub(crate) fn open_with_leaves(store: D, leaf_bytes_max: u64) -> Result<Self, StateError> {
        Self::open_shaped(store, CACHE_BYTES, leaf_bytes_max)
    }

    /// The same with another bound on the rows of one leaf. It decides the shape of the tree and
    /// with it every digest, so that all replicas of a cluster must use the same: for measurements
    /// and tests only.
    ///
    /// # Errors
    /// As [`KeySpace::open`].
    pub fn open_shaped(
        store: D,
        cache_bytes: usize,
        leaf_bytes_max: u64,
    ) -> Result<Self, StateError> {
        let record = match store.get(ROOT_KEY)? {
            Some(stored) => Some(RootRecord::decode(&stored)?),
            None => None,
        };
        let garbage = match (&record, store.get(GARBAGE_KEY)?) {
            (Some(record), Some(stored)) => decode_garbage(&stored, record)?,
            (None, None) => Vec::new(),
            _ => {
                return Err(StateError::Damaged {
                    place: "the root record".to_owned(),
                    reason: "it or the list of obsolete nodes is missing".to_owned(),
                });
            }
        };
        let durable = record.map(|record| record.newest);
        let own = durable.and_then(|newest| newest.tree);
        let import = match store.get(IMPORT_KEY)? {
            Some(stored) => Some(Import::resume(&stored, own)?),
            None => None,
        };
        let next_id = record.map_or(NodeId(1), |record| record.next_id);
        let taken = import.as_ref().map_or(next_id, Import::next_id);
        Ok(Self {
            store,
            tree: Tree::new(
                durable.and_then(|newest| newest.tree),
                next_id.max(taken),
                cache_bytes,
                leaf_bytes_max,
            ),
            pending: PendingWrites::new(),
            durable,
            previous: record.and_then(|record| record.previous),
            garbage,
            in_flight: None,
            import,
            changed: None,
            trusting: Flag::CLEAR,
        })
    }

    /// Begins a transaction of the batch at `sequence` on the rows of `area`.
    pub fn begin(&mut self, area: Area, sequence: Sequence) -> Txn<'_> {
        let changed = match area {
            Area::Service => self.changed.as_mut(),
            Area::Library => None,
        };
        let rows = (&self.tree, &mut self.pending);
        Txn::new(rows, &self.store, area, sequence, changed)
    }

    /// Collects the keys of the service's rows that transactions write from now on.
    pub fn note_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    /// Returns the keys that were collected, oldest first, some perhaps several times, and stops
    /// collecting.
    pub fn take_changes(&mut self) -> Vec<Bytes> {
        self.changed.take().unwrap_or_default()
    }

    /// All committed rows of `area`.
    #[must_use]
    pub fn view(&self, area: Area) -> View<'_> {
        View {
            tree: &self.tree,
            root: self.tree.root,
            pending: Some(&self.pending),
            store: &self.store,
            area,
            noted: None,
        }
    }

    /// The rows of `area` as of [`KeySpace::previous_root`]; `None` if there is no such root.
    #[must_use]
    pub fn previous_view(&self, area: Area) -> Option<View<'_>> {
        self.previous.map(|previous| View {
            tree: &self.tree,
            root: previous.tree,
            pending: None,
            store: &self.store,
            area,
            noted: None,
        })
    }

    /// The digest of all committed rows. Settles the rows that were written since the last
    /// settling.
    ///
    /// # Errors
    /// If the store fails; the key space is of no use then.
    pub fn root_digest(&mut self) -> Result<Digest, StateError> {
        self.settle()?;
        Ok(rows_digest(self.tree.root.as_ref()))
    }

    /// Returns the writes that make all committed rows durable, as the state after `sequence`.
    ///
    /// `extra` are rows outside the tree, put (`Some`) or removed (`None`) in the same batch and
    /// read with [`KeySpace::extra`]; they count in no digest.
    ///
    /// # Errors
    /// If the store fails, if another flush is under way, or if `sequence` is not above the durable
    /// root's.
    pub fn flush(
        &mut self,
        sequence: Sequence,
        extra: Vec<(Bytes, Option<Bytes>)>,
    ) -> Result<(WriteBatch, DurableRoot), StateError> {
        let refuse = |why| Err(StateError::FlushOrder { sequence, why });
        if self.in_flight.is_some() {
            return refuse("the previous flush is not durable yet");
        }
        if self
            .durable
            .is_some_and(|newest| newest.root.sequence > sequence)
        {
            return refuse("a later state is durable already");
        }
        self.settle()?;
        let tree = self.tree.root;
        let root = DurableRoot {
            sequence,
            digest: rows_digest(tree.as_ref()),
        };
        let retained = Retained { root, tree };
        self.previous = self.durable;
        let mut entries =
            Vec::with_capacity(self.tree.fresh.len() + self.garbage.len() + extra.len() + 2);
        for id in std::mem::take(&mut self.garbage) {
            self.tree.forget(id);
            entries.push((node_key(id), None));
        }
        for (id, (_, bytes)) in &self.tree.fresh {
            entries.push((node_key(*id), Some(bytes.clone())));
        }
        self.garbage = std::mem::take(&mut self.tree.released);
        let list = encode_garbage(&mut self.garbage);
        let record = RootRecord {
            next_id: self.tree.next_id,
            garbage: garbage_digest(&list),
            newest: retained,
            previous: self.previous,
        };
        entries.push((Bytes::from_static(GARBAGE_KEY), Some(list)));
        entries.push((Bytes::from_static(ROOT_KEY), Some(record.encode()?)));
        for (key, value) in &extra {
            entries.push((extra_key(key), value.clone()));
        }
        self.tree.in_flight = std::mem::take(&mut self.tree.fresh);
        self.in_flight = Some(Flush {
            retained,
            extra: extra.into_iter().collect(),
        });
        Ok((WriteBatch { entries }, root))
    }

    /// The flush at `sequence` is durable. Anything else is ignored.
    pub fn flushed(&mut self, sequence: Sequence) {
        if let Some(flush) = self
            .in_flight
            .take_if(|flush| flush.retained.root.sequence == sequence)
        {
            self.durable = Some(flush.retained);
            self.tree.landed();
            self.install_import();
        }
    }

    /// The newest root that a restart would find.
    #[must_use]
    pub fn durable_root(&self) -> Option<DurableRoot> {
        self.durable.map(|durable| durable.root)
    }

    /// The durable root before the newest one; it can still be read.
    #[must_use]
    pub fn previous_root(&self) -> Option<DurableRoot> {
        self.previous.map(|previous| previous.root)
    }

    /// Whether a flush is under way.
    #[must_use]
    pub const fn is_flushing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The row outside the tree that was last flushed under `key`.
    ///
    /// # Errors
    /// If the store fails.
    pub fn extra(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let waiting = self.in_flight.as_ref();
        match waiting.and_then(|flush| flush.extra.get(key)) {
            Some(value) => Ok(value.clone()),
            None => self.store.get(&extra_key(key)),
        }
    }

    /// The store.
    pub const fn store(&self) -> &D {
        &self.store
    }

    fn settle(&mut self) -> Result<(), StateError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let changes: Vec<_> = std::mem::take(&mut self.pending).into_iter().collect();
        self.tree.apply(&self.store, &changes)
    }
}

/// The name of an extra row, by the key that it has in the store; `None` for a row of the tree.
pub(crate) fn name_of_extra(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[EXTRA_KEY])
}

pub(super) fn extra_key(key: &[u8]) -> Bytes {
    let mut whole = BytesMut::with_capacity(key.len() + 1);
    whole.put_u8(EXTRA_KEY);
    whole.put_slice(key);
    whole.freeze()
}

/// The ids, ascending.
pub(super) fn encode_garbage(ids: &mut [NodeId]) -> Bytes {
    ids.sort_unstable();
    let mut bytes = BytesMut::with_capacity(ids.len() * 8);
    ids.iter().for_each(|id| bytes.put_u64_le(id.0));
    bytes.freeze()
}

fn decode_garbage(stored: &[u8], record: &RootRecord) -> Result<Vec<NodeId>, StateError> {
    let (ids, rest) = stored.as_chunks::<8>();
    if !rest.is_empty() || garbage_digest(stored) != record.garbage {
        return Err(StateError::Damaged {
            place: "the list of obsolete nodes".to_owned(),
            reason: "its digest is not the one in the root record".to_owned(),
        });
    }
    let id = |bytes: &[u8; 8]| NodeId(u64::from_le_bytes(*bytes));
    Ok(ids.iter().map(id).collect())
}
