//! What a cloud's recent behaviour says about the next request to it.
//!
//! A cloud that fails as a whole, or lets a put hang, is *suspended* for a while that doubles with
//! each further failure; a single success ends it. Suspension is a hint and never a verdict:
//! whoever cannot do without a cloud asks it all the same. Latencies of the last answers give the
//! delay after which a read no longer waits for a cloud alone.

use quorumfs_backends::StoreError;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How many latencies are remembered.
const LATENCIES: usize = 64;

/// How clouds are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For one put.
    pub put: Duration,
    /// For one get.
    pub get: Duration,
    /// A read asks elsewhere too after this, or after what the cloud usually takes if that is
    /// longer.
    pub hedge_min: Duration,
    /// A read never waits longer than this before it asks elsewhere too.
    pub hedge_max: Duration,
    /// A put that is not answered after this makes its cloud suspect.
    pub suspect: Duration,
    /// The first suspension.
    pub backoff_min: Duration,
    /// The longest suspension.
    pub backoff_max: Duration,
    /// Between two looks for under-replicated objects.
    pub completion: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            put: Duration::from_secs(20),
            get: Duration::from_secs(15),
            hedge_min: Duration::from_millis(50),
            hedge_max: Duration::from_secs(1),
            suspect: Duration::from_secs(2),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(30),
            completion: Duration::from_secs(5),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    suspended_until: Option<Instant>,
    last_error: Option<String>,
    latencies: VecDeque<Duration>,
}

/// One cloud's record.
#[derive(Debug)]
pub(super) struct Health {
    timeouts: Timeouts,
    state: Mutex<State>,
}

impl Health {
    pub(super) fn new(timeouts: Timeouts) -> Self {
        Self {
            timeouts,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cloud answered, well or ill, after `latency`.
    pub(super) fn answered(&self, latency: Duration) {
        let mut state = self.state();
        state.failures = 0;
        state.suspended_until = None;
        state.latencies.push_back(latency);
        if state.latencies.len() > LATENCIES {
            state.latencies.pop_front();
        }
    }

    /// The cloud failed as a whole.
    pub(super) fn failed(&self, error: &StoreError) {
        let mut state = self.state();
        state.last_error = Some(error.to_string());
        self.suspend(&mut state);
    }

    /// The cloud has not answered a put for suspiciously long.
    pub(super) fn suspected(&self) {
        let mut state = self.state();
        state.last_error = Some(format!(
            "a put was not answered within {} ms; check the cloud's health and the network to it",
            self.timeouts.suspect.as_millis()
        ));
        self.suspend(&mut state);
    }

    fn suspend(&self, state: &mut State) {
        let now = Instant::now();
        // Requests that were on their way together count as one failure.
        if state.suspended_until.is_none_or(|until| until <= now) {
            state.failures = state.failures.saturating_add(1);
            let doublings = state.failures.saturating_sub(1).min(16);
            let length = self.timeouts.backoff_min.saturating_mul(1 << doublings);
            state.suspended_until = Some(now + length.min(self.timeouts.backoff_max));
        }
    }

    /// The cloud lied: remembered for people, without consequence for requests.
    pub(super) fn lied(&self, what: String) {
        self.state().last_error = Some(what);
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.state()
            .suspended_until
            .is_some_and(|until| until > Instant::now())
    }

    /// Whether the last request that concerned the whole cloud failed.
    pub(super) fn is_failing(&self) -> bool {
        self.state().failures > 0
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.state().last_error.clone()
    }

    /// The given percentile of the remembered latencies.
    pub(super) fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.state().latencies.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        sorted.get(last * percent.min(100) / 100).copied()
    }

    /// How long a read waits for this cloud alone.
    pub(super) fn hedge_delay(&self) -> Duration {
        let usual = self.percentile(95).unwrap_or_default().saturating_mul(2);
        usual.clamp(self.timeouts.hedge_min, self.timeouts.hedge_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn suspensions_grow_while_a_cloud_fails_and_end_with_its_first_answer() {
        let timeouts = Timeouts {
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(60),
            ..Timeouts::default()
        };
        let health = Health::new(timeouts);
        assert!(!health.is_suspended());
        for (round, expected) in [20, 40, 60, 60].into_iter().enumerate() {
            health.suspected();
            health.suspected();
            let until = health.state().suspended_until.unwrap();
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                left <= Duration::from_millis(expected),
                "round {round}: {left:?}"
            );
            assert!(left + Duration::from_millis(15) > Duration::from_millis(expected));
            tokio::time::sleep(left + Duration::from_millis(1)).await;
            assert!(!health.is_suspended() && health.is_failing());
        }
        health.suspected();
        health.answered(Duration::from_millis(1));
        assert!(!health.is_suspended() && !health.is_failing());
    }

    #[test]
    fn the_hedge_follows_the_latency_within_its_bounds() {
        let health = Health::new(Timeouts::default());
        assert_eq!(health.hedge_delay(), Duration::from_millis(50));
        for _ in 0..100 {
            health.answered(Duration::from_millis(100));
        }
        assert_eq!(health.hedge_delay(), Duration::from_millis(200));
        for _ in 0..100 {
            health.answered(Duration::from_secs(60));
        }
        assert_eq!(health.hedge_delay(), Duration::from_secs(1));
        assert_eq!(health.state().latencies.len(), LATENCIES);
    }
}
