//! A cache of the rows that every request needs: its session, and the last requests of its lane.
//!
//! A request is looked up when it arrives and again when it is executed. Both times four rows
//! determine its standing, and these are always the same rows of the same few sessions: they are
//! cached here in decoded form. The rows are authoritative; the cache is read from them and changed
//! with them. A state transfer changes rows without this cache, so the cache is cleared then.
//!
//! The reply to a request becomes a row of its own, which the lane's next request but one
//! overwrites. So the row is *outstanding*: it is held here and is written when the state as a
//! whole is needed, usually for a checkpoint ([`SessionCache::write`]). Of the many requests of a
//! lane between two checkpoints only two are written. Nothing else reads these rows, and each is
//! written with the sequence at which it ran, so the state is the same as if it had been written at
//! once.
//!
//! Memory: open sessions only, with as many lanes each as their credit has; and two outstanding
//! replies for each lane, as many as would wait in the key space to be settled.

use super::reply_cache::{NumberStatus, ahead};
use super::rows::{ReplyHead, ReplyRow, SessionRow, decode, decode_head, reply_key};
use super::session;
use crate::identity::{Digest, Lane, RequestNumber, Sequence, SessionId, Time};
use crate::state::{Area, KeySpace, StateError, Store, View};
use crate::wire::message::Request;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A request of a lane that ran, and its outstanding reply row with the sequence of the batch.
#[derive(Clone, Debug)]
pub(super) struct ExecutedRequest {
    pub(super) head: ReplyHead,
    pub(super) outstanding_row: Option<(Sequence, Bytes)>,
}

/// The last two requests of a lane that ran, each at the parity of its number.
pub(super) type LaneRequests = [Option<ExecutedRequest>; 2];

/// A request's slot: the parity of its number.
pub(super) const fn slot(number: RequestNumber) -> u8 {
    if number.0 % 2 == 1 { 1 } else { 0 }
}

/// Reads the same from the rows.
fn read(view: &View<'_>, id: SessionId, lane: Lane) -> Result<LaneRequests, StateError> {
    let mut requests = LaneRequests::default();
    for (place, slot) in requests.iter_mut().zip(0..) {
        let key = reply_key(id, lane, slot);
        if let Some(row) = view.get(&key)? {
            let head = decode_head(&key, &row)?;
            *place = Some(ExecutedRequest {
                head,
                outstanding_row: None,
            });
        }
    }
    Ok(requests)
}

#[derive(Debug)]
struct CachedSession {
    row: SessionRow,
    lanes: Vec<Option<LaneRequests>>,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: BTreeMap<SessionId, CachedSession>,
    /// Lanes that may have an outstanding reply.
    outstanding: Vec<(SessionId, Lane)>,
}

/// The result of looking up a request.
#[derive(Debug)]
pub(super) enum Lookup {
    /// Its session is not open.
    NoSession,
    /// Its session has no such lane.
    NoLane,
    /// It is in this session, with this standing in its lane.
    At(SessionRow, NumberStatus),
}

/// Sessions and lanes that were looked up.
#[derive(Debug, Default)]
pub(super) struct SessionCache {
    inner: RefCell<Inner>,
}

impl Inner {
    /// The session, read from its row if it is not cached.
    fn session(
        &mut self,
        view: &View<'_>,
        id: SessionId,
    ) -> Result<Option<&mut CachedSession>, StateError> {
        use std::collections::btree_map::Entry;
        match self.sessions.entry(id) {
            Entry::Occupied(known) => Ok(Some(known.into_mut())),
            Entry::Vacant(unknown) => {
                let Some(row) = session::find(view, id)? else {
                    return Ok(None);
                };
                let lanes = vec![None; usize::from(row.credit.lanes)];
                Ok(Some(unknown.insert(CachedSession { row, lanes })))
            }
        }
    }
}

impl SessionCache {
    /// The open session with this number.
    pub(super) fn session(
        &self,
        view: &View<'_>,
        id: SessionId,
    ) -> Result<Option<SessionRow>, StateError> {
        let mut inner = self.inner.borrow_mut();
        Ok(inner.session(view, id)?.map(|cached| cached.row))
    }

    /// The standing of a request with this digest.
    pub(super) fn find(
        &self,
        view: &View<'_>,
        request: &Request,
        digest: &Digest,
    ) -> Result<Lookup, StateError> {
        let (id, lane) = (request.session, request.lane);
        let mut inner = self.inner.borrow_mut();
        let Some(cached) = inner.session(view, id)? else {
            return Ok(Lookup::NoSession);
        };
        let row = cached.row;
        let Some(requests) = cached.lanes.get_mut(usize::from(lane.0)) else {
            return Ok(Lookup::NoLane);
        };
        let requests = match requests {
            Some(requests) => requests,
            None => requests.insert(read(view, id, lane)?),
        };
        let last = requests.iter().flatten().map(|ran| ran.head.number.0).max();
        if let Some(place) = ahead(request.number, RequestNumber(last.unwrap_or(0))) {
            return Ok(Lookup::At(row, place));
        }
        let ran = requests.iter().flatten();
        let place = match ran
            .into_iter()
            .find(|ran| ran.head.number == request.number)
        {
            None => NumberStatus::Superseded,
            Some(ran) if ran.head.request != *digest => NumberStatus::Conflict,
            Some(ran) => {
                let key = reply_key(id, lane, slot(request.number));
                let row = match &ran.outstanding_row {
                    Some((_, outstanding_row)) => Some(outstanding_row.clone()),
                    None => view.get(&key)?,
                };
                match row {
                    Some(row) => {
                        let row: ReplyRow = decode(&key, &row)?;
                        NumberStatus::Answered(row.version, row.outcome())
                    }
                    None => NumberStatus::Superseded,
                }
            }
        };
        Ok(Lookup::At(row, place))
    }

    /// Notes that this request has run in the batch at `sequence`, that `row` is to be written for
    /// it, and that its session was last `active` then.
    pub(super) fn note(
        &self,
        request: &Request,
        (digest, sequence): (Digest, Sequence),
        row: Bytes,
        active: Time,
    ) {
        let mut inner = self.inner.borrow_mut();
        let Inner {
            sessions,
            outstanding,
        } = &mut *inner;
        let Some(cached) = sessions.get_mut(&request.session) else {
            return;
        };
        cached.row.active = active;
        let requests = cached.lanes.get_mut(usize::from(request.lane.0));
        let Some(requests) = requests.and_then(Option::as_mut) else {
            return;
        };
        let listed = requests
            .iter()
            .flatten()
            .any(|ran| ran.outstanding_row.is_some());
        if let Some(place) = requests.get_mut(usize::from(slot(request.number))) {
            let head = ReplyHead {
                number: request.number,
                request: digest,
            };
            let outstanding_row = Some((sequence, row));
            *place = Some(ExecutedRequest {
                head,
                outstanding_row,
            });
        }
        if !listed {
            outstanding.push((request.session, request.lane));
        }
    }

    /// Writes the outstanding rows.
    pub(super) fn write<D: Store>(&self, space: &mut KeySpace<D>) -> Result<(), StateError> {
        let mut inner = self.inner.borrow_mut();
        let Inner {
            sessions,
            outstanding,
        } = &mut *inner;
        for (id, lane) in outstanding.drain(..) {
            let cached = sessions.get_mut(&id).map(|cached| &mut cached.lanes);
            let requests = cached.and_then(|lanes| lanes.get_mut(usize::from(lane.0)));
            for ran in requests
                .and_then(Option::as_mut)
                .into_iter()
                .flatten()
                .flatten()
            {
                if let Some((sequence, row)) = ran.outstanding_row.take() {
                    let mut txn = space.begin(Area::Library, sequence);
                    txn.put(&reply_key(id, lane, slot(ran.head.number)), row)?;
                    txn.commit();
                }
            }
        }
        Ok(())
    }

    /// Drops a session that has ended; its outstanding rows need not be written.
    pub(super) fn ended(&self, id: SessionId) {
        self.inner.borrow_mut().sessions.remove(&id);
    }

    /// Clears the cache, since the rows were replaced.
    pub(super) fn forget(&self) {
        self.inner.replace(Inner::default());
    }
}
