//! Which frames are admitted, and which are checked again.

use super::*;
use crate::keys::NodeKey;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Digest, Incarnation};
use quorumfs_bft::membership::Member;
use quorumfs_bft::wire::frame::Unsigned;
use quorumfs_bft::wire::message::{Ballot, ViewChange};

struct Fixture {
    verification: Verification,
    keys: Vec<NodeKey>,
}

fn fixture() -> Fixture {
    let model = FaultModel::new(1, 1, 4).expect("model");
    let context = Context::new(ClusterId([1; 16]), Epoch(0), model);
    let keys: Vec<NodeKey> = (0..4)
        .map(|_| NodeKey::generate().expect("randomness"))
        .collect();
    let public = keys.iter().map(NodeKey::public).collect();
    Fixture {
        verification: Verification::new(context, public),
        keys,
    }
}

impl Fixture {
    fn signed(&self, signer: u16, message: Message) -> Raw {
        let key = &self.keys[usize::from(signer)];
        let header = self.verification.directory().context.header(View(1));
        let message = Unsigned::new(header, message).sign(key);
        Raw {
            from: Peer::Replica(ReplicaId(signer)),
            key: key.public_key(),
            frame: message.frame().clone(),
        }
    }

    fn vote(&self, signer: u16, sequence: u64) -> Raw {
        let ballot = Ballot {
            sequence: Sequence(sequence),
            digest: Digest::default(),
            signer: ReplicaId(signer),
        };
        self.signed(signer, Message::Commit(ballot))
    }

    fn view_change(&self, signer: u16) -> Raw {
        let change = ViewChange {
            signer: ReplicaId(signer),
            base: Default::default(),
            prepared: Default::default(),
            claims: None,
        };
        self.signed(signer, Message::ViewChange(change))
    }
}

fn corrupted(mut raw: Raw) -> Raw {
    let mut bytes = raw.frame.to_vec();
    *bytes.last_mut().expect("a signature") ^= 1;
    raw.frame = bytes.into();
    raw
}

#[test]
fn one_bad_signature_among_many_is_found_and_affects_no_other() {
    let fixture = fixture();
    for bad in 0..40 {
        let frames = (0..40).map(|number| {
            let raw = fixture.vote(number % 4, 1 + u64::from(number));
            if number == bad { corrupted(raw) } else { raw }
        });
        let verdicts = fixture.verification.check_all(frames.collect());
        assert_eq!(verdicts.len(), 40);
        for (number, verdict) in (0..).zip(verdicts) {
            match verdict {
                Ok(message) => {
                    assert_ne!(number, bad);
                    let Message::Commit(ballot) = message.message() else {
                        panic!("a vote");
                    };
                    assert_eq!(ballot.sequence.0, u64::from(number) + 1, "in order");
                }
                Err(refused) => {
                    assert_eq!(number, bad);
                    assert!(refused.blame.is_some());
                }
            }
        }
    }
}

#[test]
fn valid_expensive_frames_are_not_checked_again() {
    let fixture = fixture();
    let repeated = || fixture.verification.repeated.load(Ordering::Relaxed);
    let good = fixture.view_change(2);
    for round in 0..3 {
        let mut frames = vec![fixture.vote(0, 1), good.clone(), fixture.vote(1, 1)];
        if round == 2 {
            frames.push(corrupted(fixture.vote(3, 1)));
        }
        let verdicts = fixture.verification.check_all(frames);
        assert!(verdicts.iter().take(3).all(Result::is_ok));
        assert_eq!(repeated(), round);
    }
    let bad = corrupted(fixture.view_change(3));
    for _ in 0..2 {
        let verdicts = fixture
            .verification
            .check_all(vec![bad.clone(), good.clone()]);
        assert!(verdicts[0].is_err() && verdicts[1].is_ok());
    }
    assert_eq!(repeated(), 4, "the bad one is never remembered");
    for signer in 0..4 {
        for view in 0..100_u64 {
            let raw = fixture.vote(signer, view + 1);
            assert!(
                fixture
                    .verification
                    .check(raw.from, raw.key, raw.frame)
                    .is_ok()
            );
        }
    }
    assert_eq!(
        fixture.verification.known().len(),
        1,
        "votes cost no memory"
    );
}

#[test]
fn a_vote_counts_only_in_its_epoch_and_under_its_keys() {
    let fixture = fixture();
    let early = fixture.vote(2, 1);
    let mut membership = Membership::unnamed(FaultModel::new(1, 1, 4).expect("model"));
    membership.epoch = Epoch(1);
    // Numbers 2 and 3 are exchanged from now on.
    for (voter, place) in membership.voters.iter_mut().zip([0, 1, 3, 2]) {
        *voter = Member {
            key: fixture.keys[place].public(),
            incarnation: Incarnation::default(),
            ..voter.clone()
        };
    }
    let verification = &fixture.verification;
    let check = |raw: &Raw| verification.check(raw.from, raw.key, raw.frame.clone());
    assert!(check(&early).is_ok());
    verification.enter(&membership);
    let refused = check(&early).expect_err("a vote of an earlier epoch");
    assert_eq!(refused.blame, None);
    let late = fixture.vote(2, 1);
    assert!(
        check(&late)
            .expect_err("another voter's number")
            .blame
            .is_some()
    );
    let header = verification.directory().context.header(View(1));
    let ballot = Ballot {
        sequence: Sequence(1),
        digest: Digest::default(),
        signer: ReplicaId(2),
    };
    let message = Unsigned::new(header, Message::Commit(ballot)).sign(&fixture.keys[3]);
    let raw = Raw {
        from: Peer::Replica(ReplicaId(2)),
        key: fixture.keys[3].public_key(),
        frame: message.frame().clone(),
    };
    assert!(check(&raw).is_ok());
    assert_eq!(verification.epoch(), Epoch(1));
}
