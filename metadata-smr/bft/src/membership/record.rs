//! The records that lead from one epoch to the next.

use super::Membership;
use crate::authentication::{KeyDirectory, Verifier};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Epoch, View};
use crate::wire::limits::MEMBERSHIP_BYTES_MAX;
use crate::wire::signed_bytes::membership_digest;
use crate::wire::{Context, Malformed, Reader, decode_stable, encode_stable, write_bytes};
use bytes::Bytes;

/// An epoch's membership, and the statement of a quorum of the epoch before that it is the next
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// The stable checkpoint that ended the epoch before.
    pub certificate: CheckpointCertificate,
    /// The membership's row in that state.
    pub row: Bytes,
    /// The membership, decoded.
    pub membership: Membership,
}

impl EpochRecord {
    /// The record of a membership and the certificate that names it.
    #[must_use]
    pub fn new(certificate: CheckpointCertificate, membership: Membership) -> Self {
        Self {
            row: membership.encode(),
            certificate,
            membership,
        }
    }

    /// The epoch that begins with it.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.membership.epoch
    }

    /// Whether it follows the epoch of `context`, whose voters have these keys.
    pub fn follows(
        &self,
        context: &Context,
        keys: &dyn KeyDirectory,
        verifier: &dyn Verifier,
    ) -> bool {
        let checkpoint = &self.certificate.checkpoint;
        self.membership.epoch.0 == context.epoch.0.saturating_add(1)
            && self.membership.from == checkpoint.sequence
            && checkpoint.sequence > context.from
            && checkpoint.membership == membership_digest(&self.row)
            && self
                .certificate
                .verify(context.header(View(0)), context, keys, verifier)
    }

    /// Whether these records lead on, one by one, from the epoch of `context`.
    pub fn lead_on(
        records: &[Self],
        context: &Context,
        keys: &dyn KeyDirectory,
        verifier: &dyn Verifier,
    ) -> bool {
        let Some((first, rest)) = records.split_first() else {
            return true;
        };
        let mut last = first;
        first.follows(context, keys, verifier)
            && rest.iter().all(|record| {
                let before = &std::mem::replace(&mut last, record).membership;
                record.follows(&before.context(context.cluster), before, verifier)
            })
    }

    /// Encodes it.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        encode_stable(&self.certificate, bytes);
        write_bytes(bytes, &self.row);
    }

    /// Decodes it.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let certificate = decode_stable(reader)?;
        let row = reader.bytes("membership", MEMBERSHIP_BYTES_MAX)?;
        Ok(Self {
            certificate,
            membership: Membership::decode(&row)?,
            row,
        })
    }

    /// Decodes a record from all of `bytes`.
    ///
    /// # Errors
    /// If the bytes are no record.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let record = Self::decode(&mut reader)?;
        reader.end()?;
        Ok(record)
    }
}
