//! Lying to unordered reads, with outdated answers.
//!
//! A lagging replica that gives the same answer makes two, so an old answer is the most successful
//! lie; a wrong version and a state that no replica has reached are the others.

use super::Proxy;
use bytes::Bytes;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::wire::message::{AnswerBody, Answered, Message, Read, ReadAnswer};
use quorumfs_bft::wire::{Envelope, encode};
use std::collections::{BTreeMap, VecDeque};

/// Reads that are remembered until they are answered.
const PENDING_MAX: usize = 64;
/// Queries whose old answers are remembered, and how many of each.
const QUERIES_MAX: usize = 256;
const OLD_MAX: usize = 4;

/// The pending reads, and earlier answers.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pending: VecDeque<(u64, Vec<Bytes>)>,
    old: BTreeMap<Bytes, VecDeque<Answered>>,
}

impl Reading {
    pub(super) fn remember_read(&mut self, read: &Read) {
        if self.pending.len() >= PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((read.nonce, read.queries.clone()));
    }

    fn queries(&mut self, nonce: u64) -> Vec<Bytes> {
        let place = self
            .pending
            .iter()
            .position(|(pending, _)| *pending == nonce);
        let pending = place.and_then(|place| self.pending.remove(place));
        pending.map(|(_, queries)| queries).unwrap_or_default()
    }

    fn remember(&mut self, query: &Bytes, answered: &Answered) {
        if !self.old.contains_key(query) && self.old.len() >= QUERIES_MAX {
            self.old.pop_first();
        }
        let old = self.old.entry(query.clone()).or_default();
        let news = matches!(answered.body, AnswerBody::Bytes(_)) && old.back() != Some(answered);
        if news {
            if old.len() >= OLD_MAX {
                old.pop_front();
            }
            old.push_back(answered.clone());
        }
    }
}

impl Proxy {
    /// Rewrites an answer.
    pub(super) fn misread(&mut self, envelope: &Envelope, answer: &ReadAnswer) -> Bytes {
        let mut answer = answer.clone();
        let queries = self.reading.queries(answer.nonce);
        for (query, answered) in queries.iter().zip(answer.answers.iter_mut().flatten()) {
            self.reading.remember(query, answered);
            let old = self.reading.old.get(query);
            match self.random.below(16) {
                0..10 => {
                    // Mostly the value just before, which another replica may still have.
                    let ago = 2 + self.random.below(6) as usize / 5;
                    let old = old.and_then(|old| old.get(old.len().checked_sub(ago)?));
                    if let Some(old) = old {
                        *answered = old.clone();
                    }
                }
                10 => answered.version = answer.applied,
                11 => answered.body = AnswerBody::Bytes(Bytes::from_static(b"a lie")),
                _ => {}
            }
        }
        if self.random.chance(1, 4) {
            answer.applied = Sequence(answer.applied.0.saturating_add(self.random.below(1000)));
        }
        encode(*envelope.header(), &Message::ReadAnswer(answer))
    }
}
