//! Arbitrary bytes cause no panic and no change.

use super::cluster::{CLUSTER, Directory, FakeVerifier, TestCluster};
use crate::fault_model::FaultModel;
use crate::identity::{ConnectionId, Epoch, ReplicaId};
use crate::step::Peer;
use crate::wire::{Context, Envelope, Kind, admit};
use bytes::Bytes;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

type FramesByKind = Rc<RefCell<BTreeMap<Kind, Vec<Bytes>>>>;

/// A cluster under stress, and frames of every kind that it sends.
fn stressed(seed: u64) -> (TestCluster, FramesByKind) {
    let kept = FramesByKind::default();
    let into = Rc::clone(&kept);
    let mut cluster = TestCluster::four(seed);
    cluster.tap = Some(Box::new(move |_, _, envelope| {
        let mut kept = into.borrow_mut();
        let frames = kept.entry(envelope.message().kind()).or_default();
        if frames.len() < 20 {
            frames.push(envelope.frame().clone());
        }
        true
    }));
    cluster.loss = 100;
    for _ in 0..3 {
        cluster.client(30);
    }
    cluster.run_for(60);
    cluster.crash(0);
    cluster.run_for(1_500);
    cluster.start(0);
    (cluster, kept)
}

fn all(kept: &FramesByKind) -> Vec<Bytes> {
    kept.borrow().values().flatten().cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_of_any_kind_are_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        tag in 0..Kind::ALL.len(),
    ) {
        let mut framed = Kind::ALL[tag].tag().to_vec();
        framed.extend_from_slice(&1_u16.to_le_bytes());
        framed.extend_from_slice(&CLUSTER.0);
        framed.extend_from_slice(&[0; 18]);
        framed.extend_from_slice(&bytes);
        let model = FaultModel::new(1, 1, 4).unwrap();
        let context = Context::new(CLUSTER, Epoch(0), model);
        let directory = Directory { replicas: 4, sessions: BTreeMap::new() };
        for frame in [Bytes::from(bytes), Bytes::from(framed)] {
            for from in [Peer::Replica(ReplicaId(1)), Peer::Client(ConnectionId(1))] {
                let _ = admit(frame.clone(), from, &directory, &FakeVerifier, &context);
                let _ = Envelope::decode(frame.clone());
            }
        }
    }
}

#[test]
fn frames_with_flipped_bits_cut_or_repeated_change_nothing() {
    // Its own frames: those of another history under the same keys could rightly convince it.
    let (mut cluster, kept) = stressed(1);
    cluster.loss = 0;
    let mut frames = Vec::new();
    for round in 0..4_000 {
        if round % 20 == 0 {
            cluster.run_for(2);
            frames = all(&kept);
        }
        if round % 400 == 0 {
            (0..3).for_each(|client| cluster.more(client, 4));
        }
        let which = cluster.random(frames.len() as u64) as usize;
        let mut bytes = frames[which].to_vec();
        match cluster.random(4) {
            0 => {}
            1 => {
                let at = cluster.random(bytes.len() as u64) as usize;
                bytes.truncate(at);
            }
            _ => {
                let at = cluster.random(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << cluster.random(8);
            }
        }
        let (to, from) = (cluster.random(4) as usize, cluster.random(4) as u16);
        let from = match cluster.random(3) {
            0 => Peer::Client(ConnectionId(77)),
            _ => Peer::Replica(ReplicaId(from)),
        };
        cluster.arrive(to, from, Bytes::from(bytes));
    }
    cluster.finish(60_000);
    cluster.check();
}

#[test]
fn what_is_sent_is_what_its_decoding_encodes_to() {
    let (mut cluster, kept) = stressed(3);
    cluster.finish(60_000);
    for frame in all(&kept) {
        let envelope = Envelope::decode(frame.clone()).expect("it was sent");
        let again = crate::wire::encode(*envelope.header(), envelope.message());
        let unsigned = &frame[..frame.len()
            - if envelope.signature().is_some() {
                64
            } else {
                0
            }];
        assert_eq!(&again[..], unsigned, "{:?}", envelope.message().kind());
    }
}
