//! Leaving a view and beginning the next.

use crate::certificate::{CommitCertificate, PreparedCertificate};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Digest, ReplicaId, Sequence, View};
use crate::wire::Envelope;
use std::sync::Arc;

/// A replica's promise to vote in no view below the header's, and what it knows.
#[derive(Clone, Debug)]
pub struct ViewChange {
    /// The signer.
    pub signer: ReplicaId,
    /// The last batches that it has seen committed, without a gap, at most a window; nothing at
    /// genesis. The last of them is its last executed one; those before help replicas that have the
    /// batches, but have not seen them committed.
    pub base: Vec<CommitCertificate>,
    /// For the window after that: what it has prepared, each in the latest view, by sequence.
    pub prepared: Vec<PreparedCertificate>,
    /// Its further claims, where votes are not signed. Then `base` and `prepared` are claims too:
    /// without votes, the former without views and with one batch more than a window.
    pub claims: Option<Box<Claims>>,
}

/// What a replica claims of the window after its last batch, where votes are not signed; see
/// [`crate::ordering::claims`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Claims {
    /// The newest stable checkpoint that it knows; nothing at genesis.
    pub stable: Option<CheckpointCertificate>,
    /// The batches it has accepted, by sequence and digest.
    pub accepted: Vec<Accepted>,
}

/// A batch that was voted for, durably and with all bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Accepted {
    /// Its sequence.
    pub sequence: Sequence,
    /// The batch.
    pub digest: Digest,
    /// The latest view that it was proposed in.
    pub view: View,
}

/// The new leader's proof of what its view begins with.
#[derive(Clone, Debug)]
pub struct NewView {
    /// q VIEW-CHANGEs for this view, signers ascending.
    pub view_changes: Vec<Arc<Envelope>>,
}
