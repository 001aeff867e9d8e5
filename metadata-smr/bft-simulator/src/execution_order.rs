//! The order in which the replicas claim to have executed the clients' requests.
//!
//! The order need not be right, and no verdict depends on it. Among very many orders it is the one
//! to try first when the clients' history is judged ([`crate::linearizability`]).

use crate::history::Call;
use bytes::Bytes;
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::{Sequence, SessionId};
use std::collections::{BTreeMap, VecDeque};

type RequestKey = (SessionId, OperationKind, Bytes);

/// After which batch, answered when, which call, and its request.
type UnorderedRead = (u64, u64, usize, RequestKey);

/// The submitted and the executed requests.
#[derive(Debug, Default)]
pub(crate) struct ExecutionOrder {
    submitted: BTreeMap<RequestKey, VecDeque<usize>>,
    executed: BTreeMap<Sequence, Vec<RequestKey>>,
    read: Vec<UnorderedRead>,
}

impl ExecutionOrder {
    /// A client submitted a request with its call of this number.
    pub(crate) fn submitted(
        &mut self,
        session: SessionId,
        kind: OperationKind,
        operation: &Bytes,
        call: usize,
    ) {
        let request = (session, kind, operation.clone());
        self.submitted.entry(request).or_default().push_back(call);
    }

    /// A call read the state after this batch, or a later state with the same answer. If the query
    /// is in that batch itself, it was read there.
    pub(crate) fn read(&mut self, after: u64, answered: u64, call: usize, request: RequestKey) {
        self.read.push((after, answered, call, request));
    }

    /// A batch was executed for the first time.
    pub(crate) fn executed(&mut self, sequence: Sequence, operations: &[RequestKey]) {
        self.executed.insert(sequence, operations.to_vec());
    }

    /// The calls in the order of their execution. Of several equal requests, the one whose answer
    /// names this sequence, or else the first one without an answer. Unordered reads come directly
    /// after the batch whose state they read.
    pub(crate) fn calls(&mut self, calls: &[Call]) -> Vec<(u64, usize)> {
        let mut order = Vec::new();
        let mut read = std::mem::take(&mut self.read);
        read.sort_unstable();
        for (sequence, operations) in &self.executed {
            let earlier = read.partition_point(|(at, ..)| *at < sequence.0);
            order.extend(read.drain(..earlier).map(|(at, _, call, _)| (at, call)));
            for request in operations {
                let place = self.submitted.get_mut(request).and_then(|open| {
                    let version = |index: &usize| calls.get(*index).and_then(|call| call.version);
                    let named = open.iter().position(|i| version(i) == Some(sequence.0));
                    let place = named.or_else(|| open.iter().position(|i| version(i).is_none()));
                    place.and_then(|place| open.remove(place))
                });
                let call = place.or_else(|| {
                    let here = |it: &UnorderedRead| it.0 == sequence.0 && it.3 == *request;
                    let place = read.iter().position(here)?;
                    Some(read.remove(place).2)
                });
                order.extend(call.map(|call| (sequence.0, call)));
            }
        }
        order.extend(read.into_iter().map(|(at, _, call, _)| (at, call)));
        order
    }
}
