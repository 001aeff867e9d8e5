//! What a copy is, and how any process proves it from the membership that the cluster began with.

use crate::authentication::Verifier;
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::identity::{Digest, Sequence};
use crate::membership::{EpochChain, EpochRecord};
use crate::wire::{Reader, decode_stable, encode_stable};
use bytes::Bytes;

/// The checkpoint that a copy holds, with what proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The last batch whose effects it contains.
    pub sequence: Sequence,
    /// The digest of all rows.
    pub root: Digest,
    /// The quorum's certificate: the body of a STABLE message.
    pub certificate: Bytes,
    /// The records of all epochs since genesis that the certificate's verification takes, oldest
    /// first: each an entry of an EPOCHS message.
    pub records: Vec<Bytes>,
}

/// A certificate that proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// Bytes that are no certificate or record.
    #[error("the certificate of the state, or a record of an epoch, is damaged")]
    Malformed,
    /// The records do not lead on from the membership that is known.
    #[error("the records of epochs do not lead on from the membership that is known")]
    Records,
    /// No quorum signed the certificate.
    #[error("no quorum of replicas signed the certificate of this state")]
    Certificate,
    /// It is the certificate of another state.
    #[error("the certificate is that of another state")]
    OtherState,
}

impl Copied {
    pub(super) fn new(certificate: &CheckpointCertificate, chain: &EpochChain) -> Self {
        let encoded = |record: &EpochRecord| {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            Bytes::from(bytes)
        };
        Self {
            sequence: certificate.checkpoint.sequence,
            root: certificate.checkpoint.root,
            certificate: encode(certificate),
            records: chain.records().iter().map(encoded).collect(),
        }
    }

    /// Verifies it from the beginning of `chain`, which has no records yet. Returns the checkpoint.
    ///
    /// # Errors
    /// If it is not proved.
    pub fn verify(
        &self,
        mut chain: EpochChain,
        verifier: &dyn Verifier,
    ) -> Result<Checkpoint, Unproved> {
        let mut records = Vec::with_capacity(self.records.len());
        for bytes in &self.records {
            records.push(EpochRecord::from_bytes(bytes).map_err(|_| Unproved::Malformed)?);
        }
        let certificate = decode(&self.certificate).ok_or(Unproved::Malformed)?;
        let led = records.is_empty() || chain.follow(&records, verifier);
        if !led || chain.records().len() != records.len() || !chain.is_anchored() {
            return Err(Unproved::Records);
        }
        if !chain.proves(&certificate, verifier) {
            return Err(Unproved::Certificate);
        }
        let checkpoint = certificate.checkpoint;
        match checkpoint.sequence == self.sequence && checkpoint.root == self.root {
            true => Ok(checkpoint),
            false => Err(Unproved::OtherState),
        }
    }
}

pub(super) fn encode(certificate: &CheckpointCertificate) -> Bytes {
    let mut bytes = Vec::new();
    encode_stable(certificate, &mut bytes);
    bytes.into()
}

pub(crate) fn decode(bytes: &Bytes) -> Option<CheckpointCertificate> {
    let mut reader = Reader::new(bytes);
    let certificate = decode_stable(&mut reader).ok()?;
    reader.end().ok()?;
    Some(certificate)
}
