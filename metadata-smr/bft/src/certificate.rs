//! Certificates: what a quorum of signatures proves to a replica that did not take part.
//!
//! * A **prepared certificate** is a proposal with the PREPAREs of q − 1 others; the proposal is
//!   its leader's PREPARE. No other batch can be prepared at that sequence in that view. With r = 0
//!   no replica lies, there is no PREPARE phase, and the proposal alone is the certificate.
//! * A **commit certificate** is q COMMITs. The batch is decided: every later view keeps it.
//!
//! Signers are strictly ascending, so no signer counts twice.

use crate::authentication::{KeyDirectory, Verifier};
use crate::identity::{Digest, ReplicaId, Sequence, Signature, View};
use crate::wire::frame::Header;
use crate::wire::message::Kind;
use crate::wire::signed_bytes::vote_bytes;
use crate::wire::{Context, Envelope};
use std::sync::Arc;

/// One replica's signature on a vote whose content is stored elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The signer.
    pub signer: ReplicaId,
    /// Over [`vote_bytes`].
    pub signature: Signature,
}

/// q COMMITs for one batch in one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitCertificate {
    /// The view that they were given in.
    pub view: View,
    /// The batch's sequence.
    pub sequence: Sequence,
    /// The batch.
    pub digest: Digest,
    /// The COMMITs, signers ascending.
    pub votes: Vec<Vote>,
}

/// A proposal and the PREPAREs of q − 1 others.
#[derive(Clone, Debug)]
pub struct PreparedCertificate {
    /// The proposal, as its leader signed it.
    pub proposal: Arc<Envelope>,
    /// The PREPAREs, signers ascending.
    pub votes: Vec<Vote>,
}

impl CommitCertificate {
    /// Whether q different voters signed this.
    pub fn verify(
        &self,
        header: Header,
        context: &Context,
        keys: &dyn KeyDirectory,
        verifier: &dyn Verifier,
    ) -> bool {
        let header = Header {
            view: self.view,
            ..header
        };
        let statement = (self.sequence, self.digest);
        context.certify(self.votes.len(), context.quorum.into())
            && votes_hold(
                Kind::Commit,
                &header,
                statement,
                &self.votes,
                context,
                keys,
                verifier,
            )
    }
}

impl PreparedCertificate {
    /// Whether the votes (the proposal's own signature is checked where it is decoded) suffice.
    pub fn verify_votes(
        &self,
        context: &Context,
        keys: &dyn KeyDirectory,
        verifier: &dyn Verifier,
    ) -> bool {
        let Some(batch) = self.proposal.batch() else {
            return false;
        };
        let header = *self.proposal.header();
        let leader = context.leader(header.view);
        let statement = (batch.sequence, self.proposal.digest());
        context.certify(self.votes.len() + 1, context.prepared_quorum())
            && (context.duplicates.is_set() || self.votes.iter().all(|vote| vote.signer != leader))
            && votes_hold(
                Kind::Prepare,
                &header,
                statement,
                &self.votes,
                context,
                keys,
                verifier,
            )
    }
}

fn votes_hold(
    kind: Kind,
    header: &Header,
    (sequence, digest): (Sequence, Digest),
    votes: &[Vote],
    context: &Context,
    keys: &dyn KeyDirectory,
    verifier: &dyn Verifier,
) -> bool {
    let ascending = votes.is_sorted_by(|left, right| {
        left.signer < right.signer || (context.duplicates.is_set() && left.signer == right.signer)
    });
    ascending
        && votes.iter().all(|vote| {
            let bytes = vote_bytes(kind, header, sequence, &digest, vote.signer);
            keys.replica(vote.signer)
                .is_some_and(|key| verifier.verify(&key, &bytes, &vote.signature))
        })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod voters;
