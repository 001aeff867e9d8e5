//! The members of a realm: wrapped keys, each signed together with its key epoch's row.
//!
//! ```text
//! signed   "quorumfs 2026 realm membership v2" 00 ‖ volume 16 ‖ realm 4 ‖ epoch 4 ‖ member 32
//!          ‖ role 1 ‖ expires: 00, or 01 and a time 8
//!          ‖ BLAKE3("quorumfs 2026 realm epoch row", the epoch's row) 32 ‖ wrapped key
//! ```
//!
//! The key epoch's row is under every member's signature, so servers cannot show a member an epoch
//! with a weaker lock, other digests or another key of the epoch before, nor an epoch under another
//! number. The member's role is signed too; it follows from the principal's rights, so a member in
//! another role is refused, as is one whose membership ends. Administrators may sign: the owner and
//! `recovery` of the genesis, or the principals that succeeded them before that epoch
//! (`roster`). A person signs for a further machine of its own, in the key epoch in which it states
//! that machine.

use super::roster::Roster;
use crate::keys::{EpochSecret, KeyError, Principal, Wrapped, verify, wrap};
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::Signature;
use quorumfs_metadata::identity::{PrincipalId, RealmEpoch, RealmId, VolumeId};
use quorumfs_metadata::row::{Epoch, Member, Row};
use quorumfs_metadata::statement::Statement;

/// The prefix of a membership's signed message.
const CONTEXT: &[u8] = b"quorumfs 2026 realm membership v2\0";

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
    fn message(&self, id: &PrincipalId, member: &Member) -> Vec<u8> {
        let expires = match member.expires {
            None => vec![0],
            Some(time) => [[1].as_slice(), &time.0.to_be_bytes()].concat(),
        };
        let row = blake3::derive_key("quorumfs 2026 realm epoch row", &self.epoch.to_bytes());
        [
            CONTEXT,
            &self.volume.0,
            &self.realm.0.to_be_bytes(),
            &self.number.0.to_be_bytes(),
            &id.0,
            &[member.role.number()],
            &expires,
            &row,
            &member.wrapped,
        ]
        .concat()
    }

    /// Wraps the key epoch's secret for each of `members`, and signs the wrappings.
    pub(super) fn wrap_for<'p>(
        &self,
        members: impl Iterator<Item = &'p Statement>,
        secret: &EpochSecret,
        signer: &Principal,
    ) -> Result<Vec<(PrincipalId, Member)>, KeyError> {
        let info = EpochSecret::wrapping_info(self.volume, self.realm, self.number);
        members
            .map(|member| {
                let to = member.wrapping_key.into();
                let wrapped = wrap("realm epoch secret", secret.secret(), &to, &info)?;
                let mut row = Member {
                    epoch: self.number,
                    role: member.rights.role(),
                    expires: None,
                    wrapped: wrapped.0.to_vec(),
                    signer: signer.id().signing,
                    signature: Signature([0; 64]),
                };
                row.signature = signer.sign(&self.message(&member.key, &row));
                Ok((member.key, row))
            })
            .collect()
    }

    /// Refuses a membership without a signature of an administrator, or in a role that is not the
    /// principal's.
    pub(super) fn check(
        &self,
        roster: &Roster,
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
        let message = self.message(id, member);
        let counts = roster.signs_epoch(&member.signer, self.number)
            || roster.signs_machine(&member.signer, id, self.number);
        if !counts || !verify(&member.signer, &message, &member.signature) {
            return Err(untrusted(
                "the owner's signature over it and its key epoch is not valid: \
                 one of them was changed, or is not the owner's",
            ));
        }
        let principal = roster.find(id);
        if !principal.is_some_and(|it| member.fits(&it.rights)) {
            return Err(untrusted(
                "its role is not that of the principal's rights, or it expires: \
                 a newer program may know why; update this one",
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

#[cfg(test)]
mod tests {
    use super::super::{Volume, create, tests::new_volume};
    use super::*;
    use quorumfs_bft::identity::Time;
    use quorumfs_metadata::row::MemberRole;

    #[test]
    fn a_role_beyond_the_rights_and_an_end_are_refused_even_if_they_are_signed() {
        type Change = fn(&mut Member);
        let created = create(new_volume()).unwrap();
        let volume = Volume::open(&created.genesis, &created.owner).unwrap();
        let signed = volume.signed(RealmEpoch(0), &volume.genesis.epoch);
        let (id, honest) = &volume.genesis.members[0];
        signed.check(&volume.roster, id, honest).unwrap();
        let changes: [Change; 3] = [
            |it| it.role = MemberRole::Write,
            |it| it.role = MemberRole::Read,
            |it| it.expires = Some(Time(u64::MAX)),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut member = honest.clone();
            change(&mut member);
            let message = signed.message(id, &member);
            assert_ne!(message, signed.message(id, honest), "{at}");
            let forged = signed.check(&volume.roster, id, &member);
            assert!(forged.unwrap_err().to_string().contains("signature"));
            member.signature = volume.principal.sign(&message);
            let unknown = signed.check(&volume.roster, id, &member);
            assert!(unknown.unwrap_err().to_string().contains("its role"));
        }
    }
}
