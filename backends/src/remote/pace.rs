//! Limits how much is requested of a cloud at a time and per second.
//!
//! There are three bounds, each for one cloud and for all of them together: concurrent requests,
//! requests a second, and bytes a second in either direction. A rate uses *virtual scheduling*:
//! each request books the next free moment and waits for it, so waiting costs one timer and no
//! task, requests keep their order, and a bucket is two numbers. A burst of up to a second's worth
//! passes at once. A request that gives up waiting has still booked its moment: the rate is a
//! bound, not a target.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The bounds; `None` means unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that may be under way at a time.
    pub connections: usize,
    /// Requests a second.
    pub requests_per_second: Option<u32>,
    /// Bytes of objects a second towards the cloud.
    pub upload_bytes_per_second: Option<u64>,
    /// Bytes of objects a second from the cloud.
    pub download_bytes_per_second: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 32,
            requests_per_second: None,
            upload_bytes_per_second: None,
            download_bytes_per_second: None,
        }
    }
}

/// The part of a second that an idle rate grants at once.
const BURST: Duration = Duration::from_secs(1);

/// One rate.
#[derive(Debug)]
struct Rate {
    per_second: u64,
    /// When all booked units will have passed.
    booked_until: Mutex<Option<Instant>>,
}

impl Rate {
    fn new(per_second: Option<u64>) -> Option<Self> {
        per_second.map(|rate| Self {
            per_second: rate.max(1),
            booked_until: Mutex::default(),
        })
    }

    /// Books `units`; returns when they may pass.
    fn book(&self, units: u64, now: Instant) -> Instant {
        let mut booked = self
            .booked_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let idle_since = now.checked_sub(BURST).unwrap_or(now);
        let begin = booked.map_or(idle_since, |until| until.max(idle_since));
        let nanos = u128::from(units).saturating_mul(1_000_000_000) / u128::from(self.per_second);
        let length = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let until = begin.checked_add(length).unwrap_or(begin);
        *booked = Some(until);
        until.max(now)
    }
}

/// The bounds of one cloud, or of all.
#[derive(Debug)]
pub struct Pace {
    connections: Arc<Semaphore>,
    requests: Option<Rate>,
    upload: Option<Rate>,
    download: Option<Rate>,
}

/// The direction of a request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bytes {
    Sent(u64),
    Received(u64),
}

impl Pace {
    /// Enforces these bounds.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(
                limits.connections.clamp(1, Semaphore::MAX_PERMITS),
            )),
            requests: Rate::new(limits.requests_per_second.map(u64::from)),
            upload: Rate::new(limits.upload_bytes_per_second),
            download: Rate::new(limits.download_bytes_per_second),
        }
    }

    /// Waits for the permit of a request that carries these bytes; the permit lasts until the
    /// returned value is dropped.
    pub(super) async fn turn(&self, bytes: Bytes) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.connections).acquire_owned().await.ok();
        let now = Instant::now();
        let (rate, units) = match bytes {
            Bytes::Sent(units) => (&self.upload, units),
            Bytes::Received(units) => (&self.download, units),
        };
        let free = [(&self.requests, 1), (rate, units)]
            .into_iter()
            .filter_map(|(rate, units)| rate.as_ref().map(|rate| rate.book(units, now)))
            .max();
        if let Some(free) = free.filter(|free| *free > now) {
            tokio::time::sleep_until(free).await;
        }
        permit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(limits: Limits) -> Pace {
        Pace::new(limits)
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_a_seconds_worth_are_spread_at_the_rate() {
        let pace = pace(Limits {
            requests_per_second: Some(10),
            ..Limits::default()
        });
        let begin = Instant::now();
        for _ in 0..10 {
            let _ = pace.turn(Bytes::Sent(0)).await;
        }
        assert_eq!(begin.elapsed(), Duration::ZERO, "a burst");
        for _ in 0..50 {
            let _ = pace.turn(Bytes::Sent(0)).await;
        }
        assert_eq!(begin.elapsed().as_millis().div_ceil(100), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn each_direction_has_its_own_rate() {
        let pace = pace(Limits {
            upload_bytes_per_second: Some(1000),
            ..Limits::default()
        });
        let begin = Instant::now();
        let _ = pace.turn(Bytes::Received(1 << 40)).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        let _ = pace.turn(Bytes::Sent(3000)).await;
        assert_eq!(begin.elapsed().as_millis().div_ceil(100), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_requests_than_allowed_are_on_their_way() {
        let pace = Arc::new(pace(Limits {
            connections: 2,
            ..Limits::default()
        }));
        let first = pace.turn(Bytes::Sent(1)).await;
        let _second = pace.turn(Bytes::Sent(1)).await;
        let third = {
            let pace = Arc::clone(&pace);
            tokio::spawn(async move { pace.turn(Bytes::Sent(1)).await.is_some() })
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!third.is_finished());
        drop(first);
        assert!(third.await.unwrap());
    }
}
