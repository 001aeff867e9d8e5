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
//! ([`crate::pace`]). Once the epoch has begun in which it is a member, it connects as one.

use crate::limits;
use crate::link::frame::Frame;
use crate::roster::Connection;
use crate::verification::Verification;
use bytes::Bytes;
use quorumfs_bft::wire::frame::encode;
use quorumfs_bft::wire::message::{FetchEpochs, Kind};
use quorumfs_bft::wire::{Envelope, Message};
use std::time::Instant;

/// One newcomer's connection.
#[derive(Debug, Default)]
pub(crate) struct Newcomer {
    asked: Option<Instant>,
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
        let now = Instant::now();
        let lately = |at: Instant| now.duration_since(at) < limits::NEWCOMER_PATIENCE;
        if later && !self.asked.is_some_and(lately) {
            self.asked = Some(now);
            let after = ours.epoch;
            let question = encode(ours, &Message::FetchEpochs(FetchEpochs { after }));
            connection.outbox.push(Frame::message(question));
        }
        None
    }
}
