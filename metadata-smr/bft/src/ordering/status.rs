//! The last known state of a peer, and how often missing messages are sent to it again.
//!
//! STATUS is the one repair of lost messages: every 200 ms, and when a connection comes up, a
//! replica reports its state, and its peers send what it lacks: their own votes, the proposal, the
//! NEW-VIEW, their VIEW-CHANGE or SUSPECT. Each peer gets that at most every 50 ms, so asking more
//! often brings nothing.

use crate::admission::Pace;
use crate::identity::{Monotonic, ReplicaId, Sequence, View};
use crate::round_trip::RoundTrip;
use crate::wire::limits::{FETCH_WAIT_MAX, RESEND_INTERVAL, STATUS_BEHIND, STATUS_OVERDUE};
use crate::wire::message::PeerStatus;

/// One peer.
#[derive(Clone, Debug, Default)]
pub struct PeerRecord {
    /// Its view and status when it last sent them.
    pub known: Option<(View, PeerStatus)>,
    /// When it sent them.
    pub heard: Monotonic,
    /// The rate limit of the committed batches that it is sent.
    pub batches: Pace,
    /// That of bodies: separate, since a vote may wait for them.
    pub bodies: Pace,
    /// That of a state's nodes.
    pub nodes: Pace,
    /// That of epoch records.
    pub epochs: Pace,
    /// How long its answers take.
    pub(crate) trip: RoundTrip,
    /// When it was first asked for the batches that are being asked for.
    pub asked_batches: Option<Monotonic>,
    /// When it was first asked for the bodies.
    pub asked_bodies: Option<Monotonic>,
    resent: Option<Monotonic>,
    handed: Option<Monotonic>,
}

impl PeerRecord {
    /// The last sequence that it is known to have executed.
    #[must_use]
    pub fn committed(&self) -> Option<Sequence> {
        self.known.as_ref().map(|(_, status)| status.committed)
    }

    /// Whether it takes part in this view and keeps up: it has executed nearly all up to `last`.
    #[must_use]
    pub fn is_well(&self, view: View, last: Sequence, now: Monotonic) -> bool {
        self.known.as_ref().is_some_and(|(its_view, status)| {
            *its_view == view
                && status.active
                && status.committed.0.saturating_add(STATUS_BEHIND) >= last.0
                && now.since(self.heard) < STATUS_OVERDUE
        })
    }

    /// Its answer to what it was asked for at this time has come.
    pub fn answered(&mut self, asked: Option<Monotonic>, now: Monotonic) {
        if let Some(asked) = asked {
            self.trip.measured(now.since(asked).min(FETCH_WAIT_MAX));
        }
    }

    /// Whether missing messages may be sent to it again; if so, not again for a while.
    pub fn may_resend(&mut self, now: Monotonic) -> bool {
        due(&mut self.resent, now)
    }

    /// Whether a committed batch may be sent to it unasked; if so, not again for a while.
    pub fn may_hand_over(&mut self, now: Monotonic) -> bool {
        due(&mut self.handed, now)
    }
}

fn due(last: &mut Option<Monotonic>, now: Monotonic) -> bool {
    let due = last.is_none_or(|last| now.since(last) >= RESEND_INTERVAL);
    if due {
        *last = Some(now);
    }
    due
}

/// What is being asked of peers: of one at a time, of the next one after a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inquiry {
    /// Committed batches are known to exist up to here.
    pub target: Sequence,
    /// The replica that was asked for them last.
    pub asked: ReplicaId,
    /// From which sequence on they were asked for, while the answer is awaited.
    pub asked_from: Option<Sequence>,
    /// What was known to exist then: once that has come, the answer may be over.
    pub asked_until: Sequence,
    /// When they were asked for last, or one came.
    pub last_useful: Monotonic,
    /// How often they were asked for in vain.
    pub in_vain: u16,
    /// Whether every peer was asked in vain.
    pub all_asked_in_vain: bool,
    /// The highest sequence whose bodies are being asked for.
    pub bodies_of: Option<Sequence>,
    /// The replica that was asked for them last.
    pub bodies_asked: ReplicaId,
    /// The replica that was last asked to repeat a proposal that it has voted for.
    pub voter: ReplicaId,
}
