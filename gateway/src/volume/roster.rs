//! The roster: who is a principal of a volume, to this process's knowledge.
//!
//! ```text
//! genesis: founding principals ──► successions 1, 2, … ──► the principals now
//!                                    │ signed by the volume's root
//!                                    └ each follows the one before
//! ```
//!
//! Everything that asks who a principal is, what it may do, or whether its signature counts asks
//! here, and nothing else reads the principals of the genesis.
//!
//! Invariants: a succession is accepted for the root's signature alone, and on no server's word;
//! successions are accepted in order; and signatures of the old key count for key epochs up to the
//! one that the succession names, and for no later one. A client that lacks a succession asks the
//! servers when it meets an unknown signature.
//!
//! Possible failure: *servers hide a succession*. Signatures of the successor are refused then, and
//! nothing else is; the servers that order operations refuse the old key all the same.

use crate::keys::{KeyError, RootKey};
use quorumfs_metadata::genesis::Genesis;
use quorumfs_metadata::identity::{PrincipalId, RealmEpoch, VolumeId};
use quorumfs_metadata::statement::Statement;
use quorumfs_metadata::succession::{SignedSuccession, Succession};
use std::sync::{PoisonError, RwLock};

/// See the module.
#[derive(Debug)]
pub(super) struct Roster {
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

impl Roster {
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

    /// The present principal of this key.
    pub(super) fn principal(&self, key: &PrincipalId) -> Option<Statement> {
        self.now().into_iter().find(|it| it.key == *key)
    }

    /// Whether this key's signature counts for a key epoch and its members.
    pub(super) fn signs_epoch(&self, key: &PrincipalId, epoch: RealmEpoch) -> bool {
        let known = self.known();
        let before = known.iter().map(|(_, it)| it).filter(|it| it.epoch < epoch);
        let signers = replaced(&self.founding, before);
        signers
            .iter()
            .any(|it| it.key == *key && it.rights.administer)
    }

    /// Whether this key's signature counts for a change that was made during a key epoch: before
    /// its succession, or after it succeeded another.
    pub(super) fn signs_during(&self, key: &PrincipalId, epoch: RealmEpoch) -> bool {
        let next = RealmEpoch(epoch.0.saturating_add(1));
        self.signs_epoch(key, epoch) || self.signs_epoch(key, next)
    }

    /// The newest statement of this key, whether it is a principal's still or was replaced.
    pub(super) fn find(&self, key: &PrincipalId) -> Option<Statement> {
        let successors = self.known().into_iter().rev().map(|(_, it)| it.successor);
        let mut all = successors.chain(self.founding.iter().cloned());
        all.find(|it| it.key == *key)
    }

    /// The present key of the principal that had this key.
    pub(super) fn present_key(&self, key: &PrincipalId) -> PrincipalId {
        let known = self.known();
        let successions = known.iter().map(|(_, it)| it);
        successions.fold(*key, |present, it| match it.predecessor == present {
            true => it.successor.key,
            false => present,
        })
    }

    /// The key that was replaced last.
    pub(super) fn replaced_last(&self) -> Option<PrincipalId> {
        let last = self.known().into_iter().last();
        last.map(|(_, succession)| succession.predecessor)
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

#[cfg(test)]
mod tests {
    use super::super::{create, tests::new_volume};
    use super::*;
    use crate::keys::Principal;
    use quorumfs_bft::identity::Time;
    use quorumfs_metadata::genesis::SignedGenesis;

    #[test]
    fn a_successor_whose_statement_is_not_known_is_refused_even_if_the_root_signed_it() {
        let created = create(new_volume()).unwrap();
        let (_, genesis) = SignedGenesis::from_bytes(&created.genesis).unwrap();
        let root = &created.recovery_kit.root;
        let roster = Roster::of(&genesis, root.public());
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
        let refused = roster.learn(&[signed(Some(Time(u64::MAX)))]);
        let reason = refused.unwrap_err().to_string();
        assert!(reason.contains("does not know"), "{reason}");
        roster.learn(&[signed(None)]).unwrap();
        assert_eq!(roster.signed().len(), 1);
    }
}
