//! How links are: usually, in storms, and where everybody is far from everybody else.

use super::{Plan, Trouble};
use crate::agenda::{Instant, MICROSECOND, MILLISECOND};
use crate::disk::Crash;
use crate::network::Conditions;
use crate::profile::Profile;
use crate::random::Random;

/// What else delays a frame on an ordinary link, besides the distance.
const JITTER_MAX: u64 = 30 * MILLISECOND;

/// What the network usually does.
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

/// What it does in a spell of bad conditions.
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
    /// Places everybody in the profile `distant`: from one to another a frame takes 30 to 200
    /// milliseconds, and about as long each time. A replica that loses a disk loses all of it.
    pub(super) fn draw_distances(&mut self, profile: Profile, random: &mut Random) {
        if profile != Profile::Distant {
            return;
        }
        let endpoints = self.endpoints();
        let distance = |_| random.between(15, 85) * MILLISECOND;
        self.distances = endpoints.map(distance).collect();
        self.network.delay_max = random.between(MILLISECOND, JITTER_MAX);
        // As much as is executed meanwhile, batches are gone when a disk is lost so late, and the
        // checkpoint that is to be taken over lasts for some round trips.
        self.checkpoint_interval = random.between(8, 16);
        for fault in &mut self.faults {
            if let Trouble::Crash { node, disk } = &mut fault.trouble
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
