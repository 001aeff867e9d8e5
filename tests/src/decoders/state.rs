//! A key space over a store that returns another value than the one that was written.

use bytes::Bytes;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::state::{Area, KeySpace, MemoryStore, StateError, WriteBatch};

/// Small leaves, so that a few rows make a tree.
const LEAF_BYTES_MAX: u64 = 256;
const ROWS: u16 = 64;

fn key(number: u16) -> Vec<u8> {
    number.wrapping_mul(40_503).to_be_bytes().to_vec()
}

/// A store that holds two roots of a small tree.
fn stored_tree() -> Result<MemoryStore, StateError> {
    let store = MemoryStore::new();
    let mut space = KeySpace::open_shaped(store.clone(), 0, LEAF_BYTES_MAX)?;
    for sequence in 1..=2 {
        let mut txn = space.begin(Area::Service, Sequence(sequence as u64));
        for number in (0..ROWS).step_by(sequence) {
            txn.put(&key(number), vec![number as u8; 20])?;
        }
        txn.commit();
        let (batch, root) = space.flush(Sequence(sequence as u64), Vec::new())?;
        store.apply(&batch);
        space.flushed(root.sequence);
    }
    Ok(store)
}

/// Reads `store`, and then writes to it.
fn use_it(store: MemoryStore) -> Result<usize, StateError> {
    let mut space = KeySpace::open_shaped(store, 0, LEAF_BYTES_MAX)?;
    let rows = space.view(Area::Service).scan(&[]..&[0xff; 8], 1000)?;
    for number in 0..ROWS {
        let mut txn = space.begin(Area::Service, Sequence(3));
        txn.get(&key(number))?;
        txn.delete(&key(number))?;
        txn.commit();
    }
    space.root_digest()?;
    Ok(rows.len())
}

/// The first byte chooses a key; the rest of the input replaces the value under it.
///
/// # Panics
/// If a wrong value is accepted.
pub fn stored(bytes: &[u8]) {
    let (Some((which, value)), Ok(store)) = (bytes.split_first(), stored_tree()) else {
        return;
    };
    let keys = store.keys();
    let Some(key) = keys.get(usize::from(*which) % keys.len()) else {
        return;
    };
    let value = Bytes::copy_from_slice(value);
    store.apply(&WriteBatch {
        entries: vec![(key.clone(), Some(value))],
    });
    if let Ok(rows) = use_it(store) {
        assert!(rows <= usize::from(ROWS));
    }
}

/// Each stored value, under its own key.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    use quorumfs_bft::state::Store;
    let Ok(store) = stored_tree() else {
        return Vec::new();
    };
    let keys = store.keys();
    let values = keys.iter().zip(0_u8..=255).filter_map(|(key, number)| {
        let value = store.get(key).ok()??;
        let mut seed = vec![number];
        seed.extend_from_slice(&value);
        Some(seed)
    });
    values.collect()
}
