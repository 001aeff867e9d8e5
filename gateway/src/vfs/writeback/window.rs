//! How much is in flight to the clouds at a time, of all files together.
//!
//! All uploads share one link. Where it is fast, many slices keep it busy while each waits for its
//! acknowledgements; where it is slow, many only delay each other, until all are given up and none
//! has arrived. So the number follows the duration of one:
//!
//! ```text
//! one took less than 2.5 s, with no space for another ──► twice as many, up to a bound
//! one took more than 6 s                              ──► half as many
//! one was given up                                    ──► one
//! ```
//!
//! A put is given up after 20 s. The number is doubled only where twice as many would take less
//! than the time that halves it, so that it comes to rest. Only slices that began since the last
//! change count, because the others show the earlier state. It begins with one: that costs a fast
//! link a few rounds once, where a slow one would have been lost for a while.
//!
//! Short slices, which share objects, take their part of the space of a long one. Slices enter in
//! the order of their arrival, or a long one would never find space among short ones.

use crate::vfs::files::RUN_BYTES_MAX;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A slice that takes less allows twice as many.
const QUICK: Duration = Duration::from_millis(2500);
/// One that takes more has too many in parallel.
const SLOW: Duration = Duration::from_secs(6);

#[derive(Debug)]
struct WindowState {
    /// Long slices that may be in flight.
    slices: usize,
    changed: Option<Instant>,
    /// Bytes in flight.
    bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct Window {
    most: usize,
    state: Mutex<WindowState>,
    /// Held by the next to enter.
    turn: tokio::sync::Mutex<()>,
    changed: Notify,
}

/// Space for one slice; its outcome is to be reported before it is dropped.
#[derive(Debug)]
pub(in crate::vfs) struct UploadPermit<'a> {
    window: &'a Window,
    bytes: usize,
    began: Instant,
}

impl Window {
    /// A window of at most so many long slices.
    pub(in crate::vfs) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            state: Mutex::new(WindowState {
                slices: 1,
                changed: None,
                bytes: 0,
            }),
            turn: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many long slices may be in flight.
    pub(in crate::vfs) fn slices(&self) -> usize {
        self.state().slices
    }

    /// How many of them may be early uploads.
    pub(in crate::vfs) fn early_uploads(&self) -> usize {
        match self.slices() {
            1 if self.most > 1 => 0,
            slices => slices,
        }
    }

    /// Waits for space for so many bytes.
    pub(in crate::vfs) async fn enter(&self, bytes: usize) -> UploadPermit<'_> {
        let _turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(permit) = self.try_enter(bytes, Instant::now()) {
                return permit;
            }
            changed.await;
        }
    }

    fn try_enter(&self, bytes: usize, now: Instant) -> Option<UploadPermit<'_>> {
        let mut state = self.state();
        let then = state.bytes.saturating_add(bytes);
        let fits = state.bytes == 0 || then <= state.slices.saturating_mul(RUN_BYTES_MAX);
        if !fits {
            return None;
        }
        state.bytes = then;
        Some(UploadPermit {
            window: self,
            bytes,
            began: now,
        })
    }
}

impl UploadPermit<'_> {
    /// It has arrived, or was given up.
    pub(in crate::vfs) fn ended(self, well: bool, now: Instant) {
        let window = self.window;
        let took = now.saturating_duration_since(self.began);
        let mut state = window.state();
        let one_more = state.bytes.saturating_add(RUN_BYTES_MAX);
        let is_full = one_more > state.slices.saturating_mul(RUN_BYTES_MAX);
        let next = match state.slices {
            _ if !well => 1,
            slices if took > SLOW => slices / 2,
            slices if took < QUICK && is_full => slices.saturating_mul(2),
            slices => slices,
        };
        let next = next.clamp(1, window.most);
        if next != state.slices && state.changed.is_none_or(|changed| self.began >= changed) {
            state.slices = next;
            state.changed = Some(now);
        }
    }
}

impl Drop for UploadPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.window.state();
        state.bytes = state.bytes.saturating_sub(self.bytes);
        drop(state);
        self.window.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    fn waits(work: Pin<&mut impl Future>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        work.poll(&mut context).is_pending()
    }

    /// Puts long slices over a link of so many bytes a second, as many at a time as allowed;
    /// returns how many those are in the end, and how long the last ones took.
    fn settles(window: &Window, bytes_per_second: usize) -> (usize, Duration) {
        let mut now = window.state().changed.unwrap_or_else(Instant::now);
        let mut took = Duration::ZERO;
        for _ in 0..12 {
            let enter = || window.try_enter(RUN_BYTES_MAX, now);
            let permits: Vec<UploadPermit<'_>> = std::iter::from_fn(enter).collect();
            assert_eq!(permits.len(), window.slices());
            let millis = RUN_BYTES_MAX * permits.len() * 1000 / bytes_per_second;
            took = Duration::from_millis(millis as u64);
            let given_up = Duration::from_secs(20);
            now += took.min(given_up);
            for permit in permits {
                permit.ended(took <= given_up, now);
            }
        }
        (window.slices(), took)
    }

    #[test]
    fn a_fast_path_gets_the_maximum_and_a_slow_one_what_it_carries() {
        let new = || Window::new(8);
        assert_eq!(settles(&new(), 100 << 20).0, 8);
        for mib in [1, 2, 4, 8, 16] {
            let window = new();
            let (count, took) = settles(&window, mib << 20);
            assert!(took <= SLOW, "{mib} MiB/s: {count} took {took:?}");
            assert_eq!(settles(&window, mib << 20).0, count, "it is at rest");
        }
        assert_eq!(settles(&new(), 300 << 10).0, 1);
        // It follows when the link changes.
        let window = new();
        assert_eq!(settles(&window, 100 << 20).0, 8);
        assert_eq!(settles(&window, 1 << 20).0, 1);
        assert_eq!(settles(&window, 100 << 20).0, 8);
    }

    #[test]
    fn only_uploads_that_began_since_the_last_change_and_filled_the_window_count() {
        let window = Window::new(8);
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let enter = |millis| window.try_enter(RUN_BYTES_MAX, at(millis)).unwrap();
        assert_eq!((window.slices(), window.early_uploads()), (1, 0));
        enter(0).ended(true, at(100));
        assert_eq!((window.slices(), window.early_uploads()), (2, 2));
        enter(200).ended(true, at(300));
        assert_eq!(window.slices(), 2, "a second one would have fitted");
        let (one, two) = (enter(400), enter(400));
        one.ended(true, at(500));
        two.ended(true, at(500));
        assert_eq!(window.slices(), 4, "doubled once for both");
        for _ in 0..2 {
            let (one, two) = (enter(600), enter(600));
            one.ended(true, at(7000));
            two.ended(true, at(7000));
        }
        assert_eq!(window.slices(), 2, "and halved once");
        enter(7000).ended(false, at(27_000));
        assert_eq!(window.slices(), 1);
    }

    #[tokio::test]
    async fn slices_enter_in_order_of_arrival_and_short_ones_share_the_space_of_a_long_one() {
        let window = Window::new(8);
        let short: Vec<_> = (0..4)
            .map(|_| window.try_enter(RUN_BYTES_MAX / 4, Instant::now()).unwrap())
            .collect();
        assert!(window.try_enter(1, Instant::now()).is_none());
        let long = window.enter(RUN_BYTES_MAX);
        tokio::pin!(long);
        assert!(waits(long.as_mut()));
        let late = window.enter(1);
        tokio::pin!(late);
        let mut short = short.into_iter();
        drop(short.next());
        assert!(waits(late.as_mut()), "it came later");
        assert!(waits(long.as_mut()));
        drop(short);
        let long = long.await;
        assert!(waits(late.as_mut()));
        drop(long);
        drop(late.await);
        assert_eq!(window.state().bytes, 0);
    }
}
