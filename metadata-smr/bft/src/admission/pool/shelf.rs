//! What a leader takes in only because a peer has forwarded it.
//!
//! A client may tell replicas different things: to the leader enough to use up its session's credit
//! (or another request under the same number), and to the others something else, within its credit
//! there. They forward it and expect it to be ordered; a leader that turned it away would be
//! replaced for what the client did. So what is forwarded and has no place here gets one on a
//! *shelf*: one for each peer and session, and one of each peer for attempts to open a session. It
//! takes the session's own turn, so that nobody is served more often for it, and what it comes to
//! is decided at execution, like everything else. Whoever forwards expects no more than that: of a
//! session, one request at a time ([`crate::ordering::suspicion`]).
//!
//! A shelf holds so many bytes for each peer; a correct one stays below half of that. It is cleared
//! with each change of view: followers forward anew, and only a leader has use for it.

use super::session_queue::{Shelved, shelved_of};
use super::{Offer, Place, Pool, place_of};
use crate::identity::{Digest, Monotonic, ReplicaId};
use crate::wire::Envelope;
use crate::wire::limits::FORWARDED_BYTES_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What each peer has on the shelf.
#[derive(Clone, Debug, Default)]
pub(super) struct Shelf {
    bytes: BTreeMap<ReplicaId, usize>,
    /// Attempts to open a session, and whether they have been proposed.
    openings: BTreeMap<ReplicaId, (Digest, bool)>,
}

impl Shelf {
    /// Something of this peer's is gone.
    pub(super) fn taken(&mut self, peer: ReplicaId, digest: &Digest, length: usize) {
        if let Some(bytes) = self.bytes.get_mut(&peer) {
            *bytes = bytes.saturating_sub(length);
        }
        let opening = self.openings.get(&peer);
        if opening.is_some_and(|(known, _)| known == digest) {
            self.openings.remove(&peer);
        }
    }

    /// An attempt has been proposed.
    pub(super) fn fly(&mut self, digest: &Digest) {
        let openings = self.openings.values_mut();
        for (_, flies) in openings.filter(|(known, _)| known == digest) {
            *flies = true;
        }
    }

    /// What was proposed may be chosen again.
    pub(super) fn land(&mut self) {
        self.openings.values_mut().for_each(|it| it.1 = false);
    }

    /// Attempts that may be proposed.
    pub(super) fn openings(&self) -> impl Iterator<Item = Digest> {
        let ready = self.openings.values().filter(|(_, flies)| !flies);
        ready.map(|(digest, _)| *digest)
    }
}

impl Pool {
    /// Takes in what a peer has forwarded to this replica, which leads and had no place for it.
    pub fn shelve(&mut self, body: &Arc<Envelope>, peer: ReplicaId, now: Monotonic) -> Offer {
        let (digest, length) = (body.digest(), body.frame().len());
        if self.queue.handle(&digest).is_some() {
            return Offer::Known;
        }
        let held = self.shelf.bytes.get(&peer).copied().unwrap_or(0);
        if held.saturating_add(length) > FORWARDED_BYTES_MAX {
            return Offer::Busy;
        }
        let before = match place_of(body) {
            Some(Place::Lane(id, lane, number)) => {
                let Some(queue) = self.sessions.get_mut(&id) else {
                    return Offer::NoSession;
                };
                if lane.0 >= queue.credit.lanes {
                    return Offer::NoSession;
                }
                let before = queue.shelf.insert(peer, shelved_of(lane, number, digest));
                self.give_place(id);
                before.map(|it: Shelved| it.digest)
            }
            Some(Place::Open(_)) => {
                let before = self.shelf.openings.insert(peer, (digest, false));
                before.map(|(digest, _)| digest)
            }
            Some(Place::Close(_)) | None => return Offer::Busy,
        };
        if let Some(before) = before.and_then(|digest| self.get(&digest).cloned()) {
            self.unshelve(&before);
        }
        *self.shelf.bytes.entry(peer).or_default() += length;
        self.queue.push(body, now, true, false, Some(peer));
        Offer::New
    }

    /// The view is over, and what its leader had been given with it.
    pub fn clear_shelf(&mut self) {
        let shelved = self.queue.all().filter(|it| it.shelved.is_some());
        let gone: Vec<Arc<Envelope>> = shelved.map(|it| Arc::clone(&it.body)).collect();
        for body in gone {
            self.unshelve(&body);
        }
    }

    /// Takes something off the shelf, if it is there. If it has come from its client as well
    /// meanwhile, and found room, it goes on waiting there.
    pub(super) fn unshelve(&mut self, body: &Envelope) {
        let digest = body.digest();
        let Some(handle) = self.queue.handle(&digest) else {
            return;
        };
        let Some(peer) = self.queue.unshelve(handle) else {
            return;
        };
        self.shelf.taken(peer, &digest, body.frame().len());
        let stays = match place_of(body) {
            Some(Place::Lane(id, lane, number)) => {
                let session = self.sessions.get_mut(&id);
                let stays = session.is_some_and(|session| {
                    session.shelf.retain(|_, it| it.digest != digest);
                    session.get(lane, number) == Some(handle)
                });
                self.give_place(id);
                stays
            }
            Some(Place::Open(name)) => self.openings.digest(&name) == Some(digest),
            Some(Place::Close(_)) | None => false,
        };
        if !stays {
            self.take_at(handle);
        }
    }
}
