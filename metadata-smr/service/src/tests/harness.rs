//! A service on one replica: sessions, operations, queries, ticks.

use crate::attributes::{Attributes, Credentials, Mode, Timestamp};
use crate::error::{Error, OperationError};
use crate::identity::*;
use crate::operation::*;
use crate::placement::{Policy, Shard};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response, StepDone};
use crate::row::*;
use crate::simulation::{ordinary, place, principal, sign, unsigned_genesis};
use crate::{Metadata, limits};
use quorumfs_bft::identity::{Digest, Nanos, PublicKey, Sequence, SessionId, Time};
use quorumfs_bft::service::{Caller, Context, Service};
use quorumfs_bft::state::{Area, KeySpace, MemoryStore, prefix_end};

pub(super) const OWNER: PublicKey = PublicKey([1; 32]);
pub(super) const ALICE: PublicKey = PublicKey([2; 32]);
pub(super) const STRANGER: PublicKey = PublicKey([3; 32]);

pub(super) fn alice() -> Credentials {
    Credentials::user(Uid(1000), Gid(100))
}

pub(super) struct TestService {
    pub(super) space: KeySpace<MemoryStore>,
    pub(super) sequence: u64,
    sessions: u64,
    /// Whether the batches report the servers' disks as nearly full.
    pub(super) short_of_space: bool,
    /// The time that has passed but for the batches, in nanoseconds.
    waited: u64,
    /// The time between two batches, in nanoseconds.
    pub(super) pace: u64,
    /// The times of the last batch.
    last: (Time, Time),
}

impl TestService {
    pub(super) fn new() -> Self {
        let principals = vec![
            principal(OWNER, Rights::all()),
            principal(ALICE, ordinary(Uid(1000), Gid(100))),
        ];
        Self::of(&sign(&unsigned_genesis(principals, (1, 1, 4)).unwrap()))
    }

    /// Starts with this genesis.
    pub(super) fn of(genesis: &[u8]) -> Self {
        let mut space = KeySpace::open(MemoryStore::new()).unwrap();
        let mut txn = space.begin(Area::Service, Sequence(0));
        Metadata.genesis(&mut txn, genesis).unwrap();
        txn.commit();
        Self {
            space,
            sequence: 0,
            sessions: 0,
            short_of_space: false,
            waited: 0,
            pace: 1_000_000,
            last: (Time(1_800_000_000_000_000_000), Time(0)),
        }
    }

    pub(super) fn context(&mut self) -> Context {
        self.sequence += 1;
        let time = self.now();
        // It moves by a second in a batch at most.
        let (last, lease_clock) = self.last;
        let moved = time.since(last).min(Nanos(1_000_000_000));
        let lease_clock = lease_clock.plus(moved);
        self.last = (time, lease_clock);
        Context {
            sequence: Sequence(self.sequence),
            time,
            lease_clock,
            behaviour_version: 1,
            short_of_space: self.short_of_space,
        }
    }

    /// The time of the last batch.
    pub(super) fn now(&self) -> Time {
        Time(1_800_000_000_000_000_000 + self.sequence * self.pace + self.waited)
    }

    /// The next batch, and its time.
    pub(super) fn next_batch(&self) -> (Sequence, Time) {
        let time = self.now().plus(Nanos(self.pace));
        (Sequence(self.sequence + 1), time)
    }

    /// The lease clock of the last batch.
    pub(super) fn lease_clock(&self) -> Time {
        self.last.1
    }

    pub(super) fn try_open(&mut self, principal: PublicKey) -> Option<Caller> {
        self.sessions += 1;
        let caller = Caller {
            session: SessionId(self.sessions),
            principal,
        };
        let context = self.context();
        let mut txn = self.space.begin(Area::Service, context.sequence);
        let expected = Metadata.may_open(&txn.view(), &principal).unwrap();
        let credit = Metadata.open_session(&mut txn, &context, &caller).unwrap();
        assert_eq!(expected, credit.is_some(), "predicted");
        txn.commit();
        credit.map(|_| caller)
    }

    pub(super) fn open(&mut self, principal: PublicKey) -> Caller {
        self.try_open(principal).unwrap()
    }

    pub(super) fn may_open(&self, principal: PublicKey) -> bool {
        let view = self.space.view(Area::Service);
        Metadata.may_open(&view, &principal).unwrap()
    }

    pub(super) fn close(&mut self, caller: &Caller) {
        let context = self.context();
        let mut txn = self.space.begin(Area::Service, context.sequence);
        Metadata.close_session(&mut txn, &context, caller).unwrap();
        txn.commit();
    }

    pub(super) fn run_bytes(&mut self, caller: &Caller, bytes: &[u8]) -> Vec<u8> {
        let context = self.context();
        let mut txn = self.space.begin(Area::Service, context.sequence);
        let answer = Metadata.execute(&mut txn, &context, caller, bytes).unwrap();
        txn.commit();
        answer.to_vec()
    }

    pub(super) fn run(
        &mut self,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Done, OperationError> {
        let bytes = self.run_bytes(caller, &operation.to_bytes());
        Response::from_bytes(&bytes).unwrap().0
    }

    pub(super) fn steps(
        &mut self,
        caller: &Caller,
        who: &Credentials,
        steps: Vec<Step>,
    ) -> Result<Vec<StepDone>, Error> {
        let time = Timestamp {
            seconds: 1_750_000_000,
            nanos: 1,
        };
        let operation = crate::simulation::compound(who.clone(), time, steps);
        match self.run(caller, &operation) {
            Ok(Done::Compound(done)) => Ok(done),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.error),
        }
    }

    pub(super) fn step(
        &mut self,
        caller: &Caller,
        who: &Credentials,
        step: Step,
    ) -> Result<StepDone, Error> {
        Ok(self.steps(caller, who, vec![step])?.remove(0))
    }

    pub(super) fn ask_bytes(&mut self, caller: &Caller, bytes: &[u8]) -> Vec<u8> {
        self.context();
        let view = self.space.view(Area::Service);
        let answer = Metadata.read(&view, caller, bytes).unwrap();
        answer.to_vec()
    }

    pub(super) fn ask_as(
        &mut self,
        caller: &Caller,
        credentials: Credentials,
        question: Question,
    ) -> Result<QueryResult, Error> {
        let query = Query {
            credentials,
            question,
        };
        let bytes = self.ask_bytes(caller, &query.to_bytes());
        Answer::from_bytes(&bytes).unwrap().0
    }

    pub(super) fn ask(
        &mut self,
        caller: &Caller,
        question: Question,
    ) -> Result<QueryResult, Error> {
        self.ask_as(caller, Credentials::root(), question)
    }

    pub(super) fn attributes(&mut self, caller: &Caller, inode: InodeId) -> Option<Attributes> {
        match self.ask(caller, Question::Attributes(inode)) {
            Ok(QueryResult::Attributes(attributes)) => Some(attributes),
            Err(Error::Stale(_)) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, seconds: u64) {
        self.waited += seconds * 1_000_000_000;
    }

    /// Ticks until nothing is due; checks their bound and returns their number.
    pub(super) fn drain(&mut self) -> usize {
        let mut ticks = 0;
        loop {
            let view = self.space.view(Area::Service);
            let due = Metadata.next_deadline(&view).unwrap();
            if due.is_none_or(|due| due > self.now()) {
                return ticks;
            }
            ticks += 1;
            assert!(ticks < 10_000, "the reap queue does not drain");
            self.tick();
        }
    }

    /// One tick, within its bound.
    pub(super) fn tick(&mut self) {
        let before = self.rows(b"");
        let context = self.context();
        let mut txn = self.space.begin(Area::Service, context.sequence);
        Metadata.tick(&mut txn, &context).unwrap();
        txn.commit();
        let changed = changed_rows(&before, &self.rows(b""));
        assert!(changed <= limits::TICK_ROWS_MAX, "{changed} rows in a tick");
    }

    /// Writes a row as no operation of this program would.
    pub(super) fn put<R: Row>(&mut self, row_key: &[u8], row: &R) {
        let context = self.context();
        let mut txn = self.space.begin(Area::Service, context.sequence);
        txn.put(row_key, row.to_bytes()).unwrap();
        txn.commit();
    }

    /// Removes a row as no operation of this program would.
    pub(super) fn remove(&mut self, row_key: &[u8]) {
        let context = self.context();
        let mut txn = self.space.begin(Area::Service, context.sequence);
        txn.delete(row_key).unwrap();
        txn.commit();
    }

    /// All rows whose keys begin with `prefix`.
    pub(super) fn rows(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let end = prefix_end(prefix);
        let view = self.space.view(Area::Service);
        let rows = view.scan(prefix..end.as_slice(), usize::MAX).unwrap();
        rows.into_iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect()
    }

    pub(super) fn root(&mut self) -> Digest {
        self.space.root_digest().unwrap()
    }

    pub(super) fn create(&mut self, caller: &Caller, parent: InodeId, name: &str) -> InodeId {
        self.make(caller, parent, name, NewInode::File)
    }

    pub(super) fn mkdir(&mut self, caller: &Caller, parent: InodeId, name: &str) -> InodeId {
        self.make(caller, parent, name, NewInode::Directory)
    }

    pub(super) fn make(
        &mut self,
        caller: &Caller,
        parent: InodeId,
        name: &str,
        kind: NewInode,
    ) -> InodeId {
        let create = Step::Create(Create {
            place: place(parent, name),
            kind,
            mode: Mode(0o755),
            umask: Mode(0),
            exclusive: true,
            number: None,
        });
        match self.step(caller, &Credentials::root(), create) {
            Ok(StepDone::Created { inode, .. }) => inode.inode,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn allocate(&mut self, caller: &Caller, count: u32) -> AllocationId {
        match self.run(caller, &Operation::Allocate { count }) {
            Ok(Done::Allocated { allocation, .. }) => allocation,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn changed_rows(before: &[(Vec<u8>, Vec<u8>)], after: &[(Vec<u8>, Vec<u8>)]) -> usize {
    use std::collections::BTreeMap;
    let before: BTreeMap<_, _> = before.iter().cloned().collect();
    let after: BTreeMap<_, _> = after.iter().cloned().collect();
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let new = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value));
    gone.count() + new.count()
}

/// A mount of the root realm.
pub(super) fn mount(takeover: Takeover, mode: MountMode) -> Operation {
    Operation::MountRealm {
        realm: RealmId::ROOT,
        takeover,
        mode,
        label: "host".to_owned(),
    }
}

pub(super) fn removal(parent: InodeId, name: &str, held: bool) -> Remove {
    Remove {
        place: place(parent, name),
        expected: None,
        held,
    }
}

pub(super) fn rename_of(from: (InodeId, &str), to: (InodeId, &str)) -> Rename {
    Rename {
        from: place(from.0, from.1),
        to: place(to.0, to.1),
        mode: RenameMode::Replace,
        expected_source: None,
        expected_target: None,
        held: false,
    }
}

pub(super) fn object(allocation: AllocationId, counter: u32, acknowledged: usize) -> NewObject {
    let shards = (0..4_u8)
        .map(|index| Shard {
            digest: Digest([index; 32]),
            cloud: CloudIndex(index),
            attempt: 0,
            acknowledged: usize::from(index) < acknowledged,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        })
        .collect();
    NewObject {
        id: ObjectId {
            allocation,
            counter,
        },
        class: ObjectClass::BLOCK,
        policy: Policy::new(4, 1, 2, 4).unwrap(),
        length: 4096,
        shard_length: 2100,
        shards,
    }
}

pub(super) fn slice(allocation: AllocationId, counter: u32, object: &NewObject) -> NewSlice {
    NewSlice {
        id: SliceId {
            allocation,
            counter,
        },
        object: object.id,
        offset: 0,
        length: 4000,
        sealed_length: 4016,
        codec: Codec::NONE,
        keys: vec![SliceKey::Derived {
            realm: RealmId::ROOT,
            epoch: RealmEpoch(0),
            salt: SliceSalt([7; 16]),
        }],
    }
}

/// A commit of runs (offset, length), each in an object of its own.
pub(super) fn commit(
    inode: InodeId,
    allocation: AllocationId,
    first: u32,
    runs: &[(u64, u32)],
) -> Commit {
    let mut commit = Commit {
        inode,
        expected: None,
        objects: Vec::new(),
        slices: Vec::new(),
        content: NewContent::Same,
        size: None,
        mtime: None,
    };
    let mut extents = Vec::new();
    for (counter, (offset, length)) in (first..).zip(runs) {
        let object = object(allocation, counter, 3);
        let slice = slice(allocation, counter, &object);
        extents.push(NewExtent {
            offset: *offset,
            slice: slice.id,
            slice_offset: 0,
            length: *length,
        });
        commit.objects.push(object);
        commit.slices.push(slice);
    }
    commit.content = NewContent::Extents(extents);
    commit
}

/// The places of the shares of a key epoch, on the clouds of the tests' volume.
pub(super) fn share_places() -> Vec<SharePlace> {
    let place = |cloud| SharePlace {
        cloud: CloudIndex(cloud),
        digest: Digest([cloud; 32]),
    };
    (0..4).map(place).collect()
}
