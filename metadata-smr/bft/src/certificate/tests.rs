//! Each kind of certificate: what makes it valid, and each way to spoil it.

use super::voters::*;
use super::*;
use crate::checkpoint::CheckpointCertificate;
use crate::identity::Epoch;
use crate::membership::EpochRecord;

/// It is valid with a quorum and with all voters, and in no way in which it is spoilt.
fn assert_valid_with_quorum(kind: &str, verify: impl Fn(Signed) -> bool, spoilt: &[Spoilt]) {
    assert!(verify(signed(&[0, 2, 3])), "{kind}: as it is");
    assert!(verify(signed(&[0, 1, 2, 3])), "{kind}: all voters");
    for (what, signed) in spoilt {
        assert!(!verify(*signed), "{kind}: {what}");
    }
}

#[test]
fn a_commit_certificate_takes_a_quorum_for_this_batch_here() {
    let holds = |certificate: &CommitCertificate| {
        // The certificate names its view itself.
        let header = context().header(View(77));
        certificate.verify(header, &context(), &Voters, &Toy)
    };
    assert_valid_with_quorum("commit", |it| holds(&commit(it)), &spoilt_of_three());
    let prepares = commit_of(Kind::Prepare, signed(&[0, 2, 3]));
    assert!(!holds(&prepares), "PREPAREs are no COMMITs");
}

#[test]
fn a_prepared_certificate_takes_a_quorum_with_its_leader_once() {
    assert_eq!(context().leader(VIEW), ReplicaId(1));
    // The proposal is its leader's vote: two more are a quorum, of which none is the leader's.
    let holds = |signed| prepared(signed).verify_votes(&context(), &Voters, &Toy);
    assert!(holds(signed(&[0, 2])) && holds(signed(&[0, 2, 3])));
    for (what, signed) in spoilt_of_two() {
        assert!(!holds(signed), "prepared: {what}");
    }
}

#[test]
fn a_checkpoint_certificate_takes_a_quorum_for_this_state() {
    let holds = |certificate: &CheckpointCertificate| {
        certificate.verify(context().header(View(77)), &context(), &Voters, &Toy)
    };
    let of = |signed| stable(signed, Digest([7; 32]));
    assert_valid_with_quorum("checkpoint", |it| holds(&of(it)), &spoilt_of_three());
    for field in 0..2 {
        let mut certificate = of(signed(&[0, 2, 3]));
        let checkpoint = &mut certificate.checkpoint;
        match field {
            0 => checkpoint.batch = Digest([1; 32]),
            _ => checkpoint.membership = Digest([1; 32]),
        }
        assert!(
            !holds(&certificate),
            "another field {field} than was signed"
        );
    }
}

#[test]
fn an_epoch_record_takes_a_quorum_of_the_epoch_before_for_this_membership() {
    let follows = |record: &EpochRecord, after: Sequence| {
        record.follows(&context().after(after), &Voters, &Toy)
    };
    let holds = |signed| follows(&record(signed), Sequence(0));
    assert_valid_with_quorum("epoch record", holds, &spoilt_of_three());
    let good = record(signed(&[0, 2, 3]));
    assert!(
        !follows(&good, SEQUENCE),
        "it ends no epoch that began there"
    );
    let mut another = next_membership();
    another.administrators = vec![crate::identity::PublicKey([7; 32])];
    let swapped = EpochRecord::new(good.certificate, another);
    assert!(
        !follows(&swapped, Sequence(0)),
        "a membership that was not signed"
    );
    for (what, epoch, from) in [
        ("it skips an epoch", Epoch(5), SEQUENCE),
        ("it is of this epoch", EPOCH, SEQUENCE),
        ("it begins elsewhere", Epoch(4), Sequence(39)),
    ] {
        let wrong = crate::membership::Membership {
            epoch,
            from,
            ..next_membership()
        };
        let record = record_of(signed(&[0, 2, 3]), wrong);
        assert!(!follows(&record, Sequence(0)), "{what}");
    }
}
