//! The messages that are admitted where votes are not signed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use quorumfs_bft::authentication::{Authentication, KeyDirectory, Verifier};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ClusterId, ConnectionId, Digest, Epoch, PublicKey, ReplicaId, Sequence, SessionId, Signature,
    View,
};
use quorumfs_bft::step::Peer;
use quorumfs_bft::wire::message::{Ballot, Suspect, ViewChange};
use quorumfs_bft::wire::{Context, Message, Rejection, Unsigned, admit};

struct ReplicaKeys;

impl KeyDirectory for ReplicaKeys {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        (id.0 < 4).then_some(PublicKey([id.0 as u8; 32]))
    }
    fn session(&self, _: SessionId) -> Option<PublicKey> {
        None
    }
}

/// A valid signature is the key twice.
struct Twice;

impl Verifier for Twice {
    fn verify(&self, key: &PublicKey, _: &[u8], signature: &Signature) -> bool {
        signature.0[..32] == key.0 && signature.0[32..] == key.0
    }
}

const SIGNED: Signature = Signature([2; 64]);
const NOT_SIGNED: Signature = Signature([0; 64]);

fn verdict(
    authentication: Authentication,
    from: Peer,
    message: Message,
    signature: Signature,
) -> Result<(), Rejection> {
    let model = FaultModel::new(1, 1, 4).unwrap();
    let mut context = Context::new(ClusterId([1; 16]), Epoch(0), model);
    context.authentication = authentication;
    let unsigned = Unsigned::new(context.header(View(5)), message);
    let frame = unsigned.with_signature(signature).frame().clone();
    admit(frame, from, &ReplicaKeys, &Twice, &context).map(|_| ())
}

fn vote(signer: u16) -> Message {
    Message::Commit(Ballot {
        sequence: Sequence(1),
        digest: Digest::default(),
        signer: ReplicaId(signer),
    })
}

fn change(claims: bool) -> Message {
    Message::ViewChange(ViewChange {
        signer: ReplicaId(2),
        base: Vec::new(),
        prepared: Vec::new(),
        claims: claims.then(Box::default),
    })
}

#[test]
fn a_vote_counts_only_for_its_sender() {
    let two = Peer::Replica(ReplicaId(2));
    let mac = |from, message, signature| verdict(Authentication::Mac, from, message, signature);
    assert_eq!(mac(two, vote(2), NOT_SIGNED), Ok(()));
    assert_eq!(mac(two, vote(3), NOT_SIGNED), Err(Rejection::WrongSender));
    let client = Peer::Client(ConnectionId(2));
    assert_eq!(
        mac(client, vote(2), NOT_SIGNED),
        Err(Rejection::KindNotAllowed)
    );
    // There is one encoding of it.
    assert_eq!(mac(two, vote(2), SIGNED), Err(Rejection::BadSignature));
    // Messages that have to be shown to others are signed, and any replica may send them.
    let suspect = || {
        Message::Suspect(Suspect {
            signer: ReplicaId(2),
        })
    };
    let three = Peer::Replica(ReplicaId(3));
    assert_eq!(mac(three, suspect(), SIGNED), Ok(()));
    assert_eq!(
        mac(two, suspect(), NOT_SIGNED),
        Err(Rejection::BadSignature)
    );
    assert_eq!(mac(three, change(true), SIGNED), Ok(()));
    assert_eq!(
        mac(two, change(true), NOT_SIGNED),
        Err(Rejection::BadSignature)
    );
}

#[test]
fn messages_of_the_other_mode_are_refused() {
    let two = Peer::Replica(ReplicaId(2));
    let sig = |message, signature| verdict(Authentication::Sig, two, message, signature);
    assert_eq!(sig(vote(2), SIGNED), Ok(()));
    assert_eq!(sig(vote(2), NOT_SIGNED), Err(Rejection::BadSignature));
    assert_eq!(sig(change(false), SIGNED), Ok(()));
    assert_eq!(sig(change(true), SIGNED), Err(Rejection::KindNotAllowed));
    let mac = |message| verdict(Authentication::Mac, two, message, SIGNED);
    assert_eq!(mac(change(false)), Err(Rejection::KindNotAllowed));
}
