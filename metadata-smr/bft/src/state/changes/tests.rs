//! The changes between two durable roots against a sorted map with the same history.

use super::super::MemoryStore;
use super::*;
use crate::identity::Sequence;
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;

/// Small enough for deep trees with few rows.
const LEAF_BYTES: u64 = 64;

type ModelRowsByKey = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Writes (`Some`) or deletes rows in one batch, and makes the state durable.
fn flush(
    (space, store): (&mut KeySpace<MemoryStore>, &MemoryStore),
    sequence: u64,
    area: Area,
    writes: &[(Vec<u8>, Option<Vec<u8>>)],
) {
    let mut txn = space.begin(area, Sequence(sequence));
    for (key, value) in writes {
        match value {
            Some(value) => txn.put(key, value.clone()).expect("within the limits"),
            None => txn.delete(key).expect("within the limits"),
        }
    }
    txn.commit();
    let (batch, root) = space
        .flush(Sequence(sequence), Vec::new())
        .expect("in order");
    store.apply(&batch);
    space.flushed(root.sequence);
}

fn all(space: &KeySpace<MemoryStore>, area: Area) -> ModelRowsByKey {
    let rows = space.durable_rows(area, b"", usize::MAX).expect("sound");
    let plain = |(key, born): BornRow| (key.to_vec(), (born.birth.0, born.value.to_vec()));
    rows.into_iter().map(plain).collect()
}

fn changed(space: &KeySpace<MemoryStore>, since: &Digest, area: Area) -> Vec<ChangedRow> {
    let changes = space.changes_since(since, area).expect("sound");
    let mut changes = changes.expect("it is retained");
    let mut rows = Vec::new();
    while let Some(row) = changes.next().expect("sound") {
        rows.push(row);
    }
    rows
}

/// Keys from few letters, so that they collide, nest and share odd numbers of nibbles.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let letters = prop::sample::select(vec![0x00, 0x01, 0x10, 0x11, 0x80, 0xff]);
    vec(letters, 0..6)
}

fn writes() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
    let value = prop_oneof![vec(any::<u8>(), 0..12), vec(any::<u8>(), 60..90)];
    vec((key(), proptest::option::weighted(0.6, value)), 0..30)
}

proptest! {
    #[test]
    fn changes_applied_to_the_rows_before_give_the_rows_now(
        batches in vec((any::<bool>(), writes()), 1..8),
    ) {
        let store = MemoryStore::new();
        let mut space = KeySpace::open_shaped(store.clone(), 0, LEAF_BYTES).unwrap();
        let mut before: Option<(Digest, [ModelRowsByKey; 2])> = None;
        let areas = [Area::Library, Area::Service];
        for (sequence, (library, writes)) in (1..).zip(batches) {
            let area = if library { Area::Library } else { Area::Service };
            flush((&mut space, &store), sequence, area, &writes);
            let now = areas.map(|area| all(&space, area));
            let root = space.durable_root().unwrap().digest;
            if let Some((since, rows)) = &before {
                for (area, (rows, now)) in areas.into_iter().zip(rows.iter().zip(&now)) {
                    let mut applied = rows.clone();
                    let list = changed(&space, since, area);
                    prop_assert!(list.is_sorted_by(|a, b| a.key < b.key));
                    for ChangedRow { key, now } in list {
                        let key = key.to_vec();
                        let was = applied.get(&key).cloned();
                        let is = now.map(|it| (it.birth.0, it.value.to_vec()));
                        prop_assert!(was != is, "{key:?} has not changed");
                        match is {
                            Some(is) => applied.insert(key, is),
                            None => applied.remove(&key),
                        };
                    }
                    prop_assert_eq!(&applied, now);
                }
            }
            prop_assert_eq!(changed(&space, &root, Area::Service), Vec::new());
            before = Some((root, now));
        }
    }
}

/// Counts reads.
struct CountingStore(MemoryStore, Cell<usize>);

impl Store for CountingStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.1.set(self.1.get() + 1);
        self.0.get(key)
    }
}

#[test]
fn a_few_changes_of_many_rows_are_found_with_a_few_reads() {
    let store = MemoryStore::new();
    let mut space = KeySpace::open(store.clone()).expect("empty");
    let row = |number: u64| format!("row {:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let many: Vec<_> = (0..20_000)
        .map(|number| (row(number).into_bytes(), Some(vec![7; 40])))
        .collect();
    flush((&mut space, &store), 1, Area::Service, &many);
    let since = space.durable_root().expect("flushed").digest;
    let few = [
        (row(70).into_bytes(), None),
        (row(9_000).into_bytes(), Some(vec![8; 40])),
        (b"new".to_vec(), Some(Vec::new())),
    ];
    flush((&mut space, &store), 2, Area::Service, &few);
    let nodes = store.keys().len();
    let counting = CountingStore(store, Cell::new(0));
    let space = KeySpace::open_with(counting, 0).expect("sound");
    space.store().1.set(0);
    let mut changes = space.changes_since(&since, Area::Service);
    let changes = changes.as_mut().expect("sound").as_mut().expect("retained");
    let mut found = 0;
    while changes.next().expect("sound").is_some() {
        found += 1;
    }
    assert_eq!(found, 3);
    let reads = space.store().1.get();
    assert!(nodes > 400 && reads < 60, "{reads} reads of {nodes} nodes");
    let unknown = space.changes_since(&Digest([1; 32]), Area::Service);
    assert!(unknown.expect("sound").is_none());
}
