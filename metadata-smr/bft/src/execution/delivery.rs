//! Executing one committed batch.
//!
//! The order within a batch is fixed: the clock, sessions that have been idle for too long, the
//! service's tick if it is due, then the requests as the batch lists them.

use super::answer::{answer, answer_open, session_answer};
use super::closed_sessions::{self, ClosedSession};
use super::reply_cache::{self, NumberStatus};
use super::rows::{ClockRow, SessionRow};
use super::session::Known;
use super::session_cache::{Lookup, SessionCache};
use super::standing::Standing;
use super::{clock, credit, members, replay, session, watch};
use crate::identity::{Digest, Nanos, PublicKey, Sequence, SessionId, Time};
use crate::membership::Membership;
use crate::observer::WatchEvent;
use crate::sabotage::{Flag, Planted, Sabotage};
use crate::service::{Context, Credit, Service};
use crate::state::{Area, KeySpace, StateError, Store, View};
use crate::wire::Envelope;
use crate::wire::limits::{PRINCIPAL_SESSIONS_MAX, SESSION_IDLE, SESSIONS_CLOSED_PER_BATCH};
use crate::wire::message::{Batch, CloseSession, Message, OpenSession, Outcome, Reply, Request};
use std::sync::Arc;

/// A session that a batch opened, or that was open when the replica started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The session.
    pub id: SessionId,
    /// What its requests are signed with.
    pub key: PublicKey,
    /// The principal that opened it.
    pub principal: PublicKey,
    /// The requests that it may have pending.
    pub credit: Credit,
}

/// The result of a batch, apart from the new state.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// A reply for each request, in the order of the batch; none for one that skips a number.
    pub replies: Vec<Reply>,
    /// Sessions that the batch opened.
    pub opened: Vec<Opened>,
    /// Sessions that the batch ended.
    pub closed: Vec<SessionId>,
    /// Sessions that ended so long ago that no batch may name them any more.
    pub forgotten: Vec<SessionId>,
    /// The number of these sessions that were closed because they had been idle for too long.
    pub expired: usize,
    /// The number of requests executed now, including those that opened or closed a session.
    pub ran: usize,
    /// The number of requests that had been executed before and were answered from the cache.
    pub duplicates: usize,
    /// Requests that skipped a number and were passed over: their clients send them again, and
    /// until then they must not be proposed again.
    pub skipped: Vec<Digest>,
    /// Whether the service's tick ran.
    pub ticked: bool,
    /// Changes by the batch of rows that sessions watch: one event for each such session.
    pub events: Vec<WatchEvent>,
    /// Whether the membership changed: the epoch ends with this batch.
    pub ends_epoch: bool,
    /// Whether the state after the batch is to be a checkpoint.
    pub checkpoint: bool,
}

/// Drives the service.
#[derive(Debug)]
pub struct Executor<S> {
    service: S,
    /// A defect that a simulation plants: a retry is executed a second time.
    retries_run: Flag,
    /// Another one: replies that were given before `began` are not known any more.
    replies_lost: Flag,
    began: Sequence,
    /// The time after which a session without a request is closed.
    idle: Nanos,
    /// The prefixes that sessions watch.
    watches: watch::Index,
    cache: SessionCache,
}

impl<S: Service> Executor<S> {
    /// An executor for `service`.
    pub fn new(service: S) -> Self {
        Self {
            service,
            retries_run: Flag::CLEAR,
            replies_lost: Flag::CLEAR,
            began: Sequence(0),
            idle: SESSION_IDLE,
            watches: watch::Index::default(),
            cache: SessionCache::default(),
        }
    }

    /// An executor with another idle time of sessions.
    #[must_use]
    pub fn with_idle(self, idle: Nanos) -> Self {
        Self { idle, ..self }
    }

    /// The open session with this number.
    pub(super) fn session_row(
        &self,
        view: &View<'_>,
        id: SessionId,
    ) -> Result<Option<SessionRow>, StateError> {
        self.cache.session(view, id)
    }

    /// An executor that begins at this state, with a planted defect if one of these is set.
    #[must_use]
    pub fn sabotaged(self, planted: Planted, began: Sequence) -> Self {
        Self {
            retries_run: planted.flag(Sabotage::RetryExecutedTwice),
            replies_lost: planted.flag(Sabotage::ReplyCacheOutsideState),
            began,
            ..self
        }
    }

    fn find(
        &self,
        view: &View<'_>,
        request: &Request,
        digest: &Digest,
    ) -> Result<Lookup, StateError> {
        Ok(match self.cache.find(view, request, digest)? {
            Lookup::At(row, NumberStatus::Answered(at, _))
                if self.replies_lost.is_set() && at <= self.began =>
            {
                Lookup::At(row, NumberStatus::Superseded)
            }
            found => found,
        })
    }

    /// Writes the outstanding reply rows: before this the rows are not the whole state.
    ///
    /// # Errors
    /// If the store fails; the key space is of no use then.
    pub fn settle<D: Store>(&self, space: &mut KeySpace<D>) -> Result<(), StateError> {
        self.cache.write(space)
    }

    /// The state was replaced by another one, of any sequence.
    pub fn state_replaced(&mut self) {
        self.watches.forget();
        self.cache.forget();
    }

    /// The last event of a session; `None` if it watches nothing.
    ///
    /// # Errors
    /// If the store fails.
    pub fn last_event<D: Store>(
        &self,
        space: &KeySpace<D>,
        session: SessionId,
    ) -> Result<Option<Sequence>, StateError> {
        let row = watch::watcher(&space.view(Area::Library), session)?;
        Ok(row.map(|row| row.last))
    }

    /// The service.
    pub const fn service(&self) -> &S {
        &self.service
    }

    /// Writes the first rows.
    ///
    /// # Errors
    /// If the store fails.
    pub fn genesis<D: Store>(
        &self,
        space: &mut KeySpace<D>,
        genesis: &[u8],
        membership: &Membership,
    ) -> Result<(), StateError> {
        let mut txn = space.begin(Area::Service, Sequence(0));
        self.service.genesis(&mut txn, genesis)?;
        txn.commit();
        let mut txn = space.begin(Area::Library, Sequence(0));
        clock::begin(&mut txn, self.service.sessions_begin_after(genesis))?;
        members::write(&mut txn, membership)?;
        txn.commit();
        Ok(())
    }

    /// The position of execution.
    ///
    /// # Errors
    /// If the store fails.
    pub fn applied<D: Store>(&self, space: &KeySpace<D>) -> Result<ClockRow, StateError> {
        clock::read(&space.view(Area::Library))
    }

    /// The membership after the last batch.
    ///
    /// # Errors
    /// If the store fails, or has none.
    pub fn membership<D: Store>(&self, space: &KeySpace<D>) -> Result<Membership, StateError> {
        members::read(&space.view(Area::Library))
    }

    /// All open sessions, for a replica that starts.
    ///
    /// # Errors
    /// If the store fails.
    pub fn sessions<D: Store>(&self, space: &KeySpace<D>) -> Result<Vec<Opened>, StateError> {
        let all = session::all(&space.view(Area::Library))?;
        let opened = |(id, row): (SessionId, SessionRow)| Opened {
            id,
            key: row.key,
            principal: row.principal,
            credit: row.credit,
        };
        Ok(all.into_iter().map(opened).collect())
    }

    /// All sessions that have ended but may still be named, for a replica that starts.
    ///
    /// # Errors
    /// If the store fails.
    pub fn closed_sessions<D: Store>(
        &self,
        space: &KeySpace<D>,
    ) -> Result<Vec<ClosedSession>, StateError> {
        closed_sessions::all(&space.view(Area::Library))
    }

    /// The agreed time at which a batch is due even if there are no requests.
    ///
    /// # Errors
    /// If the store fails.
    pub fn next_deadline<D: Store>(&self, space: &KeySpace<D>) -> Result<Option<Time>, StateError> {
        self.service.next_deadline(&space.view(Area::Service))
    }

    /// Executes `batch`, whose requests are `bodies`, in the same order.
    ///
    /// # Errors
    /// If the store fails; the key space is of no use then.
    pub fn execute<D: Store>(
        &mut self,
        space: &mut KeySpace<D>,
        batch: &Batch,
        bodies: &[Arc<Envelope>],
    ) -> Result<Executed, StateError> {
        let before = self.applied(space)?;
        let (after, mut context) =
            clock::advance(&before, batch.sequence, batch.time, batch.behaviour_version);
        context.short_of_space = members::short_of_space(&space.view(Area::Library))?;
        self.watches.begin(space, &before, before.sequence)?;
        let mut run = Run {
            service: &self.service,
            idle: self.idle,
            watches: std::mem::take(&mut self.watches),
            cache: &self.cache,
            space,
            clock: after,
            context,
            done: Executed {
                replies: Vec::with_capacity(bodies.len()),
                ..Executed::default()
            },
        };
        run.forget()?;
        run.close_idle()?;
        run.tick()?;
        for body in bodies {
            let digest = body.digest();
            match body.message() {
                Message::Request(request) => run.request(request, digest, self)?,
                Message::OpenSession(open) => run.open(open, digest)?,
                Message::CloseSession(close) => run.close(*close, digest)?,
                _ => {}
            }
        }
        run.done.events = run.watches.end(run.space, batch.sequence)?;
        let Run {
            space,
            clock,
            done,
            watches,
            ..
        } = run;
        self.watches = watches;
        let mut txn = space.begin(Area::Library, batch.sequence);
        clock::write(&mut txn, &clock)?;
        txn.commit();
        Ok(done)
    }

    /// The standing of a client's request, according to the executed batches and to this replica's
    /// clock, which is closer than the last batch to the time of the next one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn standing<D: Store>(
        &self,
        space: &KeySpace<D>,
        body: &Envelope,
        now: Time,
    ) -> Result<Standing, StateError> {
        let view = space.view(Area::Library);
        let digest = body.digest();
        let settled = |reply| Ok(Standing::Settled(reply));
        match body.message() {
            Message::Request(request) => match self.find(&view, request, &digest)? {
                Lookup::NoSession => {
                    settled(answer(request, digest, Sequence(0), Outcome::NoSession))
                }
                Lookup::NoLane => settled(answer(request, digest, Sequence(0), Outcome::Conflict)),
                Lookup::At(_, place) => {
                    let (version, outcome) = match place {
                        NumberStatus::Next | NumberStatus::Ahead => return Ok(Standing::New),
                        NumberStatus::FarAhead => return Ok(Standing::FarAhead),
                        NumberStatus::Answered(..) if self.retries_run.is_set() => {
                            return Ok(Standing::New);
                        }
                        NumberStatus::Answered(version, outcome) => (version, outcome),
                        NumberStatus::Conflict => (Sequence(0), Outcome::Conflict),
                        NumberStatus::Superseded => (Sequence(0), Outcome::Superseded),
                    };
                    settled(answer(request, digest, version, outcome))
                }
            },
            Message::OpenSession(open) => {
                match session::find_by_key(&view, &open.principal, &open.session_key)? {
                    None => {
                        let rows = space.view(Area::Service);
                        let now = now.max(clock::read(&view)?.time);
                        let welcome = replay::is_recent(open.time, now)
                            && (self.service.may_open(&rows, &open.principal)?
                                || members::knows(&self.service, (&view, &rows), &open.principal)?);
                        Ok(if welcome {
                            Standing::New
                        } else {
                            Standing::Stranger
                        })
                    }
                    Some(Known::Open(id, row)) => settled(answer_open(digest, id, &row)),
                    Some(Known::Ended) => {
                        let outcome = Outcome::SessionClosed;
                        settled(session_answer(SessionId(0), digest, Sequence(0), outcome))
                    }
                }
            }
            Message::CloseSession(close) => match session::find(&view, close.session)? {
                None => {
                    let outcome = Outcome::NoSession;
                    settled(session_answer(close.session, digest, Sequence(0), outcome))
                }
                Some(_) => Ok(Standing::New),
            },
            _ => Ok(Standing::New),
        }
    }
}

/// A batch that is being executed.
pub(super) struct Run<'a, S, D> {
    pub(super) service: &'a S,
    pub(super) watches: watch::Index,
    idle: Nanos,
    cache: &'a SessionCache,
    pub(super) space: &'a mut KeySpace<D>,
    pub(super) clock: ClockRow,
    pub(super) context: Context,
    pub(super) done: Executed,
}

impl<S: Service, D: Store> Run<'_, S, D> {
    fn forget(&mut self) -> Result<(), StateError> {
        let mut txn = self.space.begin(Area::Library, self.context.sequence);
        replay::forget_old(&mut txn, &mut self.clock)?;
        let sequence = self.context.sequence;
        self.done.forgotten = closed_sessions::forget(&mut txn, &mut self.clock, sequence)?;
        txn.commit();
        Ok(())
    }

    const fn idle_at(&self) -> (Time, Nanos) {
        (self.context.lease_clock, self.idle)
    }

    fn close_idle(&mut self) -> Result<(), StateError> {
        let view = self.space.view(Area::Library);
        let idle = session::idle(&view, self.idle_at(), SESSIONS_CLOSED_PER_BATCH)?;
        for (id, row) in idle {
            self.end_session(id, &row)?;
            self.done.expired += 1;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), StateError> {
        let deadline = self
            .service
            .next_deadline(&self.space.view(Area::Service))?;
        if deadline.is_some_and(|deadline| deadline <= self.context.time) {
            let mut txn = self.space.begin(Area::Service, self.context.sequence);
            self.service.tick(&mut txn, &self.context)?;
            txn.commit();
            self.done.ticked = true;
        }
        Ok(())
    }

    fn end_session(&mut self, id: SessionId, row: &SessionRow) -> Result<(), StateError> {
        let mut txn = self.space.begin(Area::Service, self.context.sequence);
        self.service
            .close_session(&mut txn, &self.context, &session::caller(id, row))?;
        txn.commit();
        let mut txn = self.space.begin(Area::Library, self.context.sequence);
        self.watches.session_ended(&mut txn, &mut self.clock, id)?;
        session::remove(&mut txn, &mut self.clock, id, row)?;
        closed_sessions::ended(&mut txn, &mut self.clock, self.context.sequence, id, row)?;
        txn.commit();
        self.cache.ended(id);
        self.done.closed.push(id);
        Ok(())
    }

    fn open(&mut self, open: &OpenSession, digest: Digest) -> Result<(), StateError> {
        let view = self.space.view(Area::Library);
        let version = self.context.sequence;
        let refuse = |outcome| session_answer(SessionId(0), digest, version, outcome);
        let reply = match session::find_by_key(&view, &open.principal, &open.session_key)? {
            Some(Known::Open(id, row)) => {
                self.done.duplicates += 1;
                answer_open(digest, id, &row)
            }
            Some(Known::Ended) => refuse(Outcome::SessionClosed),
            None if !replay::is_recent(open.time, self.context.time) => {
                let time = self.context.time;
                refuse(Outcome::SessionStale { time })
            }
            None => match self.open_new(open)? {
                Some((id, row)) => answer_open(digest, id, &row),
                None => refuse(Outcome::SessionRefused),
            },
        };
        self.done.replies.push(reply);
        Ok(())
    }

    fn open_new(
        &mut self,
        open: &OpenSession,
    ) -> Result<Option<(SessionId, SessionRow)>, StateError> {
        let id = SessionId(self.clock.last_session.0.saturating_add(1));
        let view = self.space.view(Area::Library);
        let holder = session::principal(&view, &open.principal)?;
        if holder.sessions as usize >= PRINCIPAL_SESSIONS_MAX
            && let Some((idle, row)) = session::gives_way(&view, &open.principal, self.idle_at())?
        {
            self.end_session(idle, &row)?;
            self.done.expired += 1;
        }
        let Some(credit) = self.authorize(open, id)? else {
            return Ok(None);
        };
        let row = SessionRow {
            principal: open.principal,
            key: open.session_key,
            credit,
            opened: self.context.sequence,
            active: self.context.lease_clock,
            signed: open.time,
        };
        let mut txn = self.space.begin(Area::Library, self.context.sequence);
        session::insert(&mut txn, &mut self.clock, id, &row)?;
        txn.commit();
        self.clock.last_session = id;
        self.done.ran += 1;
        self.done.opened.push(Opened {
            id,
            key: open.session_key,
            principal: open.principal,
            credit,
        });
        Ok(Some((id, row)))
    }

    fn authorize(
        &mut self,
        open: &OpenSession,
        id: SessionId,
    ) -> Result<Option<Credit>, StateError> {
        let holder = session::principal(&self.space.view(Area::Library), &open.principal)?;
        if !credit::has_room(&self.clock, &holder) {
            return Ok(None);
        }
        let views = (
            &self.space.view(Area::Library),
            &self.space.view(Area::Service),
        );
        let known = members::knows(self.service, views, &open.principal)?;
        let caller = crate::service::Caller {
            session: id,
            principal: open.principal,
        };
        let mut txn = self.space.begin(Area::Service, self.context.sequence);
        let wanted = self
            .service
            .open_session(&mut txn, &self.context, &caller)?;
        let wanted = match wanted {
            Some(wanted) => wanted,
            None if known => members::CREDIT,
            None => return Ok(None),
        };
        txn.commit();
        let granted = credit::grant(wanted, open.lanes, &self.clock, &holder);
        Ok(Some(granted))
    }

    fn close(&mut self, close: CloseSession, digest: Digest) -> Result<(), StateError> {
        let row = session::find(&self.space.view(Area::Library), close.session)?;
        let (version, outcome) = match row {
            None => (Sequence(0), Outcome::NoSession),
            Some(row) => {
                self.end_session(close.session, &row)?;
                self.done.ran += 1;
                (self.context.sequence, Outcome::SessionClosed)
            }
        };
        self.done
            .replies
            .push(session_answer(close.session, digest, version, outcome));
        Ok(())
    }

    fn request(
        &mut self,
        request: &Request,
        digest: Digest,
        executor: &Executor<S>,
    ) -> Result<(), StateError> {
        let view = self.space.view(Area::Library);
        let (row, place) = match executor.find(&view, request, &digest)? {
            Lookup::At(row, place) => (row, place),
            found => {
                let outcome = match found {
                    Lookup::NoSession => Outcome::NoSession,
                    _ => Outcome::Conflict,
                };
                let reply = answer(request, digest, Sequence(0), outcome);
                self.done.replies.push(reply);
                return Ok(());
            }
        };
        let (version, outcome) = match place {
            NumberStatus::Ahead | NumberStatus::FarAhead => {
                self.done.skipped.push(digest);
                return Ok(());
            }
            NumberStatus::Answered(version, outcome) if !executor.retries_run.is_set() => {
                self.done.duplicates += 1;
                (version, outcome)
            }
            NumberStatus::Conflict => (Sequence(0), Outcome::Conflict),
            NumberStatus::Superseded => (Sequence(0), Outcome::Superseded),
            NumberStatus::Next | NumberStatus::Answered(..) => {
                self.done.ran += 1;
                let results = self.run_operations(request, &row)?;
                let version = self.context.sequence;
                let mut active = row.active;
                if session::is_touched(self.idle_at(), &row) {
                    active = self.context.lease_clock;
                    let mut txn = self.space.begin(Area::Library, version);
                    session::touch(&mut txn, active, request.session, &row)?;
                    txn.commit();
                }
                let reply = reply_cache::row(request.number, &digest, version, &results);
                self.cache.note(request, (digest, version), reply, active);
                (version, Outcome::Results(results))
            }
        };
        self.done
            .replies
            .push(answer(request, digest, version, outcome));
        Ok(())
    }
}
