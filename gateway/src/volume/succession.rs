//! The replacement of the owner's key.
//!
//! ```text
//! kit: root secret, principal `recovery`
//!    │ the owner's place, the clouds' secrets and the current key epoch for a new key
//!    ▼
//! signed by the root ──► ordered ──► the old key is refused everything
//!                    └─► stored next to the new key (`volume.successions`): a client that has it
//!                        opens the volume without the servers
//! ```
//!
//! What a succession means for signatures is in `roster`.

use super::founding::wrap_secrets;
use super::membership::Signed;
use super::{Volume, VolumeError};
use crate::blocks::ShareStore;
use crate::keys::{KeyError, Principal, VolumeRoot};
use crate::metadata::MetadataClient;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::{PrincipalId, RealmEpoch};
use quorumfs_metadata::row::Member;
use quorumfs_metadata::statement::Statement;
use quorumfs_metadata::succession::{SignedSuccession, Succeed, Succession};

fn untrusted(reason: &str) -> KeyError {
    KeyError::Untrusted {
        what: "a succession",
        reason: reason.into(),
    }
}

impl Volume {
    /// The successions of principals, to this process's knowledge, in order: a part of
    /// [`KnownPeople`](super::KnownPeople).
    #[must_use]
    pub fn successions(&self) -> Vec<SignedSuccession> {
        self.roster.signed()
    }

    /// The owner's key, to this process's knowledge.
    #[must_use]
    pub fn owner(&self) -> Option<PrincipalId> {
        self.roster.now().first().map(|owner| owner.key)
    }

    /// The present key of the principal that had this key, to this process's knowledge, and the
    /// principal's label if it is one of the volume's.
    #[must_use]
    pub fn present_key(&self, key: &PrincipalId) -> (PrincipalId, Option<String>) {
        let present = self.roster.present_key(key);
        let principal = self.roster.principal(&present);
        (present, principal.map(|it| it.label))
    }

    /// The principal that was replaced last, to this process's knowledge.
    #[must_use]
    pub fn replaced(&self) -> Option<PrincipalId> {
        self.roster.replaced_last()
    }

    /// The key epoch in which this principal succeeded another, if it did.
    #[must_use]
    pub fn succeeded_in(&self) -> Option<RealmEpoch> {
        let me = self.principal.id().signing;
        self.roster.succession_of(&me).map(|it| it.epoch)
    }

    /// Whether this principal may administer, to this process's knowledge.
    #[must_use]
    pub fn administers(&self) -> bool {
        let mine = self.roster.principal(&self.principal.id().signing);
        mine.is_some_and(|it| it.rights.administer)
    }

    /// Asks the servers for the successions of principals.
    pub(super) async fn learn_successions(
        &self,
        metadata: &MetadataClient,
    ) -> Result<(), VolumeError> {
        let shown = metadata.successions().await?;
        Ok(self.roster.learn(&shown)?)
    }

    /// Replaces the owner's key by another, with the kit's root. The new owner has the old one's
    /// rights and can read the existing data; the old key is refused everything. Nothing happens if
    /// the key is the owner's already.
    ///
    /// # Errors
    /// If the newest key epoch cannot be opened, or the servers refuse or do not answer: the
    /// replacement may have happened then, and repeating the call finishes it.
    #[boxed]
    pub async fn replace_owner(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        root: &VolumeRoot,
        successor: &Principal,
    ) -> Result<(), VolumeError> {
        self.learn_successions(metadata).await?;
        let principals = self.roster.now();
        let key = successor.id().signing;
        if principals.iter().any(|it| it.key == key) {
            return Ok(());
        }
        let owner = principals
            .first()
            .ok_or_else(|| untrusted("there is no owner"))?;
        let current = self.refresh(metadata, Some(clouds)).await?;
        let wrapping = successor.id().wrapping;
        self.learn_clouds(metadata).await?;
        let clouds = self.known_clouds();
        let secrets = clouds.iter().map(|it| (it.cloud.index, &it.secret));
        let new = Statement {
            key,
            wrapping_key: wrapping.0,
            cloud_secrets: wrap_secrets(&self.id(), secrets, &wrapping)?,
            ..owner.clone()
        };
        let member = self.membership_for(metadata, current, &new).await?;
        let number = self.roster.signed().len().saturating_add(1);
        let succession = Succession {
            volume: self.id(),
            number: u32::try_from(number).unwrap_or(u32::MAX),
            predecessor: owner.key,
            successor: new,
            epoch: current,
        };
        let bytes = succession.to_bytes();
        let signature = root.sign(&Succession::signed_bytes(&bytes));
        let signed = SignedSuccession {
            succession: bytes,
            signature,
        };
        let succeed = Succeed { signed, member };
        metadata.succeed(&succeed, succession.number).await?;
        let mut all = self.roster.signed();
        all.push(succeed.signed);
        Ok(self.roster.learn(&all)?)
    }

    /// The current key epoch's secret, wrapped by this principal for another.
    pub(super) async fn membership_for(
        &self,
        metadata: &MetadataClient,
        current: RealmEpoch,
        to: &Statement,
    ) -> Result<Member, VolumeError> {
        let (number, epochs, mine) = metadata.newest_epoch().await?;
        let (Some(epoch), Some(mine)) = (epochs.get(&number), mine) else {
            return Err(untrusted("the servers do not show the key epoch").into());
        };
        if number != current {
            return Err(VolumeError::Raced { current: number });
        }
        let signed: Signed<'_> = self.signed(number, epoch);
        let me = self.principal.id().signing;
        signed.check(&self.roster, &me, &mine)?;
        let secret = signed.open(&self.principal, &mine)?;
        let wrapped = signed.wrap_for(std::iter::once(to), &secret, &self.principal)?;
        let member = wrapped.into_iter().next().map(|(_, member)| member);
        member.ok_or_else(|| untrusted("no membership was made").into())
    }
}
