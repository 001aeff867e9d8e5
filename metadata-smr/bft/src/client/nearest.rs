//! Which replicas a query is asked of: the nearest, as far as that is known.
//!
//! Each answer to a try shows how far its replica is. Replicas that are about as far as each other
//! are one *class*: which of them are asked is as good as drawn, different for each client, so that
//! they share the load. Over long ways the classes differ, and the far ones are left in peace.
//!
//! ```text
//!   asked ──answer──► its distance ──► class 0: 0.3 ms, 0.4 ms │ class 1: 25 ms │ class 2: 90 ms
//!     ▲                                   └──────── as many as are needed ────────┘
//!     └── now and then one more: the replica that was measured longest ago
//! ```
//!
//! * A replica that was late is as far as it was waited for, at least, and comes last in its class.
//!   A liar that is late on purpose harms the queries of one try, and is asked no more for a while.
//! * A replica that refuses to answer, because it does not vote, is the farthest until an answer of
//!   it counts. So is one whose answers differ again and again from those that count.
//! * Distances change. So one more replica is asked at times, more often at the beginning: what it
//!   answers counts, and no one waits for it.
//! * What counts does not depend on any of this: any quorum is one.

use crate::identity::{Nanos, ReplicaId};
use crate::round_trip::RoundTrip;
use std::collections::{BTreeMap, BTreeSet};

/// A replica is in the next class if it is farther than the nearest of its class by more than this.
/// Within one site the differences are smaller, and between regions mostly larger.
const ALIKE: Nanos = Nanos::from_millis(4);
/// Answers in a row of a replica that differ until it is asked last.
const DIFFERED_MAX: u32 = 3;
/// Tries from one that asks one more replica to the next, at most.
const PROBE_EVERY: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Nearest {
    /// The order within a class: those that were late or differed come last.
    order: Vec<ReplicaId>,
    trips: BTreeMap<ReplicaId, Distance>,
    tries: u64,
    /// When one more is asked next, and how many tries after that.
    probe: (u64, u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Distance {
    trip: RoundTrip,
    /// The try of the last measurement.
    measured: u64,
    /// It is as far as can be until an answer of it counts: it does not answer the queries, or
    /// differently from the others.
    useless: bool,
    /// How many of its last answers in a row differed from those that counted.
    differed: u32,
}

/// The replicas of one try.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// As many as are needed.
    pub(super) needed: Vec<ReplicaId>,
    /// One more, to learn how far it is.
    pub(super) probed: Option<ReplicaId>,
}

/// Whether a replica at this distance is in another class than one that is nearer.
fn is_farther(distance: u64, nearest: u64) -> bool {
    distance > nearest.saturating_add(ALIKE.0)
}

impl Nearest {
    /// For a client that asks so many replicas, beginning with one of its own.
    pub(super) fn new(count: u16, seed: u64) -> Self {
        let count = u64::from(count.max(1));
        let first = seed % count;
        let turn = |step: u64| ReplicaId(((first + step) % count) as u16);
        Self {
            order: (0..count).map(turn).collect(),
            trips: BTreeMap::new(),
            tries: 0,
            probe: (2, 2),
        }
    }

    /// How far a replica is, as far as that is known.
    fn mean(&self, replica: ReplicaId) -> Option<u64> {
        let distance = self.trips.get(&replica)?;
        match distance.useless {
            true => Some(u64::MAX),
            false => distance.trip.mean(),
        }
    }

    /// All replicas that can be asked, the nearest class first.
    pub(super) fn all(&self, connected: &BTreeSet<ReplicaId>) -> Vec<ReplicaId> {
        let mut reachable = self.order.clone();
        reachable.retain(|it| connected.contains(it));
        let mut means: Vec<u64> = reachable.iter().filter_map(|it| self.mean(*it)).collect();
        means.sort_unstable();
        let (mut class, mut begins) = (0_u64, None);
        let mut classes = BTreeMap::new();
        for mean in means {
            let nearest = *begins.get_or_insert(mean);
            if is_farther(mean, nearest) {
                class += 1;
                begins = Some(mean);
            }
            classes.insert(mean, class);
        }
        // One that was never measured comes behind those of the first class: a probe finds out.
        let class_of = |replica: &ReplicaId| match self.mean(*replica) {
            None => (0, true),
            Some(mean) => (classes.get(&mean).copied().unwrap_or(0), false),
        };
        // A stable sort: within a class the order stays.
        reachable.sort_by_key(class_of);
        reachable
    }

    /// The replicas of the next try that needs so many.
    pub(super) fn choose(&mut self, connected: &BTreeSet<ReplicaId>, needed: usize) -> Chosen {
        self.tries = self.tries.saturating_add(1);
        let mut all = self.all(connected);
        let others = all.split_off(needed.min(all.len()));
        let (next, pause) = self.probe;
        let mut probed = None;
        if self.tries >= next {
            let measured = |it: &&ReplicaId| self.trips.get(*it).map_or(0, |it| it.measured);
            probed = others.iter().min_by_key(measured).copied();
            self.probe = (
                self.tries.saturating_add(pause),
                pause.saturating_mul(2).min(PROBE_EVERY),
            );
        }
        Chosen {
            needed: all,
            probed,
        }
    }

    /// Whether the nearest `few` are in a nearer class than the nearest `many`, as far as is known.
    pub(super) fn is_nearer(
        &self,
        connected: &BTreeSet<ReplicaId>,
        few: usize,
        many: usize,
    ) -> bool {
        let farthest = |all: &[ReplicaId]| {
            let means = all.iter().map(|it| self.mean(*it));
            means.max_by_key(|mean| mean.unwrap_or(u64::MAX)).flatten()
        };
        let all = self.all(connected);
        let (Some(few), Some(many)) = (all.get(..few), all.get(..many)) else {
            return false;
        };
        match (farthest(few), farthest(many)) {
            (Some(few), Some(many)) => is_farther(many, few),
            _ => false,
        }
    }

    /// A replica has answered a try after this time.
    pub(super) fn answered(&mut self, from: ReplicaId, took: Nanos) {
        let measured = self.tries;
        let distance = self.trips.entry(from).or_default();
        distance.trip.measured(took);
        distance.measured = measured;
    }

    /// An answer of a replica counted.
    pub(super) fn matched(&mut self, replica: ReplicaId) {
        let distance = self.trips.entry(replica).or_default();
        (distance.useless, distance.differed) = (false, 0);
    }

    /// An answer of a replica differed from the one that counted: it lies, or had not executed all
    /// yet.
    pub(super) fn mismatched(&mut self, replica: ReplicaId) {
        let distance = self.trips.entry(replica).or_default();
        distance.differed = distance.differed.saturating_add(1);
        distance.useless |= distance.differed >= DIFFERED_MAX;
    }

    /// A replica does not answer queries, for instance because it does not vote: others are asked
    /// first, whatever their distance.
    pub(super) fn refused(&mut self, from: ReplicaId) {
        let distance = self.trips.entry(from).or_default();
        distance.measured = self.tries;
        distance.useless = true;
    }

    /// These have not answered a try for this time, or what was answered differed.
    pub(super) fn disappointed(&mut self, late: impl Fn(&ReplicaId) -> bool, waited: Nanos) {
        let is_late: Vec<_> = self.order.iter().copied().filter(|it| late(it)).collect();
        for replica in &is_late {
            if self.mean(*replica).is_none_or(|mean| mean < waited.0) {
                self.answered(*replica, waited);
            }
        }
        // A stable sort: late replicas go behind all others, whose order does not change.
        self.order.sort_by_key(|it| is_late.contains(it));
    }

    /// What was answered differed, and no one was late: another one is asked the next time.
    pub(super) fn differed(&mut self) {
        if !self.order.is_empty() {
            self.order.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn all(count: u16) -> BTreeSet<ReplicaId> {
        (0..count).map(ReplicaId).collect()
    }

    fn ids(chosen: &[ReplicaId]) -> Vec<u16> {
        chosen.iter().map(|it| it.0).collect()
    }

    /// Asks once, and has each replica answer after its time.
    fn ask(nearest: &mut Nearest, times: &[u64], needed: usize) -> Chosen {
        let chosen = nearest.choose(&all(times.len() as u16), needed);
        for replica in chosen.needed.iter().chain(&chosen.probed) {
            nearest.answered(*replica, Nanos(times[usize::from(replica.0)]));
        }
        chosen
    }

    #[test]
    fn the_nearest_are_asked_once_all_were_measured_wherever_it_begins() {
        for seed in 0..4 {
            let mut nearest = Nearest::new(4, seed);
            let times = [90, 25, 1, 150].map(|ms| ms * MS);
            for _ in 0..4 {
                ask(&mut nearest, &times, 3);
            }
            assert_eq!(
                ids(&ask(&mut nearest, &times, 3).needed),
                [2, 1, 0],
                "{seed}"
            );
            assert_eq!(ids(&ask(&mut nearest, &times, 2).needed), [2, 1], "{seed}");
        }
    }

    #[test]
    fn a_few_are_nearer_than_many_only_over_ways_that_differ() {
        let is_nearer = |times: [u64; 4]| {
            let mut nearest = Nearest::new(4, 1);
            assert!(!nearest.is_nearer(&all(4), 2, 3), "nothing is known");
            for _ in 0..20 {
                ask(&mut nearest, &times, 3);
            }
            assert!(!nearest.is_nearer(&all(2), 2, 3), "too few are connected");
            nearest.is_nearer(&all(4), 2, 3)
        };
        assert!(is_nearer([MS, 25 * MS, 90 * MS, 150 * MS]));
        assert!(is_nearer([150 * MS, 90 * MS, MS, 25 * MS]));
        assert!(is_nearer([MS, 70 * MS, 65 * MS, 150 * MS]));
        assert!(!is_nearer([MS; 4]));
        assert!(!is_nearer([MS, 70 * MS, 71 * MS, 150 * MS]));
    }

    #[test]
    fn one_that_refuses_is_asked_last_and_found_again_by_a_probe() {
        let mut nearest = Nearest::new(4, 0);
        let times = [1, 25, 90, 150].map(|ms| ms * MS);
        for _ in 0..20 {
            ask(&mut nearest, &times, 3);
        }
        nearest.refused(ReplicaId(0));
        assert_eq!(nearest.choose(&all(4), 3).needed, [1, 2, 3].map(ReplicaId));
        let mut tries = 0;
        loop {
            let chosen = ask(&mut nearest, &times, 3);
            if ids(&chosen.needed) == [0, 1, 2] {
                break;
            }
            if chosen.probed == Some(ReplicaId(0)) {
                nearest.matched(ReplicaId(0));
            }
            tries += 1;
            assert!(tries < 70, "no probe");
        }
        // What it answers differs once, and then again and again.
        nearest.mismatched(ReplicaId(0));
        assert_eq!(ids(&ask(&mut nearest, &times, 3).needed), [0, 1, 2]);
        for _ in 1..DIFFERED_MAX {
            nearest.mismatched(ReplicaId(0));
        }
        assert_eq!(ids(&ask(&mut nearest, &times, 3).needed), [1, 2, 3]);
    }

    #[test]
    fn replicas_that_are_alike_are_asked_in_the_order_of_each_client() {
        for seed in 0..4 {
            let mut nearest = Nearest::new(4, seed);
            let times = [300_000, 900_000, 200_000, 700_000];
            for _ in 0..20 {
                let chosen = ask(&mut nearest, &times, 3);
                let first = (seed % 4) as u16;
                let expected = [0, 1, 2].map(|step| (first + step) % 4);
                assert_eq!(ids(&chosen.needed), expected);
            }
        }
    }

    #[test]
    fn a_replica_that_comes_nearer_is_noticed_and_probes_become_rare() {
        let mut nearest = Nearest::new(4, 0);
        let far = [10, 20, 40, 200].map(|ms| ms * MS);
        let mut probes = 0;
        for _ in 0..1000 {
            let chosen = ask(&mut nearest, &far, 3);
            probes += usize::from(chosen.probed.is_some());
        }
        assert!((15..30).contains(&probes), "{probes}");
        let near = [10, 20, 40, 1].map(|ms| ms * MS);
        for _ in 0..3000 {
            ask(&mut nearest, &near, 3);
        }
        assert_eq!(ids(&ask(&mut nearest, &near, 3).needed), [3, 0, 1]);
    }

    #[test]
    fn a_late_replica_comes_last_until_it_answers_again() {
        let mut nearest = Nearest::new(4, 0);
        let times = [MS; 4];
        for _ in 0..8 {
            ask(&mut nearest, &times, 3);
        }
        nearest.disappointed(|it| *it == ReplicaId(0), Nanos(50 * MS));
        let chosen = nearest.choose(&all(4), 3);
        assert_eq!(ids(&chosen.needed), [1, 2, 3]);
        // Only those that can be asked are.
        let connected = BTreeSet::from([ReplicaId(0), ReplicaId(3)]);
        assert_eq!(ids(&nearest.choose(&connected, 3).needed), [3, 0]);
        nearest.differed();
        assert_eq!(ids(&nearest.choose(&all(4), 3).needed), [2, 3, 1]);
    }
}
