//! Saying one thing many times, as if it were many things.
//!
//! A correct replica counts signers, so that all of this comes to one vote or to nothing. Where
//! copies are counted, every victim of an equivocation decides alone, on its own votes.

use super::{Habit, Proxy, Told};
use crate::lie::Lie;
use quorumfs_bft::step::Peer;
use quorumfs_bft::wire::frame::Envelope;
use quorumfs_bft::wire::message::{Message, NewView};
use std::sync::Arc;

/// How often in a run, so that it does not become slow.
const ECHOES_MAX: usize = 400;

impl Proxy {
    /// What a liar makes at once of what it is told: of a vote, copies for who gave it. Requests it
    /// keeps for a while.
    pub fn hear(&mut self, from: Peer, envelope: &Arc<Envelope>) -> Vec<Told> {
        let Peer::Replica(from) = from else {
            match envelope.message() {
                Message::Request(_) => self.inventions.heard(envelope),
                Message::Read(read) => self.reading.heard(read),
                _ => {}
            }
            return Vec::new();
        };
        match envelope.message() {
            Message::Prepare(ballot) | Message::Commit(ballot)
                if ballot.signer == from && self.habits.contains(&Habit::Echo) =>
            {
                self.copies(envelope)
            }
            _ => Vec::new(),
        }
    }

    fn copies(&mut self, envelope: &Envelope) -> Vec<Told> {
        if self.echoes >= ECHOES_MAX {
            return Vec::new();
        }
        self.echoes += 1;
        let copy = Told::lie(envelope.frame().clone(), Lie::Repetition);
        vec![copy; usize::from(self.replicas.saturating_sub(1))]
    }

    /// What is about to be told, again and again.
    pub(super) fn echo(&mut self, envelope: &Envelope, told: &mut Vec<Told>) {
        match envelope.message() {
            Message::Prepare(_) | Message::Commit(_) => {
                let said = told
                    .first()
                    .map(|told| Envelope::decode(told.frame.clone()));
                if let Some(Ok(said)) = said {
                    told.extend(self.copies(&said));
                }
            }
            Message::NewView(new) if self.random.chance(1, 2) => {
                let own = new.view_changes.iter().find(|change| {
                    matches!(change.message(), Message::ViewChange(it) if it.signer == self.replica)
                });
                let Some(own) = own else {
                    return;
                };
                let view_changes = vec![Arc::clone(own); new.view_changes.len()];
                let message = Message::NewView(NewView { view_changes });
                let frame = self.frame(*envelope.header(), message);
                told.clear();
                told.push(Told::lie(frame, Lie::DuplicateSigner));
            }
            _ => {}
        }
    }
}
