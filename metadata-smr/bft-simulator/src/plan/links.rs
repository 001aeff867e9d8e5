//! The conditions of links: usual, in storms, and over long distances.

use super::{Disturbance, Plan};
use crate::agenda::{Instant, MICROSECOND, MILLISECOND};
use crate::disk::Crash;
use crate::network::Conditions;
use crate::profile::Profile;
use crate::random::Random;

/// The longest other delay of a frame on an ordinary link, in addition to the distance.
const JITTER_MAX: u64 = 30 * MILLISECOND;

/// The usual conditions of the network.
pub(super) fn usual(profile: Profile, random: &mut Random) -> Conditions {
    let noisy = profile != Profile::Calm && random.chance(1, 2);
    let delay_max = random.between(1, 12) * MILLISECOND;
    Conditions {
        delay_min: 100 * MICROSECOND,
        delay_max,
        straggling: if noisy { random.below(40) } else { 2 },
        lost: if noisy { random.below(10) } else { 0 },
        duplicated: if noisy { random.below(10) } else { 0 },
        corrupted: 0,
    }
}

/// The conditions in a storm.
pub(super) fn storm(random: &mut Random) -> Conditions {
    Conditions {
        delay_min: MILLISECOND,
        delay_max: random.between(5, 120) * MILLISECOND,
        straggling: random.below(100),
        lost: random.below(300),
        duplicated: random.below(200),
        corrupted: random.below(60),
    }
}

impl Plan {
    /// Places all endpoints in the profile `distant`: from one to another a frame takes 30 to 200
    /// milliseconds, and about as long each time. A replica that loses a disk loses all of it.
    pub(super) fn draw_distances(&mut self, profile: Profile, random: &mut Random) {
        if profile != Profile::Distant {
            return;
        }
        let endpoints = self.endpoints();
        let distance = |_| random.between(15, 85) * MILLISECOND;
        self.distances = endpoints.map(distance).collect();
        self.network.delay_max = random.between(MILLISECOND, JITTER_MAX);
        // Few, so that when a disk is lost so late, the batches are removed already, and the
        // checkpoint that is to be fetched exists for some round trips.
        self.checkpoint_interval = random.between(8, 16);
        for fault in &mut self.faults {
            if let Disturbance::Crash { node, disk } = &mut fault.disturbance
                && Some(*node) == self.unreliable
                && *disk != Crash::Honest
            {
                *disk = Crash::Bereft;
                fault.from = Instant(random.between(6_000, 9_000) * MILLISECOND);
                fault.until = fault.from.plus(random.between(300, 2_000) * MILLISECOND);
                self.healed = self.healed.max(fault.until);
            }
        }
        self.faults.sort_by_key(|fault| fault.from);
    }
}
