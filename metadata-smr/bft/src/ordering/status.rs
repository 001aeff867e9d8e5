//! What a peer was last known to have, and how often what it lacks is sent again.
//!
//! STATUS is the one repair of lost messages: every 200 ms, and when a connection comes up, a
//! replica says where it stands, and its peers send their own votes, the proposal, the NEW-VIEW,
//! their VIEW-CHANGE or SUSPECT, if it lacks them. Each peer gets that at most every 50 ms, so
//! asking often brings nothing.

use crate::admission::Pace;
use crate::identity::{Monotonic, ReplicaId, Sequence, View};
use crate::wire::limits::RESEND_INTERVAL;
use crate::wire::message::PeerStatus;

/// One peer.
#[derive(Clone, Debug, Default)]
pub struct PeerRecord {
    /// Its view and status when it last told us.
    pub known: Option<(View, PeerStatus)>,
    /// What it is served of committed batches.
    pub batches: Pace,
    /// What it is served of bodies: apart, since a vote may wait for them.
    pub bodies: Pace,
    /// What it is served of a state.
    pub nodes: Pace,
    /// What it is served of the records of epochs.
    pub epochs: Pace,
    resent: Option<Monotonic>,
    handed: Option<Monotonic>,
}

impl PeerRecord {
    /// The last sequence that it is known to have executed.
    #[must_use]
    pub fn committed(&self) -> Option<Sequence> {
        self.known.as_ref().map(|(_, status)| status.committed)
    }

    /// Whether it may be sent again what it lacks; if so, not again for a while.
    pub fn may_resend(&mut self, now: Monotonic) -> bool {
        due(&mut self.resent, now)
    }

    /// Whether it may be handed a committed batch unasked; if so, not again for a while.
    pub fn may_hand(&mut self, now: Monotonic) -> bool {
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
    /// Who was asked for them last.
    pub asked: ReplicaId,
    /// From where on they were asked for, while the answer is awaited.
    pub asked_from: Option<Sequence>,
    /// How often they were asked for in vain.
    pub in_vain: u16,
    /// Whether everybody was asked in vain.
    pub hopeless: bool,
    /// The highest sequence whose bodies are being asked for.
    pub bodies_of: Option<Sequence>,
    /// Who was asked for them last.
    pub bodies_asked: ReplicaId,
    /// Who was asked last to repeat a proposal that it has voted for.
    pub voter: ReplicaId,
}
