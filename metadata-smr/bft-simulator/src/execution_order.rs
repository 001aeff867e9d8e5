//! In which order the replicas say that they executed what the clients asked for.
//!
//! It says nothing about whether that was right, and nothing rests on it. It names the one order
//! among very many that is worth trying first when the clients' history is judged
//! ([`crate::linearizability`]).

use crate::history::Call;
use bytes::Bytes;
use quorumfs_bft::client::Kind;
use quorumfs_bft::identity::{Sequence, SessionId};
use std::collections::{BTreeMap, VecDeque};

type Asked = (SessionId, Kind, Bytes);

/// What was asked for and what was executed.
#[derive(Debug, Default)]
pub(crate) struct ExecutionOrder {
    submitted: BTreeMap<Asked, VecDeque<usize>>,
    executed: BTreeMap<Sequence, Vec<Asked>>,
}

impl ExecutionOrder {
    /// A client asked for something with its call of this number.
    pub(crate) fn submitted(
        &mut self,
        session: SessionId,
        kind: Kind,
        operation: &Bytes,
        call: usize,
    ) {
        let asked = (session, kind, operation.clone());
        self.submitted.entry(asked).or_default().push_back(call);
    }

    /// A batch was executed for the first time.
    pub(crate) fn executed(&mut self, sequence: Sequence, operations: &[Asked]) {
        self.executed.insert(sequence, operations.to_vec());
    }

    /// The calls in the order of their execution. Of several that ask for the same, the one whose
    /// answer names this sequence, or else the first one without an answer.
    pub(crate) fn calls(&mut self, calls: &[Call]) -> Vec<usize> {
        let mut order = Vec::new();
        for (sequence, operations) in &self.executed {
            for asked in operations {
                let Some(open) = self.submitted.get_mut(asked) else {
                    continue;
                };
                let version = |index: &usize| calls.get(*index).and_then(|call| call.version);
                let named = open.iter().position(|i| version(i) == Some(sequence.0));
                let place = named.or_else(|| open.iter().position(|i| version(i).is_none()));
                order.extend(place.and_then(|place| open.remove(place)));
            }
        }
        order
    }
}
