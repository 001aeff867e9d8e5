//! Each kind of certificate: what it takes to be believed, and each way to lack it.

use super::*;
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Epoch, Incarnation, PublicKey, SessionId, Time};
use crate::membership::{EpochRecord, Member, Membership};
use crate::wire::Unsigned;
use crate::wire::message::{Batch, Message};
use crate::wire::signed_bytes::{checkpoint_bytes, membership_digest};
use bytes::Bytes;

const VIEW: View = View(5);
const SEQUENCE: Sequence = Sequence(40);
const DIGEST: Digest = Digest([4; 32]);

/// Signatures that need no secret; no two keys or texts share one.
struct Toy;

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

fn key(replica: u16) -> PublicKey {
    PublicKey([replica as u8 + 1; 32])
}

/// Four voters: 0 to 3.
struct Voters;

impl KeyDirectory for Voters {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        (id.0 < 4).then(|| key(id.0))
    }
    fn session(&self, _: SessionId) -> Option<PublicKey> {
        None
    }
}

fn context() -> Context {
    let model = FaultModel::new(1, 1, 4).expect("a model");
    Context::new(ClusterId([9; 16]), Epoch(3), model)
}

/// What is done to a certificate that holds.
#[derive(Clone, Copy, Debug)]
struct Changed {
    signers: &'static [u16],
    /// What the votes are over.
    epoch: u64,
    view: View,
    sequence: Sequence,
    digest: Digest,
    /// One signature is another's.
    forged: bool,
}

fn holds() -> Changed {
    Changed {
        signers: &[0, 2, 3],
        epoch: 3,
        view: VIEW,
        sequence: SEQUENCE,
        digest: DIGEST,
        forged: false,
    }
}

impl Changed {
    fn header(&self) -> Header {
        Header {
            epoch: Epoch(self.epoch),
            ..context().header(self.view)
        }
    }

    fn votes(&self, bytes: impl Fn(&Header, ReplicaId) -> Vec<u8>) -> Vec<Vote> {
        let header = self.header();
        let signers = self.signers.iter().map(|signer| ReplicaId(*signer));
        let mut votes: Vec<_> = signers
            .map(|signer| Vote {
                signer,
                signature: sign(&key(signer.0), &bytes(&header, signer)),
            })
            .collect();
        if self.forged
            && let Some(vote) = votes.last_mut()
        {
            vote.signature = sign(&key(1), &bytes(&header, vote.signer));
        }
        votes
    }
}

/// The same in each of the ways in which it does not hold; `voted` is over what was changed.
fn refused(kind: &str, verify: impl Fn(Changed) -> bool, spoilt: &[(&str, Changed)]) {
    assert!(verify(holds()), "{kind}: as it is");
    let all = Changed {
        signers: &[0, 1, 2, 3],
        ..holds()
    };
    assert!(verify(all), "{kind}: all voters");
    let signers = |signers| Changed { signers, ..holds() };
    let general = [
        ("one vote too few", signers(&[0, 2])),
        ("no vote", signers(&[])),
        ("one vote twice", signers(&[0, 2, 2])),
        ("out of order", signers(&[2, 0, 3])),
        ("who does not vote", signers(&[0, 2, 4])),
        (
            "another epoch",
            Changed {
                epoch: 2,
                ..holds()
            },
        ),
        (
            "a later epoch",
            Changed {
                epoch: 4,
                ..holds()
            },
        ),
        (
            "a signature of another",
            Changed {
                forged: true,
                ..holds()
            },
        ),
    ];
    for (what, changed) in general.iter().chain(spoilt) {
        assert!(!verify(*changed), "{kind}: {what}");
    }
}

const OTHER_BATCH: (&str, Changed) = (
    "votes for another batch",
    Changed {
        signers: &[0, 2, 3],
        epoch: 3,
        view: VIEW,
        sequence: SEQUENCE,
        digest: Digest([5; 32]),
        forged: false,
    },
);

fn other(what: &'static str, change: impl Fn(&mut Changed)) -> (&'static str, Changed) {
    let mut changed = holds();
    change(&mut changed);
    (what, changed)
}

#[test]
fn a_commit_certificate_takes_a_quorum_for_this_batch_here() {
    let verify = |changed: Changed| {
        let votes = changed.votes(|header, signer| {
            vote_bytes(
                Kind::Commit,
                header,
                changed.sequence,
                &changed.digest,
                signer,
            )
        });
        let certificate = CommitCertificate {
            view: VIEW,
            sequence: SEQUENCE,
            digest: DIGEST,
            votes,
        };
        // It says itself of which view it is.
        let header = context().header(View(77));
        certificate.verify(header, &context(), &Voters, &Toy)
    };
    let spoilt = [
        OTHER_BATCH,
        other("votes of another view", |it| it.view = View(6)),
        other("votes for another place", |it| it.sequence = Sequence(41)),
    ];
    refused("commit", verify, &spoilt);
    let prepares = holds()
        .votes(|header, signer| vote_bytes(Kind::Prepare, header, SEQUENCE, &DIGEST, signer));
    let certificate = CommitCertificate {
        view: VIEW,
        sequence: SEQUENCE,
        digest: DIGEST,
        votes: prepares,
    };
    let header = context().header(VIEW);
    let verified = certificate.verify(header, &context(), &Voters, &Toy);
    assert!(!verified, "PREPAREs are no COMMITs");
}

#[test]
fn a_prepared_certificate_takes_a_quorum_with_its_leader_once() {
    let batch = Batch {
        sequence: SEQUENCE,
        time: Time(1),
        previous: Digest::default(),
        behaviour_version: 1,
        tick: false,
        requests: Vec::new(),
    };
    let unsigned = Unsigned::new(context().header(VIEW), Message::Proposal(batch));
    let proposal = unsigned.with_signature(Signature::default());
    let digest = proposal.envelope().digest();
    assert_eq!(context().leader(VIEW), ReplicaId(1));
    let verify = |changed: Changed| {
        let digest = if changed.digest == DIGEST {
            digest
        } else {
            changed.digest
        };
        let votes = changed.votes(|header, signer| {
            vote_bytes(Kind::Prepare, header, changed.sequence, &digest, signer)
        });
        let certificate = PreparedCertificate {
            proposal: Arc::clone(proposal.envelope()),
            votes,
        };
        certificate.verify_votes(&context(), &Voters, &Toy)
    };
    // The proposal is its leader's vote: two more are a quorum, of which none is the leader's.
    let of = |signers| Changed { signers, ..holds() };
    assert!(verify(of(&[0, 2])) && verify(of(&[0, 2, 3])));
    for (what, changed) in [
        ("one vote too few", of(&[0])),
        ("no vote", of(&[])),
        ("the leader once more", of(&[0, 1])),
        ("the leader among enough", of(&[0, 1, 2])),
        ("one vote twice", of(&[2, 2])),
        ("out of order", of(&[2, 0])),
        ("who does not vote", of(&[0, 4])),
        OTHER_BATCH,
        other("another epoch", |it| it.epoch = 2),
        other("votes of another view", |it| it.view = View(6)),
        other("votes for another place", |it| it.sequence = Sequence(41)),
        other("a signature of another", |it| it.forged = true),
    ] {
        assert!(!verify(changed), "prepared: {what}");
    }
}

fn checkpoint(membership: Digest) -> Checkpoint {
    Checkpoint {
        sequence: SEQUENCE,
        batch: Digest([6; 32]),
        root: DIGEST,
        membership,
    }
}

/// A certificate of a checkpoint whose votes are over what was changed.
fn stable(changed: Changed, membership: Digest) -> CheckpointCertificate {
    let voted = Checkpoint {
        sequence: changed.sequence,
        root: changed.digest,
        ..checkpoint(membership)
    };
    let at_no_view = Changed {
        view: if changed.view == VIEW {
            View(0)
        } else {
            changed.view
        },
        ..changed
    };
    CheckpointCertificate {
        checkpoint: checkpoint(membership),
        votes: at_no_view.votes(|header, signer| checkpoint_bytes(header, &voted, signer)),
    }
}

#[test]
fn a_checkpoint_certificate_takes_a_quorum_for_this_state() {
    let verify = |changed: Changed| {
        let certificate = stable(changed, Digest([7; 32]));
        certificate.verify(context().header(View(77)), &context(), &Voters, &Toy)
    };
    let spoilt = [
        ("votes for another state", OTHER_BATCH.1),
        other("votes of a view", |it| it.view = View(6)),
        other("votes for another place", |it| it.sequence = Sequence(41)),
    ];
    refused("checkpoint", verify, &spoilt);
    for field in 0..2 {
        let mut certificate = stable(holds(), Digest([7; 32]));
        let checkpoint = &mut certificate.checkpoint;
        match field {
            0 => checkpoint.batch = Digest([1; 32]),
            _ => checkpoint.membership = Digest([1; 32]),
        }
        let header = context().header(View(0));
        let verified = certificate.verify(header, &context(), &Voters, &Toy);
        assert!(!verified, "another field {field} than was signed");
    }
}

#[test]
fn an_epoch_record_takes_a_quorum_of_the_epoch_before_for_this_membership() {
    let member = |number: u16| Member {
        key: key(number),
        incarnation: Incarnation([number as u8; 16]),
        address: Bytes::new(),
        since: Sequence(0),
    };
    let next = Membership {
        epoch: Epoch(4),
        from: SEQUENCE,
        ..Membership::genesis(context().model, (0..4).map(member).collect(), vec![key(8)])
    };
    let digest = membership_digest(&next.encode());
    let follows = |record: &EpochRecord, after: Sequence| {
        record.follows(&context().after(after), &Voters, &Toy)
    };
    let verify = |changed: Changed| {
        let record = EpochRecord::new(stable(changed, digest), next.clone());
        follows(&record, Sequence(0))
    };
    let spoilt = [
        ("votes for another state", OTHER_BATCH.1),
        other("votes for another place", |it| it.sequence = Sequence(41)),
    ];
    refused("epoch record", verify, &spoilt);
    let good = EpochRecord::new(stable(holds(), digest), next.clone());
    assert!(
        !follows(&good, SEQUENCE),
        "it ends no epoch that began there"
    );
    let mut another = next.clone();
    another.administrators = vec![key(7)];
    let swapped = EpochRecord::new(stable(holds(), digest), another);
    assert!(
        !follows(&swapped, Sequence(0)),
        "a membership that was not signed"
    );
    for (what, epoch, from) in [
        ("it skips an epoch", Epoch(5), SEQUENCE),
        ("it is of this epoch", Epoch(3), SEQUENCE),
        ("it begins elsewhere", Epoch(4), Sequence(39)),
    ] {
        let wrong = Membership {
            epoch,
            from,
            ..next.clone()
        };
        let signed = membership_digest(&wrong.encode());
        let record = EpochRecord::new(stable(holds(), signed), wrong);
        assert!(!follows(&record, Sequence(0)), "{what}");
    }
}
