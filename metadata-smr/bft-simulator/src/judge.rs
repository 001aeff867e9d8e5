//! The guarantees that must hold in every run, checked from outside.
//!
//! * **Agreement**: honest replicas execute the same at the same sequence, and states at the same
//!   sequence have the same root.
//! * **Exactly once**: no session's operation is executed more often than it was submitted, nor
//!   less often than it was answered.
//! * **Order**: a replica executes one sequence after the other; after a restart it may repeat
//!   some, and must get the same results again.

use crate::execution_order::ExecutionOrder;
use crate::observed::Executed;
use bytes::Bytes;
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::{Digest, ReplicaId, Sequence, SessionId};
use quorumfs_bft::state::DurableRoot;
use std::collections::BTreeMap;

/// How often a request was submitted, executed and answered.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    submitted: u64,
    executed: u64,
    answered: u64,
}

/// Judges everything except the meaning of the answers, which the workload judges.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    agreed: BTreeMap<Sequence, ([u8; 32], ReplicaId)>,
    roots: BTreeMap<Sequence, (Digest, ReplicaId)>,
    times: BTreeMap<(SessionId, Bytes), Times>,
    pub(crate) order: ExecutionOrder,
    pub(crate) roots_compared: u64,
    pub(crate) violations: Vec<String>,
}

/// Enough violations to understand what happened.
const VIOLATIONS_MAX: usize = 16;

impl Judge {
    pub(crate) fn violation(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// An honest replica executed a batch.
    pub(crate) fn executed(&mut self, replica: ReplicaId, batch: &Executed) {
        let Executed { sequence, hash, .. } = batch;
        match self.agreed.get(sequence) {
            None => {
                self.agreed.insert(*sequence, (*hash, replica));
                for (session, kind, operation) in &batch.operations {
                    if *kind == OperationKind::Execute {
                        let key = (*session, operation.clone());
                        self.times.entry(key).or_default().executed += 1;
                    }
                }
                self.order.executed(*sequence, &batch.operations);
            }
            Some((agreed, other)) if agreed != hash => {
                let what = format!(
                    "agreement: replicas {other} and {replica} executed different things at \
                     {sequence}"
                );
                self.violation(what);
            }
            Some(_) => {}
        }
    }

    /// An honest replica's state has this root.
    pub(crate) fn root(&mut self, replica: ReplicaId, root: DurableRoot) {
        let DurableRoot {
            sequence, digest, ..
        } = root;
        match self.roots.get(&sequence) {
            None => {
                self.roots.insert(sequence, (digest, replica));
            }
            Some((agreed, other)) if *agreed != digest => {
                let what = format!(
                    "agreement: replicas {other} and {replica} have different states at {sequence}"
                );
                self.violation(what);
            }
            Some(_) => self.roots_compared += 1,
        }
    }

    /// An honest client submitted this.
    pub(crate) fn submitted(&mut self, session: SessionId, operation: &Bytes) {
        let key = (session, operation.clone());
        self.times.entry(key).or_default().submitted += 1;
    }

    /// An honest client got an answer.
    pub(crate) fn answered(&mut self, session: SessionId, operation: &Bytes) {
        let key = (session, operation.clone());
        self.times.entry(key).or_default().answered += 1;
    }

    /// The run is over: compares the submitted with the executed requests. `byzantine_clients` are
    /// the sessions of clients that lie about their requests.
    pub(crate) fn close(&mut self, byzantine_clients: &[SessionId]) {
        let mut found = Vec::new();
        for ((session, operation), times) in &self.times {
            if byzantine_clients.contains(session) {
                continue;
            }
            if times.executed > times.submitted || times.executed < times.answered {
                found.push(format!(
                    "exactly once: session {session} submitted {operation:?} {} times, it was \
                     executed {} times and answered {} times",
                    times.submitted, times.executed, times.answered
                ));
            }
        }
        for what in found {
            self.violation(what);
        }
    }
}
