//! Waiting for clouds that are briefly unreachable.
//!
//! A switch restarts, a provider answers 503 for some seconds, a laptop changes its network: for a
//! moment more clouds are unreachable than any code tolerates. A failed call would break a copy of
//! many hours, so it is retried until the outage has lasted for [`PATIENCE`], and only then fails.
//! From then on calls are tried once, until one succeeds: a process with many files gets the error
//! of a long outage at once, and not after a wait for each. Errors that will not pass by themselves
//! (no permission, no space, a missing object) are returned at once; the block store tells them
//! apart (`BlockErrorKind::Unreachable`).
//!
//! A write is retried under new ids, because the clouds may have taken part of the first try.
//!
//! # What can go wrong
//!
//! *An outage passes without a call*: an outage without a failure for [`EXPIRES_AFTER`] when a try
//! begins is over, and if that try fails it begins another. *A try takes long*, since clouds
//! swallow requests: none begins after the call's own patience, and each has the block store's
//! bounds.

use crate::error::VfsError;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long to wait for the end of an outage: less than a request of the kernel may take, so that
/// the caller gets the reason.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);
/// An outage without a failure for so long is over.
const EXPIRES_AFTER: Duration = Duration::from_secs(10);
/// Between the first two tries of a call; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Between two tries, at most.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The clouds' outages, as readers or as writers see them.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<Option<Outage>>);

#[derive(Clone, Copy, Debug)]
struct Outage {
    began: Instant,
    last_failure: Instant,
}

/// The tries of one call.
pub(crate) struct Tries<'a> {
    outages: &'a Outages,
    pause: Duration,
    /// When the first try began, and the one under way.
    began: Instant,
    trying: Instant,
}

impl Outages {
    /// A call begins.
    pub(crate) fn tries(&self) -> Tries<'_> {
        let now = Instant::now();
        Tries {
            outages: self,
            pause: PAUSE_MIN,
            began: now,
            trying: now,
        }
    }

    /// A call succeeded.
    pub(crate) fn over(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A try that began at `trying` found the clouds unreachable. Returns when this outage began.
    fn failed(&self, trying: Instant) -> Instant {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = |it: &Outage| trying.duration_since(it.last_failure) >= EXPIRES_AFTER;
        let known = outage.filter(|it| !forgotten(it));
        let began = known.map_or(trying, |it| it.began.min(trying));
        *outage = Some(Outage {
            began,
            last_failure: Instant::now(),
        });
        began
    }
}

impl Tries<'_> {
    /// A try failed: waits and returns if another is worth it, otherwise returns the error.
    pub(crate) async fn retry(&mut self, error: VfsError) -> Result<(), VfsError> {
        if !error.is_outage() {
            return Err(error);
        }
        // A request that the clouds swallow takes as long as a try may.
        let until = self.outages.failed(self.trying).min(self.began) + PATIENCE;
        if Instant::now() + self.pause >= until {
            return Err(error);
        }
        tracing::debug!(%error, "the clouds are unreachable: retrying");
        tokio::time::sleep(self.pause).await;
        self.trying = Instant::now();
        self.pause = self.pause.saturating_mul(2).min(PAUSE_MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BlockErrorKind;

    fn failed(kind: BlockErrorKind) -> VfsError {
        VfsError::Data {
            doing: "reading",
            kind,
            reason: "for a test".to_owned(),
        }
    }

    async fn waited_for(outages: &Outages) -> (Duration, u32) {
        let (began, mut tries, mut count) = (Instant::now(), outages.tries(), 1);
        let error = || failed(BlockErrorKind::Unreachable);
        while tries.retry(error()).await.is_ok() {
            count += 1;
        }
        (began.elapsed(), count)
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_waited_for_once_and_other_errors_are_not() {
        let outages = Outages::default();
        let (waited, tries) = waited_for(&outages).await;
        assert!(
            waited <= PATIENCE && waited + PAUSE_MAX >= PATIENCE,
            "{waited:?}"
        );
        assert!((10..20).contains(&tries), "{tries} tries");
        let began = Instant::now();
        for kind in [
            BlockErrorKind::Io,
            BlockErrorKind::NoSpace,
            BlockErrorKind::Corrupt,
        ] {
            let error = outages.tries().retry(failed(kind)).await;
            assert!(error.is_err(), "{kind:?}");
        }
        // As long as it lasts, however often it is tried.
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(8)).await;
            assert_eq!(waited_for(&outages).await.1, 1);
        }
        assert_eq!(began.elapsed(), Duration::from_secs(160));
    }

    #[tokio::test(start_paused = true)]
    async fn clouds_that_swallow_requests_are_tried_twice_and_then_once() {
        let outages = Outages::default();
        for (call, expected) in [2, 1, 1].into_iter().enumerate() {
            let (mut tries, mut count) = (outages.tries(), 0);
            loop {
                count += 1;
                tokio::time::advance(Duration::from_secs(15)).await;
                let error = failed(BlockErrorKind::Unreachable);
                if tries.retry(error).await.is_err() {
                    break;
                }
            }
            assert_eq!(count, expected, "call {call}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_outage_is_waited_for_again() {
        let outages = Outages::default();
        waited_for(&outages).await;
        outages.over();
        assert!(waited_for(&outages).await.1 > 10);
        tokio::time::advance(EXPIRES_AFTER).await;
        assert!(
            waited_for(&outages).await.1 > 10,
            "that it lasted is not known"
        );
    }
}
