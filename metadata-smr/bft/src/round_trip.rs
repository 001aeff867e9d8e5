//! How long an answer usually takes.
//!
//! A smoothed mean and a smoothed deviation, from answers that belong to a known message: where the
//! same bytes were sent twice, it is not known which of the two an answer belongs to.
//!
//! Source: Jacobson, "Congestion Avoidance and Control" (1988); Karn and Partridge, "Improving
//! Round-Trip Time Estimates in Reliable Transport Protocols" (1987); RFC 6298 for the weights.

use crate::identity::Nanos;

/// The measurements so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    mean: Option<u64>,
    deviation: u64,
}

impl RoundTrip {
    /// Adds the measurement of an answer.
    pub(crate) fn measured(&mut self, took: Nanos) {
        match self.mean {
            None => {
                self.mean = Some(took.0);
                self.deviation = took.0 / 2;
            }
            Some(mean) => {
                let off = mean.abs_diff(took.0);
                self.deviation = self.deviation - self.deviation / 4 + off / 4;
                self.mean = Some(mean - mean / 8 + took.0 / 8);
            }
        }
    }

    /// The smoothed mean, in nanoseconds, once something was measured.
    pub(crate) const fn mean(&self) -> Option<u64> {
        self.mean
    }

    /// How long to wait before an answer counts as lost; `unknown` if nothing was measured.
    pub(crate) fn patience(&self, unknown: Nanos, least: Nanos) -> Nanos {
        match self.mean {
            None => unknown,
            Some(mean) => {
                let long = mean.saturating_add(self.deviation.saturating_mul(4));
                Nanos(long.max(least.0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_what_is_measured_and_grows_with_its_spread() {
        let unknown = Nanos::from_millis(250);
        let mut trip = RoundTrip::default();
        assert_eq!(trip.patience(unknown, Nanos(0)), unknown);
        for _ in 0..100 {
            trip.measured(Nanos(1_000_000));
        }
        let steady = trip.patience(unknown, Nanos(0));
        assert!((1_000_000..1_100_000).contains(&steady.0), "{steady:?}");
        for turn in 0..100 {
            trip.measured(Nanos(if turn % 2 == 0 { 500_000 } else { 1_500_000 }));
        }
        let restless = trip.patience(unknown, Nanos(0));
        assert!(restless.0 > 2_000_000, "{restless:?}");
        let least = Nanos::from_millis(20);
        assert_eq!(trip.patience(unknown, least), least);
        trip.measured(Nanos(u64::MAX));
        assert!(trip.patience(unknown, least).0 > 0, "no overflow");
    }
}
