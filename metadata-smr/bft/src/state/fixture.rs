//! The format of the store, pinned: these bytes were written by the first release.

use super::key_space::{Area, KeySpace};
use super::{MemoryStore, Store};
use crate::identity::Sequence;
use bytes::Bytes;
use std::fmt::Write;

const FIXTURE: &str = include_str!("tree_format_1.txt");

/// Rows of both areas: a branch, its end slot, leaves with and without a common prefix.
fn rows() -> Vec<(Area, Vec<u8>, Vec<u8>)> {
    vec![
        (Area::Library, b"clock".to_vec(), vec![1, 2, 3]),
        (Area::Service, b"I\x00\x01".to_vec(), b"directory".to_vec()),
        (Area::Service, b"I\x00\x01a".to_vec(), b"one".to_vec()),
        (Area::Service, b"I\x00\x01ab".to_vec(), b"two".to_vec()),
        (Area::Service, b"I\x00\x02".to_vec(), vec![0x55; 64]),
    ]
}

fn space(leaf_bytes_max: u64) -> (MemoryStore, KeySpace<MemoryStore>) {
    let store = MemoryStore::new();
    let space = KeySpace::open_shaped(store.clone(), 0, leaf_bytes_max);
    let mut space = space.expect("it is empty");
    for ((area, key, value), birth) in rows().into_iter().zip(3..) {
        let mut txn = space.begin(area, Sequence(birth));
        txn.put(&key, value).expect("within the limits");
        txn.commit();
    }
    (store, space)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn written() -> String {
    let mut text = String::new();
    let (_, mut production) = space(super::key_space::LEAF_BYTES_MAX);
    let digest = production.root_digest().expect("no store is read");
    let _ = writeln!(text, "root digest, leaf bound 4096\n  {digest}");
    let (store, mut small) = space(48);
    let extra = vec![(
        Bytes::from_static(b"log"),
        Some(Bytes::from_static(b"batch")),
    )];
    let (batch, root) = small.flush(Sequence(7), extra).expect("no store is read");
    store.apply(&batch);
    let _ = writeln!(text, "root digest, leaf bound 48\n  {}", root.digest);
    let _ = writeln!(text, "store, leaf bound 48, sequence 7");
    for key in store.keys() {
        let value = store.get(&key).expect("in memory").expect("it is there");
        let _ = writeln!(text, "  {} = {}", hex(&key), hex(&value));
    }
    text
}

#[test]
fn the_bytes_are_those_of_format_1() {
    assert_eq!(
        written(),
        FIXTURE,
        "the format has changed: it needs a new number"
    );
}
