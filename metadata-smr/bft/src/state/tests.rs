//! The key space against a model: a sorted map with the same history.

use super::key_space::{Area, KeySpace};
use super::{
    LastChange, MemoryStore, Row, StateError, Store, VALUE_BYTES_MAX, View, WriteBatch, prefix_end,
};
use crate::identity::{Digest, Sequence};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Key → birth and value.
type ModelRows = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Small enough for deep trees with few rows.
const LEAF_BYTES: u64 = 64;

fn open(store: &MemoryStore, cache_bytes: usize) -> KeySpace<MemoryStore> {
    KeySpace::open_shaped(store.clone(), cache_bytes, LEAF_BYTES).expect("the store is sound")
}

/// The digest of these rows, written at once into an empty store.
fn digest_of(rows: &ModelRows) -> Digest {
    let mut space = open(&MemoryStore::new(), 0);
    put_all(&mut space, rows);
    space.root_digest().expect("no store is read")
}

fn put_all(space: &mut KeySpace<MemoryStore>, rows: &ModelRows) {
    for (key, (birth, value)) in rows {
        let mut txn = space.begin(Area::Service, Sequence(*birth));
        txn.put(key, value.clone()).expect("within the limits");
        txn.commit();
    }
}

fn rows_of(rows: Vec<Row>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let plain = |(key, value): Row| (key.to_vec(), value.to_vec());
    rows.into_iter().map(plain).collect()
}

/// All rows with their births, which are read one by one.
fn rows_in(view: &View<'_>) -> Result<ModelRows, StateError> {
    let rows = view.scan(&[]..&prefix_end(&[]), usize::MAX)?;
    let born = |(key, value): (Vec<u8>, Vec<u8>)| {
        let last = LastChange::of_state_after(Sequence(u64::MAX));
        assert_eq!(view.noting(&last).get(&key)?.as_deref(), Some(&value[..]));
        Ok((key, (last.sequence().0, value)))
    };
    rows_of(rows).into_iter().map(born).collect()
}

fn all_rows(space: &KeySpace<MemoryStore>) -> ModelRows {
    rows_in(&space.view(Area::Service)).expect("the store is sound")
}

#[derive(Clone, Debug)]
enum Write {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

#[derive(Clone, Debug)]
enum SpaceStep {
    Transaction {
        kept: Vec<Write>,
        undone: Vec<Write>,
        commits: bool,
    },
    Scan {
        from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
    },
    Digest,
    Flush,
    Flushed,
    Crash,
}

/// Keys from few letters, so that they collide, nest and share odd numbers of nibbles.
fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(
        prop::sample::select(vec![0x00, 0x01, 0x10, 0x11, 0x80, 0xff]),
        0..6,
    )
}

fn write() -> impl Strategy<Value = Write> {
    let value = prop_oneof![vec(any::<u8>(), 0..12), vec(any::<u8>(), 60..90)];
    prop_oneof![
        3 => (key(), value).prop_map(|(key, value)| Write::Put(key, value)),
        2 => key().prop_map(Write::Delete),
    ]
}

fn step() -> impl Strategy<Value = SpaceStep> {
    let transaction = (
        vec(write(), 0..24),
        vec(write(), 0..6),
        prop::bool::weighted(0.8),
    );
    prop_oneof![
        8 => transaction.prop_map(|(kept, undone, commits)| {
            SpaceStep::Transaction { kept, undone, commits }
        }),
        3 => (key(), key(), 0..40_usize).prop_map(|(from, to, limit)| {
            SpaceStep::Scan { from, to, limit }
        }),
        2 => Just(SpaceStep::Digest),
        3 => Just(SpaceStep::Flush),
        3 => Just(SpaceStep::Flushed),
        2 => Just(SpaceStep::Crash),
    ]
}

/// A key space, its expected rows, and the expected rows at each root that must be readable.
struct ModelledSpace {
    store: MemoryStore,
    space: KeySpace<MemoryStore>,
    cache_bytes: usize,
    now: ModelRows,
    durable: Option<ModelRows>,
    previous: Option<ModelRows>,
    /// The value that `previous` has again after a crash.
    stored_previous: Option<ModelRows>,
    in_flight: Option<(Sequence, WriteBatch, ModelRows)>,
    sequence: u64,
    transactions: u64,
}

impl ModelledSpace {
    fn new(cache_bytes: usize) -> Self {
        let store = MemoryStore::new();
        Self {
            space: open(&store, cache_bytes),
            store,
            cache_bytes,
            now: ModelRows::new(),
            durable: None,
            previous: None,
            stored_previous: None,
            in_flight: None,
            sequence: 0,
            transactions: 0,
        }
    }

    fn apply(
        &mut self,
        writes: &[Write],
        model: &mut ModelRows,
        savepoint: &[Write],
        commits: bool,
    ) {
        // Batches are named by every second transaction, so that some rows share a birth.
        self.transactions += 1;
        let birth = self.transactions / 2;
        let mut txn = self.space.begin(Area::Service, Sequence(birth));
        let run = |txn: &mut super::Txn<'_>, write: &Write| match write {
            Write::Put(key, value) => txn.put(key, value.clone()).expect("within the limits"),
            Write::Delete(key) => txn.delete(key).expect("within the limits"),
        };
        writes.iter().for_each(|write| run(&mut txn, write));
        for write in writes {
            match write {
                Write::Put(key, value) => model.insert(key.clone(), (birth, value.clone())),
                Write::Delete(key) => model.remove(key),
            };
        }
        let place = txn.savepoint();
        savepoint.iter().for_each(|write| run(&mut txn, write));
        txn.rollback(place);
        for write in writes.iter().chain(savepoint) {
            let (Write::Put(key, _) | Write::Delete(key)) = write;
            let read = txn.get(key).expect("the store is sound");
            assert_eq!(read.as_deref(), model.get(key).map(|(_, value)| &value[..]));
        }
        if commits {
            txn.commit();
        }
    }

    fn step(&mut self, step: &SpaceStep) {
        match step {
            SpaceStep::Transaction {
                kept,
                undone,
                commits,
            } => {
                let mut model = self.now.clone();
                self.apply(kept, &mut model, undone, *commits);
                if *commits {
                    self.now = model;
                }
            }
            SpaceStep::Scan { from, to, limit } => {
                let last = LastChange::of_state_after(Sequence(0));
                let view = self.space.view(Area::Service);
                let found = view.noting(&last).scan(from..to, *limit);
                let found = rows_of(found.expect("the store is sound"));
                let (mut due, mut newest) = (Vec::new(), 0);
                if from < to {
                    let range = self.now.range(from.clone()..to.clone()).take(*limit);
                    for (key, (birth, value)) in range {
                        due.push((key.clone(), value.clone()));
                        newest = newest.max(*birth);
                    }
                }
                assert_eq!((found, last.sequence().0), (due, newest));
            }
            SpaceStep::Digest => {
                let digest = self.space.root_digest().expect("the store is sound");
                assert_eq!(
                    digest,
                    digest_of(&self.now),
                    "the shape follows from the rows"
                );
            }
            SpaceStep::Flush => {
                self.sequence += 1;
                let sequence = Sequence(self.sequence);
                let flushed = self.space.flush(sequence, Vec::new());
                if self.in_flight.is_some() {
                    assert!(matches!(flushed, Err(StateError::FlushOrder { .. })));
                    return;
                }
                let (batch, root) = flushed.expect("the store is sound");
                assert_eq!(root.digest, digest_of(&self.now));
                self.previous = self.durable.clone();
                self.in_flight = Some((sequence, batch, self.now.clone()));
            }
            SpaceStep::Flushed => self.root_durable(),
            SpaceStep::Crash => {
                // The batch in flight is lost or, one time in two, was written and not reported.
                if self.sequence.is_multiple_of(2) {
                    self.root_durable();
                }
                self.in_flight = None;
                self.space = open(&self.store, self.cache_bytes);
                self.now = self.durable.clone().unwrap_or_default();
                self.previous = self.stored_previous.clone();
            }
        }
        self.check();
    }

    fn root_durable(&mut self) {
        if let Some((sequence, batch, model)) = self.in_flight.take() {
            self.store.apply(&batch);
            self.space.flushed(sequence);
            self.stored_previous = self.durable.replace(model);
        }
    }

    /// The root before the newest one, according to the store.
    fn previous_of_store(&self) -> Option<ModelRows> {
        let view = self.space.previous_view(Area::Service)?;
        Some(rows_in(&view).expect("it is readable"))
    }

    fn check(&self) {
        assert_eq!(all_rows(&self.space), self.now);
        if let Some(previous) = &self.previous {
            assert_eq!(self.previous_of_store().as_ref(), Some(previous));
        }
        if let Some(durable) = &self.durable {
            let reopened = open(&self.store.snapshot(), 0);
            assert_eq!(
                &all_rows(&reopened),
                durable,
                "the durable root is readable"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_history_with_flushes_and_crashes_reads_like_a_sorted_map(
        steps in vec(step(), 1..30),
        cache_bytes in prop::sample::select(vec![0, 2_000, 1 << 20]),
    ) {
        let mut world = ModelledSpace::new(cache_bytes);
        steps.iter().for_each(|step| world.step(step));
    }

    #[test]
    fn two_histories_that_end_in_equal_rows_have_equal_roots_and_no_other_has(
        rows in prop::collection::btree_map(key(), (1..9_u64, vec(any::<u8>(), 0..40)), 1..40),
        detour in vec(write(), 0..40),
        order in any::<prop::sample::Index>(),
    ) {
        let store = MemoryStore::new();
        let mut space = open(&store, 0);
        let mut txn = space.begin(Area::Service, Sequence(10));
        for write in &detour {
            if let Write::Put(key, value) = write {
                txn.put(key, value.clone()).expect("within the limits");
            }
        }
        txn.commit();
        let (batch, root) = space.flush(Sequence(1), Vec::new()).expect("flush");
        store.apply(&batch);
        space.flushed(root.sequence);
        let turn = order.index(rows.len());
        for (key, (birth, value)) in rows.iter().skip(turn).chain(rows.iter().take(turn)) {
            let mut txn = space.begin(Area::Service, Sequence(*birth));
            txn.put(key, value.clone()).expect("within the limits");
            txn.commit();
            space.root_digest().expect("the store is sound");
        }
        let mut txn = space.begin(Area::Service, Sequence(11));
        for write in &detour {
            let (Write::Put(key, _) | Write::Delete(key)) = write;
            if !rows.contains_key(key) {
                txn.delete(key).expect("within the limits");
            }
        }
        txn.commit();
        prop_assert_eq!(space.root_digest(), Ok(digest_of(&rows)));

        let victim = rows.keys().nth(turn).expect("there are rows").clone();
        let mut changed = rows.clone();
        changed.entry(victim.clone()).and_modify(|(_, value)| value.push(7));
        let mut reborn = rows.clone();
        reborn.entry(victim.clone()).and_modify(|(birth, _)| *birth += 1);
        let mut fewer = rows.clone();
        fewer.remove(&victim);
        let mut moved = fewer.clone();
        moved.insert([victim.as_slice(), &[9]].concat(), (1, vec![]));
        for other in [changed, reborn, fewer, moved] {
            prop_assert_ne!(digest_of(&other), digest_of(&rows));
        }
    }

    #[test]
    fn a_damaged_or_exchanged_node_is_refused_and_never_read_as_something_else(
        rows in prop::collection::btree_map(key(), (1..9_u64, vec(any::<u8>(), 0..40)), 8..60),
        victim in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        other in any::<Option<prop::sample::Index>>(),
    ) {
        let store = MemoryStore::new();
        let mut space = open(&store, 0);
        put_all(&mut space, &rows);
        let (batch, _) = space.flush(Sequence(1), Vec::new()).expect("flush");
        store.apply(&batch);
        let keys = store.keys();
        let key = keys[victim.index(keys.len())].clone();
        let before = store.get(&key).expect("in memory").expect("it is there");
        let damaged = match other {
            Some(other) => store.get(&keys[other.index(keys.len())]).expect("in memory"),
            None if before.is_empty() => None,
            None => {
                let mut bytes = before.to_vec();
                bytes[place.index(before.len())] ^= 1;
                Some(bytes.into())
            }
        };
        let entries = vec![(key, damaged)];
        store.apply(&WriteBatch { entries });
        let Ok(space) = KeySpace::open_shaped(store, 0, LEAF_BYTES) else {
            return Ok(());
        };
        match rows_in(&space.view(Area::Service)) {
            Ok(read) => prop_assert_eq!(read, rows),
            Err(StateError::Damaged { .. }) => {}
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}

#[test]
fn the_areas_do_not_see_each_other() {
    let mut space = open(&MemoryStore::new(), 0);
    let mut txn = space.begin(Area::Library, Sequence(1));
    txn.put(b"k", b"library".as_slice()).expect("put");
    txn.commit();
    let mut txn = space.begin(Area::Service, Sequence(1));
    assert_eq!(txn.get(b"k"), Ok(None));
    txn.put(b"", b"service".as_slice()).expect("put");
    txn.commit();
    for area in [Area::Library, Area::Service] {
        let rows = space
            .view(area)
            .scan(&[]..&prefix_end(&[]), 10)
            .expect("scan");
        assert_eq!(rows.len(), 1, "in {area:?}");
    }
}

#[test]
fn keys_and_values_beyond_the_limits_are_refused_and_leave_nothing() {
    let mut space = open(&MemoryStore::new(), 0);
    let empty = space.root_digest();
    let mut txn = space.begin(Area::Service, Sequence(1));
    let long = vec![0; super::KEY_BYTES_MAX + 1];
    assert!(matches!(
        txn.put(&long, Bytes::new()),
        Err(StateError::TooLong { what: "key", .. })
    ));
    assert!(matches!(txn.delete(&long), Err(StateError::TooLong { .. })));
    assert!(matches!(
        txn.put(b"k", vec![0; VALUE_BYTES_MAX + 1]),
        Err(StateError::TooLong { what: "value", .. })
    ));
    txn.commit();
    assert_eq!(space.root_digest(), empty);
}

/// Keys that are each a prefix of the next: one branch per byte, the deepest tree there is.
#[test]
fn the_deepest_tree_fits_a_small_stack() {
    let run = || {
        let store = MemoryStore::new();
        let mut space = open(&store, 1 << 20);
        let key = |length: usize| vec![0x55_u8; length];
        for round in 0..3_u8 {
            let mut txn = space.begin(Area::Service, Sequence(1));
            for length in 0..=super::KEY_BYTES_MAX {
                txn.put(&key(length), vec![round; 70]).expect("put");
                if length > 0 && length < super::KEY_BYTES_MAX {
                    let mut side = key(length);
                    side[length - 1] = 0x56;
                    txn.put(&side, vec![round; 70]).expect("put");
                }
            }
            txn.commit();
            let (batch, root) = space
                .flush(Sequence(u64::from(round)), vec![])
                .expect("flush");
            store.apply(&batch);
            space.flushed(root.sequence);
        }
        let rows = space
            .view(Area::Service)
            .scan(&[]..&prefix_end(&[]), usize::MAX);
        assert_eq!(rows.expect("scan").len(), 2 * super::KEY_BYTES_MAX);
        let mut txn = space.begin(Area::Service, Sequence(2));
        for (key, _) in txn.scan(&[]..&prefix_end(&[]), usize::MAX).expect("scan") {
            txn.delete(&key).expect("delete");
        }
        txn.commit();
        assert_eq!(
            space.root_digest(),
            open(&MemoryStore::new(), 0).root_digest()
        );
    };
    #[allow(clippy::disallowed_methods)] // the only way to choose the size of a stack
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(run);
    thread
        .expect("a thread")
        .join()
        .expect("it did not overflow");
}

#[test]
fn a_flush_keeps_what_the_last_two_roots_need_and_nothing_else() {
    let store = MemoryStore::new();
    let mut space = open(&store, 0);
    for sequence in 1..=50_u64 {
        let mut txn = space.begin(Area::Service, Sequence(sequence));
        for row in 0..20_u64 {
            let key = (row * sequence % 37).to_be_bytes();
            txn.put(
                &key,
                vec![0; usize::try_from(sequence % 30).expect("small")],
            )
            .expect("put");
        }
        txn.commit();
        let extra = vec![(Bytes::from_static(b"batch"), Some(Bytes::from(vec![7; 3])))];
        let (batch, root) = space.flush(Sequence(sequence), extra).expect("flush");
        assert_eq!(
            space.extra(b"batch"),
            Ok(Some(Bytes::from(vec![7; 3]))),
            "in flight"
        );
        store.apply(&batch);
        space.flushed(root.sequence);
    }
    for round in 51..=52 {
        let (batch, root) = space.flush(Sequence(round), Vec::new()).expect("flush");
        store.apply(&batch);
        space.flushed(root.sequence);
    }
    // Both roots are the same tree now, so only this tree is left.
    let nodes = store.keys().iter().filter(|key| key[0] == b'n').count();
    let fresh = MemoryStore::new();
    let mut copy = open(&fresh, 0);
    put_all(&mut copy, &all_rows(&space));
    let (batch, _) = copy.flush(Sequence(1), Vec::new()).expect("flush");
    fresh.apply(&batch);
    assert_eq!(
        nodes,
        fresh.keys().iter().filter(|key| key[0] == b'n').count()
    );
    assert_eq!(space.extra(b"batch"), Ok(Some(Bytes::from(vec![7; 3]))));
}
