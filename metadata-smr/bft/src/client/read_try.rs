//! One try of a group of queries, and who has answered it.

use crate::identity::{Monotonic, Nanos, ReplicaId};
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
    pub(super) sent: Monotonic,
}

impl Try {
    /// Notes an answer. If it is the last of as many as are needed, the result contains the time it
    /// took.
    pub(super) fn record_answer(
        &mut self,
        from: ReplicaId,
        needed: usize,
        now: Monotonic,
    ) -> TryProgress {
        if !self.of.contains(&from) || !self.answered_by.insert(from) {
            return TryProgress::Ignored;
        }
        match self.answered_by.len() == needed {
            true => TryProgress::Enough(now.since(self.sent)),
            false => TryProgress::One,
        }
    }
}

/// What an answer means to a try.
pub(super) enum TryProgress {
    /// It does not count: that replica was not asked, or has answered already.
    Ignored,
    /// It is one of its answers.
    One,
    /// It completes the number of answers that are needed.
    Enough(Nanos),
}
