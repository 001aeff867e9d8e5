//! Places that are far apart, and the ways between them.
//!
//! Each endpoint is in a place. A frame from one place to another takes the time of the way between
//! them, as providers publish it for some of their regions, with a jitter that grows with it, and
//! is lost sometimes. A way has one direction: each can be stretched on its own for a while.

use crate::agenda::{MICROSECOND, MILLISECOND};
use crate::network::FaultIndex;
use crate::random::Random;

/// Regions of providers, and the round trips between them in milliseconds as the providers publish
/// them; within a region it is half of one.
pub const REGIONS: [(&str, [f64; 6]); 6] = [
    ("frankfurt", [0.5, 25.0, 90.0, 150.0, 230.0, 290.0]),
    ("dublin", [25.0, 0.5, 70.0, 130.0, 220.0, 260.0]),
    ("virginia", [90.0, 70.0, 0.5, 65.0, 150.0, 200.0]),
    ("oregon", [150.0, 130.0, 65.0, 0.5, 95.0, 140.0]),
    ("tokyo", [230.0, 220.0, 150.0, 95.0, 0.5, 105.0]),
    ("sydney", [290.0, 260.0, 200.0, 140.0, 105.0, 0.5]),
];

/// The time of one way between two regions, in nanoseconds.
#[must_use]
pub fn one_way(from: usize, to: usize) -> u64 {
    let row = REGIONS.get(from).map(|(_, row)| row);
    let round_trip = row.and_then(|row| row.get(to)).copied();
    let micros = round_trip.unwrap_or_default() * 1000.0 / 2.0;
    micros.round() as u64 * MICROSECOND
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    /// The region of each endpoint.
    pub regions: Vec<usize>,
    /// How many of a thousand frames are lost between regions.
    pub lost: u64,
    /// How many hundredths of a way its jitter may have.
    pub jitter: u64,
    /// Ways that take longer by a factor, each with the fault that did it.
    stretched: Vec<(usize, usize, u64, FaultIndex)>,
}

impl Ways {
    /// Ways between endpoints in these regions.
    #[must_use]
    pub const fn new(regions: Vec<usize>, lost: u64, jitter: u64) -> Self {
        Self {
            regions,
            lost,
            jitter,
            stretched: Vec::new(),
        }
    }

    /// The ways from and to a region take longer by a factor.
    pub fn stretch(&mut self, region: usize, (out, back): (u64, u64), by: FaultIndex) {
        for other in (0..REGIONS.len()).filter(|other| *other != region) {
            self.stretched.push((region, other, out, by));
            self.stretched.push((other, region, back, by));
        }
    }

    /// All ways take longer by a factor from now on.
    pub fn stretch_all(&mut self, factor: u64, by: FaultIndex) {
        for region in 0..REGIONS.len() {
            self.stretch(region, (factor, factor), by);
        }
    }

    /// Ends what a fault did.
    pub fn relax(&mut self, by: FaultIndex) {
        self.stretched.retain(|(.., index)| *index != by);
    }

    /// How long a frame takes between two endpoints, in addition to the network; `None`: it is
    /// lost. Also says which fault it felt.
    pub(crate) fn take(
        &self,
        from: usize,
        to: usize,
        random: &mut Random,
    ) -> (Option<u64>, Option<FaultIndex>) {
        let region = |endpoint: usize| self.regions.get(endpoint).copied().unwrap_or(0);
        let (from, to) = (region(from), region(to));
        let mut stretched = self.stretched.iter();
        let stretch = stretched.rfind(|it| (it.0, it.1) == (from, to));
        let by = stretch.map(|(.., by)| *by);
        let usual = one_way(from, to);
        let way = usual.saturating_mul(stretch.map_or(1, |(_, _, factor, _)| *factor));
        let jitter = random.between(0, usual.saturating_mul(self.jitter) / 100);
        let is_lost = random.chance(self.lost, 1000) && from != to;
        ((!is_lost).then(|| way.saturating_add(jitter)), by)
    }

    /// The longest round trip between regions that have an endpoint, in nanoseconds.
    #[must_use]
    pub fn longest(&self) -> u64 {
        let regions = || self.regions.iter().copied();
        let ways = regions().flat_map(|from| regions().map(move |to| one_way(from, to)));
        ways.max().unwrap_or(MILLISECOND).saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_as_long_in_both_directions_until_one_is_stretched() {
        for from in 0..REGIONS.len() {
            for to in 0..REGIONS.len() {
                assert_eq!(one_way(from, to), one_way(to, from));
            }
        }
        assert_eq!(one_way(0, 1), 12_500 * MICROSECOND);
        let mut random = Random::new(1);
        let mut ways = Ways::new(vec![0, 1, 1], 0, 0);
        assert_eq!(ways.take(0, 1, &mut random), (Some(one_way(0, 1)), None));
        assert_eq!(ways.longest(), 25 * MILLISECOND);
        ways.stretch(0, (10, 1), 7);
        let far = ways.take(0, 2, &mut random);
        assert_eq!(far, (Some(10 * one_way(0, 1)), Some(7)));
        let back = ways.take(2, 0, &mut random);
        assert_eq!(back, (Some(one_way(0, 1)), Some(7)));
        let inside = ways.take(1, 2, &mut random);
        assert_eq!(inside, (Some(250 * MICROSECOND), None));
        ways.relax(7);
        assert_eq!(ways.take(0, 2, &mut random), (Some(one_way(0, 1)), None));
    }

    #[test]
    fn frames_are_lost_between_regions_and_not_within_one() {
        let mut random = Random::new(5);
        let ways = Ways::new(vec![0, 3, 3], 50, 10);
        let mut lost = |to| {
            let taken = (0..10_000).map(|_| ways.take(1, to, &mut random).0);
            taken.filter(Option::is_none).count()
        };
        assert!((400..600).contains(&lost(0)));
        assert_eq!(lost(2), 0);
    }
}
