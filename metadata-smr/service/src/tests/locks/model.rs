//! The service against a naive model, with sessions that come and go.
//!
//! The model is the one that also judges simulated clusters.

use super::super::model::chance;
use super::*;
use crate::identity::MountEpoch;
use crate::row::{HeldLock, LockWaiter, Row, key};
use crate::simulation::locks::naive::{
    BYTES, LockedPlace, NaiveLocks, NaiveOwner, NaiveWish, TURN,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SECOND: u64 = 1_000_000_000;

impl NaiveLocks {
    fn drop_late(&mut self, place: LockedPlace, now: u64, asking: Option<NaiveWish>) {
        let waiting = self.waiting.entry(place).or_default();
        waiting.retain(|(wish, turn)| {
            let late = turn.is_some_and(|end| end <= now);
            !late || Some(*wish) == asking
        });
    }

    /// What an operation is answered: what is in the way, if anything is.
    fn request(&mut self, session: u64, request: &LockRequest, now: u64) -> Option<bool> {
        let mut after = self.clone();
        let asking = (request.wish != UNLOCK).then(|| NaiveWish::of(session, request));
        after.drop_late((request.inode, request.kind), now, asking);
        let found = after.ask(session, request, now);
        if found.is_none() || request.wait {
            *self = after;
        }
        found
    }
}

/// A mount, as its gateway sees it.
struct LockingMount {
    caller: Caller,
    epoch: MountEpoch,
    position: LogPosition,
    /// The inodes of which requests are to be repeated.
    told: BTreeSet<InodeId>,
    waits: Vec<LockRequest>,
    /// It repeats nothing for now.
    stuck: bool,
}

struct Run {
    world: TestService,
    mounts: Vec<LockingMount>,
    places: Vec<LockedPlace>,
    naive: NaiveLocks,
}

fn begin(world: &mut TestService, takeover: Takeover, stuck: bool) -> LockingMount {
    let caller = world.open(OWNER);
    match world.run(&caller, &mount(takeover, MountMode::Shared)) {
        Ok(Done::Mounted {
            epoch, position, ..
        }) => LockingMount {
            caller,
            epoch,
            position,
            told: BTreeSet::new(),
            waits: Vec::new(),
            stuck,
        },
        other => panic!("{other:?}"),
    }
}

impl Run {
    fn new() -> Self {
        let mut world = TestService::new();
        let mounts = (0..3).map(|_| begin(&mut world, Takeover::Refused, false));
        let mounts: Vec<_> = mounts.collect();
        let files = ["f", "g"].map(|it| world.create(&mounts[0].caller, InodeId::ROOT, it));
        let places = files.into_iter().flat_map(|file| {
            [LockKind::Ranges, LockKind::Whole, LockKind::Appends].map(|kind| (file, kind))
        });
        Self {
            places: places.collect(),
            world,
            mounts,
            naive: NaiveLocks::default(),
        }
    }

    fn is_live(&self, session: u64, epoch: MountEpoch) -> bool {
        let mut mounts = self.mounts.iter();
        mounts.any(|it| it.caller.session.0 == session && it.epoch == epoch)
    }

    /// The rows of mounts that live.
    fn stored(&self, place: LockedPlace) -> Vec<(NaiveWish, Option<u64>)> {
        let rows = self.world.rows(&key::lock_waiters(place.0, place.1));
        let rows = rows
            .iter()
            .map(|(_, it)| LockWaiter::from_bytes(it).unwrap());
        let live = rows.filter(|it| self.is_live(it.wish.owner.session.0, it.mount));
        live.map(|it| {
            let wish = NaiveWish {
                owner: (it.wish.owner.session.0, it.wish.owner.number),
                range: it.wish.range,
                exclusive: it.wish.exclusive,
                pid: it.wish.pid,
            };
            (wish, it.turn.map(|turn| turn.deadline.0))
        })
        .collect()
    }

    fn stored_locks(&self) -> BTreeMap<(LockedPlace, NaiveOwner, u64), bool> {
        let mut held = BTreeMap::new();
        for (row_key, bytes) in self.world.rows(b"K/") {
            let row = HeldLock::from_bytes(&bytes).unwrap();
            let at = key::trailing_lock(&row_key).unwrap();
            let owner = (at.owner.session.0, at.owner.number);
            if self.is_live(owner.0, row.mount) {
                for byte in at.start..=row.end.min(BYTES) {
                    held.insert(((at.inode, at.kind), owner, byte), row.exclusive);
                }
            }
        }
        held
    }

    fn request(&mut self, index: usize, request: LockRequest) -> Result<(), TestCaseError> {
        let caller = self.mounts[index].caller;
        let session = caller.session.0;
        let (place, root) = ((request.inode, request.kind), self.world.root());
        let before = self.naive.clone();
        let found = lock(&mut self.world, &caller, request);
        let now = self.world.lease_clock().0;
        let expected = self.naive.request(session, &request, now);
        let found = found.map(|it| it.map(|it| it.waits));
        prop_assert_eq!(found, Ok(expected), "{:?} {:?}", request, before);
        if expected.is_some() && !request.wait {
            prop_assert_eq!(root, self.world.root(), "{:?}", request);
        }
        let mount = &mut self.mounts[index];
        if request.wish != UNLOCK && request.wait {
            mount.waits.retain(|it| *it != request);
            if expected.is_some() {
                mount.waits.push(request);
            }
        }
        let owner = (session, request.owner);
        let holds = before.holds(place, owner);
        let gives = match expected {
            None => request.wish != EXCLUSIVE,
            Some(_) => request.wait && request.kind == LockKind::Whole,
        };
        if holds && gives {
            self.give_up(index, place.0);
        }
        self.compare()
    }

    /// The requests of its own that a gateway repeats after an operation, without being told.
    fn give_up(&mut self, index: usize, inode: InodeId) {
        let mount = &mut self.mounts[index];
        if mount.waits.iter().any(|it| it.inode == inode) {
            mount.told.insert(inode);
        }
    }

    /// Compares with the rows, after an operation.
    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(&self.stored_locks(), &self.naive.held);
        for place in &self.places {
            let waiting = self.naive.waiting.get(place).cloned().unwrap_or_default();
            prop_assert_eq!(self.stored(*place), waiting);
        }
        let held: Vec<_> = self.naive.held.iter().collect();
        for ((place, owner, byte), exclusive) in &held {
            for ((at, other, it), mode) in &held {
                let both = (place, byte) == (at, it) && owner != other;
                prop_assert!(!both || !(**exclusive || **mode), "{:?}", self.naive.held);
            }
        }
        Ok(())
    }

    /// Ticks do what is due: late waiters go, and turns come.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        let before = self.world.lease_clock().0;
        self.world.drain();
        let after = self.world.lease_clock().0;
        for place in self.places.clone() {
            let stored = self.stored(place);
            let known = self.naive.waiting.remove(&place).unwrap_or_default();
            for (wish, turn) in &known {
                let stays = stored.iter().any(|it| it.0 == *wish);
                let end = turn.unwrap_or(u64::MAX);
                prop_assert!(stays || end <= after, "dropped early: {:?}", wish);
                let late = end.saturating_add(SECOND);
                prop_assert!(!stays || late > before, "not dropped: {:?}", wish);
            }
            let order: Vec<_> = known.iter().map(|it| it.0).collect();
            let order = order
                .into_iter()
                .filter(|it| stored.iter().any(|one| one.0 == *it));
            prop_assert!(order.eq(stored.iter().map(|it| it.0)), "their order");
            self.naive.waiting.insert(place, stored.clone());
            for (index, (wish, turn)) in stored.iter().enumerate() {
                let free = self.naive.is_free(place, index);
                prop_assert_eq!(free, turn.is_some(), "{:?} {:?}", wish, self.naive);
                let known = known.iter().find(|it| it.0 == *wish);
                match (turn, known) {
                    (Some(end), Some((_, None))) => {
                        let window = before + TURN..=after + TURN;
                        prop_assert!(window.contains(end), "{} {:?}", end, window);
                    }
                    // Another one may be in the way again, if it was stuck behind this one.
                    (None, _) => {}
                    (turn, known) => prop_assert_eq!(Some(turn), known.map(|it| &it.1)),
                }
            }
        }
        self.compare()?;
        self.nothing_of_ended_mounts()
    }

    fn nothing_of_ended_mounts(&self) -> Result<(), TestCaseError> {
        let waiting: Vec<_> = self.places.iter().flat_map(|it| self.stored(*it)).collect();
        prop_assert_eq!(self.world.rows(b"KW/").len(), waiting.len());
        let turns = waiting.iter().filter(|it| it.1.is_some()).count();
        prop_assert_eq!(self.world.rows(b"KT/").len(), turns);
        let held = self
            .naive
            .held
            .keys()
            .map(|(place, owner, _)| (owner.0, *place));
        let all = self.naive.waiting.iter();
        let all = all.flat_map(|(place, it)| it.iter().map(|it| (it.0.owner.0, *place)));
        let used: BTreeSet<(u64, LockedPlace)> = held.chain(all).collect();
        prop_assert_eq!(self.world.rows(b"KO/").len(), used.len());
        let sessions: BTreeSet<u64> = used.iter().map(|it| it.0).collect();
        prop_assert_eq!(self.world.rows(b"KN/").len(), sessions.len());
        for (_, bytes) in self.world.rows(b"K/") {
            let epoch = HeldLock::from_bytes(&bytes).unwrap().mount;
            prop_assert!(self.mounts.iter().any(|it| it.epoch == epoch));
        }
        Ok(())
    }

    /// Every mount asks for news; and no waiter that may go on was left out.
    fn poll(&mut self) -> Result<(), TestCaseError> {
        self.world.wait(1);
        self.drain()?;
        for index in 0..self.mounts.len() {
            let mount = &mut self.mounts[index];
            let (position, told) = news(&mut self.world, &mount.caller, mount.position);
            mount.position = position;
            mount.told.extend(told);
            let session = mount.caller.session.0;
            for place in &self.places {
                for (at, wish) in self.naive.waiting(*place).iter().enumerate() {
                    let forgotten = wish.owner.0 == session
                        && self.naive.is_free(*place, at)
                        && !self.mounts[index].told.contains(&place.0);
                    prop_assert!(!forgotten, "{:?}", wish);
                }
            }
        }
        Ok(())
    }

    fn repeat(&mut self, index: usize) -> Result<(), TestCaseError> {
        let Some(inode) = self.mounts[index].told.pop_first() else {
            return Ok(());
        };
        let waits = self.mounts[index].waits.clone();
        for request in waits.into_iter().filter(|it| it.inode == inode) {
            self.request(index, request)?;
        }
        Ok(())
    }

    fn end(&mut self, index: usize, how: u64, stuck: bool) -> Result<(), TestCaseError> {
        let ended = self.mounts[index].caller;
        self.naive.end(ended.session.0);
        let takeover = match how {
            0 => {
                self.world.close(&ended);
                Takeover::Refused
            }
            1 => {
                let unmount = Operation::UnmountRealm { realm: REALM };
                self.world.run(&ended, &unmount).unwrap();
                Takeover::Refused
            }
            _ => Takeover::Of(ended.session),
        };
        if how == 1 && stuck {
            // The same session again, as another mount.
            let again = mount(Takeover::Refused, MountMode::Shared);
            let Ok(Done::Mounted {
                epoch, position, ..
            }) = self.world.run(&ended, &again)
            else {
                panic!()
            };
            let mount = &mut self.mounts[index];
            (mount.epoch, mount.position) = (epoch, position);
            mount.waits.clear();
            mount.told.clear();
        } else {
            self.mounts[index] = begin(&mut self.world, takeover, stuck);
            let late = lock(&mut self.world, &ended, whole(self.places[0].0, UNLOCK));
            prop_assert!(late.is_err());
        }
        self.compare()
    }

    fn stop(&mut self, index: usize, place: LockedPlace, owner: u64) -> Result<(), TestCaseError> {
        let (inode, kind) = place;
        let stop = StopWaiting { inode, kind, owner };
        let caller = self.mounts[index].caller;
        self.world
            .run(&caller, &Operation::StopWaiting(stop))
            .unwrap();
        let now = self.world.lease_clock().0;
        self.naive.stop(place, (caller.session.0, owner));
        self.naive.drop_late(place, now, None);
        self.naive.give_turns(place, now);
        let of = |it: &LockRequest| (it.inode, it.kind) == place && it.owner == owner;
        self.mounts[index].waits.retain(|it| !of(it));
        self.give_up(index, place.0);
        self.compare()
    }
}

pub(super) fn random_request(
    chance: &mut dyn FnMut(u64) -> u64,
    (inode, kind): LockedPlace,
) -> LockRequest {
    let (one, other) = (chance(BYTES), chance(BYTES));
    LockRequest {
        owner: chance(2),
        wait: chance(3) > 0,
        range: match kind {
            LockKind::Whole | LockKind::Appends => LockRange::WHOLE,
            LockKind::Ranges => LockRange {
                start: one.min(other),
                end: one.max(other),
            },
        },
        kind,
        ..bytes(inode, 0, 0, [UNLOCK, SHARED, EXCLUSIVE][chance(3) as usize])
    }
}

/// Random locks and unlocks, then all unlock until no request waits.
fn judged(seed: u64) -> Result<(), TestCaseError> {
    let mut chance = chance(seed);
    let mut run = Run::new();
    for _ in 0..120 {
        let index = chance(3) as usize;
        let place = run.places[chance(4) as usize];
        match chance(24) {
            0 => run.end(index, chance(3), chance(3) == 0)?,
            1 => run.stop(index, place, chance(2))?,
            2 => run.world.wait(1 + chance(3)),
            3 => run.drain()?,
            4 | 5 => run.poll()?,
            6 => run.mounts[index].stuck ^= true,
            7..12 if !run.mounts[index].stuck => run.repeat(index)?,
            _ => run.request(index, random_request(&mut chance, place))?,
        }
    }
    let unlocks = |run: &mut Run| {
        for index in 0..3 {
            for (inode, kind) in run.places.clone() {
                for owner in 0..2 {
                    let range = LockRange::WHOLE;
                    let unlock = bytes(inode, 0, 0, UNLOCK);
                    run.request(
                        index,
                        LockRequest {
                            owner,
                            kind,
                            range,
                            ..unlock
                        },
                    )?;
                }
            }
        }
        Ok::<_, TestCaseError>(())
    };
    for _ in 0..40 {
        unlocks(&mut run)?;
        run.poll()?;
        for index in 0..3 {
            while !run.mounts[index].told.is_empty() {
                run.repeat(index)?;
            }
        }
    }
    for mount in &run.mounts {
        prop_assert_eq!(&mount.waits, &Vec::new(), "forgotten");
    }
    for index in 0..3 {
        run.end(index, 0, false)?;
    }
    run.drain()?;
    nothing_is_left(&run.world);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_of_a_naive_model_and_no_waiter_is_forgotten(seed: u64) {
        judged(seed)?;
    }
}
