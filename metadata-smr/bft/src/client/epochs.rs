//! Following the cluster from epoch to epoch.
//!
//! Replies name the membership epoch that they are given in. Answers of another epoch than the
//! client's do not count: the replicas are numbered and counted anew in each. An answer of a later
//! epoch makes the client ask for the records, which the driver checks under the keys that the
//! client knows, by [`Client::follow`]. Pending requests are sent again, in the same bytes, to the
//! replicas of the new epoch; earlier replies to them are dropped.

use super::event::{Effect, Effects};
use super::session::SessionPhase;
use super::{Client, encoding, send};
use crate::authentication::Verifier;
use crate::identity::{Monotonic, ReplicaId};
use crate::membership::{EpochRecord, Membership};
use crate::wire::limits::RETRY_MIN;
use crate::wire::{Envelope, Message};
use bytes::Bytes;

impl Client {
    /// The membership that the client knows; `None` if it was given none and follows no records.
    #[must_use]
    pub const fn membership(&self) -> Option<&Membership> {
        self.config.membership.as_ref()
    }

    /// A replica is in a later epoch: asks it for the records that lead there, rate-limited.
    pub(super) fn saw_later_epoch(
        &mut self,
        now: Monotonic,
        from: ReplicaId,
        effects: &mut Effects,
    ) {
        let lately = |at: Monotonic| now.since(at) < RETRY_MIN;
        if self.config.membership.is_none() || self.epochs_asked.is_some_and(lately) {
            return;
        }
        self.epochs_asked = Some(now);
        let frame = encoding::fetch_epochs(&self.config);
        send(from, Some(&frame), effects);
    }

    /// Adopts the records that [`Effect::Follow`] hands out, if they follow from the known
    /// membership. The driver then reports the replicas, by their new numbers, that it is connected
    /// to.
    pub fn follow(
        &mut self,
        now: Monotonic,
        frame: &Bytes,
        verifier: &dyn Verifier,
        effects: &mut Effects,
    ) {
        let Ok(envelope) = Envelope::decode(frame.clone()) else {
            return;
        };
        let (Message::Epochs(records), Some(known)) = (envelope.message(), &self.config.membership)
        else {
            return;
        };
        let later = records.iter().filter(|it| it.epoch() > known.epoch);
        let later: Vec<EpochRecord> = later.cloned().collect();
        let context = known.context(self.config.cluster);
        let leads = EpochRecord::lead_on(&later, &context, known, verifier);
        if let Some(last) = later.last().filter(|_| leads) {
            self.enter(now, last.membership.clone(), effects);
        }
    }

    fn enter(&mut self, now: Monotonic, membership: Membership, effects: &mut Effects) {
        self.config.epoch = membership.epoch;
        self.config.fault_model = membership.model;
        self.config.membership = Some(membership.clone());
        self.connected.clear();
        self.epochs_asked = None;
        self.reads.enter(&self.config, &mut self.queue);
        self.observing.enter(&self.config, effects);
        match &mut self.phase {
            SessionPhase::None => {}
            SessionPhase::Opening { asking, .. } => asking.ask_others(&self.config, now),
            SessionPhase::Open(session) => session.ask_others(&self.config, now),
        }
        let membership = Box::new(membership);
        effects.push(Effect::NewEpoch { membership });
    }
}
