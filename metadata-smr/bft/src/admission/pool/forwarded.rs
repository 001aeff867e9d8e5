//! Requests that a leader accepts only because a peer has forwarded them.
//!
//! A client may send replicas different things: to the leader enough to use up its session's credit
//! (or another request under the same number), and to the others a request that is within its
//! credit there. They forward it and expect it to be ordered; a leader that refused it would be
//! replaced for what the client did. So a forwarded request without a place here gets a separate
//! one: one for each peer and session, and one of each peer for attempts to open a session. It
//! takes the session's own turn, so that no session is served more often because of it. Its result
//! is decided at execution, as for every request. A forwarding peer expects no more than that: one
//! request of a session at a time ([`crate::ordering::suspicion`]).
//!
//! Forwarded requests have a byte limit for each peer; a correct peer stays below half of it. They
//! are cleared with each view change: followers forward again, and only a leader has use for them.

use super::session_queue::{ForwardedRequest, forwarded_request};
use super::{Offer, Pool, PoolKey, pool_key};
use crate::identity::{Digest, Monotonic, ReplicaId};
use crate::wire::Envelope;
use crate::wire::limits::FORWARDED_BYTES_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The forwarded requests of each peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Forwarded {
    bytes: BTreeMap<ReplicaId, usize>,
    /// Attempts to open a session, and whether they have been proposed.
    openings: BTreeMap<ReplicaId, (Digest, bool)>,
}

impl Forwarded {
    /// Accounts for the removal of a request that this peer forwarded.
    pub(super) fn taken(&mut self, peer: ReplicaId, digest: &Digest, length: usize) {
        if let Some(bytes) = self.bytes.get_mut(&peer) {
            *bytes = bytes.saturating_sub(length);
        }
        let opening = self.openings.get(&peer);
        if opening.is_some_and(|(known, _)| known == digest) {
            self.openings.remove(&peer);
        }
    }

    /// Marks an attempt as proposed.
    pub(super) fn mark_proposed(&mut self, digest: &Digest) {
        let openings = self.openings.values_mut();
        for (_, proposed) in openings.filter(|(known, _)| known == digest) {
            *proposed = true;
        }
    }

    /// Allows proposed attempts to be chosen again.
    pub(super) fn release_proposed(&mut self) {
        self.openings.values_mut().for_each(|it| it.1 = false);
    }

    /// Attempts that may be proposed.
    pub(super) fn openings(&self) -> impl Iterator<Item = Digest> {
        let ready = self.openings.values().filter(|(_, proposed)| !proposed);
        ready.map(|(digest, _)| *digest)
    }
}

impl Pool {
    /// Accepts a request that a peer has forwarded to this replica, which leads and had no place
    /// for it.
    pub fn offer_forwarded(
        &mut self,
        body: &Arc<Envelope>,
        peer: ReplicaId,
        now: Monotonic,
    ) -> Offer {
        let (digest, length) = (body.digest(), body.frame().len());
        if self.queue.handle(&digest).is_some() {
            return Offer::Known;
        }
        let held = self.forwarded.bytes.get(&peer).copied().unwrap_or(0);
        if held.saturating_add(length) > FORWARDED_BYTES_MAX {
            return Offer::Busy;
        }
        let before = match pool_key(body) {
            Some(PoolKey::Lane(id, lane, number)) => {
                let Some(queue) = self.sessions.get_mut(&id) else {
                    return Offer::NoSession;
                };
                if lane.0 >= queue.credit.lanes {
                    return Offer::NoSession;
                }
                let before = queue
                    .forwarded
                    .insert(peer, forwarded_request(lane, number, digest));
                self.give_place(id);
                before.map(|it: ForwardedRequest| it.digest)
            }
            Some(PoolKey::Open(_)) => {
                let before = self.forwarded.openings.insert(peer, (digest, false));
                before.map(|(digest, _)| digest)
            }
            Some(PoolKey::Close(_)) | None => return Offer::Busy,
        };
        if let Some(before) = before.and_then(|digest| self.get(&digest).cloned()) {
            self.remove_forwarded(&before);
        }
        *self.forwarded.bytes.entry(peer).or_default() += length;
        self.queue.push(body, now, true, false, Some(peer));
        Offer::New
    }

    /// Drops the forwarded requests, since the view that they were forwarded in has ended.
    pub fn clear_forwarded(&mut self) {
        let forwarded = self.queue.all().filter(|it| it.forwarded_by.is_some());
        let gone: Vec<Arc<Envelope>> = forwarded.map(|it| Arc::clone(&it.body)).collect();
        for body in gone {
            self.remove_forwarded(&body);
        }
    }

    /// Removes a forwarded request, if it is one. If its client has sent it too meanwhile and it
    /// got a place of its own, it stays pending there.
    pub(super) fn remove_forwarded(&mut self, body: &Envelope) {
        let digest = body.digest();
        let Some(handle) = self.queue.handle(&digest) else {
            return;
        };
        let Some(peer) = self.queue.remove_forwarded(handle) else {
            return;
        };
        self.forwarded.taken(peer, &digest, body.frame().len());
        let stays = match pool_key(body) {
            Some(PoolKey::Lane(id, lane, number)) => {
                let session = self.sessions.get_mut(&id);
                let stays = session.is_some_and(|session| {
                    session.forwarded.retain(|_, it| it.digest != digest);
                    session.get(lane, number) == Some(handle)
                });
                self.give_place(id);
                stays
            }
            Some(PoolKey::Open(name)) => self.openings.digest(&name) == Some(digest),
            Some(PoolKey::Close(_)) | None => false,
        };
        if !stays {
            self.take_at(handle);
        }
    }
}
