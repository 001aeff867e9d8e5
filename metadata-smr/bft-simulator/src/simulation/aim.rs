//! A network that loses critical frames.
//!
//! * *Stagger*: each replica learns of a decision a few batches later than the first one does, by a
//!   number that changes in every slice of time. All of them vote, so the order goes on; but at any
//!   moment they have executed up to different sequences, and advance one by one.
//! * *Sever*: the votes for one proposal are lost, while later ones get theirs; and only one
//!   replica learns of the later decisions. In the next view nothing is lost.

use super::Simulation;
use crate::plan::LAG_MAX;
use crate::random::Random;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::identity::{Sequence, View};
use quorumfs_bft::wire::Envelope;
use quorumfs_bft::wire::message::{Kind, Message};

/// The frames that the network loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Stagger {
        fault: usize,
        slice: u64,
        seed: u64,
    },
    Sever {
        fault: usize,
        receiver: usize,
        /// The proposal that it cuts out, once it has been sent.
        at: Option<(View, Sequence)>,
    },
}

impl Aim {
    const fn fault(&self) -> usize {
        match self {
            Self::Stagger { fault, .. } | Self::Sever { fault, .. } => *fault,
        }
    }
}

/// The view and sequence of a frame that reports a decision.
fn decided(frame: &Bytes) -> Option<(View, Sequence)> {
    let kind = Kind::of_tag(frame.get(..8)?)?;
    if !matches!(kind, Kind::Commit | Kind::Committed) {
        return None;
    }
    let envelope = Envelope::decode(frame.clone()).ok()?;
    match envelope.message() {
        Message::Commit(ballot) => Some((envelope.view(), ballot.sequence)),
        Message::Committed(it) => Some((it.certificate.view, it.batch.sequence)),
        _ => None,
    }
}

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn add_aim(&mut self, aim: Aim) {
        self.aims.push(aim);
    }

    pub(super) fn remove_aim(&mut self, fault: usize) {
        self.aims.retain(|aim| aim.fault() != fault);
    }

    /// Whether a frame between nodes is lost because of an aim.
    pub(super) fn hit(&mut self, from: usize, to: usize, frame: &Bytes) -> bool {
        let mut hit = None;
        let mut aims = std::mem::take(&mut self.aims);
        for aim in &mut aims {
            let lost = match aim {
                Aim::Stagger { slice, seed, .. } => self.staggers(to, *slice, *seed, frame),
                Aim::Sever { receiver, at, .. } => self.severs(from, to, *receiver, at, frame),
            };
            if lost {
                hit = Some(aim.fault());
            }
        }
        self.aims = aims;
        self.effective.extend(hit);
        hit.is_some()
    }

    fn staggers(&mut self, to: usize, slice: u64, seed: u64, frame: &Bytes) -> bool {
        let Some((_, sequence)) = decided(frame) else {
            return false;
        };
        let spell = self.agenda.now().0 / slice.max(1);
        let lag = Random::new(seed ^ spell << 8 ^ to as u64).below(LAG_MAX + 1);
        let lost = sequence.0 > self.executed.0.saturating_sub(lag) && lag > 0;
        if lost {
            self.counters.count("staggered");
        }
        lost
    }

    fn severs(
        &mut self,
        from: usize,
        to: usize,
        receiver: usize,
        at: &mut Option<(View, Sequence)>,
        frame: &Bytes,
    ) -> bool {
        let kind = Kind::of_tag(frame.get(..8).unwrap_or_default());
        let about = match kind {
            Some(Kind::Proposal | Kind::Prepare | Kind::Commit) => Envelope::decode(frame.clone()),
            _ => return false,
        };
        let Ok(envelope) = about else {
            return false;
        };
        let (view, sequence) = match envelope.message() {
            Message::Proposal(batch) => {
                let fresh = self.nodes.get(from).is_some_and(|node| node.honest());
                if at.is_none() && fresh && batch.sequence > self.executed {
                    *at = Some((envelope.view(), batch.sequence));
                }
                return false;
            }
            Message::Prepare(ballot) | Message::Commit(ballot) => {
                (envelope.view(), ballot.sequence)
            }
            _ => return false,
        };
        let Some((cut_view, cut)) = *at else {
            return false;
        };
        if view != cut_view || sequence < cut {
            return false;
        }
        if sequence > cut && kind == Some(Kind::Commit) && to == receiver {
            self.counters.count("severed");
        }
        sequence == cut || (kind == Some(Kind::Commit) && to != receiver)
    }
}
