//! A session from its opening to its end.
//!
//! ```text
//!   Open ──► Opening ── r+1 replicas: opened ──► Open ── Close, all answered ──► Closing ──► ∅
//!               │ r+1: refused                     │ r+1: no such session (Lost)
//!               ▼                                  ▼
//!               ∅                                  ∅
//! ```
//!
//! An attempt to open is idempotent by the session's key: the same bytes are sent until r + 1
//! replicas answer the same. If they answer that it was not signed recently, it is signed again
//! with the agreed time, which is in their answer. A replica that lags may honestly not know a
//! session that others have opened already, so "no such session" counts only from a replica that
//! has executed at least as much as was needed to open it.

use super::config::ClientConfig;
use super::encoding;
use super::pending_request::PendingRequest;
use super::reply_quorum::ReplyQuorum;
use super::retry::Retry;
use crate::identity::{
    Digest, Lane, Monotonic, PublicKey, ReplicaId, RequestNumber, Sequence, SessionId, Time,
};
use crate::round_trip::RoundTrip;
use crate::service::Credit;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

/// A replica's answer to an attempt to open a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// It is open.
    Opened {
        session: SessionId,
        credit: Credit,
        version: Sequence,
    },
    /// The service refuses it.
    Refused,
    /// It was not signed recently.
    Stale { time: Time },
}

/// Bytes that are sent to all replicas until enough have answered: OpenSession and CloseSession.
#[derive(Debug)]
pub(super) struct Asking<T> {
    signed: Option<(Digest, Bytes)>,
    pub(super) retry: Retry,
    pub(super) quorum: ReplyQuorum<T>,
}

impl<T> Asking<T> {
    pub(super) fn new(config: &ClientConfig, salt: u64, now: Monotonic) -> Self
    where
        T: Eq,
    {
        Self {
            signed: None,
            retry: Retry::start(config, &RoundTrip::default(), salt, now),
            quorum: ReplyQuorum::default(),
        }
    }
}

impl<T: Eq> Asking<T> {
    /// Asks again, in other bytes: answers to the earlier ones do not count.
    pub(super) fn start_over(&mut self) {
        self.signed = None;
        self.quorum = ReplyQuorum::default();
    }

    /// Other replicas are asked the same from now on.
    pub(super) fn ask_others(&mut self, config: &ClientConfig, now: Monotonic) {
        self.quorum = ReplyQuorum::default();
        self.retry.wait(config, now);
    }

    /// Fixes the bytes.
    pub(super) fn sign(&mut self, digest: Digest, frame: Bytes) {
        self.signed = Some((digest, frame));
    }

    /// The bytes, once they are signed.
    pub(super) fn frame(&self) -> Option<&Bytes> {
        self.signed.as_ref().map(|(_, frame)| frame)
    }

    /// Whether this is about the bytes that were signed.
    pub(super) fn is(&self, digest: &Digest) -> bool {
        self.signed.as_ref().is_some_and(|(own, _)| own == digest)
    }
}

/// The state of a client.
#[derive(Debug)]
pub(super) enum SessionPhase {
    /// No session.
    None,
    /// A session has been requested.
    Opening {
        key: PublicKey,
        asking: Asking<Opening>,
    },
    /// The session is open.
    Open(Session),
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    credit: Credit,
    pub(super) lost: ReplyQuorum<()>,
    lanes: Vec<LaneState>,
    pub(super) closing: bool,
    pub(super) close: Option<Asking<()>>,
}

/// One closed loop.
#[derive(Debug)]
pub(super) struct LaneState {
    next: RequestNumber,
    pub(super) pending_requests: VecDeque<PendingRequest>,
}

impl Session {
    /// A session that has just been opened.
    pub(super) fn new(config: &ClientConfig, id: SessionId, credit: Credit) -> Self {
        let lanes = config.lanes.min(credit.lanes).max(1);
        let lane = || LaneState {
            next: RequestNumber(1),
            pending_requests: VecDeque::new(),
        };
        Self {
            id,
            credit,
            lost: ReplyQuorum::default(),
            lanes: std::iter::repeat_with(lane)
                .take(usize::from(lanes))
                .collect(),
            closing: false,
            close: None,
        }
    }

    /// The lane for the next bundle: the emptiest that has capacity.
    ///
    /// A lane's window is counted from its oldest unanswered number, since the replicas keep only
    /// the replies to its last two: an answered 6 does not allow a 7 while 5 is not answered.
    pub(super) fn free_lane(&mut self, in_flight: u16) -> Option<(Lane, &mut LaneState)> {
        let lanes = self.lanes.iter_mut().enumerate();
        let (index, lane) = lanes.min_by_key(|(_, lane)| lane.window_used())?;
        if lane.window_used() >= u64::from(in_flight.clamp(1, 2)) {
            return None;
        }
        Some((Lane(u16::try_from(index).ok()?), lane))
    }

    /// The most bytes that a request may carry when no other is pending.
    pub(super) const fn room_max(&self) -> usize {
        let credit = self.credit.bytes as usize;
        credit.saturating_sub(encoding::REQUEST_OVERHEAD + encoding::OPERATION_OVERHEAD)
    }

    /// The bytes of operations, with their overhead, that a request may carry now.
    pub(super) fn room(&self) -> usize {
        let under_way: usize = self
            .pending_requests()
            .map(|(_, pending_request)| pending_request.bytes)
            .sum();
        let credit = (self.credit.bytes as usize).saturating_sub(under_way);
        credit
            .saturating_sub(encoding::REQUEST_OVERHEAD)
            .min(encoding::BUNDLE_BYTES_MAX)
    }

    /// All pending requests.
    pub(super) fn pending_requests(&self) -> impl Iterator<Item = (Lane, &PendingRequest)> {
        (0_u16..).zip(&self.lanes).flat_map(|(index, lane)| {
            lane.pending_requests
                .iter()
                .map(move |pending_request| (Lane(index), pending_request))
        })
    }

    /// All pending requests.
    pub(super) fn pending_requests_mut(&mut self) -> impl Iterator<Item = &mut PendingRequest> {
        self.lanes
            .iter_mut()
            .flat_map(|lane| lane.pending_requests.iter_mut())
    }

    /// Takes all pending requests.
    pub(super) fn into_pending_requests(self) -> impl Iterator<Item = PendingRequest> {
        self.lanes
            .into_iter()
            .flat_map(|lane| lane.pending_requests)
    }

    /// Other replicas are asked the same from now on.
    pub(super) fn ask_others(&mut self, config: &ClientConfig, now: Monotonic) {
        self.lost = ReplyQuorum::default();
        for pending_request in self.pending_requests_mut() {
            pending_request.ask_others();
        }
        if let Some(close) = &mut self.close {
            close.ask_others(config, now);
        }
    }

    /// The next instant at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        let pending_requests = self
            .pending_requests()
            .map(|(_, pending_request)| pending_request.next_deadline());
        let close = self.close.iter().map(|close| close.retry.at);
        pending_requests.chain(close).min()
    }

    /// One pending request.
    pub(super) fn pending_request(
        &mut self,
        lane: Lane,
        number: RequestNumber,
    ) -> Option<&mut PendingRequest> {
        let lane = self.lanes.get_mut(usize::from(lane.0))?;
        lane.pending_requests
            .iter_mut()
            .find(|pending_request| pending_request.number == number)
    }

    /// Removes a request that was answered.
    pub(super) fn complete(&mut self, lane: Lane, number: RequestNumber) -> Option<PendingRequest> {
        let lane = self.lanes.get_mut(usize::from(lane.0))?;
        let at = lane
            .pending_requests
            .iter()
            .position(|pending_request| pending_request.number == number)?;
        lane.pending_requests.remove(at)
    }
}

impl Session {
    /// Sends the requests after `completed` in its lane again now, if either had to be retried. The
    /// replicas pass over a request that overtakes its predecessor and drop it, so it would wait
    /// for its next retry, however far off that is by now; and the one after it, which is sent now,
    /// would be passed over in its turn. A lane that fell into that pattern once would never leave
    /// it.
    pub(super) fn follow(
        &mut self,
        (config, trip): (&ClientConfig, &RoundTrip),
        lane: Lane,
        completed: &PendingRequest,
        connected: &BTreeSet<ReplicaId>,
        now: Monotonic,
    ) -> Vec<(ReplicaId, Bytes)> {
        let mut frames = Vec::new();
        let Some(state) = self.lanes.get_mut(usize::from(lane.0)) else {
            return frames;
        };
        for pending_request in &mut state.pending_requests {
            let trouble = completed.retry.repeated() || pending_request.retry.repeated();
            let Some(frame) = pending_request.frame().filter(|_| trouble).cloned() else {
                continue;
            };
            pending_request.follow(Retry::start(config, trip, pending_request.salt(lane), now));
            let lacking = connected
                .iter()
                .filter(|to| !pending_request.answered(**to));
            frames.extend(lacking.map(|to| (*to, frame.clone())));
        }
        frames
    }
}

impl LaneState {
    fn window_used(&self) -> u64 {
        let oldest = self
            .pending_requests
            .front()
            .map_or(self.next, |pending_request| pending_request.number);
        self.next.0.saturating_sub(oldest.0)
    }

    /// The number for the next request.
    pub(super) const fn take_number(&mut self) -> RequestNumber {
        let number = self.next;
        self.next = RequestNumber(number.0.saturating_add(1));
        number
    }
}
