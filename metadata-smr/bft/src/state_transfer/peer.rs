//! What a replica that takes a state over knows of one that it asks.
//!
//! Several questions are open where the way is long: else a state would come in pieces of a quarter
//! of a megabyte a round trip. How many is decided by the shortest round trip, since the others are
//! long because of what is on its way already. What is not answered in time is asked of others, and
//! the question stays open all the same: where the way is longer than patience begins with, no
//! answer would ever count otherwise, and the peer's distance would never be learnt.

use crate::identity::{Monotonic, Nanos};
use crate::round_trip::RoundTrip;
use crate::state::Path;
use crate::wire::limits::{
    TRANSFER_PIECE, TRANSFER_QUESTIONS_MAX, TRANSFER_WAIT, TRANSFER_WAIT_MAX,
};
use crate::wire::message::Nodes;
use std::collections::VecDeque;

/// What was asked at a time.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) paths: Vec<Path>,
    pub(super) at: Monotonic,
    /// Whether others may have been asked the same since.
    pub(super) overdue: bool,
}

/// A peer that is asked. Until the instants that are named it is not asked for anything more.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// The oldest first.
    pub(super) asked: VecDeque<Question>,
    /// It has not answered in time.
    pub(super) silent: Monotonic,
    /// It has answered wrongly.
    pub(super) wrong: Monotonic,
    /// It does not have this root.
    pub(super) without: Monotonic,
    trip: RoundTrip,
    shortest: Option<Nanos>,
}

impl Peer {
    /// How long it is waited for.
    pub(super) fn patience(&self) -> Nanos {
        let patience = self.trip.patience(TRANSFER_WAIT, TRANSFER_WAIT);
        patience.min(TRANSFER_WAIT_MAX)
    }

    /// Whether it has answered anything.
    pub(super) const fn is_measured(&self) -> bool {
        self.shortest.is_some()
    }

    /// How many questions more it may be asked now.
    pub(super) fn room(&self, now: Monotonic) -> usize {
        let until = self.silent.max(self.wrong).max(self.without);
        if until > now {
            return 0;
        }
        let shortest = self.shortest.unwrap_or_default();
        let pieces = usize::try_from(shortest.0 / TRANSFER_PIECE.0).unwrap_or(usize::MAX);
        let most = pieces.saturating_add(1).min(TRANSFER_QUESTIONS_MAX);
        let open = self.asked.iter().filter(|question| !question.overdue);
        most.saturating_sub(open.count())
    }

    /// Takes out the question that this answers, and learns how long that took.
    pub(super) fn answers(&mut self, nodes: &Nodes, now: Monotonic) -> Option<Question> {
        let at = match nodes.nodes.first() {
            Some((path, _)) => self.asked.iter().position(|it| it.paths.contains(path))?,
            None => 0,
        };
        let question = self.asked.remove(at)?;
        let took = now.since(question.at);
        self.trip.measured(took.min(TRANSFER_WAIT_MAX));
        let shortest = self.shortest.map_or(took, |it| it.min(took));
        self.shortest = Some(shortest);
        self.silent = Monotonic::default();
        Some(question)
    }

    /// What is still so when another root is asked for.
    pub(super) fn known(&self) -> Self {
        Self {
            asked: VecDeque::new(),
            without: Monotonic::default(),
            ..self.clone()
        }
    }
}
