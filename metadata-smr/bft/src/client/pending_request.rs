//! One pending request: a bundle, its bytes, its retries and the replies of the replicas.
//!
//! The bytes are fixed when they are signed and never change afterwards. A ticket whose deadline
//! passes is answered, but the request stays pending until the replicas have answered it, since the
//! numbers of a lane must not skip one.

use super::config::ClientConfig;
use super::encoding;
use super::queue::Pending;
use super::reply_quorum::ReplyQuorum;
use super::retry::Retry;
use crate::identity::{Digest, Lane, Monotonic, Nanos, ReplicaId, RequestNumber, Sequence};
use crate::round_trip::RoundTrip;
use crate::wire::limits::REPLY_HEDGE;
use crate::wire::message::OperationResult;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Results, or their digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplyResults {
    /// Short results.
    Whole(Vec<OperationResult>),
    /// The digest of long results; [`PendingRequest::wholes`] has the results if they have arrived.
    Digest(Digest),
}

/// A replica's reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// It was executed with these results.
    Results {
        version: Sequence,
        results: ReplyResults,
    },
    /// Its results are not known any more, or another request was executed under its number.
    Forgotten,
}

fn salt(number: RequestNumber, lane: Lane) -> u64 {
    number.0 << 16 | u64::from(lane.0)
}

/// A request that has been bundled and is not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) number: RequestNumber,
    pub(super) bytes: usize,
    pub(super) operations: Vec<Option<Pending>>,
    pub(super) signed: Option<(Digest, Bytes)>,
    /// When it was sent, if it was sent only once.
    sent: Option<Monotonic>,
    pub(super) retry: Retry,
    pub(super) quorum: ReplyQuorum<Statement>,
    /// Long results, by sender; the digest is computed here.
    wholes: BTreeMap<ReplicaId, (Digest, Vec<OperationResult>)>,
    /// The digest that enough replicas have given, and the replica that was asked for its results.
    wanted: Option<(Digest, ReplicaId)>,
}

impl PendingRequest {
    /// Creates a request that waits for its signature.
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
            bytes: encoding::request_bytes(&operations),
            operations: operations.into_iter().map(Some).collect(),
            signed: None,
            sent: Some(now),
            retry: Retry::start(config, trip, salt(number, lane), now),
            quorum: ReplyQuorum::default(),
            wholes: BTreeMap::new(),
            wanted: None,
        }
    }

    /// Removes the operations whose deadline has passed.
    pub(super) fn take_expired(&mut self, now: Monotonic) -> Vec<Pending> {
        let expired = |slot: &mut Option<Pending>| slot.take_if(|pending| pending.deadline <= now);
        self.operations.iter_mut().filter_map(expired).collect()
    }

    /// The next instant at which the request needs attention.
    pub(super) fn next_deadline(&self) -> Monotonic {
        let deadlines = self
            .operations
            .iter()
            .flatten()
            .map(|pending| pending.deadline);
        deadlines.fold(self.retry.at, Monotonic::min)
    }

    /// The time until its answer, if it was sent only once.
    pub(super) fn measured_time(&self, now: Monotonic) -> Option<Nanos> {
        let sent = self.sent.filter(|_| !self.retry.repeated())?;
        Some(now.since(sent))
    }

    /// Sends it again early, since the request before it is answered: the time until its own answer
    /// is no measurement any more.
    pub(super) fn follow(&mut self, retry: Retry) {
        self.retry = retry;
        self.sent = None;
    }

    /// The number that spreads its retries.
    pub(super) fn salt(&self, lane: Lane) -> u64 {
        salt(self.number, lane)
    }

    /// Adds long results that a replica gave in full.
    pub(super) fn add_whole(
        &mut self,
        from: ReplicaId,
        digest: Digest,
        results: Vec<OperationResult>,
    ) {
        self.wholes.insert(from, (digest, results));
    }

    /// Whether the results that enough replicas have agreed on are here. If not, they are asked for
    /// soon.
    pub(super) fn has_whole(&mut self, from: ReplicaId, now: Monotonic) -> bool {
        let Some(Statement::Results {
            results: ReplyResults::Digest(digest),
            ..
        }) = self.quorum.vote_of(from)
        else {
            return true;
        };
        let digest = *digest;
        if self.wholes.values().any(|(known, _)| *known == digest) {
            return true;
        }
        if self.wanted.is_none() {
            self.wanted = Some((digest, from));
            self.retry.at = self.retry.at.min(now.plus(REPLY_HEDGE));
        }
        false
    }

    /// The results with this digest.
    pub(super) fn take_whole(&mut self, digest: &Digest) -> Vec<OperationResult> {
        let wholes = std::mem::take(&mut self.wholes).into_values();
        let mut same = wholes.filter(|(known, _)| known == digest);
        same.next().map(|(_, results)| results).unwrap_or_default()
    }

    /// Other replicas are asked the same from now on: earlier replies do not count.
    pub(super) fn ask_others(&mut self) {
        self.quorum = ReplyQuorum::default();
        self.wanted = None;
    }

    /// If only the full results are missing, the replica to ask for them: the next one of those
    /// that gave their digest. If fewer than `needed` of them still give it, more is missing than
    /// that.
    pub(super) fn next_to_ask(
        &mut self,
        connected: &BTreeSet<ReplicaId>,
        needed: u16,
    ) -> Option<ReplicaId> {
        let (digest, last) = self.wanted?;
        let same = |statement: &Statement| {
            matches!(statement, Statement::Results { results, .. }
                if *results == ReplyResults::Digest(digest))
        };
        if !self.quorum.agrees(needed, same) {
            self.wanted = None;
            return None;
        }
        let gave = |it: &&ReplicaId| self.quorum.vote_of(**it).is_some_and(same);
        let after = connected.range((Bound::Excluded(last), Bound::Unbounded));
        let next = after.chain(connected).find(gave).copied()?;
        self.wanted = Some((digest, next));
        Some(next)
    }

    /// The bytes, once they are signed.
    pub(super) fn frame(&self) -> Option<&Bytes> {
        self.signed.as_ref().map(|(_, frame)| frame)
    }

    /// Whether it is certain that it was executed. Then the replicas that have executed it should
    /// be asked again as well: they hand its batch to those that have not.
    pub(super) fn executed(&self, small: u16) -> bool {
        let results = |statement: &Statement| matches!(statement, Statement::Results { .. });
        self.quorum.agrees(small, results)
    }

    /// Whether this replica has given its results, so that asking it again is useless.
    pub(super) fn answered(&self, replica: ReplicaId) -> bool {
        let statement = self.quorum.vote_of(replica);
        matches!(statement, Some(Statement::Results { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_model::FaultModel;
    use crate::identity::{ClusterId, PublicKey};

    /// Otherwise a lane that lost a request once would take its wait for the usual one, and wait as
    /// long when it loses the next.
    #[test]
    fn a_request_delayed_by_its_predecessor_is_no_measurement_of_round_trips() {
        let model = FaultModel::new(1, 1, 4).expect("a valid model");
        let config = ClientConfig::new(ClusterId([0; 16]), model, PublicKey([0; 32]));
        let (trip, sent) = (RoundTrip::default(), Monotonic(5));
        let number = RequestNumber(2);
        let mut pending_request =
            PendingRequest::new(&config, &trip, number, Lane(0), Vec::new(), sent);
        let later = sent.plus(Nanos::from_secs(2));
        assert_eq!(
            pending_request.measured_time(later),
            Some(Nanos::from_secs(2))
        );
        pending_request.follow(Retry::start(
            &config,
            &trip,
            pending_request.salt(Lane(0)),
            later,
        ));
        assert_eq!(pending_request.measured_time(later.plus(Nanos(7))), None);
    }
}
