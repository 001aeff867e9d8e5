//! What is asked of every request, kept in memory: whose session it is of, and which requests of
//! its lane ran last.
//!
//! A request is looked up when it comes and again when it is executed. Both times four rows tell
//! where it stands, and these are always the same rows of the same few sessions: they are kept here
//! in the form in which they are used. The rows count; what is here is read from them and changed
//! with them. A state that is taken over from others changes rows without this, so everything is
//! forgotten then.
//!
//! Memory: open sessions only, and of each as many lanes as its credit has.

use super::reply_cache::{LaneReplies, Place, ahead};
use super::rows::{ReplyHead, SessionRow};
use super::session;
use crate::identity::{Digest, Lane, RequestNumber, SessionId, Time};
use crate::state::{StateError, View};
use crate::wire::message::Request;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The last two requests of a lane that ran, a request's place by the parity of its number.
pub(super) type LaneHeads = [Option<ReplyHead>; 2];

fn slot(number: RequestNumber) -> usize {
    usize::from(number.0 % 2 == 1)
}

#[derive(Debug)]
struct Kept {
    row: SessionRow,
    lanes: Vec<Option<LaneHeads>>,
}

/// Sessions and lanes that were asked about.
#[derive(Debug, Default)]
pub(super) struct Heads {
    kept: RefCell<BTreeMap<SessionId, Kept>>,
}

impl Heads {
    /// The open session with this number.
    pub(super) fn session(
        &self,
        view: &View<'_>,
        id: SessionId,
    ) -> Result<Option<SessionRow>, StateError> {
        if let Some(kept) = self.kept.borrow().get(&id) {
            return Ok(Some(kept.row));
        }
        let found = session::find(view, id)?;
        if let Some(row) = found {
            let lanes = vec![None; usize::from(row.credit.lanes)];
            self.kept.borrow_mut().insert(id, Kept { row, lanes });
        }
        Ok(found)
    }

    /// Where a request with this digest stands. Its session was asked for just before.
    pub(super) fn place(
        &self,
        view: &View<'_>,
        request: &Request,
        digest: &Digest,
    ) -> Result<Place, StateError> {
        let (id, lane) = (request.session, request.lane);
        let known = self.lane(id, lane);
        let heads = match known {
            Some(heads) => heads,
            None => {
                let read = LaneReplies::read(view, id, lane)?.heads();
                self.change(id, lane, |heads| *heads = Some(read));
                read
            }
        };
        let last = heads.iter().flatten().map(|head| head.number.0).max();
        match ahead(request.number, RequestNumber(last.unwrap_or(0))) {
            Some(place) => Ok(place),
            // It needs the whole row.
            None => LaneReplies::read(view, id, lane)?.place(request.number, digest),
        }
    }

    fn lane(&self, id: SessionId, lane: Lane) -> Option<LaneHeads> {
        let kept = self.kept.borrow();
        kept.get(&id)?.lanes.get(usize::from(lane.0)).copied()?
    }

    fn change(&self, id: SessionId, lane: Lane, change: impl FnOnce(&mut Option<LaneHeads>)) {
        let mut kept = self.kept.borrow_mut();
        let lanes = kept.get_mut(&id).map(|kept| &mut kept.lanes);
        if let Some(heads) = lanes.and_then(|lanes| lanes.get_mut(usize::from(lane.0))) {
            change(heads);
        }
    }

    /// This request has run and its rows are written; its session was last `active` then.
    pub(super) fn ran(&self, request: &Request, digest: Digest, active: Time) {
        let head = ReplyHead {
            number: request.number,
            request: digest,
        };
        self.change(request.session, request.lane, |heads| {
            if let Some(place) = heads.as_mut().and_then(|it| it.get_mut(slot(head.number))) {
                *place = Some(head);
            }
        });
        if let Some(kept) = self.kept.borrow_mut().get_mut(&request.session) {
            kept.row.active = active;
        }
    }

    /// A session has ended.
    pub(super) fn ended(&self, id: SessionId) {
        self.kept.borrow_mut().remove(&id);
    }

    /// The rows are others now.
    pub(super) fn forget(&self) {
        self.kept.borrow_mut().clear();
    }
}
