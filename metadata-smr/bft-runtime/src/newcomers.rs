//! Whoever dials as a replica and is none that is known here: it may be of a later epoch.
//!
//! ```text
//!   newcomer ── STATUS of epoch 7 ──► this replica, in epoch 4
//!            ◄── FETCH-EPOCHS after 4 ──         (on the same connection)
//!            ── EPOCHS 5, 6, 7 ─────► checked under the keys of epoch 4, taken up by the core
//! ```
//!
//! The members of an epoch dial each other, so whoever was away while everybody that it knew was
//! replaced is dialed by their successors, and a replica that is to join is by whoever admitted it.
//! It knows none of their keys. But it need not trust them: the records of epochs prove themselves.
//! Nothing else that a newcomer says is looked at, and all of it has its price
//! ([`crate::pace`]); in the other direction, whoever is dialed and asks without a pause is hung up
//! on, since an answer may be long. Once the epoch has begun in which it is a member, it connects
//! as one.

use crate::limits;
use crate::link::frame::Frame;
use crate::roster::Connection;
use crate::verification::Verification;
use bytes::Bytes;
use quorumfs_bft::wire::frame::encode;
use quorumfs_bft::wire::message::{FetchEpochs, Kind};
use quorumfs_bft::wire::{Envelope, Message};
use std::time::{Duration, Instant};

/// One newcomer's connection.
#[derive(Debug, Default)]
pub(crate) struct Newcomer {
    asked: Questions,
}

/// The questions on one connection: there is a pause between two.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    last: Option<Instant>,
}

impl Questions {
    /// Notes one unless there was another within `pause`, and says whether it is noted.
    fn note(&mut self, now: Instant, pause: Duration) -> bool {
        let noted = self
            .last
            .is_none_or(|last| now.duration_since(last) >= pause);
        if noted {
            self.last = Some(now);
        }
        noted
    }

    /// Whether whoever was asked may be asked again: then this counts as asked.
    fn may_ask(&mut self, now: Instant) -> bool {
        self.note(now, limits::NEWCOMER_PATIENCE)
    }

    /// Whether a question that came now is one of somebody who keeps to that. On the way questions
    /// may come closer together.
    pub(crate) fn came(&mut self, now: Instant) -> bool {
        self.note(now, limits::NEWCOMER_PATIENCE / 2)
    }
}

impl Newcomer {
    /// What of a frame is for the core to look at.
    pub(crate) fn hear(
        &mut self,
        frame: Bytes,
        connection: &Connection,
        verification: &Verification,
    ) -> Option<Bytes> {
        match frame.get(..8).and_then(Kind::of_tag) {
            Some(Kind::Epochs) => return Some(frame),
            Some(Kind::Status) => {}
            _ => return None,
        }
        let theirs = *Envelope::decode(frame).ok()?.header();
        let ours = verification.header();
        let later = theirs.cluster == ours.cluster && theirs.epoch > ours.epoch;
        if later && self.asked.may_ask(Instant::now()) {
            let after = ours.epoch;
            let question = encode(ours, &Message::FetchEpochs(FetchEpochs { after }));
            connection.outbox.push(Frame::message(question));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_as_this_does_is_answered_and_a_flood_is_not() {
        let start = Instant::now();
        let patience = limits::NEWCOMER_PATIENCE;
        let (mut asking, mut hearing) = (Questions::default(), Questions::default());
        for step in 0..100 {
            let now = start + step * patience / 10;
            assert_eq!(asking.may_ask(now), step % 10 == 0, "{step}");
            if step % 10 == 0 {
                assert!(hearing.came(now), "{step}");
            }
        }
        let now = start + 20 * patience;
        assert!(hearing.came(now));
        assert!(!hearing.came(now + patience / 10));
    }
}
