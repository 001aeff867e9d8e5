//! Keys that cost nothing: a signature is a keyed hash.

use crate::authentication::{KeyDirectory, Signer, Verifier};
use crate::identity::{PublicKey, ReplicaId, SessionId, Signature};
use std::collections::BTreeMap;

pub(in crate::replica::tests) struct FakeKey(pub(in crate::replica::tests) PublicKey);

fn fake_signature(key: &PublicKey, message: &[u8]) -> Signature {
    let hash = blake3::Hasher::new_keyed(&key.0).update(message).finalize();
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(hash.as_bytes());
    Signature(signature)
}

impl Signer for FakeKey {
    fn public_key(&self) -> PublicKey {
        self.0
    }
    fn sign(&self, message: &[u8]) -> Signature {
        fake_signature(&self.0, message)
    }
}

pub(in crate::replica::tests) struct FakeVerifier;
impl Verifier for FakeVerifier {
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        fake_signature(key, message) == *signature
    }
}

pub(in crate::replica::tests) fn replica_key(id: ReplicaId) -> PublicKey {
    let mut key = [9; 32];
    key[..2].copy_from_slice(&id.0.to_le_bytes());
    PublicKey(key)
}

#[derive(Clone, Default)]
pub(in crate::replica::tests) struct Directory {
    pub(in crate::replica::tests) replicas: u16,
    pub(in crate::replica::tests) sessions: BTreeMap<SessionId, PublicKey>,
}

impl KeyDirectory for Directory {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        (id.0 < self.replicas).then(|| replica_key(id))
    }
    fn session(&self, id: SessionId) -> Option<PublicKey> {
        self.sessions.get(&id).copied()
    }
}
