//! One try of a group of queries, who has answered it, and what.

use crate::identity::{Digest, Monotonic, Nanos, ReplicaId, Sequence};
use crate::round_trip::RoundTrip;
use crate::wire::limits::{READ_HEDGE_MAX, READ_HEDGE_MIN};
use crate::wire::message::{AnswerBody, Answered};
use crate::wire::signed_bytes::answer_digest;
use bytes::Bytes;
use std::collections::BTreeSet;

/// One frame with the unsettled queries of a group, and the replicas that answered it.
#[derive(Debug)]
pub(super) struct Try {
    /// The positions of the frame's queries in the group.
    pub(super) places: Vec<usize>,
    pub(super) of: BTreeSet<ReplicaId>,
    /// How many of them are waited for: one more may be asked to learn how far it is.
    pub(super) awaited: usize,
    pub(super) answered_by: BTreeSet<ReplicaId>,
    /// Those of them that did not answer the queries.
    pub(super) refused_by: BTreeSet<ReplicaId>,
    pub(super) sent: Monotonic,
}

impl Try {
    /// Notes an answer, or that a replica refuses one. Once there are as many answers as are
    /// needed, the result contains the time it took. More are needed where one of them is a lie.
    pub(super) fn record_answer(
        &mut self,
        from: ReplicaId,
        needed: usize,
        is_refused: bool,
        now: Monotonic,
    ) -> TryProgress {
        if !self.of.contains(&from) || !self.answered_by.insert(from) {
            return TryProgress::Ignored;
        }
        if is_refused {
            self.refused_by.insert(from);
            return TryProgress::Refused;
        }
        match self.answers() >= needed {
            true => TryProgress::Enough(now.since(self.sent)),
            false => TryProgress::One,
        }
    }

    /// Whether all that were asked have answered or refused.
    pub(super) fn is_answered_by_all(&self) -> bool {
        self.answered_by.len() >= self.of.len()
    }

    /// How many have answered the queries.
    fn answers(&self) -> usize {
        self.answered_by.len().saturating_sub(self.refused_by.len())
    }
}

/// A try that no query waits for any more.
#[derive(Debug)]
pub(super) struct OverdueTry {
    sent: Try,
    needed: usize,
    pub(super) in_session: bool,
}

/// How long linearizable queries take, and queries in session, which wait for fewer answers.
#[derive(Debug, Default)]
pub(super) struct Trips {
    linearizable: RoundTrip,
    in_session: RoundTrip,
}

impl Trips {
    /// How long a try waits; `unmeasured` if nothing was measured.
    pub(super) fn patience(&self, in_session: bool, unmeasured: Nanos) -> Nanos {
        let trip = match in_session {
            true => &self.in_session,
            false => &self.linearizable,
        };
        trip.patience(unmeasured, READ_HEDGE_MIN)
            .min(READ_HEDGE_MAX)
    }

    /// As many answers as were needed came after this time.
    pub(super) fn measured(&mut self, in_session: bool, took: Nanos) {
        let trip = match in_session {
            true => &mut self.in_session,
            false => &mut self.linearizable,
        };
        trip.measured(took.min(READ_HEDGE_MAX));
    }
}

impl OverdueTry {
    pub(super) const fn new(sent: Try, needed: usize, in_session: bool) -> Self {
        Self {
            sent,
            needed,
            in_session,
        }
    }

    /// As [`Try::record_answer`].
    pub(super) fn record_answer(
        &mut self,
        from: ReplicaId,
        is_refused: bool,
        now: Monotonic,
    ) -> TryProgress {
        self.sent.record_answer(from, self.needed, is_refused, now)
    }

    /// Whether nothing more can be learnt from it.
    pub(super) fn is_over(&self) -> bool {
        self.sent.is_answered_by_all()
    }
}

/// What an answer means to a try.
pub(super) enum TryProgress {
    /// It does not count: that replica was not asked, or has answered already.
    Ignored,
    /// The replica does not answer the queries, for instance because it does not vote.
    Refused,
    /// It is one of its answers.
    One,
    /// With it there are as many answers as are needed, or more.
    Enough(Nanos),
}

/// One replica's answer to one query.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    pub(super) applied: Sequence,
    pub(super) version: Sequence,
    digest: Digest,
    pub(super) bytes: Option<Bytes>,
}

impl Vote {
    pub(super) fn new(applied: Sequence, answered: Answered) -> Option<Self> {
        let (digest, bytes) = match answered.body {
            AnswerBody::Bytes(bytes) => (answer_digest(&bytes), Some(bytes)),
            AnswerBody::Digest(digest) => (digest, None),
            AnswerBody::NoRoom => return None,
        };
        // A change after the last batch that was executed cannot have been seen.
        (answered.version <= applied).then_some(Self {
            applied,
            version: answered.version,
            digest,
            bytes,
        })
    }

    pub(super) fn matches(&self, other: &Self) -> bool {
        self.version == other.version && self.digest == other.digest
    }
}
