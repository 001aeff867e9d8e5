//! Making batches.
//!
//! A batch names the one before it, so a leader's proposals are a chain, whether its links are
//! executed yet or not. A batch is bounded in requests and bytes, takes sessions in turn and at
//! most one request of each lane. `replica::proposing` decides when to make the next one.

use crate::identity::{Digest, Sequence, Time};
use crate::wire::Envelope;
use crate::wire::message::Batch;
use std::sync::Arc;

/// A position in the order: the last executed batch, or a proposal that follows upon it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPosition {
    /// Its sequence; 0 at genesis.
    pub sequence: Sequence,
    /// Its digest.
    pub digest: Digest,
    /// Its time.
    pub time: Time,
}

impl BatchPosition {
    /// The position of a batch with this digest.
    #[must_use]
    pub const fn of(batch: &Batch, digest: Digest) -> Self {
        Self {
            sequence: batch.sequence,
            digest,
            time: batch.time,
        }
    }
}

/// A fresh batch after `last`: its time is the clock, or just above the last one's if that is
/// later.
#[must_use]
pub fn fresh_batch(
    last: &BatchPosition,
    clock: Time,
    behaviour_version: u32,
    tick: bool,
    bodies: &[Arc<Envelope>],
) -> Batch {
    Batch {
        sequence: last.sequence.next(),
        time: clock.max(Time(last.time.0.saturating_add(1))),
        previous: last.digest,
        behaviour_version,
        tick,
        requests: bodies.iter().map(|body| body.digest()).collect(),
    }
}
