//! Handing a view over to the replica that should lead ([`crate::ordering::returning`]).

use super::Replica;
use crate::identity::{Nanos, ReplicaId, View};
use crate::metrics::Voting;
use crate::ordering::suspicion::Reason;
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::Store;
use crate::step::{Effect, Effects};
use crate::wire::Unsigned;
use crate::wire::message::{Message, Suspect};

impl<S: Service, D: Store> Replica<S, D> {
    /// At each STATUS: notes how the others are, and hands over if that is due.
    pub(super) fn return_leadership(&mut self, effects: &mut Effects) {
        let Some(after) = self.config.return_after else {
            return;
        };
        let (now, me, view) = (self.now.monotonic, self.config.replica, self.views.view);
        if !self.views.active() || self.voting != Voting::Voting {
            return;
        }
        self.returning.leads(self.leader(), now);
        let last = self.last_executed.sequence;
        for (index, record) in (0..self.context.model.replicas()).zip(&self.peers) {
            let replica = ReplicaId(index);
            if replica != me {
                let well = record.is_well(view, last, now);
                self.returning.note(replica, well, now);
            }
        }
        if !self.leads() || self.views.suspected() || !self.is_quiet() {
            return;
        }
        let to = match self.sabotaged(Sabotage::HandoverLoops) {
            true => self.returning.due(ReplicaId::NONE, Nanos(0), now),
            false => self.returning.due(me, after, now),
        };
        let last = to.and_then(|to| self.last_before(to));
        if let Some(last) = last {
            self.counters.handovers += 1;
            self.suspect_up_to(last, effects);
        }
    }

    /// Whether nothing waits and nothing is being decided.
    fn is_quiet(&self) -> bool {
        let mut slots = self.window.iter();
        let under_way = slots.any(|slot| slot.proposal.is_some() || slot.received.is_some());
        self.pool.is_empty() && !under_way && !self.views.proposing
    }

    /// The view before the next one that a replica leads.
    fn last_before(&self, replica: ReplicaId) -> Option<View> {
        let count = u64::from(self.context.model.replicas());
        let next = (1..=count).map(|step| View(self.views.view.0.saturating_add(step)));
        let mut led = next.filter(|view| self.context.leader(*view) == replica);
        led.next().map(|view| View(view.0.saturating_sub(1)))
    }

    /// Whether this replica agrees that its leader, which suspects its own views up to this one,
    /// hands over to a replica that comes before it.
    pub(super) fn agrees_to_hand_over(&self, last: View) -> bool {
        let count = u64::from(self.context.model.replicas());
        let steps = last.0.checked_sub(self.views.view.0);
        let near = steps.is_some_and(|steps| 0 < steps && steps < count);
        let to = self.context.leader(last.next());
        if self.sabotaged(Sabotage::HandoverLoops) {
            return near;
        }
        // Replicas note that another one is well at different times.
        let half = self.config.return_after.map(|after| Nanos(after.0 / 2));
        let well = |half| self.returning.is_ready(to, half, self.now.monotonic);
        near && to < self.leader()
            && half.is_some_and(|half| to == self.config.replica || well(half))
    }

    /// Suspects this view and those after it, up to the last one.
    pub(super) fn suspect_up_to(&mut self, last: View, effects: &mut Effects) {
        let own = self.views.own_suspect.as_ref().map(|own| own.view());
        let known = own >= Some(last) || self.views.suspecting.is_some();
        if self.voting != Voting::Voting || known {
            return;
        }
        let (now, executed) = (self.now.monotonic, self.last_executed.sequence);
        self.views.suspecting = Some(last);
        self.views.suspicion = Some((Reason::Abdicated, now, executed));
        let signer = self.config.replica;
        let header = self.context.header(last);
        let message = Unsigned::new(header, Message::Suspect(Suspect { signer }));
        effects.push(Effect::Sign {
            message: Box::new(message),
        });
    }

    /// This replica leaves its view for another one: the view has failed and its leader has lost
    /// it, unless that handed over.
    pub(super) fn note_loss(&mut self, next: View) {
        let (view, leader) = (self.views.view, self.leader());
        let resigned = self.views.departures.suspects(leader, view);
        let returns = self.config.return_after.is_some();
        if returns && resigned && self.context.leader(next) < leader {
            return;
        }
        self.suspicions.view_failed();
        if next > view {
            self.returning.lost(leader);
        }
    }
}
