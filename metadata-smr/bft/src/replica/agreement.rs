//! From a proposal to a vote: which proposals are accepted, kept for later, or refused.
//!
//! A proposal is refused only if every correct replica would refuse it, however far each has
//! executed; and batches before it may still be open. So its form is checked against the proposal
//! that it follows upon (time, predecessor); what follows from executed state is checked by rules
//! that give the same result at every replica:
//!
//! * A session may be named for a window after its end ([`crate::admission::Pool::admits`]). No
//!   replica can verify a body of a session that is not open yet, so the vote waits.
//! * An empty batch says that a tick is due by the batch before. A leader proposes it with nothing
//!   under way; the vote for it waits until that batch has been executed here too.
//!
//! A proposal that comes before its predecessor waits in its slot; one that comes before its
//! NEW-VIEW waits separately.

use super::Replica;
use crate::identity::{Digest, Monotonic, Nanos, Sequence, Time};
use crate::ordering::proposer::BatchPosition;
use crate::ordering::slot::{ReceivedProposal, Stage};
use crate::ordering::suspicion::Reason;
use crate::service::Service;
use crate::state::Store;
use crate::step::{Effect, Effects, Peer};
use crate::wire::limits::{BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, CLOCK_LEAD_MAX, WINDOW};
use crate::wire::message::{Batch, Message};
use std::sync::Arc;

impl<S: Service, D: Store> Replica<S, D> {
    /// With r = 0 no replica lies, and there is no PREPARE phase.
    pub(super) const fn has_prepare_phase(&self) -> bool {
        self.context.model.right() > 0
    }

    /// The position that a proposal for this sequence has to follow upon: the last executed batch,
    /// or this view's proposal for the sequence before.
    pub(super) fn predecessor(&self, sequence: Sequence) -> Option<BatchPosition> {
        if sequence == self.last_executed.sequence.next() {
            return Some(self.last_executed);
        }
        let before = Sequence(sequence.0.checked_sub(1)?);
        let proposal = self.window.get(before)?.proposal.as_ref()?;
        Some(BatchPosition::of(proposal.batch()?, proposal.digest()))
    }

    /// A leader proposes.
    pub(super) fn proposal(&mut self, received: &ReceivedProposal, effects: &mut Effects) {
        let envelope = &received.proposal;
        let Some(batch) = envelope.batch() else {
            return;
        };
        let (view, sequence) = (envelope.view(), batch.sequence);
        if sequence < self.window.open() || view < self.views.view {
            if received.directly && view == self.views.view {
                self.echo(sequence, effects);
            }
            return;
        }
        if sequence > self.window.end() {
            // Its leader has executed all but a window of the batches before.
            let leader = self.context.leader(view);
            let executed = Sequence(sequence.0.saturating_sub(WINDOW as u64));
            self.behind(leader, executed);
            return;
        }
        if view > self.views.view || !self.views.active() {
            // The next view's is wanted first, and a leader of a far one does not replace it.
            let known = self.early.get(&sequence).map(|it| it.proposal.view());
            if known.is_none_or(|known| known <= self.views.view || view < known) {
                self.early.insert(sequence, received.clone());
            }
        } else {
            self.consider(received, effects);
        }
    }

    /// Considers proposals that came before their NEW-VIEW or before their predecessor.
    pub(super) fn advance_proposals(&mut self, effects: &mut Effects) {
        if !self.views.active() {
            return;
        }
        let open = self.window.open();
        self.early.retain(|sequence, _| *sequence >= open);
        let due = |received: &ReceivedProposal| received.proposal.view() <= self.views.view;
        let due = self.early.iter().filter(|(_, received)| due(received));
        let due: Vec<Sequence> = due.map(|(sequence, _)| *sequence).collect();
        for received in due
            .iter()
            .filter_map(|it| self.early.remove(it))
            .collect::<Vec<_>>()
        {
            self.proposal(&received, effects);
        }
        self.take_carried(effects);
        for step in 0..WINDOW as u64 {
            let sequence = Sequence(open.0.saturating_add(step));
            if self.predecessor(sequence).is_none() {
                return;
            }
            let slot = self.window.get_mut(sequence);
            let received = slot.and_then(|slot| slot.received.take());
            if let Some(received) = received {
                self.consider(&received, effects);
            }
        }
    }

    /// A proposal for an open sequence in the current view.
    pub(super) fn consider(&mut self, received: &ReceivedProposal, effects: &mut Effects) {
        let envelope = &received.proposal;
        let Some(batch) = envelope.batch() else {
            return;
        };
        let sequence = batch.sequence;
        let Some(slot) = self.window.get(sequence) else {
            return;
        };
        let waiting = slot.received.as_ref().map(|it| &it.proposal);
        match slot.proposal.as_ref().or(waiting) {
            Some(known) if known.digest_ref() != envelope.digest_ref() => {
                if !received.directly && !self.signs_votes() {
                    // Only others say so; the leader sent another one here.
                    return;
                }
                self.counters.equivocations += 1;
                self.blame_leader("it signed two proposals for one sequence", effects);
                return;
            }
            Some(_) => {
                if received.directly {
                    self.suspicions.proposal_repeated(false);
                }
                return;
            }
            None => {}
        }
        if self.leader() == self.config.replica {
            // An own proposal from before a restart: it only counts if this replica votes for it
            // again, which a leader does not do.
            return;
        }
        if sequence <= self.views.choice.base_sequence() {
            // Committed already, as the NEW-VIEW proves: the batch is being fetched.
            return;
        }
        if let Some(carried) = self.views.choice.carried_at(sequence)
            && carried.digest_ref() != envelope.digest_ref()
        {
            self.refuse(
                "it proposed another batch than the one that its view begins with",
                effects,
            );
            return;
        }
        let last = self.predecessor(sequence);
        let Some(last) = last.filter(|_| self.window.votes_on(sequence)) else {
            self.counters.proposals_ahead += 1;
            if let Some(slot) = self.window.get_mut(sequence) {
                slot.received = Some(received.clone());
            }
            return;
        };
        if batch.previous != last.digest && self.overtaken() {
            // A later view has decided another batch, which this leader could not know.
            return;
        }
        if !self.sound(batch, &last) {
            self.refuse(
                "it proposed a batch that no correct leader would propose",
                effects,
            );
            return;
        }
        let fresh = !self.views.choice.carries(sequence, envelope.digest_ref());
        let trails = fresh && self.now.clock.since(batch.time) > CLOCK_LEAD_MAX;
        if fresh && self.suspicions.proposal_trails(trails) {
            self.suspect(Reason::Clock, effects);
        }
        // Of several that are repeated at once the first one counts.
        let repeated = !received.directly && sequence == self.window.open();
        if (repeated || received.directly) && self.suspicions.proposal_repeated(repeated) {
            self.suspect(Reason::Silent, effects);
        }
        let mut waiting = Vec::with_capacity(batch.requests.len());
        if let Some(slot) = self.window.get_mut(sequence) {
            slot.accept(Arc::clone(envelope));
            slot.seen_at = Some(self.now.monotonic);
            slot.collect(batch, |digest| {
                let (body, since) = self.pool.find(digest)?;
                waiting.push((since, body.frame().len()));
                Some(body)
            });
        }
        if fresh && received.directly {
            self.note_lag(batch, &waiting);
        }
    }

    /// Notes how long the requests of a batch have been waiting here; `waiting` has arrival time
    /// and length of each. A request that came to its leader before it came here did not wait, and
    /// in a full batch requests may have had to.
    fn note_lag(&mut self, batch: &Batch, waiting: &[(Monotonic, usize)]) {
        let now = self.now.monotonic;
        let bytes: usize = waiting.iter().map(|(_, length)| length).sum();
        let mut waited: Vec<Nanos> = waiting.iter().map(|(at, _)| now.since(*at)).collect();
        waited.resize(batch.requests.len(), Nanos(0));
        let room = waited.len() < BATCH_REQUESTS_MAX && bytes <= BATCH_BYTES_MAX / 2;
        if room && !waited.is_empty() {
            let middle = (waited.len() - 1) / 2;
            let (_, lag, _) = waited.select_nth_unstable(middle);
            self.throughput.proposed(*lag);
        }
    }

    /// Whether a later view than ours has decided the last batch.
    fn overtaken(&self) -> bool {
        let decided = self.last_certificate.as_ref();
        decided.is_some_and(|decided| decided.view > self.views.view)
    }

    /// Whether every correct replica would accept the form of this batch after `last`.
    fn sound(&self, batch: &Batch, last: &BatchPosition) -> bool {
        let mut sorted: Vec<&Digest> = batch.requests.iter().collect();
        sorted.sort_unstable();
        batch.previous == last.digest
            && batch.time > last.time
            && batch.behaviour_version == self.epochs.current.behaviour_version
            && sorted.is_sorted_by(|earlier, later| earlier < later)
            && (!batch.requests.is_empty() || batch.tick)
    }

    /// Whether the batch, all of whose bodies are here, may stand at its sequence. `None` if that
    /// is not known before its predecessor has been executed.
    pub(super) fn admissible(&self, sequence: Sequence) -> Option<bool> {
        let slot = self.window.get(sequence)?;
        let batch = slot.proposal.as_ref()?.batch()?;
        if batch.requests.is_empty() && sequence != self.last_executed.sequence.next() {
            return None;
        }
        let due = self.deadline.is_some_and(|deadline| deadline <= batch.time);
        let digest = slot.proposal.as_ref()?.digest_ref();
        let bodies = || slot.bodies().those_of(digest, batch);
        let bytes: usize = bodies().map(|body| body.frame().len()).sum();
        let admitted = bodies().all(|body| match body.message() {
            Message::Request(request) => self.pool.admits(request.session, sequence),
            Message::CloseSession(close) => self.pool.admits(close.session, sequence),
            Message::OpenSession(_) => true,
            _ => false,
        });
        Some(admitted && bytes <= BATCH_BYTES_MAX && (due || !batch.requests.is_empty()))
    }

    pub(super) fn refuse(&mut self, reason: &'static str, effects: &mut Effects) {
        self.counters.proposals_refused += 1;
        self.blame_leader(reason, effects);
    }

    fn blame_leader(&mut self, reason: &'static str, effects: &mut Effects) {
        let peer = Peer::Replica(self.leader());
        self.blacklist.add(peer, self.now.monotonic);
        self.counters.blacklisted += 1;
        effects.push(Effect::Blacklist { peer, reason });
        self.suspect(Reason::TwoFaced, effects);
    }

    /// The time of the first proposal that has to wait until our clock admits it, if any. Later
    /// ones have later times.
    pub(super) fn clock_lead(&self) -> Option<Time> {
        let slots = self.window.voting();
        let mut waiting = slots.filter(|slot| slot.stage == Stage::Clock);
        waiting.find_map(|slot| self.clock_lead_of(slot.sequence))
    }

    pub(super) fn clock_lead_of(&self, sequence: Sequence) -> Option<Time> {
        let proposal = self.window.get(sequence)?.proposal.as_ref()?;
        let time = proposal.batch()?.time;
        let lawful = self.now.clock.plus(CLOCK_LEAD_MAX);
        let last = self.predecessor(sequence)?.time;
        let forced = time.0 <= last.0.saturating_add(1);
        let digest = proposal.digest_ref();
        let carried = self.views.choice.carries(sequence, digest);
        let own = self.leader() == self.config.replica;
        (time > lawful && !forced && !carried && !own).then_some(time)
    }
}
