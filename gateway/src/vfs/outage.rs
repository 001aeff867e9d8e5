//! Clouds that cannot be reached for a moment are waited for.
//!
//! A switch restarts, a provider answers 503 for some seconds, a laptop changes its network: for a
//! moment more clouds are away than any code can do without. A call that fails then breaks a copy
//! of many hours, so it is tried again until the outage has lasted for [`PATIENCE`], and only then
//! fails. From then on calls are tried once, until one succeeds: who uses many files hears of a
//! long outage at once, and not after a patience for each. What will not pass by itself (no
//! permission, no space, an object that is not there) is told at once; the block store knows which
//! is which (`BlockErrorKind::Unreachable`).
//!
//! A write is tried again under new ids: what the clouds took of the first try is not known.
//!
//! # What can go wrong
//!
//! *An outage passes without a call*: one of which nothing was heard for [`FORGOTTEN_AFTER`] when a
//! try begins is over, and if that fails it begins another. *A try takes long*, since clouds
//! swallow what is asked: none begins after the call's own patience, and each has the block store's
//! bounds.

use super::VfsError;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an outage is waited for: less than a request of the kernel may take, so that it hears
/// why.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);
/// An outage of which nothing was heard for so long is over.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// Between the first two tries of a call; twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Between two tries, at most.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The clouds' outages, as those see them that read, or those that write.
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
    /// When the first of them began, and the one that is under way.
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

    /// The clouds did what was asked of them.
    pub(crate) fn over(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// They could not be reached, by a try that began at `trying`. When this outage began.
    fn failed(&self, trying: Instant) -> Instant {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = |it: &Outage| trying.duration_since(it.last_failure) >= FORGOTTEN_AFTER;
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
    /// A try failed so: waits and returns if another is worth it, else hands the error on.
    pub(crate) async fn another(&mut self, error: VfsError) -> Result<(), VfsError> {
        if !error.is_outage() {
            return Err(error);
        }
        // What the clouds swallow takes as long as a try may.
        let until = self.outages.failed(self.trying).min(self.began) + PATIENCE;
        if Instant::now() + self.pause >= until {
            return Err(error);
        }
        tracing::debug!(%error, "the clouds are waited for");
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
        while tries.another(error()).await.is_ok() {
            count += 1;
        }
        (began.elapsed(), count)
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_waited_for_once_and_nothing_else_is() {
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
            let error = outages.tries().another(failed(kind)).await;
            assert!(error.is_err(), "{kind:?}");
        }
        // As long as it lasts, however often it is asked.
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
                if tries.another(error).await.is_err() {
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
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert!(
            waited_for(&outages).await.1 > 10,
            "that it lasted is not known"
        );
    }
}
