//! A recovery point: what a backup is of, which parts hold its rows, and what proves them.
//!
//! ```text
//! body    "quorumfs recovery point\0" ‖ format u16 ‖ head ‖ sealed ‖ signature 64
//! head    volume, incarnation, sequence, the key wrapped for each reader, the signer
//! sealed  the point, AES-256-GCM-SIV under that key, bound to the head
//! ```
//!
//! The readers are the volume's administrators: the owner, and the principal of the recovery kit.
//! A point has a key of its own, drawn anew, so its nonce need not be random.
//!
//! Who can make a point? The clouds cannot make a point, because its signer is a principal that may
//! reconcile. Nor can that principal make rows: the certificate of the servers proves their root,
//! and all rows together prove the root. So a point that opens here is of the right volume and by
//! the right hands; whether its rows are the volume's is known when all of them were read.
//!
//! Failures: a body that does not open is no point; another copy of it may be one.

use super::RecoveryError;
use crate::blocks::BackupPart;
use crate::keys::{Principal, Secret, WRAPPED_BYTES, Wrapped, verify, wrap};
use crate::volume::{KnownPeople, Volume};
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::{Digest, Sequence, Signature, Time};
use quorumfs_bft::state_copy::Copied;
use quorumfs_metadata::identity::{
    AllocationId, ObjectId, PrincipalId, VolumeId, VolumeIncarnation,
};
use quorumfs_metadata::people::SignedPeopleChange;
use quorumfs_metadata::succession::SignedSuccession;

const MAGIC: &[u8] = b"quorumfs recovery point\0";
/// The format that is written. Points of format 1 are read too: they lack `people`.
const FORMAT: u16 = 2;
const WITHOUT_PEOPLE: u16 = 1;
const SIGNING_CONTEXT: &[u8] = b"quorumfs 2026 recovery point v1\0";
const WRAPPING_CONTEXT: &[u8] = b"quorumfs 2026 recovery point key";
/// The nonce under a key that seals one point.
const NONCE: [u8; 12] = [0; 12];
/// The largest body that is opened.
const BODY_BYTES_MAX: usize = 256 << 20;

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct RecoveryPoint {
    /// The incarnation of the volume.
    pub incarnation: VolumeIncarnation,
    /// The last batch whose effects the rows have.
    pub sequence: Sequence,
    /// When it was taken, by the agreed time.
    pub taken: Time,
    /// The signed genesis of the incarnation.
    pub genesis: Vec<u8>,
    /// The principals' replacements.
    pub successions: Vec<SignedSuccession>,
    /// The digest of all rows, the ordering library's included.
    pub root: Digest,
    /// The servers' certificate of it.
    pub certificate: Vec<u8>,
    /// The records of the servers' epochs.
    pub records: Vec<Vec<u8>>,
    /// With all rows, the proof of the root.
    pub proof: Vec<u8>,
    /// The rows: all of an earlier point, then what changed up to this one.
    pub layers: Vec<Layer>,
    /// The changes of principals that administrators made: who may have signed key epochs.
    pub people: Vec<SignedPeopleChange>,
}

/// Rows that changed from one point to the next; in the first layer all of them.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Layer {
    /// The point that it leads to.
    pub sequence: Sequence,
    /// The number of rows.
    pub rows: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// Where they lie, in the order of their keys.
    pub parts: Vec<BackupPart>,
}

/// What can be read of a body without a key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
struct Head {
    volume: VolumeId,
    incarnation: VolumeIncarnation,
    sequence: Sequence,
    readers: Vec<(PrincipalId, [u8; WRAPPED_BYTES])>,
    signer: PrincipalId,
}

#[derive(BorshSerialize, BorshDeserialize)]
struct Body {
    head: Vec<u8>,
    sealed: Vec<u8>,
    signature: Signature,
}

pub(super) fn encode<T: BorshSerialize>(value: &T) -> Vec<u8> {
    borsh::to_vec(value).unwrap_or_default()
}

fn cipher(key: &Secret) -> Aes256GcmSiv {
    Aes256GcmSiv::new(key.expose().into())
}

fn signed_bytes(head: &[u8], sealed: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(sealed);
    [SIGNING_CONTEXT, head, hasher.finalize().as_bytes()].concat()
}

impl RecoveryPoint {
    /// The id of a point's object; its parts have the same allocation.
    #[must_use]
    pub const fn id_of(incarnation: VolumeIncarnation, sequence: Sequence) -> ObjectId {
        ObjectId {
            allocation: AllocationId(incarnation.first_id() | sequence.0),
            counter: 0,
        }
    }

    /// Its own id.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        Self::id_of(self.incarnation, self.sequence)
    }

    /// The servers' statement about its root.
    #[must_use]
    pub fn copied(&self) -> Copied {
        Copied {
            sequence: self.sequence,
            root: self.root,
            certificate: Bytes::copy_from_slice(&self.certificate),
            records: self
                .records
                .iter()
                .map(|it| Bytes::copy_from_slice(it))
                .collect(),
        }
    }

    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = &BackupPart> {
        self.layers.iter().flat_map(|layer| &layer.parts)
    }

    /// The body, sealed for the volume's administrators and signed by this process's principal.
    ///
    /// # Errors
    /// If there is no randomness, or no administrator.
    pub fn seal(&self, volume: &Volume) -> Result<Bytes, RecoveryError> {
        self.seal_as(volume, (FORMAT, &encode(self)))
    }

    /// The same of a format's bytes.
    pub(super) fn seal_as(
        &self,
        volume: &Volume,
        (format, plain): (u16, &[u8]),
    ) -> Result<Bytes, RecoveryError> {
        let key = Secret::random()?;
        let mut readers = Vec::new();
        for reader in volume.administrators() {
            let to = reader.wrapping_key.into();
            let wrapped = wrap("key of a recovery point", &key, &to, WRAPPING_CONTEXT)?;
            readers.push((reader.key, wrapped.0));
        }
        let signer: &Principal = volume.principal();
        let head = encode(&Head {
            volume: volume.id(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            readers,
            signer: signer.id().signing,
        });
        let payload = Payload {
            msg: plain,
            aad: &head,
        };
        let sealed = cipher(&key).encrypt(&Nonce::from(NONCE), payload);
        let sealed = sealed.map_err(|_| RecoveryError::damaged("it cannot be sealed"))?;
        let signature = signer.sign(&signed_bytes(&head, &sealed));
        let body = encode(&Body {
            head,
            sealed,
            signature,
        });
        Ok([MAGIC, &format.to_le_bytes(), &body].concat().into())
    }

    /// Opens a body that some cloud gave, with the key of an administrator. `key` pins the volume's
    /// root. Returns the point, and the volume as its genesis says.
    ///
    /// # Errors
    /// If it is no point of this volume, by a principal that may make one.
    pub fn open(body: &[u8], key: &crate::keys::KeyFile) -> Result<(Self, Volume), RecoveryError> {
        let damaged = RecoveryError::damaged;
        let rest = body.strip_prefix(MAGIC);
        let rest = rest.ok_or_else(|| damaged("it is no recovery point"))?;
        let (format, rest) = rest
            .split_first_chunk()
            .ok_or_else(|| damaged("it is cut short"))?;
        let format = u16::from_le_bytes(*format);
        if ![WITHOUT_PEOPLE, FORMAT].contains(&format) {
            return Err(RecoveryError::Newer { format });
        }
        if rest.len() > BODY_BYTES_MAX {
            return Err(damaged("it is longer than any recovery point"));
        }
        let no = |_| damaged("it does not decode");
        let body: Body = borsh::from_slice(rest).map_err(no)?;
        let head: Head = borsh::from_slice(&body.head).map_err(no)?;
        if head.volume != key.volume() {
            return Err(damaged("it is of another volume"));
        }
        let me = key.principal.id().signing;
        let mine = head.readers.iter().find(|(reader, _)| *reader == me);
        let (_, wrapped) = mine.ok_or_else(|| damaged("it is not sealed for this key"))?;
        let secret = key.principal.unwrap(
            "key of a recovery point",
            &Wrapped(*wrapped),
            WRAPPING_CONTEXT,
        )?;
        let payload = Payload {
            msg: &body.sealed,
            aad: &body.head,
        };
        let opened = cipher(&secret).decrypt(&Nonce::from(NONCE), payload);
        let mut opened = opened.map_err(|_| damaged("it was changed"))?;
        if format == WITHOUT_PEOPLE {
            // An empty list at the end.
            opened.extend_from_slice(&[0; 4]);
        }
        let point: Self = borsh::from_slice(&opened).map_err(no)?;
        if (point.incarnation, point.sequence) != (head.incarnation, head.sequence) {
            return Err(damaged("it contradicts itself"));
        }
        let people = KnownPeople {
            successions: point.successions.clone(),
            changes: point.people.clone(),
        };
        let volume = Volume::open_after(&point.genesis, &people, key)?;
        let is_signed = verify(
            &head.signer,
            &signed_bytes(&body.head, &body.sealed),
            &body.signature,
        );
        if !is_signed || !volume.may_reconcile(&head.signer) {
            return Err(damaged("no principal that may make one has signed it"));
        }
        if volume.genesis().incarnation != point.incarnation {
            return Err(damaged("it is of another incarnation than its genesis"));
        }
        Ok((point, volume))
    }
}
