//! The interface that a replicated application implements.
//!
//! A service is a deterministic function from (state, operation, context) to (state, reply). It
//! reads and writes rows through a transaction, never anything else: no clock but
//! [`Context::time`], no randomness, no iteration over unordered maps. Errors of the application
//! (no such file, permission denied) are ordinary replies with stable bytes; [`StateError`] means
//! that this replica's own store failed, and the replica stops.
//!
//! All writes of one operation are kept or dropped together with its reply; an implementation that
//! wants to undo its own writes before it answers with an error uses [`Txn::savepoint`] and
//! [`Txn::rollback`].
//!
//! # Versions of answers
//!
//! Queries are answered out of order too, by replicas of which some may be behind. Such an answer
//! has a *version*: the sequence of the last batch that changed anything that the answer depends
//! on. A client accepts answers that match in bytes and version. With equal bytes alone a replica
//! that has not seen a row deleted and one that has seen it return would vouch for the same answer,
//! and a later reader could be shown the past. The library takes the version from the rows that
//! [`Service::read`] reads, each of which has the sequence of the batch that wrote it last.
//!
//! Absent rows have no version. So an answer that something is absent, or that a list is complete,
//! must come from a [`Service::read`] that has also read a row which is written whenever that
//! changes: for the names in a directory, the directory's row. Where there is no such row,
//! [`View::depend_on_everything`] replaces it.
//!
//! # A versioned store with atomic transactions
//!
//! A transaction names the versions that it was made from. It takes effect as a whole if these are
//! still current, and otherwise not at all; then its client reads again and tries anew.
//!
//! ```
//! use borsh::{BorshDeserialize, BorshSerialize};
//! use bytes::Bytes;
//! # use quorumfs_bft::identity::{PublicKey, Sequence, SessionId, Time};
//! # use quorumfs_bft::service::{Caller, Context, Credit, Service};
//! # use quorumfs_bft::state::{Area, KeySpace, LastChange, MemoryStore, StateError, Txn, View};
//!
//! #[derive(BorshSerialize, BorshDeserialize)]
//! struct Transaction {
//!     /// Keys that were read, with their versions; 0 for a key without a value.
//!     read: Vec<(Vec<u8>, u64)>,
//!     /// Keys and what becomes of them.
//!     write: Vec<(Vec<u8>, Option<Vec<u8>>)>,
//! }
//!
//! /// Rows: `v` ‖ key → version ‖ value. `d`: written whenever a value is deleted.
//! struct Store;
//!
//! fn find(view: &View<'_>, key: &[u8]) -> Result<Option<(u64, Bytes)>, StateError> {
//!     let Some(row) = view.get(&[b"v", key].concat())? else {
//!         view.get(b"d")?; // covers absent keys: see above
//!         return Ok(None);
//!     };
//!     let version = row.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
//!     Ok(Some((version, row.slice(8..))))
//! }
//!
//! impl Service for Store {
//!     fn execute(
//!         &self, txn: &mut Txn<'_>, context: &Context, _: &Caller, operation: &[u8],
//!     ) -> Result<Bytes, StateError> {
//!         let Ok(transaction) = Transaction::try_from_slice(operation) else {
//!             return Ok(Bytes::from_static(b"malformed"));
//!         };
//!         for (key, version) in &transaction.read {
//!             let now = find(&txn.view(), key)?.map_or(0, |(version, _)| version);
//!             if now != *version {
//!                 return Ok(Bytes::from_static(b"conflict"));
//!             }
//!         }
//!         for (key, value) in &transaction.write {
//!             let row = [b"v", key.as_slice()].concat();
//!             match value {
//!                 Some(value) => {
//!                     let version = context.sequence.0.to_be_bytes();
//!                     txn.put(&row, [version.as_slice(), value].concat())?;
//!                 }
//!                 None => {
//!                     txn.delete(&row)?;
//!                     txn.put(b"d", Bytes::new())?;
//!                 }
//!             }
//!         }
//!         Ok(Bytes::from_static(b"done"))
//!     }
//!     fn read(&self, view: &View<'_>, _: &Caller, key: &[u8]) -> Result<Bytes, StateError> {
//!         let (version, value) = find(view, key)?.unwrap_or_default();
//!         Ok(Bytes::from([version.to_be_bytes().as_slice(), &value].concat()))
//!     }
//! #   fn genesis(&self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), StateError> {
//! #       txn.put(b"d", Bytes::new())
//! #   }
//! #   fn open_session(
//! #       &self, _: &mut Txn<'_>, _: &Context, _: &Caller,
//! #   ) -> Result<Option<Credit>, StateError> {
//! #       Ok(Some(Credit { lanes: 8, bytes: 1 << 20 }))
//! #   }
//! }
//! #
//! # let mut space = KeySpace::open(MemoryStore::new())?;
//! # let caller = Caller { session: SessionId(1), principal: PublicKey([0; 32]) };
//! # let mut sequence = 0;
//! # let mut run = |space: &mut KeySpace<MemoryStore>, transaction: &Transaction| {
//! #     sequence += 1;
//! #     let context = Context {
//! #         sequence: Sequence(sequence), time: Time(sequence), lease_clock: Time(sequence),
//! #         behaviour_version: 1, short_of_space: false,
//! #     };
//! #     let mut txn = space.begin(Area::Service, context.sequence);
//! #     let bytes = borsh::to_vec(transaction).unwrap_or_default();
//! #     let answer = Store.execute(&mut txn, &context, &caller, &bytes)?;
//! #     txn.commit();
//! #     Ok::<_, StateError>(answer)
//! # };
//!
//! let (a, b) = (b"a".to_vec(), b"b".to_vec());
//! let both = |version, value: &[u8]| Transaction {
//!     read: vec![(a.clone(), version)],
//!     write: vec![(a.clone(), Some(value.to_vec())), (b.clone(), Some(value.to_vec()))],
//! };
//! assert_eq!(run(&mut space, &both(0, b"one"))?, "done");
//! assert_eq!(run(&mut space, &both(0, b"two"))?, "conflict"); // made before the first one
//! assert_eq!(run(&mut space, &both(1, b"two"))?, "done");
//!
//! // An answer's version is the last change, also for rows that were deleted.
//! let gone = Transaction { read: Vec::new(), write: vec![(b.clone(), None)] };
//! run(&mut space, &gone)?;
//! let last = LastChange::of_state_after(Sequence(4));
//! let view = space.view(Area::Service);
//! assert_eq!(Store.read(&view.noting(&last), &caller, b"b")?, vec![0; 8]);
//! assert_eq!(last.sequence(), Sequence(4));
//! # Ok::<(), StateError>(())
//! ```

use crate::identity::{PublicKey, Sequence, SessionId, Time};
use crate::state::{StateError, Txn, View};
use bytes::Bytes;

/// The context of the batch that is being executed, on which all replicas agree.
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
    /// The disks of so many voters are nearly full that the state should not grow: a service
    /// refuses operations that make it grow, and executes all others.
    pub short_of_space: bool,
}

/// The caller of an operation or query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The session that the request came in.
    pub session: SessionId,
    /// The principal that the session was opened by.
    pub principal: PublicKey,
}

/// The requests that a session may have pending; granted when it opens. A service returns the
/// credit that it wants for a session; the library grants as much of it as capacity allows, and
/// never fewer bytes than the longest request unless the service wants fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Credit {
    /// Closed loops that may run at the same time.
    pub lanes: u16,
    /// Bytes of pending requests, all lanes together.
    pub bytes: u32,
}

/// A replicated application.
pub trait Service {
    /// Writes the first rows, from bytes that every replica was initialised with. By default it
    /// writes none.
    ///
    /// # Errors
    /// Only if the store fails; an invalid genesis must be refused before it gets here.
    fn genesis(&self, _txn: &mut Txn<'_>, _genesis: &[u8]) -> Result<(), StateError> {
        Ok(())
    }

    /// The number that the ids of sessions begin after, by default 0. A service that is restored
    /// from an older state begins where no id was assigned before.
    fn sessions_begin_after(&self, _genesis: &[u8]) -> SessionId {
        SessionId(0)
    }

    /// Decides whether `principal` may open a session and with what credit, and writes the
    /// service's rows about sessions. `None` refuses.
    ///
    /// # Errors
    /// Only if the store fails.
    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError>;

    /// Whether [`Service::open_session`] would grant `principal` a session at present. Called
    /// before an attempt is ordered, on a state that may be behind or ahead of the one in which it
    /// is executed: principals that are expected to be refused wait behind the others. A service
    /// without principals keeps the default, which admits all.
    ///
    /// # Errors
    /// Only if the store fails.
    fn may_open(&self, _view: &View<'_>, _principal: &PublicKey) -> Result<bool, StateError> {
        Ok(true)
    }

    /// Whether `principal` may change the cluster's membership, as far as the service decides it:
    /// `Some(false)` refuses one that the membership lists as an administrator, such as a key that
    /// was replaced, and all other rights that the membership would grant it. A service without
    /// principals keeps the default, and the list decides.
    ///
    /// # Errors
    /// Only if the store fails.
    fn administers(
        &self,
        _view: &View<'_>,
        _principal: &PublicKey,
    ) -> Result<Option<bool>, StateError> {
        Ok(None)
    }

    /// Whether `principal` may copy the whole state ([`crate::state_copy`]), rows of other
    /// principals included, and ask for a checkpoint to copy. By default no principal may.
    ///
    /// # Errors
    /// Only if the store fails.
    fn may_copy(&self, _view: &View<'_>, _principal: &PublicKey) -> Result<bool, StateError> {
        Ok(false)
    }

    /// A session has ended, because its client closed it or because it was idle for too long. A
    /// service that stores nothing about sessions keeps the default.
    ///
    /// # Errors
    /// Only if the store fails.
    fn close_session(
        &self,
        _txn: &mut Txn<'_>,
        _context: &Context,
        _caller: &Caller,
    ) -> Result<(), StateError> {
        Ok(())
    }

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

    /// Answers a query from the rows and the caller, and from nothing else. It cannot write.
    /// Everything that the answer says to be absent has to be covered by a row that was read: see
    /// above.
    ///
    /// # Errors
    /// Only if the store fails.
    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError>;

    /// Answers a query that was ordered like an operation, in a batch with a time of its own. A
    /// service whose answers to the two kinds may differ documents that for its clients; most keep
    /// the default.
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

    /// The prefixes of the keys of rows of which a session wants to be notified whenever one of
    /// them is written; `None` refuses. The service defines the meaning of `watch` and who may use
    /// it: a notification says only *that* something changed, but even that may be confidential.
    /// The prefixes hold for as long as the watch does, even if the caller's rights change.
    /// [`crate::wire::limits`] bounds their number and length.
    ///
    /// # Errors
    /// Only if the store fails.
    fn watch(
        &self,
        _view: &View<'_>,
        _caller: &Caller,
        _watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        Ok(None)
    }

    /// The agreed time at which [`Service::tick`] wants to run, if it does. By default never; a
    /// service that uses it implements both.
    ///
    /// # Errors
    /// Only if the store fails.
    fn next_deadline(&self, _view: &View<'_>) -> Result<Option<Time>, StateError> {
        Ok(None)
    }

    /// Does a bounded amount of work that is due by time or left over by earlier operations. Called
    /// once in a batch whose time has reached [`Service::next_deadline`], before the batch's
    /// requests.
    ///
    /// # Errors
    /// Only if the store fails.
    fn tick(&self, _txn: &mut Txn<'_>, _context: &Context) -> Result<(), StateError> {
        Ok(())
    }
}

/// With `Box<dyn Service>`, code that need not know the service is compiled once.
// A method that is not forwarded would silently be the trait's own.
#[deny(clippy::missing_trait_methods)]
impl<S: Service + ?Sized> Service for Box<S> {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        (**self).genesis(txn, genesis)
    }

    fn sessions_begin_after(&self, genesis: &[u8]) -> SessionId {
        (**self).sessions_begin_after(genesis)
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        (**self).open_session(txn, context, caller)
    }

    fn may_open(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        (**self).may_open(view, principal)
    }

    fn administers(
        &self,
        view: &View<'_>,
        principal: &PublicKey,
    ) -> Result<Option<bool>, StateError> {
        (**self).administers(view, principal)
    }

    fn may_copy(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        (**self).may_copy(view, principal)
    }

    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError> {
        (**self).close_session(txn, context, caller)
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        (**self).execute(txn, context, caller, operation)
    }

    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        (**self).read(view, caller, query)
    }

    fn read_in_order(
        &self,
        view: &View<'_>,
        context: &Context,
        caller: &Caller,
        query: &[u8],
    ) -> Result<Bytes, StateError> {
        (**self).read_in_order(view, context, caller, query)
    }

    fn watch(
        &self,
        view: &View<'_>,
        caller: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        (**self).watch(view, caller, watch)
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        (**self).next_deadline(view)
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        (**self).tick(txn, context)
    }
}
