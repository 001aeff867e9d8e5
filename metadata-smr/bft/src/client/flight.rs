//! One request under way: a bundle, its bytes, its retries and what the replicas say about it.
//!
//! The bytes are fixed when they are signed and never change afterwards. A ticket whose deadline
//! passes is answered, but the flight goes on until the replicas have answered it, for the numbers
//! of a lane must not skip one.

use super::config::ClientConfig;
use super::queue::Pending;
use super::reply_quorum::ReplyQuorum;
use super::retry::Retry;
use super::round_trip::RoundTrip;
use super::speech;
use crate::identity::{Digest, Lane, Monotonic, Nanos, ReplicaId, RequestNumber, Sequence};
use crate::wire::message::OperationResult;
use bytes::Bytes;

/// What a replica says about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// It was executed with these results.
    Results {
        version: Sequence,
        results: Vec<OperationResult>,
    },
    /// Its results are not known any more, or another request was executed under its number.
    Forgotten,
}

fn salt(number: RequestNumber, lane: Lane) -> u64 {
    number.0 << 16 | u64::from(lane.0)
}

/// A request that has been bundled and is not answered yet.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) number: RequestNumber,
    pub(super) bytes: usize,
    pub(super) operations: Vec<Option<Pending>>,
    pub(super) signed: Option<(Digest, Bytes)>,
    sent: Monotonic,
    pub(super) retry: Retry,
    pub(super) quorum: ReplyQuorum<Statement>,
}

impl Flight {
    /// Starts a flight that waits for its signature.
    pub(super) fn new(
        config: &ClientConfig,
        trip: &RoundTrip,
        number: RequestNumber,
        lane: Lane,
        operations: Vec<Pending>,
        now: Monotonic,
    ) -> Self {
        Self {
            number,
            bytes: speech::request_bytes(&operations),
            operations: operations.into_iter().map(Some).collect(),
            signed: None,
            sent: now,
            retry: Retry::start(config, trip, salt(number, lane), now),
            quorum: ReplyQuorum::default(),
        }
    }

    /// Takes out the operations whose deadline has passed.
    pub(super) fn take_expired(&mut self, now: Monotonic) -> Vec<Pending> {
        let expired = |slot: &mut Option<Pending>| slot.take_if(|pending| pending.deadline <= now);
        self.operations.iter_mut().filter_map(expired).collect()
    }

    /// The next instant at which something has to be done for it.
    pub(super) fn next_deadline(&self) -> Monotonic {
        let deadlines = self
            .operations
            .iter()
            .flatten()
            .map(|pending| pending.deadline);
        deadlines.fold(self.retry.at, Monotonic::min)
    }

    /// How long its answer took, if it was sent once.
    pub(super) fn took(&self, now: Monotonic) -> Option<Nanos> {
        (!self.retry.repeated()).then(|| now.since(self.sent))
    }

    /// What its retries are spread by.
    pub(super) fn salt(&self, lane: Lane) -> u64 {
        salt(self.number, lane)
    }

    /// The bytes, once they are signed.
    pub(super) fn frame(&self) -> Option<&Bytes> {
        self.signed.as_ref().map(|(_, frame)| frame)
    }

    /// Whether it is certain that it was executed, so that those who have executed it should be
    /// asked again as well: they hand its batch to those who have not.
    pub(super) fn executed(&self, small: u16) -> bool {
        let results = |statement: &Statement| matches!(statement, Statement::Results { .. });
        self.quorum.agrees(small, results)
    }

    /// Whether this replica has given its results, so that there is no use in asking it again.
    pub(super) fn answered(&self, replica: ReplicaId) -> bool {
        let said = self.quorum.said(replica);
        matches!(said, Some(Statement::Results { .. }))
    }
}
