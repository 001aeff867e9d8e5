//! Clusters without signatures, to measure the cost of signatures.
//!
//! In the cluster with the reserved number [`CLUSTER`] no signature is made and none is checked.
//! There is no switch for it: the number decides, so that it cannot be turned on in an existing
//! cluster, and a configuration with this number is refused unless every address is on loopback.

use crate::address::Address;
use crate::keys::NodeKey;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{ClusterId, PublicKey, Signature};
use std::sync::Arc;

/// The cluster without signatures. Other clusters have random numbers.
pub const CLUSTER: ClusterId = ClusterId(*b"unsigned: bench\0");

/// The error for any other use of the number.
pub(crate) const REFUSAL: &str = "its cluster's number is the one for measurements without \
     signatures, which works on loopback only: use another number";

/// Whether this cluster has no signatures.
pub(crate) fn applies(cluster: ClusterId) -> bool {
    cluster == CLUSTER
}

/// Whether it is another cluster, or cannot be reached from other machines.
pub(crate) fn is_harmless(
    cluster: ClusterId,
    addresses: impl IntoIterator<Item = Address>,
) -> bool {
    let mut addresses = addresses.into_iter();
    !applies(cluster) || addresses.all(|address| address.is_loopback())
}

/// A signer that signs nothing.
struct NullSigner(PublicKey);

impl Signer for NullSigner {
    fn public_key(&self) -> PublicKey {
        self.0
    }

    fn sign(&self, _message: &[u8]) -> Signature {
        Signature([0; 64])
    }
}

/// Signs with `key`, or not at all.
pub(crate) fn signer(cluster: ClusterId, key: Arc<NodeKey>) -> Arc<dyn Signer + Send + Sync> {
    if applies(cluster) {
        Arc::new(NullSigner(key.public()))
    } else {
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_omitted_in_one_cluster_only_and_only_on_loopback() {
        let harmless = |cluster, addresses: &[&str]| {
            let addresses = addresses.iter().map(|it| it.parse().expect("an address"));
            is_harmless(cluster, addresses)
        };
        assert!(harmless(CLUSTER, &["127.0.0.1:1"]));
        for reachable in ["10.0.0.1:1", "replica.example:1", "localhost:1"] {
            assert!(!harmless(CLUSTER, &["127.0.0.1:1", reachable]));
            assert!(harmless(ClusterId([7; 16]), &["127.0.0.1:1", reachable]));
        }
        let key = Arc::new(NodeKey::generate().expect("randomness"));
        let real = signer(ClusterId([7; 16]), key.clone()).sign(b"m");
        assert_eq!(real, key.sign(b"m"));
        assert_ne!(real, signer(CLUSTER, key).sign(b"m"));
    }
}
