//! In which order the replicas say that they executed what the clients asked for.
//!
//! It says nothing about whether that was right, and nothing rests on it. It names the one order
//! among very many that is worth trying first when the clients' history is judged
//! ([`crate::linearizability`]).

use crate::history::Call;
use bytes::Bytes;
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::{Sequence, SessionId};
use std::collections::{BTreeMap, VecDeque};

type Asked = (SessionId, OperationKind, Bytes);

/// After which batch, answered when, which call, what it asked.
type Read = (u64, u64, usize, Asked);

/// What was asked for and what was executed.
#[derive(Debug, Default)]
pub(crate) struct ExecutionOrder {
    submitted: BTreeMap<Asked, VecDeque<usize>>,
    executed: BTreeMap<Sequence, Vec<Asked>>,
    read: Vec<Read>,
}

impl ExecutionOrder {
    /// A client asked for something with its call of this number.
    pub(crate) fn submitted(
        &mut self,
        session: SessionId,
        kind: OperationKind,
        operation: &Bytes,
        call: usize,
    ) {
        let asked = (session, kind, operation.clone());
        self.submitted.entry(asked).or_default().push_back(call);
    }

    /// A call read the state after this batch, or a later one that is no different for it. If the
    /// query is in that batch itself, it was read there.
    pub(crate) fn read(&mut self, after: u64, answered: u64, call: usize, asked: Asked) {
        self.read.push((after, answered, call, asked));
    }

    /// A batch was executed for the first time.
    pub(crate) fn executed(&mut self, sequence: Sequence, operations: &[Asked]) {
        self.executed.insert(sequence, operations.to_vec());
    }

    /// The calls in the order of their execution. Of several that ask for the same, the one whose
    /// answer names this sequence, or else the first one without an answer. What was read out of
    /// order comes behind the batch after which it was true.
    pub(crate) fn calls(&mut self, calls: &[Call]) -> Vec<(u64, usize)> {
        let mut order = Vec::new();
        let mut read = std::mem::take(&mut self.read);
        read.sort_unstable();
        for (sequence, operations) in &self.executed {
            let earlier = read.partition_point(|(at, ..)| *at < sequence.0);
            order.extend(read.drain(..earlier).map(|(at, _, call, _)| (at, call)));
            for asked in operations {
                let place = self.submitted.get_mut(asked).and_then(|open| {
                    let version = |index: &usize| calls.get(*index).and_then(|call| call.version);
                    let named = open.iter().position(|i| version(i) == Some(sequence.0));
                    let place = named.or_else(|| open.iter().position(|i| version(i).is_none()));
                    place.and_then(|place| open.remove(place))
                });
                let call = place.or_else(|| {
                    let here = |it: &Read| it.0 == sequence.0 && it.3 == *asked;
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
