//! Four voters, and certificates of theirs that are valid or spoilt in one way: for tests.

use super::{CommitCertificate, PreparedCertificate, Vote};
use crate::authentication::{KeyDirectory, Signer, Verifier};
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::fault_model::FaultModel;
use crate::identity::{
    ClusterId, Digest, Epoch, Incarnation, PublicKey, ReplicaId, Sequence, SessionId, Signature,
    Time, View,
};
use crate::membership::{EpochRecord, Member, Membership};
use crate::wire::message::{Batch, Kind, Message};
use crate::wire::signed_bytes::{checkpoint_bytes, membership_digest, vote_bytes};
use crate::wire::{Context, Envelope, Header, Unsigned};
use bytes::Bytes;
use std::sync::Arc;

/// The view of what is certified; replica 1 leads it.
pub(crate) const VIEW: View = View(5);
/// The sequence of what is certified.
pub(crate) const SEQUENCE: Sequence = Sequence(40);
/// The epoch of the four voters.
pub(crate) const EPOCH: Epoch = Epoch(3);

/// Signatures without a secret; no two keys or texts share one.
pub(crate) struct Toy;

fn sign(key: &PublicKey, message: &[u8]) -> Signature {
    let mut signature = Signature([0; 64]);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&key.0).update(message);
    hasher.finalize_xof().fill(&mut signature.0);
    signature
}

impl Verifier for Toy {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        sign(key, message) == *signature
    }
}

/// The key of a replica.
pub(crate) struct Key(pub(crate) u16);

impl Signer for Key {
    fn public_key(&self) -> PublicKey {
        PublicKey([self.0 as u8 + 1; 32])
    }
    fn sign(&self, message: &[u8]) -> Signature {
        sign(&self.public_key(), message)
    }
}

/// The four: 0 to 3.
pub(crate) struct Voters;

impl KeyDirectory for Voters {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        (id.0 < 4).then(|| Key(id.0).public_key())
    }
    fn session(&self, _: SessionId) -> Option<PublicKey> {
        None
    }
}

/// Their context: three of the four are a quorum.
pub(crate) fn context() -> Context {
    let model = FaultModel::new(1, 1, 4).expect("a model");
    Context::new(ClusterId([9; 16]), EPOCH, model)
}

/// The signers, and what is wrong with their signatures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed {
    pub(crate) by: &'static [u16],
    pub(crate) epoch: Epoch,
    /// They signed it for the view after.
    pub(crate) other_view: bool,
    /// They signed it for the sequence after.
    pub(crate) other_sequence: bool,
    /// They signed another digest.
    pub(crate) other_digest: bool,
    /// The last signature is by another key than it names.
    pub(crate) forged: bool,
}

/// Nothing is wrong.
pub(crate) const fn signed(by: &'static [u16]) -> Signed {
    Signed {
        by,
        epoch: EPOCH,
        other_view: false,
        other_sequence: false,
        other_digest: false,
        forged: false,
    }
}

/// One of the ways to spoil a certificate, with its name.
pub(crate) type Spoilt = (&'static str, Signed);

/// What may be wrong with any kind of certificate; the votes of `by` would suffice.
pub(crate) fn spoilt(by: &'static [u16]) -> Vec<Spoilt> {
    let good = signed(by);
    let epoch = |epoch| Signed { epoch, ..good };
    vec![
        ("an epoch before", epoch(Epoch(2))),
        ("an epoch after", epoch(Epoch(4))),
        (
            "another view",
            Signed {
                other_view: true,
                ..good
            },
        ),
        (
            "another sequence",
            Signed {
                other_sequence: true,
                ..good
            },
        ),
        (
            "another digest",
            Signed {
                other_digest: true,
                ..good
            },
        ),
        (
            "a signature by another key",
            Signed {
                forged: true,
                ..good
            },
        ),
    ]
}

/// The same for one that three of four have to sign.
pub(crate) fn spoilt_of_three() -> Vec<Spoilt> {
    let mut all = spoilt(&[0, 2, 3]);
    all.extend([
        ("a vote too few", signed(&[0, 2])),
        ("no vote", signed(&[])),
        ("a vote twice", signed(&[0, 2, 2])),
        ("out of order", signed(&[2, 0, 3])),
        (
            "a vote of a replica that is not a voter",
            signed(&[0, 2, 4]),
        ),
    ]);
    all
}

/// The same for one that two have to sign in addition to replica 1, whose proposal it is.
pub(crate) fn spoilt_of_two() -> Vec<Spoilt> {
    let mut all = spoilt(&[0, 2]);
    all.extend([
        ("a vote too few", signed(&[0])),
        ("no vote", signed(&[])),
        ("a vote twice", signed(&[2, 2])),
        ("out of order", signed(&[2, 0])),
        ("a vote of a replica that is not a voter", signed(&[0, 4])),
        ("the leader once more", signed(&[0, 1])),
        ("the leader among enough", signed(&[0, 1, 2])),
    ]);
    all
}

impl Signed {
    fn header(&self, view: View) -> Header {
        let view = if self.other_view { view.next() } else { view };
        Header {
            epoch: self.epoch,
            ..context().header(view)
        }
    }

    fn sequence(&self) -> Sequence {
        match self.other_sequence {
            true => SEQUENCE.next(),
            false => SEQUENCE,
        }
    }

    fn digest(&self, right: Digest) -> Digest {
        match self.other_digest {
            true => Digest([5; 32]),
            false => right,
        }
    }

    fn votes(&self, bytes: impl Fn(ReplicaId) -> Vec<u8>) -> Vec<Vote> {
        let vote = |signer: &u16| Vote {
            signer: ReplicaId(*signer),
            signature: Key(*signer).sign(&bytes(ReplicaId(*signer))),
        };
        let mut votes: Vec<_> = self.by.iter().map(vote).collect();
        if let Some(last) = votes.last_mut().filter(|_| self.forged) {
            last.signature = Key(1).sign(&bytes(last.signer));
        }
        votes
    }

    fn ballots(&self, kind: Kind, digest: Digest) -> Vec<Vote> {
        let (header, digest) = (self.header(VIEW), self.digest(digest));
        self.votes(|signer| vote_bytes(kind, &header, self.sequence(), &digest, signer))
    }
}

/// The batch that is certified.
pub(crate) fn batch() -> Batch {
    Batch {
        sequence: SEQUENCE,
        time: Time(1),
        previous: Digest::default(),
        behaviour_version: 1,
        tick: false,
        requests: Vec::new(),
    }
}

/// Its proposal, as the leader of this view signed it.
pub(crate) fn proposal(header: Header) -> Arc<Envelope> {
    let leader = context().leader(header.view);
    let unsigned = Unsigned::new(header, Message::Proposal(batch()));
    Arc::clone(unsigned.sign(&Key(leader.0)).envelope())
}

/// A commit certificate whose votes, of this kind, are these.
pub(crate) fn commit_of(kind: Kind, signed: Signed) -> CommitCertificate {
    let digest = proposal(context().header(VIEW)).digest();
    CommitCertificate {
        view: VIEW,
        sequence: SEQUENCE,
        digest,
        votes: signed.ballots(kind, digest),
    }
}

/// A commit certificate with these COMMITs.
pub(crate) fn commit(signed: Signed) -> CommitCertificate {
    commit_of(Kind::Commit, signed)
}

/// A prepared certificate with these PREPAREs.
pub(crate) fn prepared(signed: Signed) -> PreparedCertificate {
    let proposal = proposal(context().header(VIEW));
    let votes = signed.ballots(Kind::Prepare, proposal.digest());
    PreparedCertificate { proposal, votes }
}

/// A checkpoint certificate of a state with this membership.
pub(crate) fn stable(signed: Signed, membership: Digest) -> CheckpointCertificate {
    let checkpoint = Checkpoint {
        sequence: SEQUENCE,
        batch: Digest([6; 32]),
        root: Digest([4; 32]),
        membership,
    };
    let voted = Checkpoint {
        sequence: signed.sequence(),
        root: signed.digest(checkpoint.root),
        ..checkpoint
    };
    let header = signed.header(View(0));
    CheckpointCertificate {
        checkpoint,
        votes: signed.votes(|signer| checkpoint_bytes(&header, &voted, signer)),
    }
}

/// The membership of the epoch after: the same four.
pub(crate) fn next_membership() -> Membership {
    let member = |number: u16| Member {
        key: Key(number).public_key(),
        incarnation: Incarnation([number as u8; 16]),
        address: Bytes::new(),
        since: Sequence(0),
    };
    let voters = (0..4).map(member).collect();
    Membership {
        epoch: Epoch(EPOCH.0 + 1),
        from: SEQUENCE,
        ..Membership::genesis(context().model, voters, vec![Key(8).public_key()])
    }
}

/// The record of an epoch with this membership, which these have signed.
pub(crate) fn record_of(signed: Signed, membership: Membership) -> EpochRecord {
    let digest = membership_digest(&membership.encode());
    EpochRecord::new(stable(signed, digest), membership)
}

/// The record of the epoch after.
pub(crate) fn record(signed: Signed) -> EpochRecord {
    record_of(signed, next_membership())
}
