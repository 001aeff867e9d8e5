//! Requests in, replies out.
//!
//! The driver has verified the signature. Checked here, cheapest first: whether the request was
//! executed (the cached reply is sent), whether it fits into its session's credit and this
//! replica's capacity (else BUSY), whether it is here already.

use super::Replica;
use super::listeners::Listeners;
use crate::admission::Offer;
use crate::execution::Standing;
use crate::identity::{ConnectionId, Sequence};
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effects, Peer};
use crate::wire::Envelope;
use crate::wire::message::{Message, Outcome, Reply, StatusAnswer, StatusQuery, StrayRequest};
use std::sync::Arc;

impl<S: Service, D: Store> Replica<S, D> {
    /// A client's request, from itself or forwarded by a peer. Whether an open batch waited for it.
    pub(super) fn request(
        &mut self,
        from: Peer,
        body: &Arc<Envelope>,
        effects: &mut Effects,
    ) -> Result<bool, StateError> {
        if self.states.finding.is_some() {
            // Its answers may be wrong, and waiting requests are forgotten with its state.
            return Ok(false);
        }
        let connection = match from {
            Peer::Client(connection) => Some(connection),
            Peer::Replica(_) => None,
        };
        let offer = match self.executor.standing(&self.space, body, self.now.clock)? {
            Standing::Settled(reply) => {
                let Some(connection) = connection else {
                    return Ok(false);
                };
                self.pool.add_connection(&reply, connection);
                if matches!(reply.outcome, Outcome::NoSession) {
                    self.counters.no_session += 1;
                } else {
                    self.counters.replies_resent += 1;
                    self.help_laggards(effects)?;
                }
                self.answer(Listeners::of(&[connection]), reply, effects);
                return Ok(false);
            }
            Standing::FarAhead => Offer::Busy,
            Standing::New => self.pool.offer(body, connection, self.now.monotonic),
            Standing::Stranger => self
                .pool
                .offer_stranger(body, connection, self.now.monotonic),
        };
        let offer = match (offer, from) {
            (Offer::Busy | Offer::Conflict, Peer::Replica(peer)) if self.leads() => {
                self.pool.offer_forwarded(body, peer, self.now.monotonic)
            }
            (offer, _) => offer,
        };
        // Whether it may wait here or not, and whatever waits instead: a proposal may name it.
        let wanted = self.window.offer(body);
        if offer == Offer::New && self.leads() && self.window.asks_elsewhere_for(body.digest_ref())
        {
            self.pool.mark_proposed(body.digest_ref());
        }
        if let (Offer::Busy, Some(connection)) = (offer, connection) {
            self.counters.busy += 1;
            let reply = refusal(body, Outcome::Busy);
            self.answer(Listeners::of(&[connection]), reply, effects);
        }
        Ok(wanted)
    }

    /// A request of a session whose key the driver does not have. Session numbers are given out by
    /// order and never reused, so one that was given out and is not open has ended; any other may
    /// just not have got here yet.
    pub(super) fn stray(
        &mut self,
        connection: ConnectionId,
        stray: &StrayRequest,
        envelope: &Envelope,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        if self.states.finding.is_some() {
            return Ok(());
        }
        let last = self.executor.applied(&self.space)?.last_session;
        if stray.session <= last && !self.pool.is_open(stray.session) {
            self.counters.no_session += 1;
            let reply = Reply {
                session: stray.session,
                lane: stray.lane,
                number: stray.number,
                request: envelope.digest(),
                version: Sequence(0),
                outcome: Outcome::NoSession,
            };
            self.answer(Listeners::of(&[connection]), reply, effects);
        }
        Ok(())
    }

    /// An operator asks for this replica's status.
    pub(super) fn status_query(
        &self,
        connection: ConnectionId,
        query: StatusQuery,
        effects: &mut Effects,
    ) {
        let answer = StatusAnswer {
            nonce: query.nonce,
            status: self.status(),
        };
        let to = Destination::Client(connection);
        self.send_unsigned(to, Message::StatusAnswer(Box::new(answer)), effects);
    }
}

fn refusal(body: &Envelope, outcome: Outcome) -> Reply {
    let (session, lane, number) = match body.message() {
        Message::Request(request) => (request.session, request.lane, request.number),
        Message::CloseSession(close) => (close.session, Default::default(), Default::default()),
        _ => Default::default(),
    };
    let (request, version) = (body.digest(), Sequence(0));
    Reply {
        session,
        lane,
        number,
        request,
        version,
        outcome,
    }
}
