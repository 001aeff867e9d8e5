//! The principals: those of the genesis, and their successors.
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
//! Invariants: a succession is accepted for the root's signature alone, and on no server's word;
//! successions are accepted in order; and signatures of the old key count for key epochs up to the
//! one that the succession names, and for no later one. A client that lacks a succession asks the
//! servers when it meets an unknown signature.
//!
//! Possible failure: *servers hide a succession*. Signatures of the successor are refused then, and
//! nothing else is; the servers that order operations refuse the old key all the same.

use super::founding::wrap_secrets;
use super::membership::Signed;
use super::{Volume, VolumeError};
use crate::blocks::ShareStore;
use crate::keys::{KeyError, Principal, RootKey, VolumeRoot};
use crate::metadata::MetadataClient;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::genesis::Genesis;
use quorumfs_metadata::identity::{PrincipalId, RealmEpoch, VolumeId};
use quorumfs_metadata::row::Member;
use quorumfs_metadata::statement::Statement;
use quorumfs_metadata::succession::{SignedSuccession, Succeed, Succession};
use std::sync::{PoisonError, RwLock};

/// The principals of a volume, to this process's knowledge.
#[derive(Debug)]
pub(super) struct Principals {
    founding: Vec<Statement>,
    volume: VolumeId,
    root: RootKey,
    successions: RwLock<Vec<(SignedSuccession, Succession)>>,
}

fn untrusted(reason: &str) -> KeyError {
    KeyError::Untrusted {
        what: "a succession",
        reason: reason.into(),
    }
}

impl Principals {
    /// The principals of the genesis.
    pub(super) fn of(genesis: &Genesis, root: RootKey) -> Self {
        Self {
            founding: genesis.principals.clone(),
            volume: genesis.volume,
            root,
            successions: RwLock::default(),
        }
    }

    fn known(&self) -> Vec<(SignedSuccession, Succession)> {
        let known = self.successions.read();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All known successions, in order.
    pub(super) fn signed(&self) -> Vec<SignedSuccession> {
        self.known().into_iter().map(|(signed, _)| signed).collect()
    }

    /// Adds the new entries of a list of all successions. A list that is shorter than the known one
    /// changes nothing.
    ///
    /// # Errors
    /// If it contradicts or does not continue the known list, or is not signed by the root.
    pub(super) fn learn(&self, all: &[SignedSuccession]) -> Result<(), KeyError> {
        let mut known = self.known();
        let contradicts =
            |((known, _), shown): (&(SignedSuccession, Succession), _)| known != shown;
        if known.iter().zip(all).any(contradicts) {
            return Err(untrusted("another succession of the same number is known"));
        }
        for signed in all.iter().skip(known.len()) {
            let succession = signed
                .verified(self.volume, &self.root.0)
                .ok_or_else(|| untrusted("the volume root's signature is not valid"))?;
            if !succession.is_sound() {
                let reason = "it states a principal in a way that this program does not know";
                return Err(untrusted(reason));
            }
            let number = known.len().saturating_add(1);
            let present = replaced(&self.founding, known.iter().map(|(_, it)| it));
            let is = |key: &PrincipalId| present.iter().any(|it| it.key == *key);
            let follows = usize::try_from(succession.number) == Ok(number);
            if !follows || !is(&succession.predecessor) || is(&succession.successor.key) {
                return Err(untrusted("it does not follow its predecessor"));
            }
            known.push((signed.clone(), succession));
        }
        *self
            .successions
            .write()
            .unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// The present principals. Each has its predecessor's position: the owner is the first.
    pub(super) fn now(&self) -> Vec<Statement> {
        replaced(&self.founding, self.known().iter().map(|(_, it)| it))
    }

    /// The principals whose signatures count for a key epoch.
    pub(super) fn at(&self, epoch: RealmEpoch) -> Vec<Statement> {
        let known = self.known();
        let before = known.iter().map(|(_, it)| it).filter(|it| it.epoch < epoch);
        replaced(&self.founding, before)
    }

    /// The newest statement of this key, whether it is a principal's still or was replaced.
    pub(super) fn find(&self, key: &PrincipalId) -> Option<Statement> {
        let successors = self.known().into_iter().rev().map(|(_, it)| it.successor);
        let mut all = successors.chain(self.founding.iter().cloned());
        all.find(|it| it.key == *key)
    }

    /// The succession that made this key a principal, if one did.
    pub(super) fn succession_of(&self, key: &PrincipalId) -> Option<Succession> {
        let mut known = self.known().into_iter().map(|(_, it)| it);
        known.rfind(|it| it.successor.key == *key)
    }
}

fn replaced<'a>(
    founding: &[Statement],
    successions: impl Iterator<Item = &'a Succession>,
) -> Vec<Statement> {
    let mut principals = founding.to_vec();
    for succession in successions {
        let mut all = principals.iter_mut();
        if let Some(place) = all.find(|it| it.key == succession.predecessor) {
            place.clone_from(&succession.successor);
        }
    }
    principals
}

impl Volume {
    /// The successions of principals, to this process's knowledge, in order: the argument of
    /// [`Volume::open_after`].
    #[must_use]
    pub fn successions(&self) -> Vec<SignedSuccession> {
        self.principals.signed()
    }

    /// The owner's key, to this process's knowledge.
    #[must_use]
    pub fn owner(&self) -> Option<PrincipalId> {
        self.principals.now().first().map(|owner| owner.key)
    }

    /// The present key of the principal that had this key, to this process's knowledge, and the
    /// principal's label if it is one of the volume's.
    #[must_use]
    pub fn present_key(&self, key: &PrincipalId) -> (PrincipalId, Option<String>) {
        let mut present = *key;
        for (_, succession) in self.principals.known() {
            if succession.predecessor == present {
                present = succession.successor.key;
            }
        }
        let principals = self.principals.now();
        let principal = principals.into_iter().find(|it| it.key == present);
        (present, principal.map(|it| it.label))
    }

    /// The principal that was replaced last, to this process's knowledge.
    #[must_use]
    pub fn replaced(&self) -> Option<PrincipalId> {
        let last = self.principals.known().into_iter().last();
        last.map(|(_, succession)| succession.predecessor)
    }

    /// The key epoch in which this principal succeeded another, if it did.
    #[must_use]
    pub fn succeeded_in(&self) -> Option<RealmEpoch> {
        let me = self.principal.id().signing;
        self.principals.succession_of(&me).map(|it| it.epoch)
    }

    /// Whether this principal may administer, to this process's knowledge.
    #[must_use]
    pub fn administers(&self) -> bool {
        let me = self.principal.id().signing;
        let principals = self.principals.now();
        principals
            .iter()
            .any(|it| it.key == me && it.rights.administer)
    }

    /// Asks the servers for the successions of principals.
    pub(super) async fn learn_successions(
        &self,
        metadata: &MetadataClient,
    ) -> Result<(), VolumeError> {
        let shown = metadata.successions().await?;
        Ok(self.principals.learn(&shown)?)
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
        let principals = self.principals.now();
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
        let number = self.principals.signed().len().saturating_add(1);
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
        let mut all = self.principals.signed();
        all.push(succeed.signed);
        Ok(self.principals.learn(&all)?)
    }

    /// The current key epoch's secret, wrapped by this principal for another.
    async fn membership_for(
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
        signed.check(&self.principals, &me, &mine)?;
        let secret = signed.open(&self.principal, &mine)?;
        let wrapped = signed.wrap_for(std::iter::once(to), &secret, &self.principal)?;
        let member = wrapped.into_iter().next().map(|(_, member)| member);
        member.ok_or_else(|| untrusted("no membership was made").into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{create, tests::new_volume};
    use super::*;
    use quorumfs_bft::identity::Time;
    use quorumfs_metadata::genesis::SignedGenesis;

    #[test]
    fn a_successor_whose_statement_is_not_known_is_refused_even_if_the_root_signed_it() {
        let created = create(new_volume()).unwrap();
        let (_, genesis) = SignedGenesis::from_bytes(&created.genesis).unwrap();
        let root = &created.recovery_kit.root;
        let principals = Principals::of(&genesis, root.public());
        let signed = |expires| {
            let owner = genesis.principals[0].clone();
            let succession = Succession {
                volume: genesis.volume,
                number: 1,
                predecessor: owner.key,
                successor: Statement {
                    key: Principal::random().unwrap().id().signing,
                    expires,
                    ..owner
                },
                epoch: RealmEpoch(0),
            };
            let succession = succession.to_bytes();
            SignedSuccession {
                signature: root.sign(&Succession::signed_bytes(&succession)),
                succession,
            }
        };
        let refused = principals.learn(&[signed(Some(Time(u64::MAX)))]);
        let reason = refused.unwrap_err().to_string();
        assert!(reason.contains("does not know"), "{reason}");
        principals.learn(&[signed(None)]).unwrap();
        assert_eq!(principals.signed().len(), 1);
    }
}
