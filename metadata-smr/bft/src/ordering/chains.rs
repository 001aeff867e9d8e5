//! Proposals that follow upon each other, for the tests of what a view carries over.

use crate::identity::{Digest, Sequence, Signature, Time, View};
use crate::wire::message::{Batch, Message};
use crate::wire::{Envelope, Header, Unsigned};
use std::sync::Arc;

/// The state before all batches.
pub(super) const GENESIS: Digest = Digest([9; 32]);
/// The position that the first batch follows upon.
pub(super) const START: (Sequence, Digest) = (Sequence(0), GENESIS);

/// The header of a message in `view`.
pub(super) fn at(view: u64) -> Header {
    Header {
        view: View(view),
        ..Header::default()
    }
}

/// An empty, unsigned batch; its time distinguishes it from others at its sequence.
pub(super) fn proposal(view: u64, sequence: u64, previous: Digest, time: u64) -> Arc<Envelope> {
    let batch = Batch {
        sequence: Sequence(sequence),
        time: Time(time),
        previous,
        behaviour_version: 1,
        tick: false,
        requests: Vec::new(),
    };
    let unsigned = Unsigned::new(at(view), Message::Proposal(batch));
    Arc::clone(unsigned.with_signature(Signature::default()).envelope())
}
