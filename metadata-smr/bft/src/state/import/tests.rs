//! Importing a tree: from every state to every other, with liars, crashes and newer roots.

use crate::identity::{Digest, Sequence};
use crate::state::{Area, DurableRoot, KeySpace, MemoryStore, Path, Store, Taken};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

/// Small leaves make deep trees of few rows.
const LEAF: u64 = 120;

struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

struct Side {
    store: MemoryStore,
    space: KeySpace<MemoryStore>,
    sequence: u64,
}

impl Side {
    fn open(store: MemoryStore, sequence: u64) -> Self {
        let space = KeySpace::open_shaped(store.clone(), 0, LEAF).unwrap();
        Self {
            store,
            space,
            sequence,
        }
    }

    /// Writes and deletes some rows, and makes the state durable.
    fn change(&mut self, rows: u64, random: &mut TestRandom) {
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        let mut txn = self.space.begin(Area::Service, sequence);
        for _ in 0..rows {
            let number = random.below(400);
            let key = format!("{:03}{}", number, "x".repeat((number % 7) as usize));
            if random.below(3) == 0 {
                txn.delete(key.as_bytes()).unwrap();
            } else {
                let value = vec![random.below(256) as u8; random.below(40) as usize];
                txn.put(key.as_bytes(), value).unwrap();
            }
        }
        txn.put(b"always", sequence.0.to_be_bytes().to_vec())
            .unwrap();
        txn.commit();
        let (batch, root) = self.space.flush(sequence, Vec::new()).unwrap();
        self.store.apply(&batch);
        self.space.flushed(root.sequence);
    }

    fn root(&self) -> DurableRoot {
        self.space.durable_root().unwrap()
    }

    /// Every node in the store.
    fn nodes(&self) -> BTreeSet<Bytes> {
        let keys = self.store.keys().into_iter();
        keys.filter(|key| key.first() == Some(&b'n')).collect()
    }
}

fn spoiled(received: &Bytes, random: &mut TestRandom) -> Bytes {
    let mut bytes = received.to_vec();
    match random.below(3) {
        0 => bytes.truncate(random.below(received.len() as u64) as usize),
        1 => bytes.push(0),
        _ => {
            let at = random.below(received.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
    }
    bytes.into()
}

/// The events of a run.
#[derive(Default)]
struct TroubleCounts {
    arrived: usize,
    moved: usize,
    resumed: usize,
    refused: usize,
}

/// Imports the state of `from` into `to`.
fn take_over(
    from: &mut Side,
    mut to: Side,
    random: &mut TestRandom,
    trouble: u64,
) -> (Side, TroubleCounts) {
    let mut seen = TroubleCounts::default();
    let mut target = from.root();
    to.space.begin_import(target, Bytes::from_static(b"note"));
    let mut under_way = None;
    for _ in 0..100_000 {
        while to.space.import_advance().unwrap() {}
        if let Some((batch, _)) = to.space.import_write() {
            under_way = Some(batch);
        }
        // A write may take a while: meanwhile nodes arrive, and the root moves on.
        if let Some(batch) = under_way.take_if(|_| trouble == 0 || random.below(6) == 0) {
            if trouble > 0 && random.below(20) == 0 {
                // A crash, with or without the writes that were just returned.
                if random.below(2) == 0 {
                    to.store.apply(&batch);
                }
                let own = to.space.durable_root();
                to = Side::open(to.store.snapshot(), to.sequence);
                assert_eq!(to.space.durable_root(), own);
                match to.space.import_note() {
                    Some(note) => assert_eq!(note.as_ref(), b"note"),
                    None => to.space.begin_import(target, Bytes::from_static(b"note")),
                }
                target = to.space.import_target().unwrap();
                seen.resumed += 1;
                continue;
            }
            to.store.apply(&batch);
            to.space.import_written();
        }
        if to.space.import_complete() {
            let (batch, root) = to.space.finish_import(Vec::new()).unwrap();
            assert_eq!(root, target);
            to.store.apply(&batch);
            to.space.flushed(root.sequence);
            to.sequence = root.sequence.0;
            return (to, seen);
        }
        if trouble > 0 && random.below(40) == 0 {
            from.change(10, random);
        }
        if !from.space.serves(&target.digest) {
            target = from.root();
            to.space.begin_import(target, Bytes::from_static(b"note"));
            seen.moved += 1;
            continue;
        }
        let wanted = to.space.import_wanted(1 + random.below(9) as usize);
        let mut lost: Vec<Path> = Vec::new();
        for path in wanted {
            let received = from.space.export(&target.digest, &path).unwrap().unwrap();
            if trouble > 0 && random.below(6) == 0 {
                let wrong = spoiled(&received, random);
                let taken = to.space.import_take(&path, &wrong).unwrap();
                assert_eq!(taken, Taken::Wrong);
                seen.refused += 1;
                lost.push(path);
            } else {
                assert_eq!(to.space.import_take(&path, &received).unwrap(), Taken::Good);
                assert_eq!(
                    to.space.import_take(&path, &received).unwrap(),
                    Taken::Unasked
                );
                seen.arrived += 1;
            }
        }
        to.space.import_give_back(&lost);
    }
    panic!("it does not end");
}

/// Both hold the same rows, in nodes of which none is superfluous.
fn check(from: &mut Side, to: &mut Side) {
    assert_eq!(to.root().digest, to.space.root_digest().unwrap());
    let rows = |side: &Side| {
        let view = side.space.view(Area::Service);
        view.scan(b"".as_slice()..b"\xff".as_slice(), usize::MAX)
            .unwrap()
    };
    let whole = Side::open(to.store.snapshot(), to.sequence);
    assert_eq!(rows(&whole), rows(to));
    if to.root().digest == from.root().digest {
        assert_eq!(rows(from), rows(to));
    }
    // Nodes that only older roots need are removed with the next two flushes.
    let mut rebuilt = Side::open(MemoryStore::new(), to.sequence);
    let (mut one, mut other) = (TestRandom(77), TestRandom(77));
    rebuilt.space.begin_import(to.root(), Bytes::new());
    let (mut rebuilt, _) = take_over(to, rebuilt, &mut TestRandom(5), 0);
    for _ in 0..3 {
        to.change(3, &mut one);
        rebuilt.change(3, &mut other);
    }
    assert_eq!(to.root(), rebuilt.root());
    assert_eq!(to.nodes().len(), rebuilt.nodes().len(), "superfluous nodes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_tree_is_taken_over_from_any_state_through_any_trouble(
        seed in 1_u64..u64::MAX,
        shared in 0_u64..300,
        apart in 0_u64..200,
        fresh in any::<bool>(),
        trouble in 0_u64..2,
    ) {
        let mut random = TestRandom(seed);
        let mut from = Side::open(MemoryStore::new(), 0);
        from.change(shared, &mut random);
        let mut to = Side::open(from.store.snapshot(), 1);
        if fresh {
            to = Side::open(MemoryStore::new(), 0);
        } else {
            let apart = random.below(20) * u64::from(random.below(2) == 0);
            to.change(apart, &mut random);
        }
        from.change(apart / 2, &mut random);
        from.change(apart, &mut random);
        let (mut to, _) = take_over(&mut from, to, &mut random, trouble);
        check(&mut from, &mut to);
    }
}

#[test]
fn only_different_nodes_are_fetched_and_every_fault_occurs() {
    let mut random = TestRandom(3);
    let mut from = Side::open(MemoryStore::new(), 0);
    from.change(2_000, &mut random);
    let whole = from.nodes().len();
    let to = Side::open(from.store.snapshot(), 1);
    from.change(1, &mut random);
    let (mut to, seen) = take_over(&mut from, to, &mut random, 0);
    check(&mut from, &mut to);
    assert!(seen.arrived * 5 < whole, "{} of {whole}", seen.arrived);
    let mut all = TroubleCounts::default();
    for seed in 1..60 {
        let mut random = TestRandom(seed);
        let mut from = Side::open(MemoryStore::new(), 0);
        from.change(600, &mut random);
        let to = Side::open(MemoryStore::new(), 0);
        let (mut to, seen) = take_over(&mut from, to, &mut random, 1);
        check(&mut from, &mut to);
        all.moved += seen.moved;
        all.resumed += seen.resumed;
        all.refused += seen.refused;
    }
    assert!(all.moved > 5 && all.resumed > 2 && all.refused > 50);
}

#[test]
fn a_root_that_proves_nothing_is_not_taken() {
    let mut random = TestRandom(9);
    let mut from = Side::open(MemoryStore::new(), 0);
    from.change(50, &mut random);
    let mut to = Side::open(MemoryStore::new(), 0);
    let target = DurableRoot {
        digest: Digest([7; 32]),
        ..from.root()
    };
    to.space.begin_import(target, Bytes::new());
    while to.space.import_advance().unwrap() {}
    let path = to.space.import_wanted(9).remove(0);
    let received = from
        .space
        .export(&from.root().digest, &path)
        .unwrap()
        .unwrap();
    assert_eq!(
        to.space.import_take(&path, &received).unwrap(),
        Taken::Wrong
    );
    assert!(
        from.space
            .export(&Digest([7; 32]), &path)
            .unwrap()
            .is_none()
    );
    assert!(to.store.get(b"r").unwrap().is_none());
}

/// Takes over a state whose root moves every `pace` rounds, while a node takes `way` of them to
/// come, and a write `delay`.
fn take_over_slowly((pace, way, delay): (u64, u64, u64), random: &mut TestRandom) {
    let mut from = Side::open(MemoryStore::new(), 0);
    from.change(200, random);
    let mut to = Side::open(MemoryStore::new(), 0);
    let (mut coming, mut under_way) = (VecDeque::new(), None);
    for round in 0.. {
        if round % pace == 0 && round < 40 * pace {
            from.change(0, random);
            to.space
                .begin_import(from.root(), Bytes::from_static(b"note"));
            coming.clear();
        }
        while to.space.import_advance().unwrap() {}
        for path in to.space.import_wanted(1 + random.below(4) as usize) {
            let node = from.space.export(&from.root().digest, &path).unwrap();
            coming.push_back((path, node.unwrap(), round + way));
        }
        while let Some((path, node, _)) = coming.pop_front_if(|it| it.2 <= round) {
            assert_eq!(to.space.import_take(&path, &node).unwrap(), Taken::Good);
        }
        if let Some((batch, _)) = under_way.take_if(|(_, until)| *until <= round) {
            to.store.apply(&batch);
            to.space.import_written();
        }
        if let Some((batch, _)) = to.space.import_write() {
            under_way = Some((batch, round + delay));
        }
        if to.space.import_complete() {
            break;
        }
    }
    let (batch, root) = to.space.finish_import(Vec::new()).unwrap();
    to.store.apply(&batch);
    to.space.flushed(root.sequence);
    to.sequence = root.sequence.0;
    check(&mut from, &mut to);
}

/// A node that is asked for again while it is being written would have other children in the store
/// in the end than those that were fetched.
#[test]
fn a_root_that_moves_while_nodes_are_written_loses_none_of_them() {
    for pace in 3..12 {
        for way in 0..4 {
            for delay in 1..8 {
                take_over_slowly((pace, way, delay), &mut TestRandom(9 + pace));
            }
        }
    }
}
