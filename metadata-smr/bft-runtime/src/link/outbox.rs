//! The frames that wait to be sent to one peer: bounded; a full outbox drops its oldest frame.
//!
//! The event loop never waits for a peer. A new frame displaces the oldest, because every message
//! of the protocol is resent when a peer's STATUS shows that it is missing, and a client asks
//! again; the newest frames describe the current state best. While the peer is not connected only a
//! few frames are kept.
//!
//! Frames for observers wait in a separate queue: they are sent when no others wait, and are
//! dropped first, by a smaller bound of their own.
//!
//! Always: at most the configured number of frames and bytes are held, counted exactly.

use super::frame::{Frame, HEADER_BYTES};
use crate::limits::{SPARE_OUTBOX_BYTES_MAX, SPARE_OUTBOX_FRAMES_MAX};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The bounds of one outbox.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Frames while the peer is connected.
    pub frames_max: usize,
    /// Frames while it is not.
    pub frames_away_max: usize,
    /// Bytes in any case.
    pub bytes_max: usize,
}

/// A bounded queue from the event loop to one connection.
#[derive(Debug)]
pub struct Outbox {
    bounds: Bounds,
    inner: Mutex<OutboxState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct OutboxState {
    queue: VecDeque<Frame>,
    bytes: usize,
    /// Frames for observers, which may be dropped, and their bytes.
    spare: VecDeque<Frame>,
    spare_bytes: usize,
    connected: bool,
    closed: bool,
    dropped: u64,
}

impl OutboxState {
    fn trim(&mut self, bounds: &Bounds) {
        let frames_max = if self.connected {
            bounds.frames_max
        } else {
            bounds.frames_away_max
        };
        while self.queue.len() > frames_max || self.bytes > bounds.bytes_max {
            let Some(frame) = self.queue.pop_front() else {
                return;
            };
            self.bytes = self.bytes.saturating_sub(cost(&frame));
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

fn cost(frame: &Frame) -> usize {
    frame.payload.len() + HEADER_BYTES
}

impl Outbox {
    /// Creates an empty outbox, not connected.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            inner: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, OutboxState> {
        // A panic while holding it leaves counts that are at most too large.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame; the oldest ones are dropped if necessary.
    pub fn push(&self, frame: Frame) {
        let mut inner = self.inner();
        if inner.closed {
            return;
        }
        inner.bytes = inner.bytes.saturating_add(cost(&frame));
        inner.queue.push_back(frame);
        inner.trim(&self.bounds);
        drop(inner);
        self.changed.notify_one();
    }

    /// Adds a frame that may be dropped; older ones of that kind are dropped if necessary.
    pub fn push_spare(&self, frame: Frame) {
        let mut inner = self.inner();
        if inner.closed {
            return;
        }
        inner.spare_bytes = inner.spare_bytes.saturating_add(cost(&frame));
        inner.spare.push_back(frame);
        while inner.spare.len() > SPARE_OUTBOX_FRAMES_MAX
            || inner.spare_bytes > SPARE_OUTBOX_BYTES_MAX
        {
            let Some(frame) = inner.spare.pop_front() else {
                break;
            };
            inner.spare_bytes = inner.spare_bytes.saturating_sub(cost(&frame));
            inner.dropped = inner.dropped.saturating_add(1);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Sets whether a connection takes frames now.
    pub fn set_connected(&self, connected: bool) {
        let mut inner = self.inner();
        inner.connected = connected;
        inner.trim(&self.bounds);
    }

    /// Closes it: no frame is accepted any more and [`Outbox::take`] returns false.
    pub fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        inner.queue.clear();
        inner.spare.clear();
        (inner.bytes, inner.spare_bytes) = (0, 0);
        drop(inner);
        self.changed.notify_one();
    }

    /// The number of waiting frames.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner().queue.len()
    }

    /// The number of frames dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.inner().dropped
    }

    /// Waits for frames and moves up to `bytes_max` bytes of them, at least one frame, to `into`.
    /// Returns false when the outbox was closed.
    pub async fn take(&self, bytes_max: usize, into: &mut Vec<Frame>) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let mut inner = self.inner();
                if inner.closed {
                    return false;
                }
                let mut taken = 0_usize;
                while taken < bytes_max
                    && let Some(frame) = inner.queue.pop_front()
                {
                    inner.bytes = inner.bytes.saturating_sub(cost(&frame));
                    taken = taken.saturating_add(cost(&frame));
                    into.push(frame);
                }
                while taken < bytes_max
                    && let Some(frame) = inner.spare.pop_front()
                {
                    inner.spare_bytes = inner.spare_bytes.saturating_sub(cost(&frame));
                    taken = taken.saturating_add(cost(&frame));
                    into.push(frame);
                }
            }
            if !into.is_empty() {
                return true;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds {
        frames_max: 5,
        frames_away_max: 2,
        bytes_max: 100,
    };

    fn frame(number: u8, length: usize) -> Frame {
        Frame::message(vec![number; length].into())
    }

    fn content(outbox: &Outbox) -> Vec<u8> {
        let inner = outbox.inner();
        let total: usize = inner.queue.iter().map(cost).sum();
        assert_eq!(total, inner.bytes, "bytes are counted exactly");
        inner.queue.iter().map(|frame| frame.payload[0]).collect()
    }

    #[test]
    fn the_oldest_frame_is_dropped() {
        let outbox = Outbox::new(BOUNDS);
        outbox.set_connected(true);
        for number in 0..8 {
            outbox.push(frame(number, 1));
        }
        assert_eq!(content(&outbox), [3, 4, 5, 6, 7]);
        assert_eq!(outbox.dropped(), 3);
        outbox.push(frame(9, 90));
        assert_eq!(content(&outbox), [9]);
    }

    #[test]
    fn only_the_newest_frames_wait_for_a_peer_that_is_away() {
        let outbox = Outbox::new(BOUNDS);
        outbox.set_connected(true);
        (0..5).for_each(|number| outbox.push(frame(number, 1)));
        outbox.set_connected(false);
        assert_eq!(content(&outbox), [3, 4]);
    }

    #[tokio::test]
    async fn observer_frames_are_sent_last_and_dropped_by_their_own_bound() {
        let outbox = Outbox::new(BOUNDS);
        outbox.set_connected(true);
        outbox.push_spare(frame(200, 1));
        (0..8).for_each(|number| outbox.push(frame(number, 1)));
        let mut taken = Vec::new();
        assert!(outbox.take(1000, &mut taken).await);
        let order: Vec<u8> = taken.iter().map(|frame| frame.payload[0]).collect();
        assert_eq!(order, [3, 4, 5, 6, 7, 200]);
        taken.clear();
        let many = SPARE_OUTBOX_FRAMES_MAX + 10;
        (0..many).for_each(|number| outbox.push_spare(frame((number % 100) as u8, 1)));
        outbox.push(frame(150, 1));
        assert!(outbox.take(usize::MAX, &mut taken).await);
        assert_eq!(taken.len(), 1 + SPARE_OUTBOX_FRAMES_MAX);
        assert_eq!((taken[0].payload[0], taken[1].payload[0]), (150, 10));
        outbox.push_spare(frame(1, SPARE_OUTBOX_BYTES_MAX));
        assert_eq!(outbox.inner().spare_bytes, 0, "a frame that is too long");
    }

    #[tokio::test]
    async fn frames_are_taken_in_order_until_the_outbox_is_closed() {
        let outbox = Outbox::new(BOUNDS);
        outbox.set_connected(true);
        (0..3).for_each(|number| outbox.push(frame(number, 1)));
        let mut taken = Vec::new();
        assert!(outbox.take(7, &mut taken).await);
        assert_eq!(taken, [frame(0, 1), frame(1, 1)]);
        outbox.close();
        taken.clear();
        assert!(!outbox.take(7, &mut taken).await);
        outbox.push(frame(1, 1));
        assert!(content(&outbox).is_empty());
    }

    proptest! {
        #[test]
        fn bounds_hold_whatever_is_pushed(
            pushes in prop::collection::vec((1_usize..120, any::<bool>()), 0..60),
        ) {
            let outbox = Outbox::new(BOUNDS);
            for (length, connected) in pushes {
                outbox.set_connected(connected);
                outbox.push(frame(1, length));
                let count = content(&outbox).len();
                let most = if connected { 5 } else { 2 };
                prop_assert!(count <= most);
                prop_assert!(outbox.inner().bytes <= 100);
            }
        }
    }
}
