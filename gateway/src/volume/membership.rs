//! The members of a realm: wrapped keys, each signed together with its key epoch's row.
//!
//! ```text
//! signed   "quorumfs 2026 realm membership v1" 00 ‖ volume 16 ‖ realm 4 ‖ epoch 4 ‖ member 32
//!          ‖ BLAKE3("quorumfs 2026 realm epoch row", the epoch's row) 32 ‖ wrapped key
//! ```
//!
//! The key epoch's row is under every member's signature, so servers cannot show a member an epoch
//! with a weaker lock, other digests or another key of the epoch before, nor an epoch under another
//! number. Administrators may sign: the owner and `recovery` of the genesis, or the principals that
//! succeeded them before that epoch (`succession`).

use crate::keys::{EpochSecret, KeyError, Principal, Wrapped, verify, wrap};
use quorumfs_bft::authentication::Signer;
use quorumfs_metadata::genesis::GenesisPrincipal;
use quorumfs_metadata::identity::{PrincipalId, RealmEpoch, RealmId, VolumeId};
use quorumfs_metadata::row::{Epoch, Member, Row};

/// The prefix of a membership's signed message.
const CONTEXT: &[u8] = b"quorumfs 2026 realm membership v1\0";

/// A key epoch's place and row, for which a membership is signed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed<'a> {
    pub(super) volume: &'a VolumeId,
    pub(super) realm: RealmId,
    pub(super) number: RealmEpoch,
    pub(super) epoch: &'a Epoch,
}

impl Signed<'_> {
    /// The signed message.
    fn message(&self, member: &PrincipalId, wrapped: &[u8]) -> Vec<u8> {
        let row = blake3::derive_key("quorumfs 2026 realm epoch row", &self.epoch.to_bytes());
        [
            CONTEXT,
            &self.volume.0,
            &self.realm.0.to_be_bytes(),
            &self.number.0.to_be_bytes(),
            &member.0,
            &row,
            wrapped,
        ]
        .concat()
    }

    /// Wraps the key epoch's secret for each of `members`, and signs the wrappings.
    pub(super) fn wrap_for<'p>(
        &self,
        members: impl Iterator<Item = &'p GenesisPrincipal>,
        secret: &EpochSecret,
        signer: &Principal,
    ) -> Result<Vec<(PrincipalId, Member)>, KeyError> {
        let info = EpochSecret::wrapping_info(self.volume, self.realm, self.number);
        members
            .map(|member| {
                let to = member.wrapping_key.into();
                let wrapped = wrap("realm epoch secret", secret.secret(), &to, &info)?;
                let wrapped = wrapped.0.to_vec();
                let signature = signer.sign(&self.message(&member.key, &wrapped));
                let row = Member {
                    epoch: self.number,
                    wrapped,
                    signer: signer.id().signing,
                    signature,
                };
                Ok((member.key, row))
            })
            .collect()
    }

    /// Refuses a membership without a signature of an administrator.
    pub(super) fn check(
        &self,
        principals: &[GenesisPrincipal],
        id: &PrincipalId,
        member: &Member,
    ) -> Result<(), KeyError> {
        let untrusted = |reason: &str| KeyError::Untrusted {
            what: "a membership in the realm",
            reason: reason.into(),
        };
        if member.epoch != self.number {
            return Err(untrusted(
                "it belongs to another key epoch than the realm's",
            ));
        }
        let administers = |it: &GenesisPrincipal| it.key == member.signer && it.rights.administer;
        let message = self.message(id, &member.wrapped);
        if !principals.iter().any(administers)
            || !verify(&member.signer, &message, &member.signature)
        {
            return Err(untrusted(
                "the owner's signature over it and its key epoch is not valid: \
                 one of them was changed, or is not the owner's",
            ));
        }
        Ok(())
    }

    /// Opens a membership that was checked.
    pub(super) fn open(&self, me: &Principal, member: &Member) -> Result<EpochSecret, KeyError> {
        let info = EpochSecret::wrapping_info(self.volume, self.realm, self.number);
        let secret = me.unwrap("realm epoch key", &parse(&member.wrapped)?, &info)?;
        Ok(EpochSecret::from_secret(secret))
    }
}

/// A wrapped secret as a row has it.
pub(super) fn parse(wrapped: &[u8]) -> Result<Wrapped, KeyError> {
    wrapped
        .try_into()
        .map(Wrapped)
        .map_err(|_| KeyError::Unwrap { what: "secret" })
}
