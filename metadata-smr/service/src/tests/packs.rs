//! Packs: created by the first commit, listed, found when they are sparse, emptied.

use super::harness::*;
use super::model::{chance, consistent};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::limits::{MOVE_OBJECTS_MAX, MOVE_SLICES_MAX, PACK_SLICES_MAX, ROWS_WRITTEN_MAX};
use crate::operation::*;
use crate::query::Question;
use crate::reply::{Done, QueryResult, Response};
use crate::row::{Object, PackedSlice, Row};
use crate::simulation::workload::{Call, Workload};
use quorumfs_bft::identity::Digest;
use quorumfs_bft::service::Caller;

/// Sealed bytes of each slice in these tests.
const SEALED: u32 = 100;

fn pack(allocation: AllocationId, counter: u32, slots: u32) -> NewObject {
    NewObject {
        class: ObjectClass::PACK,
        length: slots * SEALED,
        ..object(allocation, counter, 3)
    }
}

/// A commit of ten bytes at `offset`, which lie in a slot of a pack.
fn packed(inode: InodeId, offset: u64, pack: &NewObject, counter: u32, slot: u32) -> Commit {
    let new = NewSlice {
        offset: slot * SEALED,
        length: 84,
        sealed_length: SEALED,
        ..slice(pack.id.allocation, counter, pack)
    };
    Commit {
        objects: vec![pack.clone()],
        content: NewContent::Extents(vec![NewExtent {
            offset,
            slice: new.id,
            slice_offset: 0,
            length: 10,
        }]),
        slices: vec![new],
        ..commit(inode, pack.id.allocation, counter, &[])
    }
}

fn moved(slice: SliceId, from: (&NewObject, u32), to: (&NewObject, u32)) -> SliceMove {
    SliceMove {
        home: Home(0),
        slice,
        from: from.0.id,
        from_offset: from.1 * SEALED,
        sealed_length: SEALED,
        to: to.0.id,
        to_offset: to.1 * SEALED,
    }
}

struct Packs {
    world: TestService,
    caller: Caller,
    allocation: AllocationId,
    files: Vec<InodeId>,
}

impl Packs {
    fn new() -> Self {
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        let files = ["a", "b", "c", "d"].map(|name| world.create(&caller, InodeId::ROOT, name));
        Self {
            allocation: world.allocate(&caller, 1024),
            files: files.to_vec(),
            world,
            caller,
        }
    }

    fn pack(&self, counter: u32, slots: u32) -> NewObject {
        pack(self.allocation, counter, slots)
    }

    fn commit(&mut self, commit: Commit) -> Result<(), Error> {
        let step = Step::Commit(commit);
        let done = self.world.step(&self.caller, &Credentials::root(), step);
        consistent(&self.world).unwrap();
        done.map(|_| ())
    }

    /// Files `a` and so on each get a slice of the pack, numbered from `first`.
    fn fill(&mut self, pack: &NewObject, first: u32, slots: u32) -> Vec<SliceId> {
        let mut slices = Vec::new();
        for slot in 0..slots {
            let inode = self.files[slot as usize];
            let commit = packed(inode, 0, pack, first + slot, slot);
            slices.push(commit.slices[0].id);
            self.commit(commit).unwrap();
        }
        slices
    }

    fn remove(&mut self, file: &str) {
        let step = Step::Unlink(removal(InodeId::ROOT, file, false));
        let root = Credentials::root();
        self.world.step(&self.caller, &root, step).unwrap();
        consistent(&self.world).unwrap();
    }

    fn move_as(
        &mut self,
        caller: &Caller,
        objects: &[&NewObject],
        moves: &[SliceMove],
    ) -> Result<u32, Error> {
        let before = self.world.rows(b"");
        let operation = Operation::MoveSlices {
            realm: RealmId::ROOT,
            objects: objects.iter().copied().cloned().collect(),
            moves: moves.to_vec(),
        };
        let done = self.world.run(caller, &operation);
        consistent(&self.world).unwrap();
        let changed = changed_rows(&before, &self.world.rows(b""));
        assert!(changed <= ROWS_WRITTEN_MAX, "{changed}");
        match done {
            Ok(Done::Moved { slices }) => Ok(slices),
            Err(refusal) => {
                assert_eq!(changed, 0, "a refusal changed something");
                Err(refusal.error)
            }
            other => panic!("{other:?}"),
        }
    }

    fn moves(&mut self, objects: &[&NewObject], moves: &[SliceMove]) -> Result<u32, Error> {
        let caller = self.caller;
        self.move_as(&caller, objects, moves)
    }

    fn sparse(&mut self) -> Vec<ObjectId> {
        let question = Question::SparsePacks {
            after: None,
            limit: 100,
        };
        match self.world.ask(&self.caller, question) {
            Ok(QueryResult::SparsePacks { packs, more: false }) => {
                packs.iter().map(|(id, _, _)| *id).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn listed(&mut self, pack: &NewObject) -> Vec<(SliceId, u32)> {
        let (mut after, mut listed) = (None, Vec::new());
        loop {
            let pack = pack.id;
            let limit = 2;
            let question = Question::PackedSlices { pack, after, limit };
            let Ok(QueryResult::PackedSlices { slices, more }) =
                self.world.ask(&self.caller, question)
            else {
                panic!("no page")
            };
            assert!(slices.len() <= 2 && (!more || slices.len() == 2));
            assert!(slices.iter().all(|(_, _, at)| at.sealed_length == SEALED));
            let places = slices.iter().map(|(_, id, at)| (*id, at.offset / SEALED));
            listed.extend(places);
            after = slices.last().map(|(home, id, _)| (*home, *id));
            if !more {
                return listed;
            }
        }
    }

    fn row(&mut self, pack: &NewObject) -> Option<Object> {
        match self.world.ask(&self.caller, Question::Object(pack.id)) {
            Ok(QueryResult::Object(row)) => Some(row),
            _ => None,
        }
    }

    fn unreferenced(&self) -> usize {
        self.world.rows(b"OG/").len()
    }
}

#[test]
fn racing_commits_share_a_pack_in_either_order() {
    let mut packs = Packs::new();
    let pack = packs.pack(0, 4);
    let inode = |packs: &Packs, index: usize| packs.files[index];
    packs
        .commit(packed(inode(&packs, 2), 0, &pack, 2, 2))
        .unwrap();
    // In the meantime a shard was acknowledged, and another had to be put again.
    let at = |shard, attempt| PlacedShard {
        object: pack.id,
        shard: ShardIndex(shard),
        cloud: CloudIndex(shard),
        generation: 0,
        attempt,
        receipt: None,
    };
    let confirm = Operation::ConfirmPlaced {
        shards: vec![at(3, 0)],
        checked: vec![],
    };
    let replace = Operation::ReplacePlacement {
        shard: at(1, 1),
        acknowledged: true,
    };
    for operation in [confirm, replace] {
        packs.world.run(&packs.caller, &operation).unwrap();
    }
    packs
        .commit(packed(inode(&packs, 0), 0, &pack, 1, 0))
        .unwrap();
    let mut both = packed(inode(&packs, 1), 0, &pack, 3, 1);
    let second = packed(inode(&packs, 1), 50, &pack, 4, 3);
    both.slices.extend(second.slices);
    let NewContent::Extents(extents) = &mut both.content else {
        panic!()
    };
    let NewContent::Extents(more) = second.content else {
        panic!()
    };
    extents.extend(more);
    let mut twice = both.clone();
    twice.objects.push(pack.clone());
    assert_eq!(packs.commit(twice), Err(Error::ObjectUsed(pack.id)));
    packs.commit(both).unwrap();
    let row = packs.row(&pack).unwrap();
    assert_eq!((row.slices, row.live_bytes), (4, 400));
    assert!(row.shards.iter().all(|shard| shard.acknowledged));
    assert_eq!(row.shards[1].attempt, 1, "its known place stays");
    let listed = packs.listed(&pack);
    let slots: Vec<_> = listed
        .iter()
        .map(|(id, slot)| (id.counter, *slot))
        .collect();
    assert_eq!(slots, [(1, 0), (2, 2), (3, 1), (4, 3)]);
}

#[test]
fn a_pack_that_changed_in_between_is_refused() {
    let mut packs = Packs::new();
    let pack = packs.pack(0, 4);
    let inode = packs.files[0];
    packs.commit(packed(inode, 0, &pack, 0, 0)).unwrap();
    let used = Err(Error::ObjectUsed(pack.id));
    let spoil = |change: &dyn Fn(&mut NewObject)| {
        let mut other = pack.clone();
        change(&mut other);
        packed(inode, 20, &other, 1, 1)
    };
    for commit in [
        spoil(&|pack| pack.length += 1),
        spoil(&|pack| pack.shard_length += 1),
        spoil(&|pack| pack.class = ObjectClass::BLOCK),
        spoil(&|pack| pack.shards[3].digest = Digest([9; 32])),
        spoil(&|pack| pack.shards.truncate(3)),
        spoil(&|pack| pack.policy = crate::placement::Policy::new(4, 1, 2, 3).unwrap()),
    ] {
        assert_eq!(packs.commit(commit), used);
    }
    // It gets no slice, so it must not be named.
    let mut nothing = packed(inode, 20, &pack, 1, 1);
    nothing.slices.clear();
    nothing.content = NewContent::Same;
    assert_eq!(packs.commit(nothing), Err(Error::BadContent));
    // A block is created once.
    let block = commit(inode, packs.allocation, 7, &[(40, 10)]);
    packs.commit(block.clone()).unwrap();
    let mut again = packed(inode, 60, &block.objects[0], 8, 0);
    again.slices[0].object = block.objects[0].id;
    let refused = packs.commit(again);
    assert_eq!(refused, Err(Error::ObjectUsed(block.objects[0].id)));
    // Neither another session nor a session with a closed allocation may add to it.
    let other = packs.world.open(OWNER);
    let step = Step::Commit(packed(inode, 20, &pack, 1, 1));
    let refused = packs.world.step(&other, &Credentials::root(), step);
    assert_eq!(refused, Err(Error::ObjectNotOwned(pack.id)));
    let allocation = packs.allocation;
    let close = Operation::CloseAllocation { allocation };
    packs.world.run(&packs.caller, &close).unwrap();
    let refused = packs.commit(packed(inode, 20, &pack, 1, 1));
    assert_eq!(refused, Err(Error::ObjectNotOwned(pack.id)));
}

#[test]
fn a_pack_that_lost_all_of_its_slices_comes_back_to_life() {
    let mut packs = Packs::new();
    let pack = packs.pack(0, 4);
    packs.fill(&pack, 0, 1);
    packs.remove("a");
    assert_eq!(packs.unreferenced(), 1);
    assert_eq!(
        packs.sparse(),
        [],
        "it is not worth compacting: it is empty"
    );
    let inode = packs.files[1];
    packs.commit(packed(inode, 0, &pack, 1, 1)).unwrap();
    assert_eq!(packs.unreferenced(), 0);
    assert_eq!(packs.sparse(), [pack.id]);
}

#[test]
fn a_pack_is_sparse_while_less_than_half_of_it_is_needed() {
    let mut packs = Packs::new();
    let pack = packs.pack(0, 4);
    packs.fill(&pack, 0, 2);
    assert_eq!(packs.sparse(), [], "just half of it");
    packs.remove("a");
    assert_eq!(packs.sparse(), [pack.id]);
    packs
        .commit(packed(packs.files[2], 0, &pack, 5, 2))
        .unwrap();
    assert_eq!(packs.sparse(), []);
    let block = commit(packs.files[3], packs.allocation, 9, &[(0, 10)]);
    packs.commit(block).unwrap();
    assert_eq!(packs.world.rows(b"OS/").len(), 2, "blocks list nothing");
}

#[test]
fn live_slices_are_moved_and_released_ones_are_skipped() {
    let mut packs = Packs::new();
    let (first, second) = (packs.pack(0, 4), packs.pack(1, 4));
    let one = packs.fill(&first, 0, 4);
    packs.remove("b");
    packs.remove("c");
    let other = packs.fill(&second, 10, 1);
    assert!(packs.listed(&first).iter().all(|(id, _)| *id != one[0]));
    assert_eq!(packs.sparse(), [first.id, second.id]);

    let target = packs.pack(2, 2);
    let steps = [
        moved(one[3], (&first, 3), (&target, 0)),
        moved(one[1], (&first, 1), (&target, 1)),
        moved(other[0], (&second, 0), (&target, 1)),
    ];
    assert_eq!(packs.moves(&[&target], &steps), Ok(2));
    assert_eq!(packs.listed(&target), [(one[3], 0), (other[0], 1)]);
    assert_eq!(packs.listed(&first), []);
    assert_eq!(
        packs.unreferenced(),
        2,
        "two packs are empty, and still there"
    );
    assert_eq!(packs.sparse(), []);
    let question = Question::Content {
        inode: packs.files[3],
        from: 0,
        to: 100,
        limit: 10,
    };
    let Ok(QueryResult::Content(page)) = packs.world.ask(&packs.caller, question) else {
        panic!()
    };
    let (id, slice) = &page.slices[0];
    assert_eq!((*id, slice.object, slice.offset), (one[3], target.id, 0));
    assert_eq!(page.objects[0].0, target.id);
    // The answer was lost, and the order is repeated.
    assert_eq!(packs.moves(&[&target], &steps), Ok(0));
    // Nothing is left to move: the pack is not created, and its id is burned.
    let late = packs.pack(3, 2);
    let step = moved(one[3], (&first, 3), (&late, 0));
    assert_eq!(packs.moves(&[&late], &[step]), Ok(0));
    assert_eq!(packs.row(&late), None);
    let commit = packed(packs.files[0], 0, &late, 40, 0);
    assert_eq!(packs.commit(commit), Err(Error::ObjectUsed(late.id)));
    // A moved slice is dropped like any other.
    packs.remove("a");
    packs.remove("d");
    assert_eq!(packs.unreferenced(), 3);
    assert_eq!(packs.world.rows(b"OS/").len(), 0);
}

#[test]
fn a_pack_can_be_filled_by_several_moves() {
    let mut packs = Packs::new();
    let first = packs.pack(0, 4);
    let slices = packs.fill(&first, 0, 4);
    let target = packs.pack(1, 4);
    for (slot, slice) in (0..).zip(&slices) {
        let step = moved(*slice, (&first, slot), (&target, slot));
        assert_eq!(packs.moves(&[&target], &[step]), Ok(1));
    }
    assert_eq!(packs.row(&target).unwrap().slices, 4);
    let second = packs.pack(2, 4);
    let step = moved(slices[0], (&target, 0), (&second, 0));
    assert_eq!(packs.moves(&[&second], &[step]), Ok(1));
    let step = moved(slices[1], (&target, 1), (&second, 0));
    let refused = packs.moves(&[&second], &[step]);
    assert_eq!(
        refused,
        Err(Error::BadContent),
        "a slice lies there already"
    );
}

#[test]
fn moves_that_do_not_fit_are_refused_whole() {
    let mut packs = Packs::new();
    let (first, target) = (packs.pack(0, 4), packs.pack(1, 2));
    let slices = packs.fill(&first, 0, 3);
    let good = moved(slices[0], (&first, 0), (&target, 0));
    let at = |index: u32, to_offset| SliceMove {
        to_offset,
        ..moved(slices[index as usize], (&first, index), (&target, 0))
    };
    let bad = Err(Error::BadContent);
    for second in [at(1, 150), at(1, 50), at(1, 0), at(1, u32::MAX)] {
        assert_eq!(packs.moves(&[&target], &[good, second]), bad);
    }
    let home = SliceMove {
        home: Home(1),
        ..good
    };
    assert_eq!(packs.moves(&[&target], &[home]), Err(Error::CrossRealm));
    assert_eq!(packs.moves(&[], &[good]), bad, "where to was not named");
    let within = moved(slices[0], (&first, 0), (&first, 3));
    assert_eq!(packs.moves(&[&first], &[within]), bad);
    let mut block = target.clone();
    block.class = ObjectClass::BLOCK;
    let refused = packs.moves(&[&block], &[good]);
    assert_eq!(refused, Err(Error::BadPlacement(target.id)));
    let twice = packs.moves(&[&target, &target], &[good]);
    assert_eq!(twice, Err(Error::ObjectUsed(target.id)));
    let mut few = target.clone();
    few.shards[0].acknowledged = false;
    let refused = packs.moves(&[&few], &[good]);
    assert_eq!(refused, Err(Error::BadPlacement(target.id)));
    // A block's slice stays where it is.
    let write = commit(packs.files[3], packs.allocation, 20, &[(0, 10)]);
    let (slice, sealed_length) = (write.slices[0].id, write.slices[0].sealed_length);
    packs.commit(write.clone()).unwrap();
    let large = packs.pack(3, 100);
    let step = SliceMove {
        sealed_length,
        ..moved(slice, (&write.objects[0], 0), (&large, 0))
    };
    assert_eq!(packs.moves(&[&large], &[step]), bad);
    assert_eq!(packs.moves(&[&target], &[good]), Ok(1));
}

#[test]
fn moves_need_the_right_to_reconcile_and_a_pack_of_the_caller() {
    let mut packs = Packs::new();
    let first = packs.pack(0, 4);
    let slices = packs.fill(&first, 0, 1);
    let alice = packs.world.open(ALICE);
    let allocation = packs.world.allocate(&alice, 4);
    let target = pack(allocation, 0, 2);
    let step = moved(slices[0], (&first, 0), (&target, 0));
    assert_eq!(
        packs.move_as(&alice, &[&target], &[step]),
        Err(Error::NoRight)
    );
    let refused = packs.moves(&[&target], &[step]);
    assert_eq!(refused, Err(Error::ObjectNotOwned(target.id)));
    // A principal with the right to reconcile moves others' slices.
    let other = packs.world.open(OWNER);
    let allocation = packs.world.allocate(&other, 4);
    let target = pack(allocation, 0, 2);
    let step = moved(slices[0], (&first, 0), (&target, 0));
    assert_eq!(packs.move_as(&other, &[&target], &[step]), Ok(1));
}

#[test]
fn the_largest_move_and_the_fullest_pack_stay_within_their_bounds() {
    let mut packs = Packs::new();
    let count = MOVE_SLICES_MAX as u32;
    let target = packs.pack(1000, count + 1);
    let mut steps = Vec::new();
    let inode = packs.files[0];
    for index in 0..=count {
        let from = packs.pack(index, 4);
        let commit = packed(inode, u64::from(index) * 20, &from, index, 0);
        steps.push(moved(commit.slices[0].id, (&from, 0), (&target, index)));
        let step = Step::Commit(commit);
        let root = Credentials::root();
        packs.world.step(&packs.caller, &root, step).unwrap();
    }
    let limit = count;
    let refused = packs.moves(&[&target], &steps);
    assert_eq!(refused, Err(Error::TooMany { limit }));
    steps.pop();
    // Each leaves a pack of its own.
    assert_eq!(packs.moves(&[&target], &steps), Ok(count));
    let limit = MOVE_OBJECTS_MAX as u32;
    let targets: Vec<_> = (0..=limit).map(|i| packs.pack(1001 + i, 1)).collect();
    let targets: Vec<_> = targets.iter().collect();
    let refused = packs.moves(&targets, &[]);
    assert_eq!(refused, Err(Error::TooMany { limit }));

    let full = packs.world.allocate(&packs.caller, 1024);
    let many = pack(full, 0, PACK_SLICES_MAX + 1);
    for first in (0..PACK_SLICES_MAX).step_by(128) {
        let mut commit = packed(inode, u64::from(first) * 20, &many, first, first);
        for index in first + 1..first + 128 {
            let next = packed(inode, u64::from(index) * 20, &many, index, index);
            commit.slices.extend(next.slices);
            let (NewContent::Extents(all), NewContent::Extents(more)) =
                (&mut commit.content, next.content)
            else {
                panic!()
            };
            all.extend(more);
        }
        // The reap queue drops the old content.
        let step = Step::Commit(commit);
        let root = Credentials::root();
        packs.world.step(&packs.caller, &root, step).unwrap();
        packs.world.drain();
    }
    let another = packs.world.allocate(&packs.caller, 8);
    let mut over = packed(inode, 0, &many, 0, 0);
    over.slices[0].id.allocation = another;
    let NewContent::Extents(extents) = &mut over.content else {
        panic!()
    };
    extents[0].slice.allocation = another;
    let limit = PACK_SLICES_MAX;
    assert_eq!(packs.commit(over), Err(Error::TooMany { limit }));
    let step = Step::Unlink(removal(InodeId::ROOT, "a", false));
    let root = Credentials::root();
    packs.world.step(&packs.caller, &root, step).unwrap();
    packs.world.drain();
    consistent(&packs.world).unwrap();
    assert_eq!(
        packs.world.rows(b"OS/").len() + packs.world.rows(b"OC/").len(),
        0
    );
}

#[test]
fn the_workload_moves_slices_and_is_refused_and_passed_over() {
    let (mut counted, mut missed, mut refused, mut shared) = (0, 0, 0, 0);
    for seed in 0..40 {
        let mut chance = chance(seed);
        let mut world = TestService::new();
        let caller = world.open(OWNER);
        let mut workload = Workload::of_one_session();
        for _ in 0..200 {
            let Call::Execute(bytes) = workload.next(&mut chance) else {
                continue;
            };
            let answer = world.run_bytes(&caller, &bytes);
            workload.learn(&answer);
            let is_move = matches!(
                Operation::from_bytes(&bytes),
                Ok(Operation::MoveSlices { .. })
            );
            match Response::from_bytes(&answer).unwrap().0 {
                Ok(Done::Moved { slices: 0 }) => missed += 1,
                Ok(Done::Moved { slices }) => counted += slices,
                Err(_) if is_move => refused += 1,
                _ => {}
            }
        }
        consistent(&world).unwrap();
        let rows = world.rows(b"O/");
        let rows = rows.iter().map(|(_, row)| Object::from_bytes(row).unwrap());
        shared += rows.filter(|row| row.slices > 1).count();
    }
    assert!(counted > 40, "{counted} moved");
    assert!(missed > 20, "{missed} moved nothing");
    assert!(refused > 10, "{refused} refused");
    assert!(shared > 10, "{shared} packs of several slices");
}

#[test]
fn a_place_in_a_pack_is_two_numbers() {
    let place = PackedSlice {
        offset: 1,
        sealed_length: 2,
    };
    assert_eq!(place.to_bytes(), [crate::VERSION, 1, 0, 0, 0, 2, 0, 0, 0]);
}
