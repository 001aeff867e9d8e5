//! What the clients did and saw: the only evidence for the verdict on a run.

use bytes::Bytes;
pub use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::SessionId;

/// One operation as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The client.
    pub client: usize,
    /// Its session.
    pub session: SessionId,
    /// The kind: whether it could change something.
    pub kind: OperationKind,
    /// The request.
    pub operation: Bytes,
    /// When it was submitted, in virtual nanoseconds.
    pub invoked: u64,
    /// When it was answered and with what; `None` if its outcome is unknown: it may take effect at
    /// any time after its invocation, or never.
    pub answer: Option<(u64, Bytes)>,
    /// The sequence at which it was executed, according to the replicas that answered it.
    pub version: Option<u64>,
}

/// A query that may be answered from any state not older than what its session has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRead {
    /// The query.
    pub call: Call,
    /// The process of the client.
    pub session: u64,
    /// The newest batch that this session had seen when it asked.
    pub floor: u64,
    /// The newest batch that any replica had executed when it was answered.
    pub newest: u64,
}

/// All calls of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls, in the order of their invocation.
    pub calls: Vec<Call>,
    /// Indices of `calls`, in the order in which the replicas claim to have executed them. It need
    /// not be right: the search for an order that explains the answers starts with it.
    pub order: Vec<usize>,
    /// The sequence at which each of them was executed.
    pub sequences: Vec<u64>,
    /// The reads that may be stale, by the time of their answer.
    pub session_reads: Vec<SessionRead>,
}

impl History {
    /// How many calls were answered.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.calls
            .iter()
            .filter(|call| call.answer.is_some())
            .count()
    }
}
