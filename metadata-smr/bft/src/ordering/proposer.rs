//! Making batches.
//!
//! Nothing in flight: propose at once, so that a lone client never waits. While a batch is in
//! flight requests accumulate in the pool, and the next batch takes them together. A batch is
//! bounded in requests and bytes, and takes sessions in turn and of each lane at most one request.

use crate::identity::{Digest, Sequence, Time};
use crate::wire::Envelope;
use crate::wire::message::Batch;
use std::sync::Arc;

/// Where the order stands: the last committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its sequence; 0 at genesis.
    pub sequence: Sequence,
    /// Its digest.
    pub digest: Digest,
    /// Its time.
    pub time: Time,
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
