//! A cloud's health: predictions from its recent behaviour.
//!
//! ```text
//!             fails as a whole, puts hang, several gets are overdue
//!   in use ───────────────────────────────────────────────────────────► suspended
//!      ▲                                                                   │ a period that
//!      │ any answer                                                        │ doubles
//!      └──────────────────────── probed ◄──────────────────────────────────┘
//! ```
//!
//! A *suspended* cloud is not asked among the first. At the end of the period it is probed, so that
//! no reader has to try it. Only an answer, to the probe or to another request, ends the
//! suspension. Suspension is a hint and never a verdict: an operation that needs the cloud still
//! asks it. The period doubles from one suspension to the next, and shrinks with answers to
//! requests alone: a cloud that answers nothing but probes does not benefit.
//!
//! A get is *overdue* when it takes longer than its hedge delay and the cloud has answered nothing
//! else since the request. That tells a cloud that hangs from one that is busy. For the same reason
//! a put makes its cloud suspect only if no other put was answered for as long: a full link takes
//! puts one after the other.

use super::latency::{Exchange, Latencies};
use quorumfs_backends::{StoreError, StoreErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The number of overdue requests that suspends a cloud.
const OVERDUE_MAX: u32 = 3;

/// Deadlines and delays of requests to clouds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For one put.
    pub put: Duration,
    /// For one get.
    pub get: Duration,
    /// The least hedge delay. The delay is the cloud's usual time if that is longer.
    pub hedge_min: Duration,
    /// The longest hedge delay, also for a cloud with unknown latency.
    pub hedge_max: Duration,
    /// A put without an answer for so long makes its cloud suspect, unless it answered other puts.
    pub suspect: Duration,
    /// The first suspension.
    pub backoff_min: Duration,
    /// The longest suspension.
    pub backoff_max: Duration,
    /// The time between two sweeps for under-replicated objects.
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
struct HealthState {
    /// Suspensions, minus the answers since.
    strikes: u32,
    /// Whether the last request that concerned the whole cloud failed.
    failing: bool,
    /// The end of the suspension, when the cloud is probed.
    suspended_until: Option<Instant>,
    overdue: u32,
    answered_at: Option<Instant>,
    put_answered_at: Option<Instant>,
    last_error: Option<String>,
    /// Why the last put was refused, if the reason is permanent.
    writes_refused: Option<Refusal>,
    latencies: Latencies,
}

/// Why a cloud takes no writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether it is full.
    pub full: bool,
    /// The cloud's error.
    pub reason: String,
}

/// One cloud's health record.
#[derive(Debug)]
pub(in crate::blocks) struct Health {
    timeouts: Timeouts,
    /// Notified of each suspension.
    suspensions: Arc<Notify>,
    state: Mutex<HealthState>,
}

impl Health {
    pub(in crate::blocks) fn new(timeouts: Timeouts, suspensions: Arc<Notify>) -> Self {
        Self {
            timeouts,
            suspensions,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cloud answered, with success or an error, after `latency`.
    pub(in crate::blocks) fn answered(&self, exchange: Exchange, latency: Duration) {
        let mut state = self.state();
        state.failing = false;
        state.suspended_until = None;
        state.overdue = 0;
        state.answered_at = Some(Instant::now());
        if matches!(exchange, Exchange::Put(_)) {
            state.put_answered_at = state.answered_at;
        }
        if exchange != Exchange::Ask {
            state.strikes /= 2;
        }
        state.latencies.record(exchange, latency);
    }

    /// The cloud failed as a whole.
    pub(in crate::blocks) fn failed(&self, error: &StoreError) {
        self.suspend(&mut self.state(), error.to_string());
    }

    /// When the cloud becomes suspect if it answers no further put, including one that began at
    /// `begin`.
    pub(super) fn suspect_at(&self, begin: Instant) -> Instant {
        let answered = self.state().put_answered_at;
        answered.map_or(begin, |at| at.max(begin)) + self.timeouts.suspect
    }

    /// The cloud has not answered a put for suspiciously long.
    pub(super) fn suspected(&self) {
        let reason = format!(
            "no put was answered within {} ms; check the cloud's health and the network to it",
            self.timeouts.suspect.as_millis()
        );
        self.suspend(&mut self.state(), reason);
    }

    /// A request that began at `begin` is unanswered, and another cloud was asked.
    pub(in crate::blocks) fn overdue(&self, begin: Instant) {
        let mut state = self.state();
        if state.answered_at.is_some_and(|answered| answered > begin) {
            return;
        }
        state.overdue += 1;
        if state.overdue >= OVERDUE_MAX {
            state.overdue = 0;
            let reason = format!(
                "it has answered nothing for {} ms, and {OVERDUE_MAX} requests wait; check the \
                 cloud's health and the network to it",
                begin.elapsed().as_millis()
            );
            self.suspend(&mut state, reason);
        }
    }

    fn suspend(&self, state: &mut HealthState, reason: String) {
        let now = Instant::now();
        state.last_error = Some(reason);
        state.failing = true;
        // Requests that were in flight together count as one failure.
        if state.suspended_until.is_none_or(|until| until <= now) {
            state.strikes = state.strikes.saturating_add(1);
            let doublings = state.strikes.saturating_sub(1).min(16);
            let length = self.timeouts.backoff_min.saturating_mul(1 << doublings);
            state.suspended_until = Some(now + length.min(self.timeouts.backoff_max));
            tracing::info!(reason = state.last_error.as_deref(), "a cloud is suspended");
            self.suspensions.notify_one();
        }
    }

    /// A put was answered, or failed with an error. Answers to other requests say nothing about
    /// writes: a full cloud can still be read.
    pub(super) fn put_ended(&self, error: Option<&StoreError>) {
        let Some(error) = error else {
            self.state().writes_refused = None;
            return;
        };
        if error.kind.concerns_the_cloud() && !error.kind.is_transient() {
            self.state().writes_refused = Some(Refusal {
                full: error.kind == StoreErrorKind::Full,
                reason: error.to_string(),
            });
        }
    }

    /// Why it takes no writes, if it refused the last one permanently.
    pub(super) fn writes_refused(&self) -> Option<Refusal> {
        self.state().writes_refused.clone()
    }

    /// The cloud lied: shown to operators, without consequence for requests.
    pub(super) fn lied(&self, what: String) {
        self.state().last_error = Some(what);
    }

    pub(in crate::blocks) fn is_suspended(&self) -> bool {
        self.state().suspended_until.is_some()
    }

    /// When to probe it, while it is suspended.
    pub(in crate::blocks) fn probe_due(&self) -> Option<Instant> {
        self.state().suspended_until
    }

    /// Whether the last request that concerned the whole cloud failed.
    pub(super) fn is_failing(&self) -> bool {
        self.state().failing
    }

    /// Whether nothing speaks against asking it.
    pub(in crate::blocks) fn is_trusted(&self) -> bool {
        !self.is_failing() && !self.is_suspended()
    }

    /// Whether it ever answered.
    pub(in crate::blocks) fn is_known(&self) -> bool {
        self.state().answered_at.is_some()
    }

    pub(in crate::blocks) fn last_error(&self) -> Option<String> {
        self.state().last_error.clone()
    }

    /// The given percentile of the last answers' latencies, over all kinds of requests.
    pub(super) fn percentile(&self, percent: usize) -> Option<Duration> {
        self.state().latencies.percentile(percent)
    }

    /// The median latency of such a request; zero if it is unknown.
    pub(in crate::blocks) fn usual(&self, exchange: Exchange) -> Duration {
        let usual = self.state().latencies.expected(exchange, 50);
        usual.unwrap_or_default()
    }

    /// The hedge delay of such a request.
    pub(in crate::blocks) fn hedge_delay(&self, exchange: Exchange) -> Duration {
        let (least, most) = (self.timeouts.hedge_min, self.timeouts.hedge_max);
        let usual = self.state().latencies.expected(exchange, 95);
        usual.map_or(most, |usual| usual.saturating_mul(2).clamp(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(timeouts: Timeouts) -> Health {
        Health::new(timeouts, Arc::default())
    }

    #[test]
    fn a_cloud_that_is_full_takes_no_writes_until_it_took_one_whatever_else_it_answers() {
        use StoreErrorKind as Kind;
        let health = health(Timeouts::default());
        let failed = |kind| {
            health.put_ended(Some(&StoreError {
                kind,
                operation: quorumfs_backends::Operation::Put,
                cloud: "cloud 1".to_owned(),
                object: None,
                detail: "for a test".to_owned(),
            }));
            health.writes_refused().map(|refusal| refusal.full)
        };
        for passing in [
            Kind::Unavailable,
            Kind::Throttled,
            Kind::Timeout,
            Kind::AlreadyExists,
        ] {
            assert_eq!(failed(passing), None, "{passing:?}");
        }
        assert_eq!(failed(Kind::Full), Some(true));
        assert_eq!(failed(Kind::Timeout), Some(true), "it says nothing new");
        health.answered(Exchange::Ask, Duration::from_millis(1));
        assert!(health.writes_refused().is_some());
        assert_eq!(failed(Kind::Denied), Some(false));
        health.put_ended(None);
        assert_eq!(health.writes_refused(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn suspensions_grow_while_a_cloud_fails_and_end_with_its_first_answer() {
        let timeouts = Timeouts {
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(60),
            ..Timeouts::default()
        };
        let health = health(timeouts);
        assert!(!health.is_suspended());
        for (round, expected) in [20, 40, 60, 60].into_iter().enumerate() {
            health.suspected();
            health.suspected();
            let left = health.probe_due().unwrap() - Instant::now();
            assert_eq!(left, Duration::from_millis(expected), "round {round}");
            tokio::time::advance(left).await;
            assert!(
                health.is_suspended() && health.is_failing(),
                "until it answers"
            );
        }
        health.answered(Exchange::Ask, Duration::from_millis(1));
        assert!(!health.is_suspended() && !health.is_failing());
        health.suspected();
        let left = health.probe_due().unwrap() - Instant::now();
        assert_eq!(
            left, timeouts.backoff_max,
            "answers to probes alone gain nothing"
        );
        for _ in 0..4 {
            health.answered(Exchange::Get(1), Duration::from_millis(1));
        }
        health.suspected();
        let left = health.probe_due().unwrap() - Instant::now();
        assert_eq!(left, timeouts.backoff_min);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_that_hangs_is_distinguished_from_a_busy_one() {
        let health = health(Timeouts::default());
        let begin = Instant::now();
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(100)).await;
            health.answered(Exchange::Get(1), Duration::from_millis(900));
            health.overdue(begin);
        }
        assert!(!health.is_suspended(), "it goes on answering");
        let begin = Instant::now();
        tokio::time::advance(Duration::from_millis(100)).await;
        health.overdue(begin);
        health.overdue(begin);
        assert!(!health.is_suspended());
        health.overdue(begin);
        assert!(health.is_suspended());
    }

    #[tokio::test(start_paused = true)]
    async fn the_hedge_follows_the_latency_within_its_bounds() {
        let health = health(Timeouts::default());
        let get = Exchange::Get(1 << 20);
        assert_eq!(health.hedge_delay(get), Duration::from_secs(1), "unknown");
        for (latency, expected) in [(1, 50), (100, 200), (60_000, 1000)] {
            for _ in 0..100 {
                health.answered(get, Duration::from_millis(latency));
            }
            assert_eq!(health.hedge_delay(get), Duration::from_millis(expected));
        }
        assert_eq!(health.usual(get), Duration::from_secs(60));
    }
}
