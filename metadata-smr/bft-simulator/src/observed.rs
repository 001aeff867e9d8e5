//! A service whose calls are logged.
//!
//! All calls of a replica to its service are folded, batch by batch, into one hash: the caller, the
//! request, the agreed time, and the answer. Two correct replicas must have the same hash for the
//! same sequence, which checks order, time, bodies and determinism at once, and does not depend on
//! the library's own statements.

use bytes::Bytes;
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::{PublicKey, Sequence, SessionId, Time};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{Row, StateError, Txn, View, prefix_end};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// The effects of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Its place in the order.
    pub sequence: Sequence,
    /// The hash of all requests and answers.
    pub hash: [u8; 32],
    /// The operations and queries in their order, with the session that asked for each.
    pub operations: Vec<(SessionId, OperationKind, Bytes)>,
    /// How many ticks it had.
    pub ticks: u32,
    /// The watched keys that it changed.
    pub changed: Vec<Bytes>,
}

/// The log of one replica's service.
#[derive(Clone, Debug, Default)]
pub struct Log {
    batches: Rc<RefCell<Vec<Executed>>>,
}

impl Log {
    /// Takes the batches executed since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Executed> {
        std::mem::take(&mut self.batches.borrow_mut())
    }

    fn fold(&self, context: &Context, what: &[&[u8]]) {
        let mut batches = self.batches.borrow_mut();
        if batches
            .last()
            .is_none_or(|batch| batch.sequence != context.sequence)
        {
            batches.push(Executed {
                sequence: context.sequence,
                hash: [0; 32],
                operations: Vec::new(),
                ticks: 0,
                changed: Vec::new(),
            });
        }
        if let Some(batch) = batches.last_mut() {
            let mut hasher = blake3::Hasher::new_keyed(&batch.hash);
            hasher.update(&context.time.0.to_le_bytes());
            hasher.update(&context.lease_clock.0.to_le_bytes());
            hasher.update(&context.behaviour_version.to_le_bytes());
            for part in what {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
            batch.hash = *hasher.finalize().as_bytes();
        }
    }

    fn ran(&self, session: SessionId, kind: OperationKind, operation: &[u8]) {
        self.note(|batch| {
            let operation = Bytes::copy_from_slice(operation);
            batch.operations.push((session, kind, operation));
        });
    }

    fn note(&self, note: impl FnOnce(&mut Executed)) {
        if let Some(batch) = self.batches.borrow_mut().last_mut() {
            note(batch);
        }
    }
}

/// A service whose calls are logged. Boxed, so that a replica of it is compiled once, here, for all
/// services.
pub struct Observed {
    inner: Box<dyn Service>,
    log: Log,
    /// The watched keys, read before and after every call that may change them.
    probes: Vec<Bytes>,
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl Observed {
    /// Logs the calls of `inner` to `log`.
    pub const fn new(inner: Box<dyn Service>, log: Log, probes: Vec<Bytes>) -> Self {
        Self { inner, log, probes }
    }
}

/// More rows than a watch covers.
const PROBED_MAX: usize = 64;

impl Observed {
    /// The rows of all watched keys.
    fn probe(&self, view: &View<'_>) -> Result<Vec<Vec<Row>>, StateError> {
        let caller = Caller {
            session: SessionId(0),
            principal: PublicKey([0; 32]),
        };
        let rows = |probe: &Bytes| {
            let prefixes = self.inner.watch(view, &caller, probe)?.unwrap_or_default();
            let mut rows = Vec::new();
            for prefix in prefixes {
                let end = prefix_end(&prefix);
                rows.extend(view.scan(&prefix..end.as_slice(), PROBED_MAX)?);
            }
            Ok(rows)
        };
        self.probes.iter().map(rows).collect()
    }

    /// Logs the changes since `before`.
    fn compare(&self, view: &View<'_>, before: &[Vec<Row>]) -> Result<(), StateError> {
        let after = self.probe(view)?;
        let pairs = self.probes.iter().zip(before.iter().zip(&after));
        for (probe, _) in pairs.filter(|(_, (before, after))| before != after) {
            self.log.note(|batch| {
                if !batch.changed.contains(probe) {
                    batch.changed.push(probe.clone());
                }
            });
        }
        Ok(())
    }
}

fn caller_bytes(caller: &Caller) -> Vec<u8> {
    let mut bytes = caller.session.0.to_le_bytes().to_vec();
    bytes.extend_from_slice(&caller.principal.0);
    bytes
}

impl Service for Observed {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        self.inner.genesis(txn, genesis)
    }

    fn sessions_begin_after(&self, genesis: &[u8]) -> SessionId {
        self.inner.sessions_begin_after(genesis)
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        let credit = self.inner.open_session(txn, context, caller)?;
        let granted = credit.map_or(0, |credit| credit.lanes);
        let who = caller_bytes(caller);
        self.log
            .fold(context, &[b"open", &who, &granted.to_le_bytes()]);
        Ok(credit)
    }

    fn may_open(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        self.inner.may_open(view, principal)
    }

    fn administers(
        &self,
        view: &View<'_>,
        principal: &PublicKey,
    ) -> Result<Option<bool>, StateError> {
        self.inner.administers(view, principal)
    }

    fn may_copy(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        self.inner.may_copy(view, principal)
    }

    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError> {
        self.log.fold(context, &[b"close", &caller_bytes(caller)]);
        self.inner.close_session(txn, context, caller)
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let before = self.probe(&txn.view())?;
        let answer = self.inner.execute(txn, context, caller, operation)?;
        let who = caller_bytes(caller);
        self.log
            .fold(context, &[b"execute", &who, operation, &answer]);
        self.log
            .ran(caller.session, OperationKind::Execute, operation);
        self.compare(&txn.view(), &before)?;
        Ok(answer)
    }

    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        // An unordered read is answered by one replica at its own time: nothing to agree on.
        self.inner.read(view, caller, query)
    }

    fn read_in_order(
        &self,
        view: &View<'_>,
        context: &Context,
        caller: &Caller,
        query: &[u8],
    ) -> Result<Bytes, StateError> {
        let answer = self.inner.read_in_order(view, context, caller, query)?;
        let who = caller_bytes(caller);
        self.log.fold(context, &[b"read", &who, query, &answer]);
        self.log.ran(caller.session, OperationKind::Query, query);
        Ok(answer)
    }

    fn watch(
        &self,
        view: &View<'_>,
        caller: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        self.inner.watch(view, caller, watch)
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        self.inner.next_deadline(view)
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        self.log.fold(context, &[b"tick"]);
        self.log.note(|batch| batch.ticks += 1);
        let before = self.probe(&txn.view())?;
        self.inner.tick(txn, context)?;
        self.compare(&txn.view(), &before)
    }
}
