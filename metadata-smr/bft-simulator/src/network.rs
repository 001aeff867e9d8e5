//! The simulated network: it delays, reorders, loses, duplicates, corrupts and partitions.
//!
//! Endpoints are numbered: first the nodes (replicas; a twin has a number of its own), then the
//! clients. Every directed link can be cut on its own, by several faults at once, so one-way
//! partitions and selective silence need no special case. Each frame draws its own delay, so frames
//! overtake each other more often than over TCP, which is the harder case.
//!
//! Corruption models errors below TLS: a corrupted frame is marked as such, so that the receiver's
//! decoder gets the damaged bytes (and must survive them) without the sender being blamed for them.

use crate::agenda::{MICROSECOND, MILLISECOND};
use crate::random::Random;
use crate::ways::Ways;

/// What a network does to frames, in parts per thousand and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The shortest delay.
    pub delay_min: u64,
    /// The longest delay of an ordinary frame.
    pub delay_max: u64,
    /// How many of a thousand frames take up to twenty times as long.
    pub straggling: u64,
    /// How many of a thousand frames are lost.
    pub lost: u64,
    /// How many of a thousand frames arrive twice.
    pub duplicated: u64,
    /// How many of a thousand frames arrive with a byte changed.
    pub corrupted: u64,
}

impl Conditions {
    /// A good local network.
    pub const CALM: Self = Self {
        delay_min: 200 * MICROSECOND,
        delay_max: 2 * MILLISECOND,
        straggling: 2,
        lost: 0,
        duplicated: 0,
        corrupted: 0,
    };
}

/// Identifies one fault of the plan, for counting whether it had an effect.
pub type FaultIndex = usize;

/// The fate of one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// For every copy that arrives: after how many nanoseconds and whether it is corrupted.
    pub arrivals: Vec<(u64, bool)>,
    /// The fault that affected the frame.
    pub by: Option<FaultIndex>,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    endpoints: usize,
    usual: Conditions,
    /// The distance of each endpoint from the centre, in nanoseconds; empty if all are near.
    distances: Vec<u64>,
    /// The ways between the places of the endpoints, if they are in some.
    ways: Option<Ways>,
    storm: Option<(Conditions, FaultIndex)>,
    cuts: Vec<Vec<FaultIndex>>,
}

impl Network {
    /// A network of so many endpoints with everything connected.
    #[must_use]
    pub fn new(endpoints: usize, usual: Conditions) -> Self {
        Self {
            endpoints,
            usual,
            distances: Vec::new(),
            ways: None,
            storm: None,
            cuts: vec![Vec::new(); endpoints * endpoints],
        }
    }

    /// The same network with its endpoints at these distances from its centre.
    #[must_use]
    pub fn spread(self, distances: Vec<u64>) -> Self {
        Self { distances, ..self }
    }

    /// The same network with its endpoints in places.
    #[must_use]
    pub fn placed(self, ways: Option<Ways>) -> Self {
        Self { ways, ..self }
    }

    /// The ways between the places of the endpoints, if they are in some.
    pub const fn ways_mut(&mut self) -> Option<&mut Ways> {
        self.ways.as_mut()
    }

    fn distance(&self, from: usize, to: usize) -> u64 {
        let of = |endpoint| self.distances.get(endpoint).copied().unwrap_or(0);
        of(from) + of(to)
    }

    /// Begins a period of bad conditions, which replace the usual ones.
    pub const fn begin_storm(&mut self, conditions: Conditions, by: FaultIndex) {
        self.storm = Some((conditions, by));
    }

    /// Ends the period that `by` began, if it still lasts.
    pub fn end_storm(&mut self, by: FaultIndex) {
        if self.storm.is_some_and(|(_, index)| index == by) {
            self.storm = None;
        }
    }

    /// Cuts one direction of one link.
    pub fn cut(&mut self, from: usize, to: usize, by: FaultIndex) {
        if let Some(cuts) = self.cuts.get_mut(from * self.endpoints + to) {
            cuts.push(by);
        }
    }

    /// Restores every link that `by` cut.
    pub fn mend(&mut self, by: FaultIndex) {
        for cuts in &mut self.cuts {
            cuts.retain(|index| *index != by);
        }
    }

    /// Whether this direction of this link is not cut.
    #[must_use]
    pub fn connected(&self, from: usize, to: usize) -> bool {
        self.cuts
            .get(from * self.endpoints + to)
            .is_some_and(Vec::is_empty)
    }

    /// Decides the fate of a frame.
    pub fn send(&self, from: usize, to: usize, random: &mut Random) -> Fate {
        let cut = self.cuts.get(from * self.endpoints + to);
        if let Some(by) = cut.and_then(|cuts| cuts.first()) {
            return Fate {
                arrivals: Vec::new(),
                by: Some(*by),
            };
        }
        let (conditions, storm) = match self.storm {
            Some((conditions, by)) => (conditions, Some(by)),
            None => (self.usual, None),
        };
        if random.chance(conditions.lost, 1000) {
            return Fate {
                arrivals: Vec::new(),
                by: storm,
            };
        }
        let (way, stretched) = match &self.ways {
            None => (Some(0), None),
            Some(ways) => ways.take(from, to, random),
        };
        let Some(way) = way else {
            return Fate {
                arrivals: Vec::new(),
                by: stretched,
            };
        };
        let corrupted = random.chance(conditions.corrupted, 1000);
        let distance = self.distance(from, to) + way;
        let mut arrivals = vec![(distance + delay(&conditions, random), corrupted)];
        let duplicated = random.chance(conditions.duplicated, 1000);
        if duplicated {
            arrivals.push((distance + delay(&conditions, random), false));
        }
        let touched = corrupted || duplicated;
        Fate {
            arrivals,
            by: storm.filter(|_| touched).or(stretched),
        }
    }
}

fn delay(conditions: &Conditions, random: &mut Random) -> u64 {
    let usual = random.between(conditions.delay_min, conditions.delay_max);
    if random.chance(conditions.straggling, 1000) {
        usual.saturating_mul(random.between(2, 20))
    } else {
        usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_one_way_and_ends_only_with_the_last_fault_that_made_it() {
        let mut network = Network::new(3, Conditions::CALM);
        network.cut(0, 1, 7);
        network.cut(0, 1, 8);
        assert!(!network.connected(0, 1) && network.connected(1, 0));
        let fate = network.send(0, 1, &mut Random::new(1));
        assert_eq!((fate.arrivals.len(), fate.by), (0, Some(7)));
        network.mend(7);
        assert!(!network.connected(0, 1));
        network.mend(8);
        assert!(network.connected(0, 1));
        assert_eq!(network.send(0, 1, &mut Random::new(1)).arrivals.len(), 1);
    }

    #[test]
    fn a_storm_loses_duplicates_and_corrupts_at_about_its_rates() {
        let mut network = Network::new(2, Conditions::CALM);
        let conditions = Conditions {
            lost: 100,
            duplicated: 100,
            corrupted: 100,
            ..Conditions::CALM
        };
        network.begin_storm(conditions, 0);
        let mut random = Random::new(5);
        let fates: Vec<Fate> = (0..10_000)
            .map(|_| network.send(0, 1, &mut random))
            .collect();
        let lost = fates.iter().filter(|fate| fate.arrivals.is_empty()).count();
        let twice = fates.iter().filter(|fate| fate.arrivals.len() == 2).count();
        let corrupted = fates
            .iter()
            .filter(|fate| fate.arrivals.iter().any(|(_, corrupted)| *corrupted))
            .count();
        for seen in [lost, twice, corrupted] {
            assert!((800..1200).contains(&seen), "{seen}");
        }
        network.end_storm(0);
        assert!((0..1000).all(|_| network.send(0, 1, &mut random).arrivals.len() == 1));
    }
}
