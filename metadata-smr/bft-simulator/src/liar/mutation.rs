//! Changing one thing in a message.

use super::claims::digest_of;
use super::{OutgoingFrame, Proxy, invented_request, no_digest};
use crate::agenda::SECOND;
use crate::lie::Lie;
use bytes::Bytes;
use quorumfs_bft::identity::{ReplicaId, Sequence, Signature, View};
use quorumfs_bft::wire::frame::{Envelope, Header, Unsigned};
use quorumfs_bft::wire::message::{Ballot, Bodies, Message, OpenStatus};
use std::sync::Arc;

/// One more or one less.
fn nudge(value: u64, up: bool) -> u64 {
    if up {
        value.saturating_add(1)
    } else {
        value.saturating_sub(1)
    }
}

impl Proxy {
    /// The message with one field changed slightly.
    pub(super) fn mutate(&mut self, envelope: &Envelope) -> Option<(Message, Header, Lie)> {
        let header = *envelope.header();
        let mut message = envelope.message().clone();
        let up = self.random.chance(1, 2);
        let lie = match &mut message {
            Message::Proposal(batch) => match self.random.below(5) {
                0 => {
                    batch.sequence = Sequence(nudge(batch.sequence.0, up));
                    Lie::WrongSequence
                }
                1 => {
                    batch.time.0 = batch
                        .time
                        .0
                        .saturating_add(self.random.between(1, 4000) * SECOND);
                    Lie::TimeAhead
                }
                2 => {
                    let back = self.random.between(1, 4000) * SECOND;
                    batch.time.0 = batch.time.0.saturating_sub(back);
                    Lie::TimeBehind
                }
                3 => {
                    match self.random.below(5) {
                        0 => {
                            batch.requests.pop();
                        }
                        1 => batch.requests.push(no_digest(&mut self.random)),
                        2 | 3 => batch.requests.extend(self.last_requests.iter().copied()),
                        _ => batch.requests.extend(batch.requests.first().copied()),
                    }
                    Lie::WrongRequests
                }
                _ => {
                    batch.previous = no_digest(&mut self.random);
                    Lie::WrongDigest
                }
            },
            Message::Prepare(ballot) | Message::Commit(ballot) => match self.random.below(3) {
                0 => {
                    ballot.sequence = Sequence(nudge(ballot.sequence.0, up));
                    Lie::WrongSequence
                }
                1 => {
                    ballot.digest = no_digest(&mut self.random);
                    Lie::WrongDigest
                }
                _ => {
                    return Some((
                        message,
                        header.at(View(nudge(header.view.0, up))),
                        Lie::WrongView,
                    ));
                }
            },
            Message::Suspect(_) | Message::ViewChange(_) | Message::Status(_) => {
                let view = View(nudge(header.view.0, up));
                return Some((message, header.at(view), Lie::WrongView));
            }
            Message::FetchCommitted(fetch) => {
                fetch.from = Sequence(nudge(fetch.from.0, up));
                Lie::WrongSequence
            }
            _ => return None,
        };
        Some((message, header, lie))
    }

    /// A VIEW-CHANGE that shows less than it should.
    pub(super) fn stale(&mut self, envelope: &Envelope) -> Option<Message> {
        let Message::ViewChange(change) = envelope.message() else {
            return None;
        };
        let mut change = change.clone();
        let shown = change.prepared.len();
        match self.random.below(4) {
            0 if shown > 0 => change.prepared.clear(),
            // One in the middle, so that later ones cannot be executed.
            1 if shown > 0 => {
                change.prepared.remove(self.random.index(shown));
            }
            2 if shown > 0 => change.prepared.truncate(self.random.index(shown)),
            _ => {
                change.base.clear();
                change.prepared.clear();
            }
        }
        if let Some(claims) = &mut change.claims
            && (change.base.is_empty() || self.random.chance(1, 2))
        {
            claims.accepted.clear();
        }
        Some(Message::ViewChange(change))
    }

    /// A STATUS with a false position.
    pub(super) fn false_status(&mut self, envelope: &Envelope) -> Option<Message> {
        let Message::Status(status) = envelope.message() else {
            return None;
        };
        let mut status = status.clone();
        match self.random.below(5) {
            0 => {
                status.committed.0 = status
                    .committed
                    .0
                    .saturating_add(self.random.between(1, 99))
            }
            1 => status.committed.0 /= 2,
            2 => {
                let place = self.random.index(3);
                status
                    .open
                    .resize(status.open.len().max(place + 1), OpenStatus::default());
                for open in status.open.iter_mut().skip(place) {
                    open.proposal = Some(no_digest(&mut self.random));
                    open.prepares = self.random.next();
                    open.commits = self.random.next();
                }
            }
            3 => {
                status.stable.0 = self.random.below(99);
                status.kept.0 = status.kept.0.saturating_add(self.random.below(99));
            }
            _ => {
                status.active = !status.active;
                status.view_changes = self.random.next();
                status.suspects = self.random.next();
            }
        }
        Some(Message::Status(status))
    }

    /// Bodies, committed batches or nodes with false content.
    pub(super) fn forge(&mut self, envelope: &Envelope) -> Option<Message> {
        match envelope.message() {
            Message::Bodies(bodies) => {
                let mut requests = bodies.requests.clone();
                if self.random.chance(4, 5) {
                    requests.pop();
                } else {
                    let header = *envelope.header();
                    let forged = Unsigned::new(header.at(View(0)), invented_request());
                    let forged = forged.with_signature(Signature([7; 64]));
                    requests.push(Arc::clone(forged.envelope()));
                }
                Some(Message::Bodies(Bodies { requests }))
            }
            Message::Committed(committed) => {
                let mut committed = committed.clone();
                match self.random.below(3) {
                    0 => {
                        committed.batch.time.0 = committed.batch.time.0.saturating_add(1);
                        if !self.signs_votes {
                            // Only the other replicas' messages contradict it.
                            committed.certificate.digest = digest_of(&committed.batch);
                        }
                    }
                    1 => {
                        committed.bodies.pop();
                    }
                    _ => {
                        committed.certificate.sequence = committed.certificate.sequence.next();
                        committed.batch.sequence = committed.batch.sequence.next();
                    }
                }
                Some(Message::Committed(committed))
            }
            Message::Nodes(nodes) => {
                let mut nodes = nodes.clone();
                let index = self.random.index(nodes.nodes.len());
                match (self.random.below(4), nodes.nodes.get_mut(index)) {
                    (0, Some((_, node))) if !self.node.is_empty() => {
                        // It was true of another place, or of another time.
                        std::mem::swap(node, &mut self.node);
                    }
                    (1, _) => nodes.nodes.reverse(),
                    (2, _) => nodes.gone = true,
                    (_, Some((_, node))) => {
                        self.node = node.clone();
                        let mut bytes = node.to_vec();
                        let at = self.random.index(bytes.len());
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte ^= 1 << self.random.below(8);
                        }
                        *node = bytes.into();
                    }
                    _ => return None,
                }
                Some(Message::Nodes(nodes))
            }
            _ => None,
        }
    }

    /// A message that gets its author blacklisted.
    pub(super) fn crude(&mut self, envelope: &Envelope) -> Option<OutgoingFrame> {
        let header = *envelope.header();
        match envelope.message() {
            Message::Prepare(ballot) | Message::Commit(ballot) => {
                let other = (ballot.signer.0 + 1) % self.replicas;
                let ballot = Ballot {
                    signer: ReplicaId(other),
                    ..*ballot
                };
                let message = match envelope.message() {
                    Message::Prepare(_) => Message::Prepare(ballot),
                    _ => Message::Commit(ballot),
                };
                Some(OutgoingFrame::lie(
                    self.frame(header, message),
                    Lie::WrongSigner,
                ))
            }
            Message::ViewChange(change) => {
                let mut change = change.clone();
                if change.claims.is_some() {
                    change.base.extend(change.base.last().cloned());
                } else if let Some(base) = change.base.last_mut() {
                    doubled(&mut base.votes);
                } else if let Some(prepared) = change.prepared.first_mut() {
                    doubled(&mut prepared.votes);
                } else {
                    return None;
                }
                let frame = self.frame(header, Message::ViewChange(change));
                Some(OutgoingFrame::lie(frame, Lie::DuplicateSigner))
            }
            Message::Status(_) => {
                let mut bytes = envelope.frame().to_vec();
                let length = self.random.index(bytes.len()).max(1);
                bytes.truncate(length);
                Some(OutgoingFrame::lie(Bytes::from(bytes), Lie::Garbage))
            }
            _ => None,
        }
    }
}

/// Copies the first entry over the last one.
fn doubled<T: Copy>(list: &mut [T]) {
    if let (Some(first), Some(last)) = (list.first().copied(), list.last_mut()) {
        *last = first;
    }
}
