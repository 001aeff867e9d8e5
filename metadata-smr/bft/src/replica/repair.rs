//! STATUS, resending and fetching: the repair of all lost messages.
//!
//! * A peer reports its state. It is sent again what it lacks of our messages, rate-limited, and of
//!   its own too (`rollback`).
//! * Answers to a peer's requests are rate-limited; asking more often brings nothing.
//! * A replica that is behind asks one peer for committed batches, and the next one if none come.
//! * A replica that lacks a body of a proposal asks its leader, then the others in turn.
//! * The next one is asked once the answer of the one before is late. How long answers take is
//!   learnt, for each peer: over long ways several would send the same bytes otherwise.
//! * When a client asks again for an executed request, peers whose last STATUS was behind are sent
//!   the batch after their last one, with its certificate: the client may be waiting for them.

use super::Replica;
use super::commit::stored_batch;
use crate::identity::{Digest, Nanos, ReplicaId, Sequence, View};
use crate::ordering::slot::{Slot, Stage};
use crate::ordering::status::Inquiry;
use crate::ordering::vote::bit;
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effect, Effects, Token};
use crate::wire::Envelope;
use crate::wire::limits::{
    BATCH_REQUESTS_MAX, FETCH_BATCHES_MAX, FETCH_BYTES_MAX, FETCH_HEDGE, FETCH_UNKNOWN,
    FETCH_WAIT_MAX, REQUEST_BYTES_MAX, SERVE_BODY_BYTES_MIN, TRANSFER_PATIENCE,
};
use crate::wire::message::{
    Bodies, Committed, FetchBodies, FetchCommitted, Message, OpenStatus, PeerStatus,
};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often the wait for committed batches is doubled while no one gives any.
const FETCH_DOUBLINGS_MAX: u16 = 3;

/// The state of an open sequence in this view.
fn open_status(slot: &Slot, view: View) -> OpenStatus {
    let received = slot.received.as_ref().map(|received| &received.proposal);
    let proposal = slot.proposal.as_ref().or(received).map(|it| it.digest());
    let digest = proposal.unwrap_or_default();
    OpenStatus {
        proposal,
        prepares: slot.prepares.mask(view, &digest),
        commits: slot.commits.mask(view, &digest),
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// Sends this replica's state to one peer, or to all.
    pub(super) fn send_status(&self, peer: Option<ReplicaId>, effects: &mut Effects) {
        if self.sabotaged(Sabotage::MissingStatus) {
            return;
        }
        let view = self.views.view;
        let slots = self.window.iter();
        let mut open: Vec<OpenStatus> = slots.map(|slot| open_status(slot, view)).collect();
        while open.pop_if(|last| *last == OpenStatus::default()).is_some() {}
        let status = PeerStatus {
            active: self.views.active(),
            committed: self.last_executed.sequence,
            open,
            view_changes: self.views.departures.changed(view),
            suspects: self.views.departures.leavers(view),
            stable: self.states.known.stable_sequence(),
            kept: self.states.kept,
        };
        let to = peer.map_or(Destination::Replicas, Destination::Replica);
        self.send_unsigned(to, Message::Status(status), effects);
    }

    /// A peer reports its state.
    pub(super) fn peer_status(
        &mut self,
        peer: ReplicaId,
        view: View,
        status: &PeerStatus,
        effects: &mut Effects,
    ) {
        let now = self.now.monotonic;
        let Some(record) = self.peers.get_mut(usize::from(peer.0)) else {
            return;
        };
        record.known = Some((view, status.clone()));
        record.heard = now;
        self.check_statuses_for_rollback(effects);
        let Some(record) = self.peers.get_mut(usize::from(peer.0)) else {
            return;
        };
        if peer == self.config.replica || !record.may_resend(now) {
            return;
        }
        if status.committed > self.last_executed.sequence {
            self.behind(peer, status.committed);
        }
        self.resend_checkpoints(peer, status.stable, effects);
        self.resend(peer, view, status, effects);
        let messages = self.own_messages_of(peer, view, status);
        self.counters.messages_returned += messages.len() as u64;
        for envelope in messages {
            self.send(Destination::Replica(peer), &envelope, None, effects);
        }
    }

    /// Sends a peer the messages of this replica that it lacks.
    fn resend(&mut self, peer: ReplicaId, view: View, status: &PeerStatus, effects: &mut Effects) {
        let me = bit(self.config.replica);
        let views = &self.views;
        let mut lacking: Vec<(Arc<Envelope>, Option<Token>)> = Vec::new();
        if view > views.view {
            return;
        }
        if views.active() {
            let needs_view = view < views.view || !status.active;
            if let Some(new_view) = views.new_view.as_ref().filter(|_| needs_view) {
                lacking.push((Arc::clone(new_view), None));
            }
        } else if let Some(own) = &views.own_change
            && (view < views.view || status.view_changes & me == 0)
        {
            lacking.push((Arc::clone(&own.message), Some(own.token)));
        }
        if let Some(own) = &views.own_suspect
            && (view < views.view || status.suspects & me == 0)
        {
            lacking.push((Arc::clone(own), None));
        }
        if views.active() && view == views.view && status.active {
            let first = status.committed.next();
            let slots = self.window.voting().filter(|it| it.sequence >= first);
            for slot in slots {
                let step = usize::try_from(slot.sequence.0 - first.0);
                let theirs = step.ok().and_then(|step| status.open.get(step));
                let theirs = theirs.copied().unwrap_or_default();
                let same = slot.proposal.as_ref().map(|it| it.digest()) == theirs.proposal;
                let unseen = slot.proposal.as_ref().filter(|_| theirs.proposal.is_none());
                if let Some(proposal) = unseen {
                    lacking.push((Arc::clone(proposal), None));
                }
                for (own, mask) in [
                    (&slot.own_prepare, theirs.prepares),
                    (&slot.own_commit, theirs.commits),
                ] {
                    if let Some(own) = own.as_ref().filter(|_| !same || mask & me == 0) {
                        lacking.push((Arc::clone(&own.message), Some(own.token)));
                    }
                }
            }
        }
        if views.active() && view == views.view && status.active {
            self.echoes(status, &mut lacking);
        }
        self.counters.resends += lacking.len() as u64;
        for (envelope, token) in lacking {
            self.send(Destination::Replica(peer), &envelope, token, effects);
        }
    }

    /// Committed batches exist up to `sequence`; `peer` seems to have them.
    pub(super) fn behind(&mut self, peer: ReplicaId, sequence: Sequence) {
        if sequence > self.last_executed.sequence && sequence > self.inquiry.target {
            self.inquiry.target = sequence;
            if self.inquiry.asked_from.is_none() {
                self.inquiry.asked = peer;
            }
        }
    }

    /// The signer of a COMMIT, if q COMMITs decided a batch that is not here.
    fn decided_unseen(&self) -> Option<ReplicaId> {
        let slot = self.window.lowest();
        let (_, digest, votes) = slot.commits.decided(self.context.quorum.into())?;
        let signer = votes.first().filter(|_| slot.batch(&digest).is_none())?;
        Some(signer.signer)
    }

    /// Asks for what is missing, if no answer is awaited.
    pub(super) fn advance_inquiries(&mut self, effects: &mut Effects) {
        if self.sink.is_some() {
            return;
        }
        if self.inquiry.target <= self.last_executed.sequence {
            self.inquiry.asked_from = None;
            if let Some(signer) = self.decided_unseen() {
                self.behind(signer, self.window.open());
            }
        }
        if self.wants_batches() {
            let next = self.last_executed.sequence.next();
            let exhausted = self
                .inquiry
                .asked_from
                .is_none_or(|from| next.0 >= from.0.saturating_add(FETCH_BATCHES_MAX as u64));
            if exhausted {
                self.ask_for_batches(effects);
            }
        }
        let wanting = self.wanting_bodies().map(|slot| slot.sequence).max();
        if wanting > self.inquiry.bodies_of {
            self.inquiry.bodies_asked = self.leader();
            self.inquiry.bodies_of = wanting;
            for record in &mut self.peers {
                record.asked_bodies = None;
            }
            self.ask_for_bodies(effects);
        }
        if wanting.is_none() {
            self.inquiry.bodies_of = None;
        }
    }

    fn wants_batches(&self) -> bool {
        self.inquiry.target > self.last_executed.sequence
    }

    /// The open sequences with missing bodies, of their proposal or of a batch to propose again.
    fn wanting_bodies(&self) -> impl Iterator<Item = &Slot> {
        let waits = |stage: Stage| matches!(stage, Stage::Bodies | Stage::Empty | Stage::Watching);
        let slots = self.window.voting();
        slots.filter(move |slot| waits(slot.stage) && !slot.missing.is_empty())
    }

    /// The replicas that voted for a proposal of this view that this replica has not seen.
    fn voters_of_unseen(&self) -> u64 {
        if !self.views.active() {
            return 0;
        }
        let view = self.views.view;
        let unseen = self.window.voting();
        let unseen = unseen.filter(|slot| slot.proposal.is_none() && slot.received.is_none());
        unseen.fold(0, |mask, slot| {
            mask | slot.prepares.voters(view) | slot.commits.voters(view)
        })
    }

    /// Whether anything is being asked for.
    pub(super) fn inquiring(&self) -> bool {
        self.sink.is_some()
            || self.wants_batches()
            || self.wants_bodies()
            || self.voters_of_unseen() != 0
    }

    fn wants_bodies(&self) -> bool {
        self.wanting_bodies().next().is_some()
    }

    /// Whether the lowest open sequence waits for a body.
    pub(super) fn waits_for_body(&self) -> bool {
        let lowest = self.wanting_bodies().next();
        lowest.is_some_and(|slot| slot.sequence == self.window.open())
    }

    /// The answer has not come in time: asks the next peer.
    pub(super) fn ask_again(&mut self, effects: &mut Effects) {
        if self.sink.is_some() {
            self.transfer_again(effects);
            return;
        }
        // While batches arrive no one else is asked for the same.
        // Once all have been asked, the same is asked again after twice the time: the answers may
        // be on their way over a slow link, one behind the other.
        let waited = self.now.monotonic.since(self.inquiry.last_useful);
        let others = self.context.model.replicas().saturating_sub(1).max(1);
        let rounds = u32::from((self.inquiry.in_vain / others).min(FETCH_DOUBLINGS_MAX));
        let came = self.last_executed.sequence >= self.inquiry.asked_until;
        let patience = match came {
            true => self.patience_at_the_end(),
            false => Nanos(self.patience_with(self.inquiry.asked).0 << rounds).min(FETCH_WAIT_MAX),
        };
        if self.wants_batches() && waited < patience {
            let rest = Nanos(patience.0.saturating_sub(waited.0));
            self.timers.ask_again_after(rest, effects);
        } else if self.wants_batches() && came {
            self.ask_for_batches(effects);
        } else if self.wants_batches() {
            self.inquiry.in_vain = self.inquiry.in_vain.saturating_add(1);
            if self.inquiry.in_vain > self.context.model.replicas().saturating_mul(2) {
                // The peer that claimed that there is more may have lied: the next STATUS shows it.
                self.inquiry = Inquiry {
                    target: self.last_executed.sequence,
                    ..self.inquiry
                };
                self.inquiry.asked_from = None;
                self.inquiry.in_vain = 0;
                self.inquiry.all_asked_in_vain = true;
            } else {
                self.inquiry.asked = self.peer_after(self.inquiry.asked, true);
                self.ask_for_batches(effects);
            }
        }
        if self.wants_bodies() {
            self.inquiry.bodies_asked = self.peer_after(self.inquiry.bodies_asked, false);
            self.ask_for_bodies(effects);
        }
        let voters = self.voters_of_unseen() & !bit(self.config.replica);
        if voters != 0 {
            // A STATUS of ours makes a voter repeat the proposal and its vote.
            let count = self.context.model.replicas();
            let turn = |step: u16| ReplicaId((self.inquiry.voter.0 % count + step) % count);
            let next = (1..=count).map(turn).find(|it| voters & bit(*it) != 0);
            if let Some(voter) = next {
                self.inquiry.voter = voter;
                self.send_status(Some(voter), effects);
            }
        }
    }

    /// The next peer in turn; with `ahead`, one that is known to be ahead, if there is any.
    fn peer_after(&self, peer: ReplicaId, ahead: bool) -> ReplicaId {
        let count = self.context.model.replicas();
        let turn = |step: u16| ReplicaId((peer.0 % count + step) % count);
        let others = || {
            (1..=count)
                .map(turn)
                .filter(|it| *it != self.config.replica)
        };
        let knows = |it: &ReplicaId| {
            let record = self.peers.get(usize::from(it.0));
            record.and_then(|record| record.committed()) > Some(self.last_executed.sequence)
        };
        let better = others().find(|it| ahead && knows(it));
        better.or_else(|| others().next()).unwrap_or(peer)
    }

    fn ask_for_batches(&mut self, effects: &mut Effects) {
        if self.inquiry.asked == self.config.replica {
            self.inquiry.asked = self.peer_after(self.inquiry.asked, true);
        }
        let (now, from) = (self.now.monotonic, self.last_executed.sequence.next());
        if self.inquiry.asked_from != Some(from) {
            for record in &mut self.peers {
                record.asked_batches = None;
            }
        }
        self.inquiry.asked_from = Some(from);
        self.inquiry.asked_until = self.inquiry.target;
        self.inquiry.last_useful = now;
        let mut asked = self.inquiry.asked;
        let patience = self.patience_with(asked);
        for more in (0..self.vouchers_needed()).rev() {
            self.counters.committed_fetched += 1;
            let fetch = Message::FetchCommitted(FetchCommitted { from });
            self.send_unsigned(Destination::Replica(asked), fetch, effects);
            if let Some(record) = self.peers.get_mut(usize::from(asked.0)) {
                record.asked_batches.get_or_insert(now);
            }
            if more > 0 {
                asked = self.peer_after(asked, true);
            }
        }
        self.timers.ask_again_after(patience, effects);
    }

    fn ask_for_bodies(&mut self, effects: &mut Effects) {
        if self.inquiry.bodies_asked == self.config.replica {
            self.inquiry.bodies_asked = self.peer_after(self.inquiry.bodies_asked, false);
        }
        let wanting = || self.wanting_bodies();
        let missing = wanting().flat_map(|slot| slot.missing.iter().copied());
        let digests: Vec<Digest> = missing.take(BATCH_REQUESTS_MAX).collect();
        let lowest = wanting().next().map(|slot| slot.sequence);
        let sequence = lowest.unwrap_or(self.window.open());
        self.counters.bodies_fetched += 1;
        let fetch = FetchBodies { sequence, digests };
        let asked = self.inquiry.bodies_asked;
        let to = Destination::Replica(asked);
        self.send_unsigned(to, Message::FetchBodies(fetch), effects);
        let now = self.now.monotonic;
        if let Some(record) = self.peers.get_mut(usize::from(asked.0)) {
            record.asked_bodies.get_or_insert(now);
        }
        self.timers
            .ask_again_after(self.patience_with(asked), effects);
    }

    /// How long to wait for more, once all has come that was known to exist: more may have come to
    /// exist, and the answer may have that too.
    fn patience_at_the_end(&self) -> Nanos {
        let patience = self.patience_with(self.inquiry.asked);
        Nanos(patience.0 / 4).max(FETCH_HEDGE)
    }

    /// This batch has come. If it is the last one that was known to exist when batches were asked
    /// for, the next question is due soon.
    pub(super) fn ask_soon(&mut self, came: Sequence, effects: &mut Effects) {
        let asks = self.sink.is_none() && self.inquiry.asked_from.is_some();
        if asks && came >= self.inquiry.asked_until {
            let patience = self.patience_at_the_end();
            self.timers.ask_again_after(patience, effects);
        }
    }

    /// How long to wait for a peer's answer, before the next one is asked too: as long as its
    /// answers usually take, unless those of others take far less.
    pub(super) fn patience_with(&self, peer: ReplicaId) -> Nanos {
        let quickest = self.peers.iter().filter_map(|peer| peer.trip.mean()).min();
        let least = quickest.map_or(FETCH_UNKNOWN, |_| FETCH_HEDGE);
        let unknown = least.max(self.suspicions.usual());
        let most = quickest.map_or(u64::MAX, |it| it.saturating_mul(TRANSFER_PATIENCE));
        let most = Nanos(most).clamp(FETCH_HEDGE, FETCH_WAIT_MAX);
        let record = self.peers.get(usize::from(peer.0));
        let patience = record.map_or(unknown, |peer| peer.trip.patience(unknown, FETCH_HEDGE));
        patience.min(most)
    }

    /// Bodies came from a peer that may have been asked for them.
    pub(super) fn bodies_came(&mut self, peer: ReplicaId) {
        let now = self.now.monotonic;
        if let Some(record) = self.peers.get_mut(usize::from(peer.0)) {
            let asked = record.asked_bodies.take();
            record.answered(asked, now);
        }
    }

    /// A peer lacks bodies.
    pub(super) fn serve_bodies(
        &mut self,
        peer: ReplicaId,
        fetch: &FetchBodies,
        effects: &mut Effects,
    ) {
        let now = self.now.monotonic;
        let record = self.peers.get_mut(usize::from(peer.0));
        if !record.is_some_and(|record| record.bodies.allows(now)) {
            return;
        }
        // The bodies that are here are searched once, whatever is asked for.
        let mut wanted: BTreeSet<&Digest> = fetch.digests.iter().collect();
        let waiting: Vec<_> = wanted.iter().filter_map(|it| self.pool.get(it)).collect();
        let mut requests: Vec<Arc<Envelope>> = Vec::new();
        let mut bytes = 0;
        for body in waiting.into_iter().chain(self.window.bodies()) {
            if wanted.is_empty() || bytes > FETCH_BYTES_MAX - REQUEST_BYTES_MAX {
                break;
            }
            if wanted.remove(body.digest_ref()) {
                bytes += body.frame().len();
                requests.push(Arc::clone(body));
            }
        }
        let Some(record) = self.peers.get_mut(usize::from(peer.0)) else {
            return;
        };
        record
            .bodies
            .served(bytes.max(fetch.digests.len() * SERVE_BODY_BYTES_MIN));
        if !requests.is_empty() {
            self.send_unsigned(
                Destination::Replica(peer),
                Message::Bodies(Bodies { requests }),
                effects,
            );
        } else if fetch.sequence <= self.last_executed.sequence
            && record.batches.allows_from(fetch.sequence, now)
        {
            // It is too late for bodies: the peer needs the batch.
            let _ = self.hand_over(peer, fetch.sequence, effects);
        }
    }

    /// The frame of a committed batch, from memory or from the store.
    fn committed_frame(&mut self, sequence: Sequence) -> Result<Option<Bytes>, StateError> {
        match self.history.frame(sequence) {
            Some(frame) => Ok(Some(frame)),
            None => stored_batch(&self.space, sequence),
        }
    }

    /// A peer asks for committed batches.
    pub(super) fn serve_committed(
        &mut self,
        peer: ReplicaId,
        from: Sequence,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let now = self.now.monotonic;
        let record = self.peers.get_mut(usize::from(peer.0));
        if !record.is_some_and(|record| record.batches.allows_from(from, now)) {
            return Ok(());
        }
        let mut bytes = 0;
        let mut sequence = from;
        for _ in 0..FETCH_BATCHES_MAX {
            if sequence > self.last_executed.sequence
                || sequence == Sequence(0)
                || bytes > FETCH_BYTES_MAX
            {
                break;
            }
            bytes += self.hand_over(peer, sequence, effects)?;
            sequence = sequence.next();
        }
        Ok(())
    }

    /// Sends a committed batch, if there is one. Returns its length in bytes.
    fn hand_over(
        &mut self,
        peer: ReplicaId,
        sequence: Sequence,
        effects: &mut Effects,
    ) -> Result<usize, StateError> {
        let Some(frame) = self.committed_frame(sequence)? else {
            return Ok(0);
        };
        let bytes = frame.len();
        if let Some(record) = self.peers.get_mut(usize::from(peer.0)) {
            record.batches.served(bytes);
        }
        self.counters.committed_served += 1;
        effects.push(Effect::Send {
            to: Destination::Replica(peer),
            frame,
            after: None,
        });
        Ok(bytes)
    }

    /// A client asks again for an executed request: peers that are behind are sent their next
    /// batch.
    pub(super) fn help_laggards(&mut self, effects: &mut Effects) -> Result<(), StateError> {
        for index in 0..self.context.model.replicas() {
            let now = self.now.monotonic;
            let last = self.last_executed.sequence;
            let Some(record) = self.peers.get_mut(usize::from(index)) else {
                continue;
            };
            let Some(committed) = record.committed().filter(|committed| *committed < last) else {
                continue;
            };
            if index != self.config.replica.0 && record.may_hand_over(now) {
                self.counters.laggards_handed += 1;
                self.hand_over(ReplicaId(index), committed.next(), effects)?;
            }
        }
        Ok(())
    }

    /// A committed batch with its certificate. Several are on their way at a time and need not
    /// come in order.
    pub(super) fn committed_elsewhere(&mut self, peer: ReplicaId, envelope: &Arc<Envelope>) {
        let Message::Committed(committed) = envelope.message() else {
            return;
        };
        if self.batch_of_checkpoint(envelope) {
            return;
        }
        let (sequence, last) = (committed.batch.sequence, self.last_executed.sequence);
        let room = last.0.saturating_add(FETCH_BATCHES_MAX as u64);
        if sequence <= last || sequence.0 > room {
            return;
        }
        let now = self.now.monotonic;
        if let Some(record) = self.peers.get_mut(usize::from(peer.0)) {
            let asked = record.asked_batches.take();
            record.answered(asked, now);
        }
        if !self.signs_votes() {
            self.voucher(peer, sequence, envelope);
        } else {
            self.fetched.insert(sequence, Arc::clone(envelope));
        }
    }

    /// Executes the next batch if a peer has sent it. Whether it did.
    pub(super) fn advance_fetched(&mut self, effects: &mut Effects) -> Result<bool, StateError> {
        if !self.signs_votes() {
            return self.advance_vouched(effects);
        }
        let next = self.last_executed.sequence.next();
        while let Some(entry) = self.fetched.first_entry()
            && *entry.key() <= next
        {
            let envelope = entry.remove();
            if let Message::Committed(committed) = envelope.message()
                && committed.batch.sequence == next
                && committed.batch.previous == self.last_executed.digest
            {
                let Committed {
                    batch,
                    certificate,
                    bodies,
                } = (**committed).clone();
                self.deliver(batch, bodies, certificate, true, effects)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
