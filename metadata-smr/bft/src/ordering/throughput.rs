//! Whether a leader is as fast as it could be.
//!
//! A leader that delays each proposal a little less than the progress timer allows serves every
//! client, in order and much too slowly. Only time reveals it, and time depends on the machine, the
//! network and the load. So one interval is compared with another that was like it:
//!
//! * Only *saturated* intervals count: at every moment of it something waited here. A leader that
//!   had nothing to do for a moment is not compared with one that had.
//! * Like is compared with like: for each order of magnitude of how much waited and of how long
//!   requests were, the rate that was achieved before is remembered, whichever replica led. It
//!   fades, so that a machine that has become slower does not replace one leader after the other
//!   for ever.
//! * A leader is blamed only for its own doing. Of a request's latency, one part is from its
//!   arrival to its proposal (*lag*), the other from there to its execution (*decide time*), which
//!   a busy machine lengthens together with the first. A leader is slow only if the lag is the
//!   longer part by far. A correct one collects requests for less than a decide time, unless its
//!   batches are full; full ones do not count.
//!
//! A leader is suspected after several slow intervals in a row: if fewer requests were executed
//! than under others like it; or, where nothing is remembered, if the lag is out of all proportion.
//!
//! What can go wrong: clients that together send most of the load can make a leader seem slow by
//! sending to it late, and so can a machine that is too small for its load. So each view that ends
//! after its leader was found slow here doubles the number of intervals that it takes the next
//! time, up to a few minutes, and a minute of leaders that are not slow takes one doubling back: if
//! every leader seems slow, views change now and then, not one after the other. A liar gains little
//! by it: each slow leader is found, once, and the first one after it that is not slow stays. A
//! leader that is slow by less than a few decide times is not noticed; with several batches under
//! way at a time that costs little.
//!
//! Source: Clement, "UpRight Fault Tolerance" (2010), §3.4.3, where the throughput that is asked
//! for rises with every checkpoint until the leader fails, under whatever load.

use crate::identity::{Monotonic, Nanos};
use crate::sabotage::Flag;
use crate::wire::limits::{
    LAG_OUTRIGHT, LAG_OUTRIGHT_MIN, SLOW_DOUBLINGS_MAX, SLOW_FORGIVEN, SLOW_INTERVALS,
    THROUGHPUT_INTERVAL,
};
use std::collections::BTreeMap;

/// Orders of magnitude, to the base of two: of how many requests waited, and of how long they were.
type Load = (u32, u32);

/// How many requests a second were executed under a load like that.
#[derive(Clone, Copy, Debug, Default)]
struct Achieved(u64);

impl Achieved {
    /// One interval more. A better rate counts by half at once, a worse one by little.
    const fn learn(self, rate: u64) -> Self {
        match rate >= self.0 {
            true => Self(self.0 + (rate - self.0) / 2),
            false => Self(self.0 - (self.0 - rate) / 32),
        }
    }

    /// Whether less than three quarters of it were reached.
    const fn missed_by(self, rate: u64) -> bool {
        rate.saturating_mul(4) < self.0.saturating_mul(3)
    }
}

/// What has happened since an interval began.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    begun: Monotonic,
    last: Monotonic,
    waiting: usize,
    /// Waiting requests times nanoseconds.
    waited: u128,
    executed: u64,
    bytes: u64,
    /// Nanoseconds, and how many batches they are of.
    lag: (u64, u64),
    decided: (u64, u64),
}

/// Compares intervals.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    interval: Option<Interval>,
    achieved: BTreeMap<Load, Achieved>,
    /// Slow intervals in a row, and intervals in a row that were not slow.
    slow: u32,
    calm: u32,
    /// Whether this view's leader was found slow.
    found: bool,
    /// How often the number of slow intervals that it takes was doubled.
    doublings: u32,
    /// A planted defect: intervals count however little there was to do.
    idle_too: Flag,
    /// Intervals that were compared.
    pub compared: u64,
}

const fn mean((sum, count): (u64, u64)) -> u64 {
    match count {
        0 => 0,
        count => sum / count,
    }
}

impl Interval {
    fn at(now: Monotonic, waiting: usize) -> Self {
        Self {
            begun: now,
            last: now,
            waiting,
            ..Self::default()
        }
    }

    fn load(&self, length: u64) -> Load {
        let waited = self.waited / u128::from(length.max(1));
        let waited = u64::try_from(waited).unwrap_or(u64::MAX);
        let bytes = self.bytes / self.executed.max(1);
        let magnitude = |value: u64| value.checked_ilog2().unwrap_or(0);
        (magnitude(waited), magnitude(bytes) / 2)
    }
}

impl Throughput {
    /// With the planted defect if the flag is set: idle intervals are compared as well.
    #[must_use]
    pub fn sabotaged(idle_too: Flag) -> Self {
        Self {
            idle_too,
            ..Self::default()
        }
    }

    /// A batch that was not full was proposed; half of its requests had been here for at least
    /// `lag`.
    pub fn proposed(&mut self, lag: Nanos) {
        if let Some(interval) = &mut self.interval {
            interval.lag.0 = interval.lag.0.saturating_add(lag.0);
            interval.lag.1 += 1;
        }
    }

    /// So many requests were executed, `decide` after their proposal came.
    pub fn executed(&mut self, requests: u64, bytes: u64, decide: Option<Nanos>) {
        let Some(interval) = &mut self.interval else {
            return;
        };
        interval.executed = interval.executed.saturating_add(requests);
        interval.bytes = interval.bytes.saturating_add(bytes);
        if let Some(decide) = decide {
            interval.decided.0 = interval.decided.0.saturating_add(decide.0);
            interval.decided.1 += 1;
        }
    }

    /// There is nothing to do, or nothing to compare.
    pub fn idle(&mut self) {
        self.interval = None;
        self.slow = 0;
    }

    /// This view is over.
    pub fn view_left(&mut self) {
        self.idle();
        if std::mem::take(&mut self.found) {
            self.doublings = (self.doublings + 1).min(SLOW_DOUBLINGS_MAX);
            self.calm = 0;
        }
    }

    /// This replica is slow for the moment: the rate says nothing about the leader.
    pub fn paused(&mut self) {
        self.interval = None;
    }

    /// So many requests wait now. Whether the leader has been slow for too long.
    pub fn note_waiting(&mut self, now: Monotonic, waiting: usize) -> bool {
        if waiting == 0 && !self.idle_too.is_set() {
            self.idle();
            return false;
        }
        let interval = self.interval.get_or_insert(Interval::at(now, waiting));
        let passed = u128::from(now.since(interval.last).0);
        interval.waited += passed * interval.waiting as u128;
        (interval.last, interval.waiting) = (now, waiting);
        let length = now.since(interval.begun);
        if length < THROUGHPUT_INTERVAL {
            return false;
        }
        let whole = std::mem::replace(interval, Interval::at(now, waiting));
        self.compare(&whole, length)
    }

    fn compare(&mut self, interval: &Interval, length: Nanos) -> bool {
        let rate = interval.executed.saturating_mul(1_000_000_000) / length.0.max(1);
        let load = match self.idle_too.is_set() {
            true => Load::default(),
            false => interval.load(length.0),
        };
        let known = self.achieved.entry(load).or_default();
        let (lag, decide) = (mean(interval.lag), mean(interval.decided));
        let ours = self.idle_too.is_set() || lag > decide.saturating_mul(2);
        let outright = lag > decide.saturating_mul(LAG_OUTRIGHT).max(LAG_OUTRIGHT_MIN.0);
        let slow = (known.missed_by(rate) && ours) || (outright && interval.decided.1 > 0);
        *known = known.learn(rate);
        self.compared += 1;
        (self.slow, self.calm) = match slow {
            true => (self.slow + 1, 0),
            false => (0, self.calm + 1),
        };
        if self.calm >= SLOW_FORGIVEN {
            self.calm = 0;
            self.doublings = self.doublings.saturating_sub(1);
        }
        let suspicious = self.slow >= SLOW_INTERVALS << self.doublings;
        if suspicious {
            // The next leader need only be half-way better.
            *known = Achieved(known.0 - known.0.saturating_sub(rate) / 2);
            self.slow = 0;
            self.found = true;
        }
        suspicious
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A second under a load: so many requests wait, each takes so long until it is proposed, and
    /// then until it is executed. Returns how often the leader was found slow.
    fn second(
        throughput: &mut Throughput,
        now: &mut Monotonic,
        waiting: usize,
        (lag, decide): (u64, u64),
    ) -> usize {
        let mut found = 0;
        for _ in 0..1000 {
            now.0 += MS;
            found += usize::from(throughput.note_waiting(*now, waiting));
            throughput.proposed(Nanos(lag * MS));
            let done = waiting as u64 * 100 / (lag + decide);
            throughput.executed(done, done * 200, Some(Nanos(decide * MS)));
        }
        found
    }

    fn seconds(
        throughput: &mut Throughput,
        now: &mut Monotonic,
        count: usize,
        waiting: usize,
        took: (u64, u64),
    ) -> usize {
        (0..count)
            .map(|_| second(throughput, now, waiting, took))
            .sum()
    }

    #[test]
    fn a_leader_that_becomes_slow_is_found_and_one_that_serves_less_demand_is_not() {
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        assert_eq!(seconds(&mut throughput, &mut now, 30, 64, (5, 10)), 0);
        assert_eq!(seconds(&mut throughput, &mut now, 30, 4, (5, 10)), 0);
        assert_eq!(seconds(&mut throughput, &mut now, 5, 64, (5, 10)), 0);
        assert!(seconds(&mut throughput, &mut now, 5, 64, (45, 10)) > 0);
    }

    #[test]
    fn a_machine_that_becomes_slow_does_not_make_its_leader_slow() {
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        assert_eq!(seconds(&mut throughput, &mut now, 30, 64, (5, 10)), 0);
        assert_eq!(seconds(&mut throughput, &mut now, 60, 64, (25, 50)), 0);
    }

    #[test]
    fn a_leader_slow_from_the_start_is_found_by_its_lag() {
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        assert!(seconds(&mut throughput, &mut now, 5, 64, (100, 5)) > 0);
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        assert_eq!(seconds(&mut throughput, &mut now, 60, 64, (8, 2)), 0);
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        assert!(seconds(&mut throughput, &mut now, 5, 64, (8, 1)) > 0);
    }

    #[test]
    fn where_every_leader_seems_slow_views_change_ever_more_seldom_until_they_do_not() {
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        let changes = |throughput: &mut Throughput, now: &mut Monotonic, count, took| {
            (0..count).fold(0, |changes, _| {
                let found = second(throughput, now, 64, took) > 0;
                if found {
                    throughput.view_left();
                }
                changes + usize::from(found)
            })
        };
        let hour = changes(&mut throughput, &mut now, 3600, (100, 5));
        assert!((8..=24).contains(&hour), "{hour} in an hour");
        // Idle seconds take nothing back; busy ones with leaders that are not slow do.
        throughput.note_waiting(now, 0);
        assert_eq!(changes(&mut throughput, &mut now, 60, (100, 5)), 0);
        assert_eq!(changes(&mut throughput, &mut now, 600, (5, 10)), 0);
        assert_eq!(changes(&mut throughput, &mut now, 2, (100, 5)), 1);
    }

    #[test]
    fn what_no_leader_reaches_any_more_is_not_asked_for_any_more() {
        let (mut throughput, mut now) = (Throughput::default(), Monotonic(1));
        seconds(&mut throughput, &mut now, 30, 64, (2, 10));
        let found = seconds(&mut throughput, &mut now, 120, 64, (30, 10));
        assert!((1..=4).contains(&found), "{found} leaders in two minutes");
        assert_eq!(seconds(&mut throughput, &mut now, 600, 64, (30, 10)), 0);
    }

    #[test]
    fn what_is_idle_in_between_is_not_compared() {
        for sabotaged in [false, true] {
            let mut throughput = match sabotaged {
                true => Throughput::sabotaged(Flag::SET),
                false => Throughput::default(),
            };
            let mut now = Monotonic(1);
            let mut found = seconds(&mut throughput, &mut now, 10, 2, (1, 2));
            for _ in 0..3600 {
                found += usize::from(throughput.note_waiting(now, 0));
                now.0 += 900 * MS;
                found += usize::from(throughput.note_waiting(now, 2));
                now.0 += 100 * MS;
                throughput.executed(60, 12_000, Some(Nanos(2 * MS)));
            }
            assert_eq!(found > 0, sabotaged);
        }
    }
}
