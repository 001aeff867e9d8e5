//! Queries out of order: answered at once, from the state as it is.
//!
//! Whoever reads counts on this: a correct replica never shows a state that is older than one it
//! has shown before, to whomever and in whatever way, even if it was restarted in between. A client
//! that was told that its operation took effect was told so by a medium quorum, with which every
//! quorum that a reader hears has a correct replica in common, and that one must still know.
//!
//! The batches that a replica executes need not be durable, so a restart may take it back by some.
//! So what it shows waits for a record that names the sequence, or a later one (its own vote,
//! mostly, which has long been durable by then), and a replica that finds such a record when it
//! starts shows nothing until it has executed that far.
//!
//! A replica that lost its journal does not know what it has shown and answers no queries here.
//!
//! Source: Berger, Reiser and Bessani, "Making Reads in BFT State Machine Replication Fast,
//! Linearizable, and Live" (2021), for the quorums; the rest follows from crashes that they
//! exclude.

use super::Replica;
use crate::identity::{ConnectionId, Sequence};
use crate::metrics::Voting;
use crate::sabotage::Sabotage;
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::step::{Destination, Effect, Effects};
use crate::wire::message::{Message, Read, ReadAnswer};

impl<S: Service, D: Store> Replica<S, D> {
    /// Answers queries of a client, whose session the driver knows to be its own.
    pub(super) fn read(
        &mut self,
        connection: ConnectionId,
        read: &Read,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let tip = self.tip.sequence;
        let shown = self.promises.shown(tip);
        let knows = self.voting == Voting::Voting && tip >= self.promises.shown_before();
        // Else a reader of this epoch could miss what the next one has told its writers.
        let knows = knows && !self.epochs.ended() && self.states.finding.is_none();
        let mut answer = ReadAnswer {
            nonce: read.nonce,
            applied: tip,
            answers: None,
        };
        let mut after = None;
        if let (true, Ok(token)) = (knows, shown) {
            let in_full = [self.config.replica, Read::ALL].contains(&read.full);
            answer.answers = self.executor.read(&self.space, read, tip, in_full)?;
            after = token;
        }
        if self.sabotaged(Sabotage::ReadWithoutVersion) {
            for answered in answer.answers.iter_mut().flatten() {
                answered.version = Sequence(0);
            }
        }
        match &answer.answers {
            Some(answers) => self.counters.reads += answers.len() as u64,
            None => self.counters.reads_refused += 1,
        }
        let header = self.context.header(self.views.view);
        effects.push(Effect::Send {
            to: Destination::Client(connection),
            frame: crate::wire::encode(header, &Message::ReadAnswer(answer)),
            after,
        });
        Ok(())
    }
}
