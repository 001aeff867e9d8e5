//! What is signed, and what is hashed.
//!
//! Signed bytes are `domain tag (8) ‖ version (2) ‖ cluster (16) ‖ epoch (8) ‖ group (2) ‖ view (8)
//! ‖ body`, numbers little-endian. A frame is exactly its signed bytes with the signature behind
//! them, so the received bytes are what is verified; nothing is ever encoded again for that. The
//! bodies of PREPARE and COMMIT have a fixed layout, `sequence (8) ‖ digest (32) ‖ signer (2)`, and
//! so has that of CHECKPOINT, `sequence (8) ‖ batch (32) ‖ root (32) ‖ membership (32) ‖ signer
//! (2)`. So a certificate can name them by signer and signature alone.

use super::frame::{HEADER_BYTES, Header};
use super::message::{Kind, OperationResult};
use crate::checkpoint::Checkpoint;
use crate::identity::{ClusterId, Digest, ReplicaId, Sequence};
use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use bytes::Bytes;
use std::sync::LazyLock;

/// Bytes of the body of a PREPARE or COMMIT.
pub const VOTE_BODY_BYTES: usize = 8 + 32 + 2;
/// Bytes of the body of a CHECKPOINT.
pub const CHECKPOINT_BODY_BYTES: usize = 8 + 32 + 32 + 32 + 2;

/// The keys of derived hashes: a context is hashed once in a process, not for each request.
macro_rules! contexts {
    ($($name:ident: $context:literal;)*) => {
        $(static $name: LazyLock<ContextKey> =
            LazyLock::new(|| hash_derive_key_context($context));)*
    };
}

contexts! {
    BATCH: "quorumfs 2026 bft batch";
    REQUEST: "quorumfs 2026 bft request";
    ANSWER: "quorumfs 2026 bft answer";
    RESULTS: "quorumfs 2026 bft results";
    MEMBERSHIP: "quorumfs 2026 bft membership";
    GENESIS: "quorumfs 2026 bft genesis";
}

fn hash(context: &ContextKey, parts: &[&[u8]]) -> Digest {
    let mut hasher = Hasher::new_from_context_key(context);
    for part in parts {
        hasher.update(part);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// The digest of a batch: of a proposal's body, which does not contain the view.
#[must_use]
pub fn batch_digest(body: &[u8]) -> Digest {
    hash(&BATCH, &[body])
}

/// The digest of a client's request: of its whole frame, signature included.
#[must_use]
pub fn request_digest(frame: &[u8]) -> Digest {
    hash(&REQUEST, &[frame])
}

/// The digest of a query's answer.
#[must_use]
pub fn answer_digest(answer: &[u8]) -> Digest {
    hash(&ANSWER, &[answer])
}

/// The digest of the results of a request: each is preceded by a byte (whether there is one) and
/// its length (4).
///
/// They are concatenated first: the hash processes one long piece several times as quickly as the
/// same bytes in pieces that end in the middle of its chunks.
#[must_use]
pub fn results_digest(results: &[OperationResult]) -> Digest {
    let length = |result: &OperationResult| 5 + result.as_ref().map_or(0, Bytes::len);
    let mut bytes = Vec::with_capacity(results.iter().map(length).sum());
    for result in results {
        let result = result.as_deref();
        let length = result.map_or(0, <[u8]>::len);
        bytes.push(u8::from(result.is_some()));
        bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(result.unwrap_or_default());
    }
    hash(&RESULTS, &[&bytes])
}

/// The digest of a membership's row.
#[must_use]
pub fn membership_digest(row: &[u8]) -> Digest {
    hash(&MEMBERSHIP, &[row])
}

/// The predecessor that the first batch names.
#[must_use]
pub fn genesis_digest(cluster: ClusterId, genesis: &[u8]) -> Digest {
    hash(&GENESIS, &[&cluster.0, genesis])
}

/// The bytes that a PREPARE or COMMIT signs.
#[must_use]
pub fn vote_bytes(
    kind: Kind,
    header: &Header,
    sequence: Sequence,
    digest: &Digest,
    signer: ReplicaId,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + VOTE_BODY_BYTES);
    header.encode(kind, &mut bytes);
    bytes.extend_from_slice(&sequence.0.to_le_bytes());
    bytes.extend_from_slice(&digest.0);
    bytes.extend_from_slice(&signer.0.to_le_bytes());
    bytes
}

/// The bytes that a CHECKPOINT signs. It belongs to no view: the header's has to be 0.
#[must_use]
pub fn checkpoint_bytes(header: &Header, checkpoint: &Checkpoint, signer: ReplicaId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + CHECKPOINT_BODY_BYTES);
    header.encode(Kind::Checkpoint, &mut bytes);
    bytes.extend_from_slice(&checkpoint.sequence.0.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.batch.0);
    bytes.extend_from_slice(&checkpoint.root.0);
    bytes.extend_from_slice(&checkpoint.membership.0);
    bytes.extend_from_slice(&signer.0.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_results_covers_each_after_its_presence_and_length() {
        let results = [Some(Bytes::from(vec![7; 3_000])), None, Some(Bytes::new())];
        let mut hasher = Hasher::new_derive_key("quorumfs 2026 bft results");
        hasher.update(&[1, 0xb8, 0x0b, 0, 0]);
        hasher.update(&[7; 3_000]);
        hasher.update(&[0, 0, 0, 0, 0]);
        hasher.update(&[1, 0, 0, 0, 0]);
        assert_eq!(results_digest(&results).0, *hasher.finalize().as_bytes());
    }
}
