//! How a replica treats the journal that it finds.

use super::cluster::TestCluster;
use crate::identity::{Digest, Sequence, Signature, Time};
use crate::journal::Record;
use crate::ordering::slot::Slot;
use crate::replica::commit::slot_records;
use crate::sabotage::Flag;
use crate::state::StateError;
use crate::wire::message::{Batch, Message};
use crate::wire::{Header, Unsigned};
use bytes::Bytes;
use std::sync::Arc;

#[test]
fn a_record_of_a_newer_release_is_refused_and_not_taken_for_damage() {
    let mut cluster = TestCluster::four(31);
    let client = cluster.client(20);
    cluster.finish(10_000);
    cluster.run_for(500);
    cluster.crash(2);
    let newer_version = Bytes::from_static(&[2, 0]);
    let newer_kind = Bytes::from_static(&[1, 200]);
    for record in [newer_version, newer_kind] {
        let refused = cluster.refusal(2, record);
        assert_eq!(refused, Some(StateError::NewerJournal));
    }
    assert_eq!(cluster.refusal(2, Record::BootMark.encode()), None);
    // The refusal has changed nothing: the release that knows the record goes on.
    cluster.start(2);
    cluster.more(client, 5);
    cluster.finish(5_000);
    cluster.check();
}

#[test]
fn a_stored_batch_that_the_disk_has_changed_is_not_taken_for_what_it_was() {
    let mut cluster = TestCluster::four(32);
    cluster.client(40);
    cluster.finish(10_000);
    cluster.run_for(1_000);
    cluster.crash(2);
    let root = cluster.status(0).durable;
    let mut key = b"xb".to_vec();
    key.extend(root.0.to_be_bytes());
    // Within a signature of its certificate: everything else in it is consistent.
    cluster.damage(2, &key, 300);
    let refused = cluster.refusal(2, Record::BootMark.encode());
    assert!(
        matches!(refused, Some(StateError::Damaged { .. })),
        "{refused:?}"
    );
    cluster.damage(2, &key, 300);
    assert_eq!(cluster.refusal(2, Record::BootMark.encode()), None);
}

#[test]
fn a_vote_is_rewritten_even_if_a_body_is_missing() {
    let batch = Batch {
        sequence: Sequence(1),
        time: Time(1),
        previous: Digest::default(),
        behaviour_version: 1,
        tick: false,
        requests: vec![Digest([1; 32])],
    };
    let unsigned = Unsigned::new(Header::default(), Message::Proposal(batch));
    let signed = unsigned.with_signature(Signature::default());
    let mut slot = Slot::new(Sequence(1), Flag::CLEAR);
    slot.accept(Arc::clone(signed.envelope()));
    slot.journaled
        .insert(signed.digest(), Arc::clone(signed.envelope()));
    let records = slot_records(&slot, true);
    assert!(matches!(records.as_slice(), [Record::Voted { bodies, .. }] if bodies.is_empty()));
}
