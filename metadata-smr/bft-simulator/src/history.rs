//! What the clients did and saw: all that a judge of a run may rest on.

use bytes::Bytes;
pub use quorumfs_bft::client::OperationKind;

/// One operation as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which client asked.
    pub client: usize,
    /// Whether it could change something.
    pub kind: OperationKind,
    /// What was asked.
    pub operation: Bytes,
    /// When it was submitted, in virtual nanoseconds.
    pub invoked: u64,
    /// When it was answered and with what; `None` if its outcome stayed unknown: it may take
    /// effect at any time after its invocation, or never.
    pub answer: Option<(u64, Bytes)>,
    /// The sequence at which it was executed, as the replicas that answered it say.
    pub version: Option<u64>,
}

/// A query that may be answered from any state that its session has not been beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRead {
    /// The query.
    pub call: Call,
    /// Which process of the client asked.
    pub session: u64,
    /// The newest batch that this session had been shown when it asked.
    pub floor: u64,
    /// The newest batch that any replica had executed when it was answered.
    pub newest: u64,
}

/// All calls of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls, in the order of their invocation.
    pub calls: Vec<Call>,
    /// Places in `calls`, in the order in which the replicas say that they executed them. Nobody
    /// has to believe it: it is where a search for an order that explains the answers begins.
    pub order: Vec<usize>,
    /// The sequence at which each of them was executed.
    pub sequences: Vec<u64>,
    /// What clients read that need not be the newest; by the time of the answer.
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
