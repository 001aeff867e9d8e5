//! Lying to observers: withholding, repeating, inventing and exaggerating reports.

use super::Proxy;
use bytes::Bytes;
use quorumfs_bft::identity::{Sequence, View};
use quorumfs_bft::observer::{Observed, WatchId};
use quorumfs_bft::wire::message::Message;
use quorumfs_bft::wire::{Envelope, encode};

/// Frames that are remembered, to be repeated.
const SHOWN_MAX: usize = 8;

impl Proxy {
    /// Rewrites a frame for observers.
    pub fn rewrite_report(&mut self, frame: &Bytes) -> Vec<Bytes> {
        if self.shown.len() >= SHOWN_MAX {
            self.shown.pop_front();
        }
        self.shown.push_back(frame.clone());
        match self.random.below(8) {
            0 => Vec::new(),
            1 => {
                let old = self.random.index(self.shown.len());
                let old = self.shown.get(old).cloned();
                old.into_iter().chain([frame.clone()]).collect()
            }
            2 => vec![self.exaggerate(frame)],
            3 => vec![frame.clone(), self.exaggerate(frame)],
            _ => vec![frame.clone()],
        }
    }

    fn exaggerate(&mut self, frame: &Bytes) -> Bytes {
        let Ok(envelope) = Envelope::decode(frame.clone()) else {
            return frame.clone();
        };
        let beyond = 1 + self.random.below(20);
        let message = match envelope.message() {
            Message::Report(report) => {
                let mut changed = *report;
                changed.number += self.random.below(3);
                let report = &mut changed.report;
                match self.random.below(4) {
                    0 => report.executed = Sequence(report.executed.0 + beyond),
                    1 => report.view = View(report.view.0 + beyond),
                    2 => report.stable = Sequence(report.executed.0 + beyond),
                    _ => report.active = !report.active,
                }
                Message::Report(changed)
            }
            Message::Observed(Observed::Accepted { applied, last }) => {
                let last = last.map(|last| match self.random.below(2) {
                    0 => Sequence(last.0 + beyond),
                    _ => Sequence(last.0.saturating_sub(beyond)),
                });
                let applied = *applied;
                Message::Observed(Observed::Accepted { applied, last })
            }
            Message::WatchEvent(event) => {
                let mut event = event.clone();
                match self.random.below(3) {
                    0 => {
                        event.previous = event.sequence;
                        event.sequence = Sequence(event.sequence.0 + beyond);
                    }
                    1 => event.previous = Sequence(event.previous.0.saturating_sub(1)),
                    _ => {
                        let others = event.watches.iter().map(|it| WatchId(it.0 + 1));
                        event.watches = others.collect();
                    }
                }
                Message::WatchEvent(event)
            }
            _ => return frame.clone(),
        };
        encode(*envelope.header(), &message)
    }
}
