//! Replies of the replicas, and when they count.

use super::Client;
use super::encoding::{self, DecodedMessage, RequestName};
use super::event::{Effect, Effects, End, OperationKind, SigningKey};
use super::failure::Failure;
use super::pending_request::{ReplyResults, Statement};
use super::session::{Opening, Session, SessionPhase};
use crate::identity::{Digest, Monotonic, ReplicaId};
use crate::wire::message::OperationResult;
use bytes::Bytes;

impl Client {
    pub(super) fn received(
        &mut self,
        now: Monotonic,
        from: ReplicaId,
        frame: &Bytes,
        effects: &mut Effects,
    ) {
        let message = encoding::decode(&self.config, frame);
        let votes = from.0 < self.config.fault_model.replicas();
        match message {
            None => {}
            Some(DecodedMessage::Later) => self.saw_later_epoch(now, from, effects),
            Some(DecodedMessage::Epochs) => effects.push(Effect::Follow {
                frame: frame.clone(),
            }),
            Some(_) if !votes => {}
            Some(DecodedMessage::Busy) => self.busy = self.busy.saturating_add(1),
            Some(DecodedMessage::Opening { request, opening }) => {
                self.opening((now, from), request, opening, effects);
            }
            Some(DecodedMessage::Closed { session }) => {
                let needed = self.config.fault_model.small();
                if let SessionPhase::Open(open) = &mut self.phase
                    && open.id == session
                    && let Some(close) = &mut open.close
                    && close.quorum.vote(from, (), needed)
                {
                    self.end(End::Closed, effects);
                }
            }
            Some(DecodedMessage::NoSession { session }) => {
                let needed = self.config.fault_model.small();
                if let SessionPhase::Open(open) = &mut self.phase
                    && open.id == session
                    && open.lost.vote(from, (), needed)
                {
                    let closed = open.close.is_some();
                    self.end(if closed { End::Closed } else { End::Lost }, effects);
                }
            }
            Some(DecodedMessage::Read(answer)) => {
                self.reads
                    .answered(from, answer, now, &mut self.queue, effects);
            }
            Some(DecodedMessage::Report(report)) => {
                self.observing.reported(from, &report, now, effects);
            }
            Some(DecodedMessage::Observed(observed)) => {
                self.observing.standing(from, &observed, now, effects);
            }
            Some(DecodedMessage::Event(event)) => self.observing.event(from, event, now, effects),
            Some(DecodedMessage::Answer {
                request,
                statement,
                whole,
            }) => {
                self.answered(now, from, &request, (statement, whole), effects);
            }
        }
    }

    fn opening(
        &mut self,
        (now, from): (Monotonic, ReplicaId),
        request: Digest,
        opening: Opening,
        effects: &mut Effects,
    ) {
        let needed = self.config.fault_model.small();
        let SessionPhase::Opening { key, asking } = &mut self.phase else {
            return;
        };
        if !asking.is(&request) || !asking.quorum.vote(from, opening, needed) {
            return;
        }
        match opening {
            Opening::Refused => self.end(End::Refused, effects),
            Opening::Stale { time } => {
                asking.start_over();
                effects.push(Effect::Sign {
                    key: SigningKey::Principal,
                    message: encoding::open(&self.config, *key, time),
                });
            }
            Opening::Opened { version, .. } if version <= self.config.shown => {
                let (shown, found) = (self.config.shown, version);
                self.end(End::WentBack { shown, found }, effects);
            }
            Opening::Opened {
                session,
                credit,
                version,
            } => {
                self.opened_at = version;
                self.reads.opened(now);
                let open = Session::new(&self.config, session, credit);
                self.phase = SessionPhase::Open(open);
                effects.push(Effect::Opened { session, credit });
                self.observing.opened(session, &self.config, now, effects);
            }
        }
    }

    fn answered(
        &mut self,
        now: Monotonic,
        from: ReplicaId,
        request: &RequestName,
        (statement, whole): (Statement, Option<Vec<OperationResult>>),
        effects: &mut Effects,
    ) {
        let needed = match &statement {
            Statement::Results { .. } => self.config.replies_needed(),
            Statement::Forgotten => self.config.fault_model.small(),
        };
        let SessionPhase::Open(open) = &mut self.phase else {
            return;
        };
        if open.id != request.session {
            return;
        }
        let Some(pending_request) = open.pending_request(request.lane, request.number) else {
            return;
        };
        // A reply to other bytes under our number: another process has our session's key, or the
        // replica lies.
        let own = pending_request.signed.as_ref().map(|(digest, _)| *digest);
        if own != Some(request.digest) {
            return;
        }
        if let (Some(whole), Statement::Results { results, .. }) = (whole, &statement)
            && let ReplyResults::Digest(digest) = results
        {
            pending_request.add_whole(from, *digest, whole);
        }
        if !pending_request.quorum.vote(from, statement, needed)
            || !pending_request.has_whole(from, now)
        {
            return;
        }
        let Some(mut pending_request) = open.complete(request.lane, request.number) else {
            return;
        };
        let (version, results) = match pending_request.quorum.take(from) {
            Some(Statement::Results { version, results }) => match results {
                ReplyResults::Whole(results) => (Some(version), results),
                ReplyResults::Digest(digest) => {
                    (Some(version), pending_request.take_whole(&digest))
                }
            },
            _ => (None, Vec::new()),
        };
        if let Some(took) = pending_request.measured_time(now) {
            self.trip.measured(took);
        }
        let known = (&self.config, &self.trip);
        for (to, frame) in open.follow(known, request.lane, &pending_request, &self.connected, now)
        {
            effects.push(Effect::Send { to, frame });
        }
        if let Some(version) = version {
            self.reads.shown(version);
        }
        let mut results = results.into_iter();
        for slot in pending_request.operations {
            let result = results.next();
            let Some(pending) = slot else {
                continue;
            };
            match (result, version) {
                (Some(Some(result)), Some(version)) => {
                    let answer = result.clone();
                    self.queue.deliver(&pending, result, version, effects);
                    let ended = match pending.kind {
                        OperationKind::Watch => None,
                        OperationKind::Unwatch => Some(encoding::watch_named(&pending.operation)),
                        _ => continue,
                    };
                    self.observing.answered(&answer, ended, now, effects);
                }
                (Some(None), Some(_)) => {
                    self.queue.fail(&pending, Failure::NoRoom, effects);
                }
                _ => self.queue.fail(&pending, Failure::OutcomeUnknown, effects),
            }
        }
    }
}
