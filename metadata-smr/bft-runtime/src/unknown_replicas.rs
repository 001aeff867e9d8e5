//! Nodes that dial as replicas and are unknown here: they may be of a later epoch.
//!
//! ```text
//!   unknown  ── STATUS of epoch 7 ──► this replica, in epoch 4
//!            ◄── FETCH-EPOCHS after 4 ──         (on the same connection)
//!            ── EPOCHS 5, 6, 7 ─────► checked under the keys of epoch 4, applied by the core
//! ```
//!
//! The members of an epoch dial each other. So a replica that was away while all replicas that it
//! knew were replaced is dialed by their successors, and a joining replica is dialed by the members
//! that admitted it. It knows none of their keys, but need not trust them: the records of epochs
//! prove themselves. Nothing else from an unknown replica is used, and all of its frames are
//! rate-limited ([`crate::pace`]). In the other direction, a dialed replica that asks without a
//! pause is disconnected, since an answer may be long. Once the epoch of its membership has begun,
//! it connects as a member.

use crate::limits;
use crate::link::frame::Frame;
use crate::roster::Connection;
use crate::verification::Verification;
use bytes::Bytes;
use quorumfs_bft::wire::frame::encode;
use quorumfs_bft::wire::message::{FetchEpochs, Kind};
use quorumfs_bft::wire::{Envelope, Message};
use std::time::{Duration, Instant};

/// One unknown replica's connection.
#[derive(Debug, Default)]
pub(crate) struct UnknownReplica {
    requests: EpochRequests,
}

/// The requests on one connection, with a pause between two.
#[derive(Debug, Default)]
pub(crate) struct EpochRequests {
    last: Option<Instant>,
}

impl EpochRequests {
    /// Notes a request unless there was another within `pause`; returns whether it is noted.
    fn note(&mut self, now: Instant, pause: Duration) -> bool {
        let noted = self
            .last
            .is_none_or(|last| now.duration_since(last) >= pause);
        if noted {
            self.last = Some(now);
        }
        noted
    }

    /// Whether a request may be sent now; if so, it counts as sent.
    fn may_request(&mut self, now: Instant) -> bool {
        self.note(now, limits::UNKNOWN_REPLICA_PAUSE)
    }

    /// Whether a request that arrives now is from a node that keeps to the pause. On the way
    /// requests may come closer together.
    pub(crate) fn accept(&mut self, now: Instant) -> bool {
        self.note(now, limits::UNKNOWN_REPLICA_PAUSE / 2)
    }
}

impl UnknownReplica {
    /// Returns the frame if it is for the core to handle.
    pub(crate) fn receive(
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
        if later && self.requests.may_request(Instant::now()) {
            let after = ours.epoch;
            let request = encode(ours, &Message::FetchEpochs(FetchEpochs { after }));
            connection.outbox.push(Frame::message(request));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_a_pause_are_answered_and_a_flood_is_not() {
        let start = Instant::now();
        let interval = limits::UNKNOWN_REPLICA_PAUSE;
        let (mut requesting, mut receiving) = (EpochRequests::default(), EpochRequests::default());
        for step in 0..100 {
            let now = start + step * interval / 10;
            assert_eq!(requesting.may_request(now), step % 10 == 0, "{step}");
            if step % 10 == 0 {
                assert!(receiving.accept(now), "{step}");
            }
        }
        let now = start + 20 * interval;
        assert!(receiving.accept(now));
        assert!(!receiving.accept(now + interval / 10));
    }
}
