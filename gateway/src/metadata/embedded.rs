//! A service in this process: no replicas, no network, one operation after the other.
//!
//! It runs the same pure service over the same key space as a replica does, in memory. The file
//! system is tested on it without a cluster, and a tool can use it to examine a volume's logic
//! alone. Several sessions may share one; a test can end one at any time.

use super::{MetadataError, Transport};
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_bft::identity::{PublicKey, Sequence, SessionId, Time};
use quorumfs_bft::service::{Caller, Context, Service};
use quorumfs_bft::state::{Area, KeySpace, StateError, Store, WriteBatch};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since the epoch.
type Clock = Box<dyn Fn() -> u64 + Send>;

/// Batches between two flushes: every scan goes through unflushed rows.
const FLUSH_EVERY: u64 = 64;

/// Rows that several threads share.
#[derive(Clone, Default)]
struct SharedRows(Arc<Mutex<BTreeMap<Bytes, Bytes>>>);

impl SharedRows {
    fn apply(&self, batch: WriteBatch) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in batch.entries {
            match value {
                Some(value) => rows.insert(key, value),
                None => rows.remove(&key),
            };
        }
    }
}

impl Store for SharedRows {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned())
    }
}

struct Engine<S> {
    service: S,
    clock: Clock,
    rows: SharedRows,
    space: KeySpace<SharedRows>,
    sequence: u64,
    time: u64,
    sessions: Vec<Caller>,
}

/// A service with its rows in memory.
pub struct Embedded<S> {
    engine: Mutex<Engine<S>>,
    executed: AtomicU64,
    queried: AtomicU64,
}

/// One session of an [`Embedded`] service.
pub struct EmbeddedSession<S> {
    embedded: Arc<Embedded<S>>,
    caller: Caller,
}

fn failed(error: &StateError) -> MetadataError {
    MetadataError::NotExecuted {
        reason: error.to_string(),
    }
}

impl<S: Service + Send + 'static> Embedded<S> {
    /// Starts a service from its genesis.
    ///
    /// # Errors
    /// If the genesis is refused.
    pub fn new(service: S, genesis: &[u8]) -> Result<Arc<Self>, MetadataError> {
        let clock = || {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH);
            u64::try_from(clock.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
        };
        Self::with_clock(service, genesis, clock)
    }

    /// Starts a service whose batches carry the time of `clock`, in nanoseconds since the epoch: a
    /// simulation controls its own.
    ///
    /// # Errors
    /// If the genesis is refused.
    pub fn with_clock(
        service: S,
        genesis: &[u8],
        clock: impl Fn() -> u64 + Send + 'static,
    ) -> Result<Arc<Self>, MetadataError> {
        let rows = SharedRows::default();
        let mut space = KeySpace::open(rows.clone()).map_err(|error| failed(&error))?;
        let mut txn = space.begin(Area::Service, Sequence(0));
        service
            .genesis(&mut txn, genesis)
            .map_err(|error| failed(&error))?;
        txn.commit();
        let engine = Engine {
            service,
            clock: Box::new(clock),
            rows,
            space,
            sequence: 0,
            time: 0,
            sessions: Vec::new(),
        };
        Ok(Arc::new(Self {
            engine: Mutex::new(engine),
            executed: AtomicU64::new(0),
            queried: AtomicU64::new(0),
        }))
    }

    fn engine(&self) -> MutexGuard<'_, Engine<S>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session for `principal`.
    ///
    /// # Errors
    /// If the service refuses.
    pub fn open_session(
        self: &Arc<Self>,
        principal: PublicKey,
    ) -> Result<EmbeddedSession<S>, MetadataError> {
        let mut engine = self.engine();
        let context = engine.next_batch().map_err(|error| failed(&error))?;
        let caller = Caller {
            session: SessionId(context.sequence.0),
            principal,
        };
        let Engine { service, space, .. } = &mut *engine;
        let mut txn = space.begin(Area::Service, context.sequence);
        let credit = service
            .open_session(&mut txn, &context, &caller)
            .map_err(|error| failed(&error))?;
        if credit.is_none() {
            return Err(MetadataError::SessionEnded {
                reason: "the service refuses a session to this principal".into(),
            });
        }
        txn.commit();
        engine.sessions.push(caller);
        Ok(EmbeddedSession {
            embedded: self.clone(),
            caller,
        })
    }

    /// How many operations were executed and how many queries answered.
    #[must_use]
    pub fn counters(&self) -> (u64, u64) {
        (
            self.executed.load(Ordering::Relaxed),
            self.queried.load(Ordering::Relaxed),
        )
    }

    /// Ends a session by order: at its own request, or because it was idle for too long.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn end_session(&self, session: SessionId) -> Result<(), MetadataError> {
        let mut engine = self.engine();
        let Some(at) = engine
            .sessions
            .iter()
            .position(|caller| caller.session == session)
        else {
            return Ok(());
        };
        let caller = engine.sessions.remove(at);
        let context = engine.next_batch().map_err(|error| failed(&error))?;
        let Engine { service, space, .. } = &mut *engine;
        let mut txn = space.begin(Area::Service, context.sequence);
        service
            .close_session(&mut txn, &context, &caller)
            .map_err(|error| failed(&error))?;
        txn.commit();
        Ok(())
    }
}

impl<S: Service> Engine<S> {
    /// Begins a batch of one operation: its time, and a tick if one is due.
    fn next_batch(&mut self) -> Result<Context, StateError> {
        let clock = (self.clock)();
        self.sequence = self.sequence.saturating_add(1);
        self.time = clock.max(self.time.saturating_add(1));
        let context = Context {
            sequence: Sequence(self.sequence),
            time: Time(self.time),
            lease_clock: Time(self.time),
            behaviour_version: 1,
            short_of_space: false,
        };
        if self.sequence.is_multiple_of(FLUSH_EVERY) {
            let (batch, root) = self.space.flush(context.sequence, Vec::new())?;
            self.rows.apply(batch);
            self.space.flushed(root.sequence);
        }
        let deadline = self
            .service
            .next_deadline(&self.space.view(Area::Service))?;
        if deadline.is_some_and(|deadline| deadline <= context.time) {
            let mut txn = self.space.begin(Area::Service, context.sequence);
            self.service.tick(&mut txn, &context)?;
            txn.commit();
        }
        Ok(context)
    }

    fn known(&self, caller: &Caller) -> Result<(), MetadataError> {
        if self.sessions.contains(caller) {
            return Ok(());
        }
        Err(MetadataError::SessionEnded {
            reason: "it was ended by order".into(),
        })
    }
}

impl<S> EmbeddedSession<S> {
    /// The session's number.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.caller.session
    }
}

#[async_trait]
impl<S: Service + Send + 'static> Transport for EmbeddedSession<S> {
    async fn execute(&self, operation: Bytes) -> Result<Bytes, MetadataError> {
        let mut engine = self.embedded.engine();
        engine.known(&self.caller)?;
        self.embedded.executed.fetch_add(1, Ordering::Relaxed);
        let context = engine.next_batch().map_err(|error| failed(&error))?;
        let Engine { service, space, .. } = &mut *engine;
        let mut txn = space.begin(Area::Service, context.sequence);
        let reply = service
            .execute(&mut txn, &context, &self.caller, &operation)
            .map_err(|error| failed(&error))?;
        txn.commit();
        Ok(reply)
    }

    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        let mut engine = self.embedded.engine();
        engine.known(&self.caller)?;
        self.embedded.queried.fetch_add(1, Ordering::Relaxed);
        engine.next_batch().map_err(|error| failed(&error))?;
        let view = engine.space.view(Area::Service);
        engine
            .service
            .read(&view, &self.caller, &query)
            .map_err(|error| failed(&error))
    }

    async fn close(&self) {
        // A failure has no effect: the session is gone for this process either way.
        let _ = self.embedded.end_session(self.caller.session);
    }
}
