//! A lying replica as a real process: a correct one behind a proxy that changes its messages.
//!
//! It keeps its own state right, so that it runs indefinitely and its lies are plausible. To
//! clients it gives results of other operations; results with a changed bit; answers to queries,
//! ordered and unordered, that belong to other queries or are outdated; and versions and states
//! that never existed. To the other replicas it signs, with its own key, checkpoints with the
//! digest of no real state. With r = 1 no client and no replica may accept any of it. The
//! simulator's `liar` has more lies, which also violate the ordering protocol.

use bytes::Bytes;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{Digest, Now, Sequence};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::step::{Effect, Effects, Event};
use quorumfs_bft::wire::message::{AnswerBody, Kind, Message, Outcome, ReadAnswer};
use quorumfs_bft::wire::{Envelope, Unsigned, encode};
use quorumfs_bft_runtime::event_loop::Core;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_simulator::random::Random;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One of this many messages to clients is a lie.
const LIE_ONE_IN: u64 = 3;
/// How many earlier answers are remembered, to be passed off as others.
const OLD_MAX: usize = 32;

/// Counts of lies.
#[derive(Debug, Default)]
pub struct Lies {
    /// Results of operations, and of ordered queries.
    pub replies: AtomicU64,
    /// Answers to unordered queries.
    pub answers: AtomicU64,
    /// Checkpoints.
    pub checkpoints: AtomicU64,
}

impl Lies {
    /// Stores the counts.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn store(&self, path: &Path) -> std::io::Result<()> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let all = [&self.replies, &self.answers, &self.checkpoints].map(of);
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(&all)?)?;
        std::fs::rename(new, path)
    }

    /// Reads the counts: of replies, of answers, of checkpoints.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(path: &Path) -> anyhow::Result<[u64; 3]> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }
}

/// A core behind a proxy.
pub struct Liar<C> {
    core: C,
    key: Arc<NodeKey>,
    random: Random,
    lies: Arc<Lies>,
    results: VecDeque<Bytes>,
}

impl<C: Core> Liar<C> {
    /// A liar around a correct core, which signs with its key.
    pub fn new(core: C, key: Arc<NodeKey>, random: Random, lies: Arc<Lies>) -> Self {
        Self {
            core,
            key,
            random,
            lies,
            results: VecDeque::new(),
        }
    }

    /// The lie that replaces a frame, if any.
    fn twist(&mut self, frame: &Bytes) -> Option<Bytes> {
        let kind = frame.get(..8).and_then(Kind::of_tag)?;
        let lies = match kind {
            Kind::Reply | Kind::ReadAnswer => self.random.chance(1, LIE_ONE_IN),
            // Checkpoints are few.
            Kind::Checkpoint => true,
            _ => false,
        };
        if !lies {
            return None;
        }
        let envelope = Envelope::decode(frame.clone()).ok()?;
        let (header, mut message) = (*envelope.header(), envelope.message().clone());
        let lies = match &mut message {
            Message::Reply(reply) => {
                let Outcome::Results(results) = &mut reply.outcome else {
                    return None;
                };
                for result in results.iter_mut().flatten() {
                    *result = other(&mut self.random, &mut self.results, result);
                }
                &self.lies.replies
            }
            Message::ReadAnswer(answer) => {
                twist_answers(&mut self.random, &mut self.results, answer);
                &self.lies.answers
            }
            Message::Checkpoint(vote) => {
                vote.checkpoint.root = Digest([7; 32]);
                self.lies.checkpoints.fetch_add(1, Ordering::Relaxed);
                let signer: &dyn Signer = &*self.key;
                let signed = Unsigned::new(header, message).sign(signer);
                return Some(signed.frame().clone());
            }
            _ => return None,
        };
        let lie = encode(header, &message);
        // The earlier answer may be equal to this one.
        if lie == *frame {
            return None;
        }
        lies.fetch_add(1, Ordering::Relaxed);
        Some(lie)
    }
}

/// Changes answers, their versions, or the sequence of the state.
fn twist_answers(random: &mut Random, old: &mut VecDeque<Bytes>, answer: &mut ReadAnswer) {
    if random.chance(1, 4) {
        answer.applied = Sequence(answer.applied.0.saturating_add(random.below(1000)));
    }
    for answered in answer.answers.iter_mut().flatten() {
        if random.chance(1, 3) {
            answered.version = Sequence(random.below(answer.applied.0.saturating_add(1)));
        }
        match &mut answered.body {
            AnswerBody::Bytes(bytes) => *bytes = other(random, old, bytes),
            AnswerBody::Digest(digest) => digest.0[random.index(32)] ^= 1,
            AnswerBody::NoRoom => {}
        }
    }
}

/// An earlier answer in the place of this one, or this one with a changed bit.
fn other(random: &mut Random, old: &mut VecDeque<Bytes>, this: &Bytes) -> Bytes {
    let lie = match old.get(random.index(old.len())) {
        Some(old) if random.chance(2, 3) => old.clone(),
        _ => {
            let mut bytes = this.to_vec();
            let place = random.index(bytes.len());
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1 << random.below(8);
            }
            Bytes::from(bytes)
        }
    };
    if old.len() >= OLD_MAX {
        old.pop_front();
    }
    old.push_back(this.clone());
    lie
}

impl<C: Core> Core for Liar<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let mut emitted = Effects::default();
        self.core.step(now, event, &mut emitted);
        for mut effect in emitted.drain() {
            if let Effect::Send { frame, .. } = &mut effect
                && let Some(lie) = self.twist(frame)
            {
                *frame = lie;
            }
            effects.push(effect);
        }
    }

    fn status(&self) -> ReplicaStatus {
        self.core.status()
    }

    fn committed(&self) -> Sequence {
        self.core.committed()
    }
}
