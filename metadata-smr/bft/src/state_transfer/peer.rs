//! The view that a replica in a state transfer has of one peer.
//!
//! On long round trips several requests are open at a time: otherwise a state would arrive in
//! pieces of a quarter of a megabyte a round trip. The shortest round trip determines their number,
//! since longer ones are caused by data that is already on its way.
//!
//! Over a slow link one request for as many nodes would be answered too late, and others would be
//! asked for the same over the same link, again and again. So the first request is small. Requests
//! grow while they are answered quickly, and are halved when an answer comes late. One that does
//! not come at all says nothing about the link.
//!
//! Nodes that do not arrive in time are requested from other peers, and the request stays open all
//! the same: if the round trip is longer than the initial patience, no answer would ever count
//! otherwise, and the peer's distance would never be learnt.

use crate::identity::{Monotonic, Nanos};
use crate::round_trip::RoundTrip;
use crate::state::Path;
use crate::wire::limits::{
    TRANSFER_NODES_FIRST, TRANSFER_NODES_MAX, TRANSFER_PATIENCE, TRANSFER_PIECE, TRANSFER_PROMPT,
    TRANSFER_QUESTIONS_MAX, TRANSFER_WAIT, TRANSFER_WAIT_MAX,
};
use crate::wire::message::Nodes;
use std::collections::VecDeque;

/// The most nodes in one request.
#[derive(Clone, Copy, Debug)]
struct RequestSize {
    nodes: usize,
    /// When it was last determined: at the first answer, or by a late one.
    since: Option<Monotonic>,
    /// Whether an answer was late: then it grows slowly.
    found: bool,
}

impl Default for RequestSize {
    fn default() -> Self {
        Self {
            nodes: TRANSFER_NODES_FIRST,
            since: None,
            found: false,
        }
    }
}

impl RequestSize {
    /// The answer to so many nodes came quickly.
    fn grow(&mut self, nodes: usize) {
        if nodes >= self.nodes {
            let more = match self.found {
                false => self.nodes,
                true => self.nodes.div_ceil(8),
            };
            self.nodes = self.nodes.saturating_add(more).min(TRANSFER_NODES_MAX);
        }
    }

    /// The answer to a request of this time came late. Those that were sent before the size was
    /// determined say nothing about it.
    fn halve(&mut self, sent: Monotonic, now: Monotonic) {
        if self.since.is_some_and(|since| sent >= since) {
            self.nodes = self.nodes.div_ceil(2);
            self.since = Some(now);
            self.found = true;
        }
    }
}

/// A request for nodes.
#[derive(Clone, Debug)]
pub(super) struct NodeRequest {
    pub(super) paths: Vec<Path>,
    pub(super) at: Monotonic,
    /// Whether other peers may have been asked for the same since.
    pub(super) overdue: bool,
}

/// A peer that is asked. Until the instants below it gets no further requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// Open requests, oldest first.
    pub(super) open_requests: VecDeque<NodeRequest>,
    /// It has not answered in time.
    pub(super) silent_until: Monotonic,
    /// It has answered wrongly.
    pub(super) wrong_until: Monotonic,
    /// It does not have this root.
    pub(super) without_root_until: Monotonic,
    /// When it last answered with nodes: what it was asked for since waits behind nothing else.
    pub(super) last_answer: Monotonic,
    trip: RoundTrip,
    shortest: Option<Nanos>,
    size: RequestSize,
}

impl Peer {
    /// How long to wait for it.
    pub(super) fn patience(&self) -> Nanos {
        let patience = self.trip.patience(TRANSFER_WAIT, TRANSFER_WAIT);
        patience.min(TRANSFER_WAIT_MAX)
    }

    /// Whether it has answered a request.
    pub(super) const fn is_measured(&self) -> bool {
        self.shortest.is_some()
    }

    /// The number of further requests that it may have now.
    pub(super) fn room(&self, now: Monotonic) -> usize {
        let until = self
            .silent_until
            .max(self.wrong_until)
            .max(self.without_root_until);
        if until > now {
            return 0;
        }
        let shortest = self.shortest.unwrap_or_default();
        let pieces = usize::try_from(shortest.0 / TRANSFER_PIECE.0).unwrap_or(usize::MAX);
        let most = pieces.saturating_add(1).min(TRANSFER_QUESTIONS_MAX);
        let most = self.as_the_link_allows(most);
        let open = self.open_requests.iter().filter(|request| !request.overdue);
        most.saturating_sub(open.count())
    }

    /// Fewer requests, where answers take more than twice the shortest time: they wait for a slow
    /// link then, and more of them would wait longer.
    fn as_the_link_allows(&self, most: usize) -> usize {
        let free = self.shortest.unwrap_or_default().0.saturating_mul(2);
        match self.trip.mean() {
            Some(mean) if mean > free => {
                let part = (most as u64).saturating_mul(free) / mean;
                usize::try_from(part).unwrap_or(most).max(1)
            }
            _ => most,
        }
    }

    /// The most nodes that it is asked for at a time.
    pub(super) const fn nodes_max(&self) -> usize {
        self.size.nodes
    }

    /// Whether the answer to a request is late: the peer answers one after the other.
    pub(super) fn is_late(&self, request: &NodeRequest, patience: Nanos, now: Monotonic) -> bool {
        let begins = request.at.max(self.last_answer);
        let longest = Nanos(patience.0.saturating_mul(TRANSFER_PATIENCE));
        now.since(begins) >= patience || now.since(request.at) >= longest
    }

    /// Removes the request that this answers, and measures how long it took.
    pub(super) fn answers(&mut self, nodes: &Nodes, now: Monotonic) -> Option<NodeRequest> {
        let at = match nodes.nodes.first() {
            Some((path, _)) => self
                .open_requests
                .iter()
                .position(|it| it.paths.contains(path))?,
            None => 0,
        };
        let request = self.open_requests.remove(at)?;
        let took = now.since(request.at);
        self.trip.measured(took.min(TRANSFER_WAIT_MAX));
        let shortest = self.shortest.map_or(took, |it| it.min(took));
        self.shortest = Some(shortest);
        let prompt = TRANSFER_PROMPT.0.max(shortest.0.saturating_mul(2));
        if request.overdue {
            self.size.halve(request.at, now);
        } else if took.0 <= prompt {
            self.size.grow(request.paths.len());
        }
        self.size.since.get_or_insert(now);
        self.silent_until = Monotonic::default();
        if !nodes.nodes.is_empty() {
            self.last_answer = now;
        }
        Some(request)
    }

    /// The part that still holds when another root is requested.
    pub(super) fn without_requests(&self) -> Self {
        Self {
            open_requests: VecDeque::new(),
            without_root_until: Monotonic::default(),
            ..self.clone()
        }
    }
}
