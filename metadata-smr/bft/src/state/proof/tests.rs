//! Proofs of states of every size and of every mixture of areas, and what spoils them.

use super::super::MemoryStore;
use super::*;
use crate::identity::Sequence;
use proptest::collection::vec;
use proptest::prelude::*;

const LEAF_BYTES: u64 = 64;

type Rows = Vec<(Vec<u8>, Born)>;

/// A durable state with these rows of the library and the service, each with a birth of its own.
fn state(leaf_bytes_max: u64, library: &[Vec<u8>], service: &[Vec<u8>]) -> KeySpace<MemoryStore> {
    let store = MemoryStore::new();
    let mut space = KeySpace::open_shaped(store.clone(), 0, leaf_bytes_max).expect("empty");
    let of = |area| move |key| (area, key);
    let all = library.iter().map(of(Area::Library));
    let all = all.chain(service.iter().map(of(Area::Service)));
    let mut birth = 0;
    for (area, key) in all {
        birth += 1;
        let mut txn = space.begin(area, Sequence(birth));
        txn.put(key, vec![9; key.len() * 5]).expect("within limits");
        txn.commit();
    }
    let (batch, root) = space.flush(Sequence(birth + 1), Vec::new()).expect("once");
    store.apply(&batch);
    space.flushed(root.sequence);
    space
}

fn rows_of(space: &KeySpace<MemoryStore>) -> Rows {
    let rows = space.durable_rows(Area::Service, b"", usize::MAX);
    let rows = rows.expect("sound").into_iter();
    rows.map(|(key, born)| (key.to_vec(), born)).collect()
}

fn verify(
    proof: &Proof,
    leaf_bytes_max: u64,
    rows: &Rows,
    root: &Digest,
) -> Result<(), ProofError> {
    let mut proving = proof.begin_shaped(leaf_bytes_max);
    for (key, born) in rows {
        proving.push(key, born.clone())?;
    }
    proving.finish(root)
}

fn root_of(space: &KeySpace<MemoryStore>) -> Digest {
    space.durable_root().expect("flushed").digest
}

fn keys(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let letters = prop::sample::select(vec![0x00, 0x01, 0x10, 0x11, 0x80, 0xff]);
    let key = vec(letters, 0..6);
    prop_oneof![
        1 => vec(key.clone(), 0..3),
        2 => vec(key, 0..most),
    ]
}

proptest! {
    #[test]
    fn the_rows_of_any_state_are_proved_and_no_others(
        library in keys(40), service in keys(60), leaf in prop_oneof![Just(LEAF_BYTES), Just(4096)],
        at in any::<prop::sample::Index>(), how in 0..5,
    ) {
        let space = state(leaf, &library, &service);
        let (rows, root) = (rows_of(&space), root_of(&space));
        let proof = space.proof().unwrap();
        let proof = Proof::from_bytes(proof.as_bytes().clone());
        prop_assert_eq!(verify(&proof, leaf, &rows, &root), Ok(()));

        let mut spoilt = rows.clone();
        let index = if rows.is_empty() { 0 } else { at.index(rows.len()) };
        match how {
            0 if !rows.is_empty() => drop(spoilt.remove(index)),
            1 if !rows.is_empty() => spoilt[index].1.birth.0 += 1,
            2 if !rows.is_empty() => spoilt[index].1.value = Bytes::from_static(b"other"),
            3 if !rows.is_empty() => {
                let mut key = spoilt[index].0.clone();
                key.push(0x55);
                let born = spoilt[index].1.clone();
                spoilt.insert(index + 1, (key, born));
            }
            _ => spoilt.push((vec![0xff; 9], Born { birth: Sequence(1), value: Bytes::new() })),
        }
        // A key that was added may be out of order.
        let refused = verify(&proof, leaf, &spoilt, &root);
        prop_assert!(refused == Err(ProofError::OtherState) || (how == 3 && refused.is_err()));
        let other = state(leaf, &library, &[b"x".to_vec()]);
        prop_assert!(verify(&proof, leaf, &rows, &root_of(&other)).is_err());
    }

    #[test]
    fn damaged_proofs_are_refused_and_harm_nothing(
        library in keys(40), service in keys(60),
        at in any::<prop::sample::Index>(), bit in 0_u32..8, cut in any::<bool>(),
    ) {
        let space = state(LEAF_BYTES, &library, &service);
        let mut bytes = space.proof().unwrap().as_bytes().to_vec();
        prop_assume!(!bytes.is_empty());
        let index = at.index(bytes.len());
        if cut {
            bytes.truncate(index);
        } else {
            bytes[index] ^= 1_u8 << bit;
        }
        let proof = Proof::from_bytes(bytes.into());
        let (rows, root) = (rows_of(&space), root_of(&space));
        prop_assert!(verify(&proof, LEAF_BYTES, &rows, &root).is_err());
    }
}

/// Without a look at the proof's node one could pass the whole tree off as the library's part, and
/// so prove that the service has no rows.
#[test]
fn rows_of_the_service_cannot_hide_in_the_proof() {
    let few = vec![b"a".to_vec(), b"b".to_vec()];
    let many: Vec<Vec<u8>> = (0_u8..200).map(|it| vec![it; 5]).collect();
    for (library, service) in [(&few, &few), (&few, &many), (&many, &few), (&many, &many)] {
        let space = state(LEAF_BYTES, library, service);
        let root = root_of(&space);
        let whole = space.export(&root, &[]).expect("sound").expect("a root");
        let proof = Proof::from_bytes(whole);
        let refused = verify(&proof, LEAF_BYTES, &Vec::new(), &root);
        assert_eq!(refused, Err(ProofError::NoProof));
    }
    let space = state(4096, &few, &few);
    let root = root_of(&space);
    let whole = space.export(&root, &[]).expect("sound").expect("a leaf");
    let refused = verify(&Proof::from_bytes(whole), 4096, &Vec::new(), &root);
    assert_eq!(refused, Err(ProofError::NoProof), "a leaf of both areas");
}

#[test]
fn rows_out_of_order_or_beyond_the_limits_are_refused_at_once() {
    let born = || Born {
        birth: Sequence(1),
        value: Bytes::new(),
    };
    let mut proving = Proof::default().begin();
    proving.push(b"b", born()).expect("the first");
    assert_eq!(proving.push(b"b", born()), Err(ProofError::OutOfOrder));
    assert_eq!(proving.push(b"a", born()), Err(ProofError::OutOfOrder));
    let long = vec![b'c'; KEY_BYTES_MAX + 1];
    assert_eq!(proving.push(&long, born()), Err(ProofError::TooLong));
    proving.push(b"c", born()).expect("the next");
}
