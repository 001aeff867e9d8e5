//! Trouble: mounts are killed, stopped and cut off, a replica is killed, and clocks are set, while
//! steps go on.
//!
//! A call that a mount was executing meanwhile is `doubtful`.
//!
//! A stopped mount answers nothing. Its kernel may show what it had cached, and no promise is
//! checked. Once it goes on, it may fail and is then mounted again; or it answers, and from the
//! bound on everything that it shows has to be as new as on the other mounts.
//!
//! A mount that is cut off from the replicas, in one direction or in both, still reaches the
//! clouds. It may show names and attributes as they were before the cut. What it opens it has to
//! show as it is, or not at all.
//!
//! A clock that is set to another time changes nothing that is promised. One replica's is, the one
//! that is killed, and every mount's.

use super::doubtful::NOTHING_LOST;
use super::hand::CallResult;
use super::look::POLL_EVERY;
use super::mounts::VICTIM;
use super::promise::Kept;
use super::stage::Stage;
use crate::harness::Cable;
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
const CUT_EVERY: usize = 200;
const CUTS_MAX: usize = 8;
const LEAVE_EVERY: usize = 800;
const LEAVES_MAX: usize = 2;
const CLOCK_EVERY: usize = 70;
/// Steps that a replica is away.
const REPLICA_AWAY: usize = 40;
/// A mount is stopped for this long, or cut off.
const AWAY_MIN_MS: u64 = 1000;
const STOPPED_MAX_MS: u64 = 20_000;
const CUT_OFF_MAX_MS: u64 = 12_000;
/// A mount with no other one is away shortly, as nothing else happens meanwhile.
const AWAY_ALONE_MS: u64 = 2500;
/// In one of so many steps a mount that is cut off is asked.
const ASK_CUT_OFF_IN: u64 = 16;
/// Clocks are set at most so many seconds ahead, or behind.
const AHEAD_MAX: i64 = 3 * 3600;
/// A mount is alone half a minute after the others have gone; this is for the wait until then.
const ALONE_WITHIN: Duration = Duration::from_secs(50);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long it is alone.
const ALONE_FOR: Duration = Duration::from_secs(3);
/// A mount is killed at most so long after a call began.
const KILLED_WITHIN_MS: u64 = 40;
/// How long the others are at work after a mount that was alone was cut off.
const CUT_OFF_FOR: Duration = Duration::from_secs(3);
/// What a mount that is or was away may answer.
const GIVEN_UP: [Errno; 5] = [
    Errno::STALE,
    Errno::IO,
    Errno::NOTCONN,
    Errno::CONNABORTED,
    Errno::TIMEDOUT,
];

/// How often there was trouble.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Troubles {
    /// Mounts that were killed.
    pub kills: u64,
    /// Of these, while a call was executed.
    pub kills_in_calls: u64,
    /// Mounts that were stopped and went on.
    pub stops: u64,
    /// Mounts that were cut off from the replicas.
    pub cuts: u64,
    /// Of these, in one direction.
    pub cuts_one_way: u64,
    /// Questions that a mount answered while it was cut off.
    pub cut_off_answers: u64,
    /// Questions that a mount refused while it was cut off.
    pub cut_off_refusals: u64,
    /// Mounts that failed after they had been stopped or cut off, and were mounted again.
    pub given_up: u64,
    /// Clocks that were set.
    pub clocks: u64,
    /// Replicas that were killed and started again.
    pub replicas: u64,
    /// All mounts but one were ended, and came back when it had been alone.
    pub left_alone: u64,
    /// Of these, while that one was cut off.
    pub left_alone_cut_off: u64,
}

/// After how many steps each kind of trouble comes again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    kill: usize,
    stop: usize,
    cut: usize,
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
            cut: at_most(CUT_EVERY, CUTS_MAX),
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
            (self.cuts, schedule.cut),
            (self.clocks, CLOCK_EVERY),
            (self.replicas, REPLICA_EVERY),
            (self.left_alone, schedule.leave),
            (self.left_alone_cut_off, 2 * schedule.leave),
        ];
        wanted
            .iter()
            .all(|(count, every)| *count > 0 || steps < *every)
    }
}

/// How a mount is away.
#[derive(Clone, Copy, Debug)]
enum Absence {
    Stopped,
    CutOff(Cable),
}

impl Stage<'_> {
    /// The trouble that comes before a step.
    pub(super) fn trouble(&mut self, schedule: Schedule, troubles: &mut Troubles) -> Kept {
        let step = self.record.step;
        let is_due = |every: usize| step % every == every / 2;
        match step % REPLICA_EVERY {
            20 => self.mounts.cluster().kill_one(VICTIM),
            at if at == 20 + REPLICA_AWAY => {
                self.mounts.start_victim();
                troubles.replicas += 1;
            }
            _ => {}
        }
        if is_due(CLOCK_EVERY) {
            self.set_a_clock(troubles);
        }
        if is_due(schedule.kill) {
            self.kill(troubles)?;
        }
        if is_due(schedule.stop) {
            self.be_away(Absence::Stopped, troubles)?;
        }
        if is_due(schedule.cut + 1) {
            let cable = match self.random.below(4) {
                0 => Cable::OnlyIn,
                1 => Cable::OnlyOut,
                _ => Cable::Cut,
            };
            self.be_away(Absence::CutOff(cable), troubles)?;
        }
        if is_due(schedule.leave) {
            self.leave_alone(troubles)?;
        }
        Ok(())
    }

    /// Sets the clock of a mount or of the replica to another time.
    fn set_a_clock(&mut self, troubles: &mut Troubles) {
        let ahead = self.random.below(2 * AHEAD_MAX as u64) as i64 - AHEAD_MAX;
        let count = self.mounts.count();
        let whose = self.random.index(count + 1);
        match whose < count {
            true => self.mounts.set_ahead(whose, ahead),
            false => self.mounts.set_victim_ahead(ahead),
        }
        troubles.clocks += 1;
    }

    /// Ends all mounts but one, which goes on until it is alone, and then lets them come back while
    /// it is at work: they have to see all that it did as if they had been there. Every second time
    /// it is cut off before: then they wait until it is fenced, and it has to notice by itself that
    /// it may no longer act as alone.
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
        let is_cut_off = troubles.left_alone % 2 == 1 && !others.is_empty();
        if is_cut_off {
            self.note(stays, "cut off while alone", &[]);
            mounts.cut(stays, Cable::Cut);
            self.away.push(stays);
            troubles.left_alone_cut_off += 1;
        }
        for other in others {
            std::thread::scope(|scope| {
                let coming = scope.spawn(|| mounts.mount(other));
                let mut meanwhile = Ok(());
                while meanwhile.is_ok() && !coming.is_finished() {
                    meanwhile = match self.answering().next() {
                        Some(_) => self.ordinary(),
                        None => self.ask_cut_off(stays, troubles),
                    };
                }
                coming.join().unwrap();
                meanwhile
            })?;
            self.away.retain(|away| *away != other);
        }
        if is_cut_off {
            let began = Instant::now();
            while began.elapsed() < CUT_OFF_FOR {
                self.ordinary()?;
                self.ask_cut_off(stays, troubles)?;
            }
            mounts.mend(stays);
            self.away.clear();
            if !self.still_answers(stays)? {
                troubles.given_up += 1;
                self.mount_again(stays);
            }
        }
        troubles.left_alone += 1;
        Ok(())
    }

    /// A mount that is cut off answers what is right, or does not answer.
    fn ask_cut_off(&mut self, mount: usize, troubles: &mut Troubles) -> Kept {
        let Some(place) = self.draw_leaf() else {
            return Ok(());
        };
        let asked = match self.random.chance(1, 2) {
            true => self.look(mount, &place).map(drop),
            false => self.read_at(mount, &place),
        };
        match asked {
            Ok(()) => troubles.cut_off_answers += 1,
            Err(broken) if broken.failure.is_some_and(|it| GIVEN_UP.contains(&it)) => {
                troubles.cut_off_refusals += 1;
            }
            Err(broken) => return Err(broken),
        }
        Ok(())
    }

    /// After the last step every replica runs.
    pub(super) fn end_of_trouble(&mut self, steps: usize) {
        let last = steps.saturating_sub(1) % REPLICA_EVERY;
        if steps > 20 && (20..20 + REPLICA_AWAY).contains(&last) {
            self.mounts.start_victim();
        }
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

    /// Mounts from the same state directory: what the old process was asked for is over.
    fn mount_again(&mut self, mount: usize) {
        self.close_all(mount);
        self.mounts.kill(mount);
        self.mounts.mount(mount);
    }

    /// A mount is away while the others go on, sometimes in the middle of a call.
    fn be_away(&mut self, absence: Absence, troubles: &mut Troubles) -> Kept {
        let mount = self.random.index(self.mounts.count());
        let call = self.draw_doubtful(mount);
        let paths = call.as_ref().map(|call| self.paths_of(call));
        let paths = paths.unwrap_or_default();
        let (kind, kind_in_call, most) = match absence {
            Absence::Stopped => ("stop", "stop in a call", STOPPED_MAX_MS),
            Absence::CutOff(_) => ("cut off", "cut off in a call", CUT_OFF_MAX_MS),
        };
        self.note(mount, kind, &[]);
        if let Some(call) = &call {
            self.note_doubtful(mount, kind_in_call, call, &paths);
            self.reserved = call.places().into_iter().collect();
        }
        let most = match self.mounts.count() {
            1 => AWAY_ALONE_MS,
            _ => most,
        };
        let over = Duration::from_millis(self.random.between(AWAY_MIN_MS, most));
        let (hand, began) = (self.hand(mount), Instant::now());
        let calls_first = self.random.chance(1, 2);
        let mounts = self.mounts;
        let begin = || match absence {
            Absence::Stopped => mounts.stop(mount),
            Absence::CutOff(cable) => mounts.cut(mount, cable),
        };
        let (result, meanwhile) = std::thread::scope(|scope| {
            if !calls_first {
                begin();
            }
            let calling = scope.spawn(|| call.as_ref().map(|call| call.perform(&hand, &paths)));
            if calls_first {
                std::thread::sleep(Duration::from_millis(self.random.below(10)));
                begin();
            }
            self.away.push(mount);
            let mut meanwhile = Ok(());
            while meanwhile.is_ok() && began.elapsed() < over {
                meanwhile = self.while_away(mount, absence, troubles);
            }
            match absence {
                Absence::Stopped => mounts.resume(mount),
                Absence::CutOff(_) => mounts.mend(mount),
            }
            (calling.join().unwrap(), meanwhile)
        });
        meanwhile?;
        match absence {
            Absence::Stopped => troubles.stops += 1,
            Absence::CutOff(cable) => {
                troubles.cuts += 1;
                troubles.cuts_one_way += u64::from(cable != Cable::Cut);
            }
        }
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

    /// One step of the other mounts, or a question to the one that is cut off.
    fn while_away(&mut self, mount: usize, absence: Absence, troubles: &mut Troubles) -> Kept {
        match absence {
            Absence::CutOff(_) if self.random.chance(1, ASK_CUT_OFF_IN) => {
                self.ask_cut_off(mount, troubles)
            }
            _ if self.mounts.count() > 1 => self.ordinary(),
            _ => {
                std::thread::sleep(POLL_EVERY);
                Ok(())
            }
        }
    }

    /// Whether a mount works after it was away: it commits a file. Until the bound has passed it is
    /// only looked at, as it may still show what was before.
    fn still_answers(&mut self, mount: usize) -> Kept<bool> {
        // At the root, where no other step looks.
        let hand = self.mounts.hand(mount, "");
        let path = format!("after-step-{}", self.record.step);
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
}
