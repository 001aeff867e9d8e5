//! Endpoints in regions, and what happens to those.
//!
//! A run has three to five regions of [`REGIONS`]. Replicas are spread over them as evenly as it
//! goes, clients are anywhere. The faults are those of long ways: a region is cut off, in one
//! direction or both; one flaps; the ways of one take up to ten times as long. In the end all ways
//! stay longer than they were.

use super::{Disturbance, Fault, Plan};
use crate::agenda::{Instant, MILLISECOND};
use crate::profile::Profile;
use crate::random::Random;
use crate::ways::{REGIONS, Ways};
use quorumfs_bft::identity::Nanos;

/// When regional faults begin at the latest.
const WINDOW: u64 = 6_000 * MILLISECOND;
/// The longest other delay of a frame.
const JITTER_MAX: u64 = 2 * MILLISECOND;

impl Plan {
    /// Places all endpoints in the profile `regions`.
    pub(super) fn draw_regions(&mut self, profile: Profile, random: &mut Random) {
        if profile != Profile::Regions {
            return;
        }
        let mut regions: Vec<usize> = (0..REGIONS.len()).collect();
        random.shuffle(&mut regions);
        regions.truncate(3 + random.index(3));
        let of_machine = |machine: usize| regions.get(machine % regions.len()).copied();
        let nodes = self.nodes.len();
        let placed = self
            .endpoints()
            .map(|endpoint| match self.nodes.get(endpoint) {
                Some(machine) => of_machine(*machine).unwrap_or(0),
                None => random.pick(&regions).copied().unwrap_or(0),
            });
        let placed: Vec<usize> = placed.collect();
        let lost = match random.below(5) {
            0 => 0,
            1 => 50,
            _ => random.between(1, 10),
        };
        let used: Vec<usize> = placed.iter().take(nodes).copied().collect();
        self.ways = Some(Ways::new(placed, lost, random.between(0, 20)));
        self.network.delay_max = random.between(MILLISECOND, JITTER_MAX);
        self.network.lost = 0;
        for _ in 0..random.between(1, 3) {
            let from = Instant(random.between(500 * MILLISECOND, WINDOW));
            let region = random.pick(&used).copied().unwrap_or(0);
            let direction = random.below(3);
            let until = from.plus(random.between(300, 4_000) * MILLISECOND);
            self.regional(
                region,
                (from, until),
                (direction != 1, direction != 2),
                false,
            );
        }
        if random.chance(1, 3) {
            let region = random.pick(&used).copied().unwrap_or(0);
            let mut from = Instant(random.between(500, 3_000) * MILLISECOND);
            for _ in 0..random.between(3, 7) {
                let until = from.plus(random.between(200, 1_000) * MILLISECOND);
                self.regional(region, (from, until), (true, true), true);
                from = until.plus(random.between(500, 2_000) * MILLISECOND);
            }
        }
        for _ in 0..random.between(0, 2) {
            let from = Instant(random.between(500 * MILLISECOND, WINDOW));
            let factors = (random.between(1, 10), random.between(1, 10));
            self.faults.push(Fault {
                from,
                until: from.plus(random.between(1_000, 6_000) * MILLISECOND),
                disturbance: Disturbance::Stretch {
                    region: random.pick(&used).copied().unwrap_or(0),
                    factors,
                },
            });
        }
        self.faults.sort_by_key(|fault| fault.from);
        let last = self.faults.iter().map(|fault| fault.until).max();
        self.healed = self.healed.max(last.unwrap_or_default());
        self.return_after = Some(Nanos::from_secs(2));
        self.stretched_after = random.between(1, 6);
    }

    fn regional(
        &mut self,
        region: usize,
        (from, until): (Instant, Instant),
        ways: (bool, bool),
        flaps: bool,
    ) {
        self.faults.push(Fault {
            from,
            until,
            disturbance: Disturbance::RegionCut {
                region,
                ways,
                flaps,
            },
        });
    }
}
