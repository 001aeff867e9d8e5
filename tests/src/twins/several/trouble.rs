//! Trouble: mounts are killed and stopped, a replica is killed, while steps go on.
//!
//! A call that a mount was executing when it was killed or stopped may have been executed or not.
//! Its names take part in no other step until the mount runs again from the same state directory,
//! which ends the old one for good. Then they are read once, and have to be as before or after the
//! call, or for content a mixture of both, byte by byte.
//!
//! A stopped mount answers nothing. Its kernel may show what it had cached, and no promise is
//! checked. Once it goes on, it may fail and is then mounted again; or it answers, and from the
//! bound on everything that it shows has to be as new as on the other mounts.

use super::hand::{CallResult, Hand};
use super::look::{Changed, POLL_EVERY};
use super::promise::{FileBytes, Kept, is_mixture};
use super::stage::Stage;
use super::tree::NamePlace;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::time::{Duration, Instant};

/// In so many steps each of these happens once, and in a long run the others at most so often, as
/// they take most of its time.
const REPLICA_EVERY: usize = 150;
const KILL_EVERY: usize = 60;
const KILLS_MAX: usize = 40;
const STOP_EVERY: usize = 200;
const STOPS_MAX: usize = 8;
const LEAVE_EVERY: usize = 800;
const LEAVES_MAX: usize = 1;
/// Steps that a replica is away.
const REPLICA_AWAY: usize = 40;
/// One and the same replica, so that no second one is behind when it is killed.
const VICTIM: usize = 2;
/// A mount is stopped for this long.
const STOPPED_MIN_MS: u64 = 1000;
const STOPPED_MAX_MS: u64 = 20_000;
/// A mount with no other one is stopped shortly, as nothing else happens meanwhile.
const STOPPED_ALONE_MS: u64 = 2500;
/// A mount is alone half a minute after the others have gone; this is for the wait until then.
const ALONE_WITHIN: Duration = Duration::from_secs(50);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long it is alone.
const ALONE_FOR: Duration = Duration::from_secs(3);
/// A mount is killed at most so long after a call began.
const KILLED_WITHIN_MS: u64 = 40;
/// What a mount that was stopped may answer.
const GIVEN_UP: [Errno; 5] = [
    Errno::STALE,
    Errno::IO,
    Errno::NOTCONN,
    Errno::CONNABORTED,
    Errno::TIMEDOUT,
];
const NOTHING_LOST: &str = "a mount that was killed or stopped loses nothing that was closed or \
                            synced, and a call is executed as a whole or not at all";

/// How often there was trouble.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Troubles {
    /// Mounts that were killed.
    pub kills: u64,
    /// Of these, while a call was executed.
    pub kills_in_calls: u64,
    /// Mounts that were stopped and went on.
    pub stops: u64,
    /// Of these, mounts that failed after that, and were mounted again.
    pub given_up: u64,
    /// Replicas that were killed and started again.
    pub replicas: u64,
    /// All mounts but one were ended, and came back when it had been alone.
    pub left_alone: u64,
}

/// After how many steps each kind of trouble comes again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    kill: usize,
    stop: usize,
    leave: usize,
}

impl Schedule {
    /// For a run of so many steps.
    pub(super) fn of(steps: usize) -> Self {
        let at_most = |every: usize, most: usize| match steps / most > every {
            true => steps / most,
            false => every,
        };
        Self {
            kill: at_most(KILL_EVERY, KILLS_MAX),
            stop: at_most(STOP_EVERY, STOPS_MAX),
            leave: at_most(LEAVE_EVERY, LEAVES_MAX),
        }
    }
}

impl Troubles {
    /// Whether each kind of trouble took place that so many steps bring.
    #[must_use]
    pub fn are_all_there(&self, steps: usize) -> bool {
        let schedule = Schedule::of(steps);
        let wanted = [
            (self.kills, schedule.kill),
            (self.stops, schedule.stop),
            (self.replicas, REPLICA_EVERY),
            (self.left_alone, schedule.leave),
        ];
        wanted
            .iter()
            .all(|(count, every)| *count > 0 || steps < *every)
    }
}

/// A call during which its mount is killed or stopped.
#[derive(Clone, Debug)]
enum DoubtfulCall {
    Write(NamePlace, FileBytes, FileBytes),
    Create(NamePlace, FileBytes),
    Unlink(NamePlace),
    Rename(NamePlace, NamePlace),
    SetMode(NamePlace, u32),
}

impl DoubtfulCall {
    fn places(&self) -> Vec<NamePlace> {
        match self {
            Self::Write(place, ..)
            | Self::Create(place, _)
            | Self::Unlink(place)
            | Self::SetMode(place, _) => vec![place.clone()],
            Self::Rename(from, to) => vec![from.clone(), to.clone()],
        }
    }

    fn perform(&self, hand: &Hand<'_>, paths: &[String]) -> CallResult {
        let path = &paths[0];
        let file = match self {
            Self::Write(_, _, after) => {
                let file = hand.open(path, OFlags::RDWR)?;
                hand.write_at(&file, 0, &after.0)?;
                hand.sync(&file)?;
                file
            }
            Self::Create(_, after) => {
                let file = hand.create(path)?;
                hand.write(&file, &after.0)?;
                hand.sync(&file)?;
                file
            }
            Self::SetMode(_, mode) => {
                let file = hand.open(path, OFlags::RDONLY)?;
                hand.set_mode(&file, *mode)?;
                file
            }
            Self::Unlink(_) => return hand.unlink(path),
            Self::Rename(..) => return hand.rename(path, &paths[1]),
        };
        hand.close(file);
        Ok(())
    }
}

impl Stage<'_> {
    /// The trouble that comes before a step.
    pub(super) fn trouble(&mut self, schedule: Schedule, troubles: &mut Troubles) -> Kept {
        let step = self.record.step;
        let is_due = |every: usize| step % every == every / 2;
        match step % REPLICA_EVERY {
            20 => self.mounts.cluster().kill_one(VICTIM),
            at if at == 20 + REPLICA_AWAY => {
                self.mounts.cluster().start_some(VICTIM..VICTIM + 1);
                troubles.replicas += 1;
            }
            _ => {}
        }
        if is_due(schedule.kill) {
            self.kill(troubles)?;
        }
        if is_due(schedule.stop) {
            self.stop(troubles)?;
        }
        if is_due(schedule.leave) {
            self.leave_alone(troubles)?;
        }
        Ok(())
    }

    /// Ends all mounts but one, which goes on until it is alone, and then lets them come back while
    /// it is at work: they have to see all that it did as if they had been there.
    fn leave_alone(&mut self, troubles: &mut Troubles) -> Kept {
        let (mounts, stays) = (self.mounts, self.random.index(self.mounts.count()));
        self.note(stays, "left alone", &[]);
        let others = (0..mounts.count()).filter(|mount| *mount != stays);
        let others: Vec<_> = others.collect();
        for other in &others {
            self.close_all(*other);
            mounts.unmount_one(*other);
        }
        self.away.clone_from(&others);
        let (began, mut alone) = (Instant::now(), None::<Instant>);
        let mut asked = began;
        while alone.is_none_or(|since| since.elapsed() < ALONE_FOR) {
            self.ordinary()?;
            if alone.is_none() && asked.elapsed() > ASK_EVERY {
                asked = Instant::now();
                alone = mounts.is_alone(stays).then_some(asked);
            }
            if alone.is_none() && began.elapsed() > ALONE_WITHIN {
                let promise = "a mount is alone half a minute after the others have gone";
                return Err(self.broken(stays, promise, "", "alone", "shared"));
            }
        }
        for other in others {
            std::thread::scope(|scope| {
                let coming = scope.spawn(|| mounts.mount(other));
                let mut meanwhile = Ok(());
                while meanwhile.is_ok() && !coming.is_finished() {
                    meanwhile = self.ordinary();
                }
                coming.join().unwrap();
                meanwhile
            })?;
            self.away.retain(|away| *away != other);
        }
        troubles.left_alone += 1;
        Ok(())
    }

    /// After the last step every replica runs.
    pub(super) fn end_of_trouble(&mut self, steps: usize) {
        let last = steps.saturating_sub(1) % REPLICA_EVERY;
        if steps > 20 && (20..20 + REPLICA_AWAY).contains(&last) {
            self.mounts.cluster().start_some(VICTIM..VICTIM + 1);
        }
    }

    /// A call on names about which this mount is certain.
    fn draw_doubtful(&mut self, mount: usize) -> Option<DoubtfulCall> {
        let (from, to) = (self.draw_file(), self.draw_free_name());
        let certain = |this: &mut Self, place: &Option<NamePlace>| {
            let place = place.clone();
            place.filter(|place| this.is_certain(mount, place))
        };
        let (from, to) = (certain(self, &from), certain(self, &to));
        let only_name = |this: &Self, place: &NamePlace| {
            let number = this.tree.at(place);
            number.is_some_and(|number| *this.tree.inodes[&number].links.now() == 1)
        };
        let from = from.filter(|place| only_name(self, place));
        match (self.random.below(5), from, to) {
            (0 | 1, Some(place), _) => {
                let number = self.tree.at(&place)?;
                let before = self.tree.inodes[&number].content.now().clone();
                let mut after = before.0.to_vec();
                let bytes = self.draw_bytes();
                after.resize(after.len().max(bytes.len()), 0);
                after[..bytes.len()].copy_from_slice(&bytes);
                Some(DoubtfulCall::Write(place, before, FileBytes::of(after)))
            }
            (2, Some(place), _) => Some(DoubtfulCall::Unlink(place)),
            (3, Some(from), Some(to)) => Some(DoubtfulCall::Rename(from, to)),
            (3, Some(place), None) => {
                let mode = self.random.below(0o1000) as u32;
                Some(DoubtfulCall::SetMode(place, mode))
            }
            (_, _, Some(place)) => {
                let bytes = self.draw_bytes();
                Some(DoubtfulCall::Create(place, FileBytes::of(bytes)))
            }
            _ => None,
        }
    }

    fn paths_of(&self, call: &DoubtfulCall) -> Vec<String> {
        let places = call.places().into_iter();
        places.map(|place| self.tree.path(&place)).collect()
    }

    /// Kills a mount, sometimes in the middle of a call, and mounts again.
    fn kill(&mut self, troubles: &mut Troubles) -> Kept {
        let mount = self.random.index(self.mounts.count());
        let call = match self.random.chance(3, 4) {
            true => self.draw_doubtful(mount),
            false => None,
        };
        troubles.kills += 1;
        let Some(call) = call else {
            self.note(mount, "kill", &[]);
            self.mounts.kill(mount);
            self.mount_again(mount);
            return Ok(());
        };
        troubles.kills_in_calls += 1;
        let (paths, hand) = (self.paths_of(&call), self.hand(mount));
        self.note_doubtful(mount, "kill in a call", &call, &paths);
        let wait = Duration::from_millis(self.random.below(KILLED_WITHIN_MS));
        let result = std::thread::scope(|scope| {
            let calling = scope.spawn(|| call.perform(&hand, &paths));
            std::thread::sleep(wait);
            self.mounts.kill(mount);
            calling.join().unwrap()
        });
        self.mount_again(mount);
        self.resolve(mount, call, result)
    }

    fn note_doubtful(
        &mut self,
        mount: usize,
        kind: &'static str,
        call: &DoubtfulCall,
        paths: &[String],
    ) {
        let paths: Vec<_> = paths.iter().map(String::as_str).collect();
        self.note(mount, kind, &paths);
        self.record.note(mount, &format!("{call:?}"), &paths);
    }

    /// Mounts from the same state directory: what the old process was asked for is over.
    fn mount_again(&mut self, mount: usize) {
        self.close_all(mount);
        self.mounts.kill(mount);
        self.mounts.mount(mount);
    }

    /// Stops a mount while the others go on, sometimes in the middle of a call.
    fn stop(&mut self, troubles: &mut Troubles) -> Kept {
        let mount = self.random.index(self.mounts.count());
        let call = self.draw_doubtful(mount);
        let paths = call.as_ref().map(|call| self.paths_of(call));
        let paths = paths.unwrap_or_default();
        self.note(mount, "stop", &[]);
        if let Some(call) = &call {
            self.note_doubtful(mount, "stop in a call", call, &paths);
            self.reserved = call.places().into_iter().collect();
        }
        let most = match self.mounts.count() {
            1 => STOPPED_ALONE_MS,
            _ => STOPPED_MAX_MS,
        };
        let over = Duration::from_millis(self.random.between(STOPPED_MIN_MS, most));
        let (hand, began) = (self.hand(mount), Instant::now());
        let calls_first = self.random.chance(1, 2);
        let (result, meanwhile) = std::thread::scope(|scope| {
            if !calls_first {
                self.mounts.stop(mount);
            }
            let calling = scope.spawn(|| call.as_ref().map(|call| call.perform(&hand, &paths)));
            if calls_first {
                std::thread::sleep(Duration::from_millis(self.random.below(10)));
                self.mounts.stop(mount);
            }
            self.away.push(mount);
            let mut meanwhile = Ok(());
            while meanwhile.is_ok() && began.elapsed() < over {
                match self.mounts.count() {
                    1 => std::thread::sleep(POLL_EVERY),
                    _ => meanwhile = self.ordinary(),
                }
            }
            self.mounts.resume(mount);
            (calling.join().unwrap(), meanwhile)
        });
        meanwhile?;
        troubles.stops += 1;
        self.away.clear();
        let fails = !self.still_answers(mount)?;
        if fails || matches!(result, Some(Err(_))) {
            self.check_given_up(mount, &result)?;
            troubles.given_up += 1;
            self.mount_again(mount);
        }
        self.reserved.clear();
        match (call, result) {
            (Some(call), Some(result)) => self.resolve(mount, call, result),
            _ => Ok(()),
        }
    }

    /// Whether a mount works after a stop: it commits a file. Until the bound has passed it is only
    /// looked at, as it may still show what was before the stop.
    fn still_answers(&mut self, mount: usize) -> Kept<bool> {
        // At the root, where no other step looks.
        let hand = self.mounts.hand(mount, "");
        let path = format!("after-a-stop-{}", self.record.step);
        let works = || -> CallResult {
            let file = hand.create(&path)?;
            let synced = hand.write(&file, b"works").and_then(|()| hand.sync(&file));
            hand.close(file);
            synced?;
            hand.unlink(&path)
        };
        if let Err(error) = works() {
            self.check_given_up(mount, &Some(Err(error)))?;
            return Ok(false);
        }
        let began = Instant::now();
        while began.elapsed() <= self.mounts.bound {
            if let Some(place) = self.draw_leaf() {
                match self.random.chance(1, 2) {
                    true => drop(self.look(mount, &place)?),
                    false => self.read_at(mount, &place)?,
                }
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(true)
    }

    fn check_given_up(&self, mount: usize, result: &Option<CallResult>) -> Kept {
        match result {
            Some(Err(error)) if !GIVEN_UP.contains(error) => {
                let expected = format!("success, or one of {GIVEN_UP:?}");
                Err(self.broken(mount, NOTHING_LOST, "", expected, error))
            }
            _ => Ok(()),
        }
    }

    /// Finds out whether a call was executed, by its mount, which knows nothing from before or has
    /// answered.
    fn resolve(&mut self, mount: usize, call: DoubtfulCall, result: CallResult) -> Kept {
        let (paths, hand, places) = (self.paths_of(&call), self.hand(mount), call.places());
        let path = paths[0].clone();
        let unless_missing = |answer: CallResult<_>| match answer {
            Err(Errno::NOENT) => Ok(None),
            answer => answer.map(Some),
        };
        let failed = |error| self.failed(mount, "stat", &path, error);
        let seen = unless_missing(hand.stat(&path)).map_err(failed)?;
        let content = match &seen {
            Some(seen) if seen.is_file() => {
                let content = hand.read(&path);
                content.map_err(|error| self.failed(mount, "read", &path, error))?
            }
            _ => Vec::new(),
        };
        let number = seen.as_ref().map(|seen| seen.inode);
        let before = self.tree.at(&places[0]);
        let wrong = |expected: &str, seen: String| {
            let seen = format!("{seen}, after {call:?} with the result {result:?}");
            Err(self.broken(mount, NOTHING_LOST, &path, expected, seen))
        };
        let is_done = match (&call, &seen) {
            (DoubtfulCall::Write(_, old, new), Some(seen)) => {
                let states = [&old.0[..], &new.0[..]];
                let allowed = if result.is_ok() {
                    &states[1..]
                } else {
                    &states
                };
                if number != before || !is_mixture(allowed, &content) {
                    return wrong(
                        "the old content, the new one, or a mixture",
                        format!("{seen:?}"),
                    );
                }
                true
            }
            (DoubtfulCall::Create(_, new), Some(seen)) => {
                let is_whole = content == *new.0;
                if !is_whole && (result.is_ok() || !is_mixture(&[&[], &new.0], &content)) {
                    return wrong(
                        "no file, an empty one, or a part of it",
                        format!("{seen:?}"),
                    );
                }
                true
            }
            (DoubtfulCall::SetMode(_, mode), Some(seen)) => {
                let old = before.map(|number| *self.tree.inodes[&number].mode.now());
                if number != before || seen.mode != *mode && Some(seen.mode) != old {
                    return wrong("the old mode or the new one", format!("{seen:?}"));
                }
                seen.mode == *mode
            }
            (DoubtfulCall::Create(..) | DoubtfulCall::Unlink(_), None) => {
                matches!(call, DoubtfulCall::Unlink(_))
            }
            (DoubtfulCall::Unlink(_), Some(_)) if number == before => false,
            (DoubtfulCall::Rename(..), _) => {
                let other = unless_missing(hand.stat(&paths[1])).map_err(failed)?;
                match (number, other.map(|other| other.inode)) {
                    (None, other) if other == before => true,
                    (number, None) if number == before => false,
                    both => return wrong("one of the two names", format!("{both:?}")),
                }
            }
            _ => return wrong("the inode that was there", format!("{seen:?}")),
        };
        if result.is_ok() && !is_done {
            return wrong("what the call has acknowledged", format!("{seen:?}"));
        }
        if is_done {
            self.note_resolved(mount, &call, seen, content)?;
        }
        let places: Vec<_> = places.iter().collect();
        self.watch(mount, &places, Changed::Names)
    }

    fn note_resolved(
        &mut self,
        mount: usize,
        call: &DoubtfulCall,
        seen: Option<super::super::picture::Picture>,
        content: Vec<u8>,
    ) -> Kept {
        match (call, seen) {
            (DoubtfulCall::Write(..), Some(seen)) => {
                let inode = self.tree.inode(seen.inode);
                inode.changed(mount, &seen, FileBytes::of(content));
            }
            (DoubtfulCall::Create(place, _), Some(seen)) => {
                let added = self.tree.add(&seen, FileBytes::of(content));
                let path = self.tree.path(place);
                added.map_err(|error| {
                    self.broken(mount, NOTHING_LOST, &path, "a new inode", error)
                })?;
                self.tree.bind_new(mount, place, seen.inode);
            }
            (DoubtfulCall::SetMode(_, mode), Some(seen)) => {
                let inode = self.tree.inode(seen.inode);
                inode.mode.change(Some(mount), *mode);
            }
            (DoubtfulCall::Unlink(place), _) => self.tree.remove(mount, place, true),
            (DoubtfulCall::Rename(from, to), _) => self.tree.rename(mount, from, to, true),
            _ => {}
        }
        Ok(())
    }
}
