//! The record that an incarnation of the volume has begun, under the volume root's signature.
//!
//! A recovery begins another incarnation while the servers of the one before may still run
//! somewhere, with mounts and collectors. What the new incarnation needs, the old one may take for
//! garbage. So the recovery first puts this record on n − f clouds, and a collector looks for it
//! before it deletes: of the n − f clouds that it asks, one at least is honest and has it.
//!
//! ```text
//! record  "quorumfs incarnation v1\0" ‖ volume 16 ‖ incarnation u8 ‖ BLAKE3(genesis) 32
//!         ‖ the root's signature over all that 64
//! ```

use crate::keys::{RootKey, VolumeRoot};
use bytes::Bytes;
use quorumfs_bft::identity::Signature;
use quorumfs_metadata::identity::{VolumeId, VolumeIncarnation};

/// An incarnation of a volume, and the root that signs the records of later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The incarnation.
    pub incarnation: VolumeIncarnation,
    /// The volume's root.
    pub root: RootKey,
}

const CONTEXT: &[u8] = b"quorumfs incarnation v1\0";

fn signed_bytes(volume: VolumeId, incarnation: VolumeIncarnation, genesis: &[u8; 32]) -> Vec<u8> {
    [CONTEXT, &volume.0, &[incarnation.0], genesis].concat()
}

/// The record of an incarnation that begins with this signed genesis.
#[must_use]
pub fn incarnation_record(
    root: &VolumeRoot,
    incarnation: VolumeIncarnation,
    genesis: &[u8],
) -> Bytes {
    let digest = *blake3::hash(genesis).as_bytes();
    let signed = signed_bytes(root.volume(), incarnation, &digest);
    let signature = root.sign(&signed);
    [signed.as_slice(), &signature.0].concat().into()
}

/// Whether these bytes are a record of the incarnation. With `genesis`, of one that begins with it.
#[must_use]
pub fn is_incarnation_record(
    body: &[u8],
    root: &RootKey,
    incarnation: VolumeIncarnation,
    genesis: Option<&[u8]>,
) -> bool {
    let Some((signed, signature)) = body.split_last_chunk::<64>() else {
        return false;
    };
    let Some((_, digest)) = signed.split_last_chunk::<32>() else {
        return false;
    };
    let fits = genesis.is_none_or(|genesis| blake3::hash(genesis).as_bytes() == digest);
    fits && signed == signed_bytes(root.volume(), incarnation, digest)
        && root.verify(signed, &Signature(*signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_volume_and_incarnation_and_the_roots() {
        let (root, other) = (VolumeRoot::random().unwrap(), VolumeRoot::random().unwrap());
        let incarnation = VolumeIncarnation(1);
        let record = incarnation_record(&root, incarnation, b"genesis");
        let is = |body: &[u8], root: &VolumeRoot, number, genesis| {
            is_incarnation_record(body, &root.public(), VolumeIncarnation(number), genesis)
        };
        assert!(is(&record, &root, 1, None));
        assert!(is(&record, &root, 1, Some(b"genesis")));
        assert!(!is(&record, &root, 1, Some(b"another")));
        assert!(!is(&record, &root, 2, None));
        assert!(!is(&record, &other, 1, None));
        for at in 0..record.len() {
            let mut changed = record.to_vec();
            changed[at] ^= 1;
            assert!(!is(&changed, &root, 1, None), "byte {at}");
            assert!(!is(&record[..at], &root, 1, None));
        }
    }
}
