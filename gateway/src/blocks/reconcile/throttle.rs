//! A limit on the bytes per second of background work.
//!
//! A caller that is about to move bytes takes a place in a queue of time: it begins when all
//! earlier bytes have had their share. A single piece may be larger than a second's share; the next
//! one then waits accordingly longer.

use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Lets bytes through at a rate.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_second: Option<NonZeroU64>,
    next: Mutex<Instant>,
}

impl Throttle {
    /// `None` lets everything through at once.
    pub(super) fn new(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until these bytes may move.
    pub(super) async fn pass(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_second else {
            return;
        };
        let begin = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*next).max(Instant::now());
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
            let share = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            *next = begin.checked_add(share).unwrap_or(begin);
            begin
        };
        tokio::time::sleep_until(begin).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_sees_no_more_than_its_share_and_idleness_saves_nothing_up() {
        let throttle = Throttle::new(NonZeroU64::new(1000));
        let begin = Instant::now();
        for _ in 0..=20 {
            throttle.pass(500).await;
        }
        assert!(begin.elapsed().abs_diff(Duration::from_secs(10)) < Duration::from_millis(30));
        tokio::time::advance(Duration::from_secs(100)).await;
        let begin = Instant::now();
        for _ in 0..=20 {
            throttle.pass(500).await;
        }
        assert!(begin.elapsed().abs_diff(Duration::from_secs(10)) < Duration::from_millis(30));
        Throttle::new(None).pass(u64::MAX).await;
    }
}
