//! Making batches.
//!
//! A batch names the one before it, so what a leader proposes is a chain, whether its links are
//! executed yet or not. A batch is bounded in requests and bytes, and takes sessions in turn and of
//! each lane at most one request. When to make the next one is for `replica::proposing`.

use crate::identity::{Digest, Sequence, Time};
use crate::wire::Envelope;
use crate::wire::message::Batch;
use std::sync::Arc;

/// A place in the order: the last executed batch, or a proposal that follows upon it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its sequence; 0 at genesis.
    pub sequence: Sequence,
    /// Its digest.
    pub digest: Digest,
    /// Its time.
    pub time: Time,
}

impl Place {
    /// That of a batch with this digest.
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
    last: &Place,
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
