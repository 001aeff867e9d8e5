//! What an application implements to be replicated.
//!
//! A service is a deterministic function from (state, operation, context) to (state, reply). It
//! reads and writes rows through a transaction, never anything else: no clock but
//! [`Context::time`], no randomness, no iteration over unordered maps. Errors of the application
//! (no such file, permission denied) are ordinary replies with stable bytes; [`StateError`] means
//! that this replica's own store failed, and the replica stops.
//!
//! Everything written during one operation is kept or dropped together with its reply; an
//! implementation that wants to undo its own writes before answering with an error uses
//! [`Txn::savepoint`] and [`Txn::rollback`].
//!
//! # Versions of answers
//!
//! Queries are answered out of order too, by replicas of which some may be behind. Such an answer
//! has a *version*: the sequence of the last batch that changed anything that the answer depends
//! on. A client believes answers that match in bytes and version; equal bytes alone would let a
//! replica that has not seen a row go and one that has seen it come back vouch for each other, and
//! a later reader be shown the past. The library takes the version from the rows that
//! [`Service::read`] reads, each of which knows the batch that wrote it last.
//!
//! Rows that are not there know nothing. So an answer that says that something is absent, or that a
//! list is complete, must come from a [`Service::read`] that has also read a row which is written
//! whenever that changes: of a directory, for the names in it. Where there is no such row,
//! [`View::depend_on_everything`] stands in for one.

use crate::identity::{PublicKey, Sequence, SessionId, Time};
use crate::state::{StateError, Txn, View};
use bytes::Bytes;

/// What all replicas agree on about the batch that is being executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The batch's place in the order.
    pub sequence: Sequence,
    /// The batch's agreed time, strictly increasing from batch to batch.
    pub time: Time,
    /// The clock that leases run on: advances by min(Δ time, 1 s) a batch, so that an outage
    /// expires nothing.
    pub lease_clock: Time,
    /// The version of the behaviour that all voters have agreed to run.
    pub behaviour_version: u32,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The session that the request came in.
    pub session: SessionId,
    /// The principal that the session was opened by.
    pub principal: PublicKey,
}

/// What a session may have under way; granted when it opens. A service says what it would like a
/// session to have; the library grants what it has room for, and never less bytes than the longest
/// request unless the service wants less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Credit {
    /// Closed loops that may run side by side.
    pub lanes: u16,
    /// Bytes of requests in flight, all lanes together.
    pub bytes: u32,
}

/// A replicated application.
pub trait Service {
    /// Writes the first rows, from bytes that every replica was initialised with.
    ///
    /// # Errors
    /// Only if the store fails; a genesis that makes no sense must be refused before it gets here.
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError>;

    /// Decides whether `principal` may open a session and what it may have in flight, and writes
    /// what the service keeps about sessions. `None` refuses.
    ///
    /// # Errors
    /// Only if the store fails.
    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError>;

    /// Whether [`Service::open_session`] would grant `principal` a session as things stand. Asked
    /// before an attempt is ordered, of a state that may be behind or ahead of the one in which it
    /// is executed: whoever is not expected to be let in waits behind those who are. A service that
    /// knows no principals leaves this as it is, and everybody is welcome.
    ///
    /// # Errors
    /// Only if the store fails.
    fn may_open(&self, _view: &View<'_>, _principal: &PublicKey) -> Result<bool, StateError> {
        Ok(true)
    }

    /// A session has ended, by its own wish or because it was idle for too long.
    ///
    /// # Errors
    /// Only if the store fails.
    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError>;

    /// Executes one operation and answers it.
    ///
    /// # Errors
    /// Only if the store fails.
    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError>;

    /// Answers a query from the rows and from who asks, and from nothing else. What it is given
    /// cannot write. What the answer says to be absent has to be covered by a row that was read:
    /// see above.
    ///
    /// # Errors
    /// Only if the store fails.
    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError>;

    /// Answers a query that was ordered like an operation, in a batch of its own time. A service
    /// whose answers to both ways may differ says so to its clients; the usual one leaves this as
    /// it is.
    ///
    /// # Errors
    /// Only if the store fails.
    fn read_in_order(
        &self,
        view: &View<'_>,
        _context: &Context,
        caller: &Caller,
        query: &[u8],
    ) -> Result<Bytes, StateError> {
        self.read(view, caller, query)
    }

    /// The agreed time at which [`Service::tick`] wants to run, if it does.
    ///
    /// # Errors
    /// Only if the store fails.
    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError>;

    /// Does a bounded piece of work that time or earlier operations left over. Called once in a
    /// batch whose time has reached [`Service::next_deadline`], before the batch's requests.
    ///
    /// # Errors
    /// Only if the store fails.
    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError>;
}
