//! Lying to those who read out of order: with what was true once.
//!
//! A laggard that answers the same makes two, so an old answer is the lie that gets furthest; a
//! wrong version and a state that nobody has reached are the others.

use super::Proxy;
use bytes::Bytes;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::wire::message::{AnswerBody, Answered, Message, Read, ReadAnswer};
use quorumfs_bft::wire::{Envelope, encode};
use std::collections::{BTreeMap, VecDeque};

/// Questions that are remembered until they are answered.
const ASKED_MAX: usize = 64;
/// Queries whose old answers are remembered, and how many of each.
const QUERIES_MAX: usize = 256;
const OLD_MAX: usize = 4;

/// What was asked, and what was answered before.
#[derive(Debug, Default)]
pub(super) struct Reading {
    asked: VecDeque<(u64, Vec<Bytes>)>,
    old: BTreeMap<Bytes, VecDeque<Answered>>,
}

impl Reading {
    pub(super) fn heard(&mut self, read: &Read) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((read.nonce, read.queries.clone()));
    }

    fn queries(&mut self, nonce: u64) -> Vec<Bytes> {
        let place = self.asked.iter().position(|(asked, _)| *asked == nonce);
        let asked = place.and_then(|place| self.asked.remove(place));
        asked.map(|(_, queries)| queries).unwrap_or_default()
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
    /// What answers become.
    pub(super) fn misread(&mut self, envelope: &Envelope, answer: &ReadAnswer) -> Bytes {
        let mut answer = answer.clone();
        let queries = self.reading.queries(answer.nonce);
        for (query, answered) in queries.iter().zip(answer.answers.iter_mut().flatten()) {
            self.reading.remember(query, answered);
            let old = self.reading.old.get(query);
            match self.random.below(16) {
                0..10 => {
                    // Mostly what was true just before, which somebody may still believe.
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
