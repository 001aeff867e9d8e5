//! Sending one message many times, as if it were many messages.
//!
//! A correct replica counts signers, so all of this counts as one vote or has no effect. If copies
//! were counted, every victim of an equivocation would decide alone, on its own votes.

use super::{Habit, OutgoingFrame, Proxy};
use crate::lie::Lie;
use quorumfs_bft::step::Peer;
use quorumfs_bft::wire::frame::Envelope;
use quorumfs_bft::wire::message::{Message, NewView};
use std::sync::Arc;

/// How often in a run, to keep runs short.
const ECHOES_MAX: usize = 400;

impl Proxy {
    /// The immediate reaction to a message: a vote is copied back to its sender. Requests are
    /// remembered for a while.
    pub fn receive(&mut self, from: Peer, envelope: &Arc<Envelope>) -> Vec<OutgoingFrame> {
        let Peer::Replica(from) = from else {
            match envelope.message() {
                Message::Request(_) => self.inventions.remember(envelope),
                Message::Read(read) => self.reading.remember_read(read),
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

    fn copies(&mut self, envelope: &Envelope) -> Vec<OutgoingFrame> {
        if self.echoes >= ECHOES_MAX {
            return Vec::new();
        }
        self.echoes += 1;
        let copy = OutgoingFrame::lie(envelope.frame().clone(), Lie::Repetition);
        vec![copy; usize::from(self.replicas.saturating_sub(1))]
    }

    /// Repeats the frames that are about to be sent.
    pub(super) fn echo(&mut self, envelope: &Envelope, frames: &mut Vec<OutgoingFrame>) {
        match envelope.message() {
            Message::Prepare(_) | Message::Commit(_) => {
                let votes = frames
                    .first()
                    .map(|out| Envelope::decode(out.frame.clone()));
                if let Some(Ok(vote)) = votes {
                    frames.extend(self.copies(&vote));
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
                frames.clear();
                frames.push(OutgoingFrame::lie(frame, Lie::DuplicateSigner));
            }
            _ => {}
        }
    }
}
