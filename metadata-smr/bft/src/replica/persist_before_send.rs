//! Signing and recording: what has to happen before a message may be sent.
//!
//! The core asks for a signature and gets the signed bytes back as an event. Then it asks for the
//! record that holds them, names the record's token in the `Send`, and counts its own vote when the
//! record is durable.

use super::Replica;
use crate::identity::Sequence;
use crate::journal::Record;
use crate::metrics::Voting;
use crate::ordering::claims::unsigned;
use crate::sabotage::{Flag, Sabotage};
use crate::service::Service;
use crate::state::Store;
use crate::step::{Destination, Effect, Effects, Token};
use crate::wire::message::{Kind, Message};
use crate::wire::{Envelope, Unsigned};
use std::collections::VecDeque;

/// The tokens of records, and which are durable.
#[derive(Debug, Default)]
pub(super) struct JournalWrites {
    next: u64,
    durable: u64,
    /// Once the first token is durable, records below the second are not needed.
    trim: Option<(Token, Token)>,
    /// The highest sequence that a durable record names, and the one that may have been shown
    /// before a restart.
    named: Sequence,
    shown_before: Sequence,
    /// Records that name a higher one than any before them, and are not durable yet.
    naming: VecDeque<(Sequence, Token)>,
    /// The record of the last batch that was executed.
    executed: Token,
    /// A planted defect: nothing waits for the disk.
    forgetful: Flag,
}

impl JournalWrites {
    /// Tokens continue from `next`.
    pub(super) const fn new(next: Token, forgetful: Flag) -> Self {
        let next = if next.0 == 0 { 1 } else { next.0 };
        Self {
            next,
            durable: next - 1,
            trim: None,
            named: Sequence(0),
            shown_before: Sequence(0),
            naming: VecDeque::new(),
            executed: Token(0),
            forgetful,
        }
    }

    /// Asks for a record.
    pub(super) fn persist(&mut self, record: &Record, effects: &mut Effects) -> Token {
        let token = Token(self.next);
        self.next += 1;
        let highest = self.naming.back().map_or(self.named, |(named, _)| *named);
        if let Some(named) = record.sequence().filter(|named| *named > highest) {
            self.naming.push_back((named, token));
        }
        effects.push(Effect::Persist {
            record: record.encode(),
            token,
        });
        token
    }

    /// A record is durable, and so is every one before it.
    pub(super) fn persisted(&mut self, token: Token, effects: &mut Effects) {
        if token.0 < self.next {
            self.durable = self.durable.max(token.0);
        }
        while let Some((named, token)) = self.naming.front()
            && token.0 <= self.durable
        {
            self.named = *named;
            self.naming.pop_front();
        }
        let due = self.trim.take_if(|(after, _)| after.0 <= self.durable);
        if let Some((_, before)) = due {
            effects.push(Effect::TrimJournal { before });
        }
    }

    /// Whether a message that waits for `token` may be sent.
    pub(super) const fn durable(&self, token: Token) -> bool {
        self.forgetful.is_set() || token.0 <= self.durable
    }

    /// The token that a send has to name.
    pub(super) fn after(&self, token: Token) -> Option<Token> {
        (!self.durable(token)).then_some(token)
    }

    /// This record says that a batch was executed.
    pub(super) const fn executed(&mut self, token: Token) {
        self.executed = token;
    }

    /// The record that has to be durable before a message about executed batches is sent.
    pub(super) const fn last_executed(&self) -> Token {
        self.executed
    }

    /// The journal and state found at the start name this sequence: it may have been shown.
    pub(super) fn recovered(&mut self, named: Sequence) {
        self.named = named;
        self.shown_before = named;
    }

    /// The state after `sequence` is durable as a whole.
    pub(super) fn remembered(&mut self, sequence: Sequence) {
        self.named = self.named.max(sequence);
    }

    /// An epoch begins after this sequence: promises about later ones are void.
    pub(super) fn epoch_begins(&mut self, from: Sequence) {
        self.named = from;
        self.shown_before = self.shown_before.min(from);
        self.naming.clear();
    }

    /// No older state than this may be shown.
    pub(super) const fn shown_before(&self) -> Sequence {
        self.shown_before
    }

    /// The record that has to be durable before the state after `sequence` is shown; an error if no
    /// record names it.
    pub(super) fn shown(&self, sequence: Sequence) -> Result<Option<Token>, NotNamed> {
        if sequence <= self.named || self.forgetful.is_set() {
            return Ok(None);
        }
        let mut naming = self.naming.iter();
        match naming.find(|(named, _)| *named >= sequence) {
            Some((_, token)) => Ok(self.after(*token)),
            None => Err(NotNamed),
        }
    }

    /// The record that has to be durable before a reply with this version is sent: if none names
    /// the version, that of the last executed batch.
    pub(super) fn answered(&self, version: Sequence) -> Option<Token> {
        let last = |NotNamed| self.after(self.executed);
        self.shown(version).unwrap_or_else(last)
    }

    /// Whether any record is still being written.
    pub(super) const fn outstanding(&self) -> bool {
        !self.forgetful.is_set() && self.durable + 1 < self.next
    }

    /// The valid part of the records below `before` has been written again: once that is durable
    /// they are void.
    pub(super) fn trim_below(&mut self, before: Token, effects: &mut Effects) {
        let after = self.persist(&Record::Trimmed { before }, effects);
        self.trim = Some((after, before));
    }

    /// The token of the next record.
    pub(super) const fn next(&self) -> Token {
        Token(self.next)
    }
}

/// No record names a sequence that is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotNamed;

impl<S: Service, D: Store> Replica<S, D> {
    /// Asks for a signature under a message of the current view. Unsigned votes are ready at once,
    /// and are processed within this call.
    pub(super) fn sign(&mut self, message: Message, effects: &mut Effects) {
        let header = self.context.header(self.views.view);
        let vote = matches!(
            message.kind(),
            Kind::Proposal | Kind::Prepare | Kind::Commit
        );
        if vote && !self.signs_votes() {
            let envelope = unsigned(header, message);
            self.signed(&envelope, effects);
            return;
        }
        effects.push(Effect::Sign {
            message: Box::new(Unsigned::new(header, message)),
        });
    }

    /// The driver has signed something: each kind has its own next step.
    pub(super) fn signed(&mut self, envelope: &std::sync::Arc<Envelope>, effects: &mut Effects) {
        if envelope.header().epoch != self.context.epoch || self.voting == Voting::Lost {
            return;
        }
        if let Message::Checkpoint(_) = envelope.message() {
            return self.own_checkpoint(envelope, effects);
        }
        // Who hands over suspects later views too.
        let hands_over = matches!(envelope.message(), Message::Suspect(_))
            && self.views.suspecting == Some(envelope.view());
        if envelope.view() != self.views.view && !hands_over {
            return;
        }
        match envelope.message() {
            Message::Proposal(_) => self.own_proposal(envelope, effects),
            Message::Prepare(_) => self.own_prepare(envelope, effects),
            Message::Commit(_) => self.own_commit(envelope, effects),
            Message::Suspect(_) => self.own_suspect(envelope, effects),
            Message::ViewChange(_) => self.own_view_change(envelope, effects),
            Message::NewView(_) => self.own_new_view(envelope, effects),
            _ => {}
        }
    }

    /// Sends to all other replicas once `token` is durable.
    pub(super) fn broadcast(
        &self,
        envelope: &Envelope,
        token: Option<Token>,
        effects: &mut Effects,
    ) {
        self.send(Destination::Replicas, envelope, token, effects);
    }

    /// Sends a frame once `token` is durable.
    pub(super) fn send(
        &self,
        to: Destination,
        envelope: &Envelope,
        token: Option<Token>,
        effects: &mut Effects,
    ) {
        let after = token.and_then(|token| self.journal_writes.after(token));
        effects.push(Effect::Send {
            to,
            frame: envelope.frame().clone(),
            after,
        });
    }

    /// Sends an unsigned message.
    pub(super) fn send_unsigned(&self, to: Destination, message: Message, effects: &mut Effects) {
        let header = self.context.header(self.views.view);
        let frame = crate::wire::encode(header, &message);
        effects.push(Effect::Send {
            to,
            frame,
            after: None,
        });
    }

    /// Whether the simulator wants messages to leave before they are durable.
    pub(super) fn forgetful(config: &super::Config) -> Flag {
        config.sabotage.flag(Sabotage::ForgottenFsync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_no_record_names_waits_for_the_last_batch() {
        let mut writes = JournalWrites::new(Token(1), Flag::CLEAR);
        let mut effects = Effects::default();
        let token = writes.persist(&Record::BootMark, &mut effects);
        writes.executed(token);
        assert_eq!(writes.answered(Sequence(0)), None);
        assert_eq!(writes.answered(Sequence(5)), Some(token));
        writes.persisted(token, &mut effects);
        assert_eq!(writes.answered(Sequence(5)), None);
    }
}
