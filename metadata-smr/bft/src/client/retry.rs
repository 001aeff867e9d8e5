//! When to send again.
//!
//! The first delay is what answers usually take, with a margin ([`crate::round_trip`]), or
//! [`ClientConfig::retry`] until something has been measured. It doubles up to
//! [`ClientConfig::retry_max`] and is spread by a jitter of up to a quarter, so that clients that
//! lost a leader together do not return together. The jitter is a function of the client's seed and
//! a counter: the core draws no random numbers.

use super::config::ClientConfig;
use crate::identity::{Monotonic, Nanos};
use crate::round_trip::RoundTrip;
use crate::wire::limits::RETRY_MIN;

/// The retry state of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    attempts: u32,
    salt: u64,
    first: Nanos,
    /// When to send again.
    pub(super) at: Monotonic,
}

impl Retry {
    /// Starts waiting for the first retry of the message that `salt` names.
    pub(super) fn start(
        config: &ClientConfig,
        trip: &RoundTrip,
        salt: u64,
        now: Monotonic,
    ) -> Self {
        let mut retry = Self {
            attempts: 0,
            salt,
            first: trip.patience(config.retry, RETRY_MIN),
            at: now,
        };
        retry.wait(config, now);
        retry
    }

    /// Whether it was sent again at least once.
    pub(super) const fn repeated(&self) -> bool {
        self.attempts > 1
    }

    /// Sets the next retry, later than the last time.
    pub(super) fn wait(&mut self, config: &ClientConfig, now: Monotonic) {
        let doubled = self.first.0.saturating_mul(1 << self.attempts.min(20));
        let length = doubled.min(config.retry_max.0);
        let mixed = mix(config.jitter_seed ^ mix(self.salt ^ u64::from(self.attempts)));
        let jitter = (length / 4).checked_mul(mixed >> 32).map_or_else(
            || ((length / 4) >> 32).saturating_mul(mixed >> 32),
            |product| product >> 32,
        );
        self.attempts = self.attempts.saturating_add(1);
        self.at = now.plus(Nanos(length.saturating_add(jitter)));
    }
}

/// The finaliser of SplitMix64: spreads a counter over all bits.
const fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_model::FaultModel;
    use crate::identity::{ClusterId, PublicKey};

    fn config(jitter_seed: u64) -> ClientConfig {
        let model = FaultModel::new(1, 1, 4).unwrap();
        ClientConfig {
            jitter_seed,
            ..ClientConfig::new(ClusterId([0; 16]), model, PublicKey([0; 32]))
        }
    }

    #[test]
    fn waiting_doubles_up_to_its_bound_and_never_falls_below_it() {
        let config = config(1);
        let mut now = Monotonic(0);
        let mut retry = Retry::start(&config, &RoundTrip::default(), 9, now);
        let mut expected = config.retry.0;
        for _ in 0..70 {
            let waited = retry.at.since(now).0;
            assert!(
                (expected..=expected + expected / 4).contains(&waited),
                "{waited}"
            );
            now = retry.at;
            retry.wait(&config, now);
            expected = (expected * 2).min(config.retry_max.0);
        }
    }

    #[test]
    fn fast_answers_make_retries_early_but_never_immediate() {
        let config = config(1);
        let mut trip = RoundTrip::default();
        let first = |trip: &RoundTrip| Retry::start(&config, trip, 9, Monotonic(0)).at.0;
        let quarter = |nanos: u64| nanos..=nanos + nanos / 4;
        assert!(quarter(config.retry.0).contains(&first(&trip)));
        for _ in 0..50 {
            trip.measured(Nanos::from_millis(1));
        }
        assert!(quarter(RETRY_MIN.0).contains(&first(&trip)));
        for _ in 0..50 {
            trip.measured(Nanos::from_secs(1));
        }
        assert!(first(&trip) > config.retry.0);
    }

    #[test]
    fn clients_do_not_come_back_together() {
        let at: std::collections::BTreeSet<u64> = (0..100)
            .map(|seed| {
                let unknown = RoundTrip::default();
                Retry::start(&config(seed), &unknown, 1, Monotonic(0)).at.0
            })
            .collect();
        assert!(at.len() > 95);
    }
}
