//! The bytes of a share of a key, as stored on a cloud.

use super::harness::*;
use crate::blocks::{Cloud, ShareStore};
use crate::keys::{Secret, assert_golden};
use quorumfs_metadata::identity::CloudIndex;
use std::sync::Arc;

#[test]
fn a_stored_share_is_pinned_to_its_golden_bytes() {
    let cloud = |(index, secret)| Cloud {
        index: CloudIndex(index),
        store: Arc::new(MemoryStore::default()),
        secret,
        read_price: 0,
    };
    let clouds: Vec<Cloud> = (0..).zip(secrets(4)).map(cloud).collect();
    let store = ShareStore::new(VOLUME, policy(4, 1, 2), &clouds).unwrap();
    let share = Secret::from_bytes([0x5a; 32]);
    let (body, digest) = store.seal_at(2, object_id(7), &share).unwrap();
    assert_eq!(body.len(), 115);
    assert_golden("stored_share", &body);
    assert_golden("stored_share_digest", &digest.0);
    let opened = |at, digest| store.open_at(at, object_id(7), digest, &body);
    assert_eq!(opened(2, &digest), Some(share));
    assert_eq!(opened(1, &digest), None, "it is another cloud's");
    let mut other = digest;
    other.0[31] ^= 1;
    assert_eq!(opened(2, &other), None);
}
