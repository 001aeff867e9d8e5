//! A replica's clocks: wrong by a skew, a drift and jumps.
//!
//! The wall clock may show any time. The monotonic clock may run fast or slow but never backwards.

use crate::agenda::Instant;
use quorumfs_bft::identity::{Monotonic, Now, Time};

/// The time of the wall clocks at the beginning of a simulation.
pub const EPOCH: Time = Time(1_800_000_000_000_000_000);

/// One machine's clocks.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// How far the wall clock is ahead, in nanoseconds.
    skew: i64,
    /// How much faster than true time both clocks run, in parts per million.
    drift_ppm: i64,
}

impl Clock {
    /// Clocks that start `skew` nanoseconds ahead and run `drift_ppm` fast.
    #[must_use]
    pub const fn new(skew: i64, drift_ppm: i64) -> Self {
        Self { skew, drift_ppm }
    }

    /// Sets the wall clock `nanos` ahead of where it is.
    pub const fn jump(&mut self, nanos: i64) {
        self.skew = self.skew.saturating_add(nanos);
    }

    /// The time of both clocks at a true instant.
    #[must_use]
    pub fn now(&self, at: Instant) -> Now {
        let elapsed = i64::try_from(at.0).unwrap_or(i64::MAX);
        let ran = elapsed.saturating_add(elapsed / 1_000_000 * self.drift_ppm);
        let ran = u64::try_from(ran).unwrap_or(0);
        let clock = EPOCH.0.saturating_add(ran).saturating_add_signed(self.skew);
        Now {
            clock: Time(clock),
            monotonic: Monotonic(ran),
        }
    }

    /// How much true time passes during `nanos` on these clocks.
    #[must_use]
    pub fn true_length(&self, nanos: u64) -> u64 {
        let length = i64::try_from(nanos).unwrap_or(i64::MAX);
        let shorter = length / 1_000_000 * self.drift_ppm;
        u64::try_from(length.saturating_sub(shorter)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_moves_the_wall_clock_and_leaves_the_monotonic_one() {
        let mut clock = Clock::new(-5, 100);
        let before = clock.now(Instant(2_000_000));
        assert_eq!(before.monotonic.0, 2_000_200);
        assert_eq!(before.clock.0, EPOCH.0 + 2_000_195);
        clock.jump(1_000);
        let after = clock.now(Instant(2_000_000));
        assert_eq!(after.monotonic, before.monotonic);
        assert_eq!(after.clock.0, before.clock.0 + 1_000);
    }
}
