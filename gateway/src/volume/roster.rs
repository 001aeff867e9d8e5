//! The roster: who is a principal of a volume, to this process's knowledge.
//!
//! ```text
//! genesis: founding principals ──► successions 1, 2, … ──┐ signed by the volume's root
//!                                                        ├─► the principals now
//!          changes 1, 2, … ──► `admitted` ───────────────┘ signed by administrators
//! ```
//!
//! Everything that asks who a principal is, what it may do, or whether its signature counts asks
//! here. Only what has no open volume reads the principals of the genesis: founding, recovery, a
//! replica.
//!
//! Invariants: a succession is accepted for the root's signature alone, a change for that of an
//! administrator, and neither on a server's word; each list is accepted in order. Signatures of a
//! key that was replaced count for key epochs up to the one that its succession names, and for no
//! later one; those of an administrator that was dismissed, up to the one in which it was. A client
//! asks the servers for the entries that it lacks at each start and when a key epoch begins.
//!
//! Possible failure: *servers hide a succession*. Signatures of the successor are refused then, and
//! nothing else is; the servers that order operations refuse the old key all the same.

mod admitted;

use super::people::Person;
use crate::keys::{KeyError, RootKey};
use admitted::Admitted;
pub(super) use admitted::untrusted_change;
use quorumfs_metadata::genesis::Genesis;
use quorumfs_metadata::identity::{CloudIndex, Gid, PrincipalId, RealmEpoch, VolumeId};
use quorumfs_metadata::people::SignedPeopleChange;
use quorumfs_metadata::statement::Statement;
use quorumfs_metadata::succession::{SignedSuccession, Succession};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// See the module.
#[derive(Debug)]
pub(super) struct Roster {
    founding: Vec<Statement>,
    volume: VolumeId,
    root: RootKey,
    successions: RwLock<Vec<(SignedSuccession, Succession)>>,
    admitted: RwLock<Admitted>,
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
            admitted: RwLock::default(),
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

    fn admitted(&self) -> RwLockReadGuard<'_, Admitted> {
        let admitted = self.admitted.read();
        admitted.unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the last known change.
    pub(super) fn changes(&self) -> u32 {
        self.admitted().last()
    }

    /// All known changes, in order.
    pub(super) fn signed_changes(&self) -> Vec<SignedPeopleChange> {
        self.admitted().signed()
    }

    /// The credentials of clouds that a principal was given, sealed for it.
    pub(super) fn given(&self, principal: &PrincipalId) -> BTreeMap<CloudIndex, Vec<u8>> {
        self.admitted().given(principal)
    }

    /// The names of groups.
    pub(super) fn groups(&self) -> BTreeMap<Gid, String> {
        self.admitted().groups()
    }

    /// Adds the changes behind one. Those that are known already change nothing.
    ///
    /// # Errors
    /// If one contradicts or does not continue the known list, or no administrator signed it. Those
    /// before it are learned.
    pub(super) fn learn_changes(
        &self,
        after: u32,
        changes: &[SignedPeopleChange],
    ) -> Result<(), KeyError> {
        let mut admitted = self
            .admitted
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for (number, signed) in (after.saturating_add(1)..).zip(changes) {
            match admitted.numbered(number) {
                Some(known) if known == signed => {}
                Some(_) => {
                    let reason = "another change of the same number is known";
                    return Err(untrusted_change(reason));
                }
                None => self.learn_next(&mut admitted, signed)?,
            }
        }
        Ok(())
    }

    /// Takes a list of all changes in the place of the known one: that of servers which were
    /// recovered from a backup, and lack the last changes.
    ///
    /// # Errors
    /// As [`learn_changes`](Self::learn_changes); nothing has changed then.
    pub(super) fn learn_anew(&self, all: &[SignedPeopleChange]) -> Result<(), KeyError> {
        let mut anew = Admitted::default();
        for signed in all {
            self.learn_next(&mut anew, signed)?;
        }
        let mut admitted = self.admitted.write();
        **admitted
            .as_mut()
            .unwrap_or_else(|poisoned| poisoned.get_mut()) = anew;
        Ok(())
    }

    /// The present further machines, each with the first key of its person.
    pub(super) fn machines(&self) -> BTreeMap<PrincipalId, PrincipalId> {
        self.admitted().machines()
    }

    /// Whether a key's signature counts for the membership of a further machine in a key epoch: in
    /// that in which it has stated the machine. In later ones an administrator signs for it.
    pub(super) fn signs_machine(
        &self,
        key: &PrincipalId,
        machine: &PrincipalId,
        epoch: RealmEpoch,
    ) -> bool {
        self.admitted().has_added(key, machine, epoch)
    }

    /// All user numbers that an admitted principal ever acted for.
    pub(super) fn user_numbers(&self) -> BTreeSet<u32> {
        self.admitted().user_numbers()
    }

    /// The key epoch in which the last principal of this name was dismissed, if it was.
    pub(super) fn dismissed_in(&self, label: &str) -> Option<RealmEpoch> {
        self.admitted().dismissed_in(label)
    }

    /// Whether a client that knows what this one does would accept a change as the next one.
    pub(super) fn would_learn(&self, signed: &SignedPeopleChange) -> Result<(), KeyError> {
        let mut admitted = self.admitted().clone();
        self.learn_next(&mut admitted, signed)
    }

    fn learn_next(
        &self,
        admitted: &mut Admitted,
        signed: &SignedPeopleChange,
    ) -> Result<(), KeyError> {
        let founding = |key: &PrincipalId, epoch: RealmEpoch| {
            let next = RealmEpoch(epoch.0.saturating_add(1));
            self.root_signs(key, epoch) || self.root_signs(key, next)
        };
        let rooted = |key: &PrincipalId| self.find_rooted(key);
        admitted.learn(self.volume, signed, founding, rooted)
    }

    /// The present principals that the root has stated. Each has its predecessor's position: the
    /// owner is the first.
    fn rooted(&self) -> Vec<Statement> {
        replaced(&self.founding, self.known().iter().map(|(_, it)| it))
    }

    /// The present principals: those that the root has stated first, the owner as the first of
    /// them. Without those whose time is over by this machine's clock.
    pub(super) fn now(&self) -> Vec<Statement> {
        let time = crate::clock::now();
        let seconds = u64::try_from(time.seconds).unwrap_or_default();
        let lasts = |it: &Statement| {
            let end = it.expires.map(|end| end.0 / 1_000_000_000);
            end.is_none_or(|end| end > seconds)
        };
        let mut all = self.rooted();
        let admitted = self.admitted();
        let present = admitted.present().map(|(statement, _)| statement);
        all.extend(present.filter(|it| lasts(it)).cloned());
        all
    }

    /// All of them, those whose time is over too, each with what it rests on.
    pub(super) fn people(&self) -> Vec<Person> {
        let person = |statement, stated_by| Person {
            statement,
            stated_by,
        };
        let rooted = self.rooted().into_iter().map(|it| person(it, None));
        let admitted = self.admitted();
        let present = admitted.present();
        let present = present.map(|(statement, by)| person(statement.clone(), Some(by)));
        rooted.chain(present).collect()
    }

    /// The present principal of this key.
    pub(super) fn principal(&self, key: &PrincipalId) -> Option<Statement> {
        self.now().into_iter().find(|it| it.key == *key)
    }

    /// Whether this key's signature counts for a key epoch and its members.
    pub(super) fn signs_epoch(&self, key: &PrincipalId, epoch: RealmEpoch) -> bool {
        self.root_signs(key, epoch) || self.admitted().signs(key, epoch)
    }

    /// The same of a principal that the root has stated.
    fn root_signs(&self, key: &PrincipalId, epoch: RealmEpoch) -> bool {
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
        self.signs_epoch(key, epoch) || self.root_signs(key, next)
    }

    /// The newest statement of this key, whether it is a principal's still, was replaced or was
    /// dismissed.
    pub(super) fn find(&self, key: &PrincipalId) -> Option<Statement> {
        let rooted = self.find_rooted(key);
        rooted.or_else(|| self.admitted().find(key))
    }

    /// Whether this key's principal was there when the volume was made.
    pub(super) fn is_founding(&self, key: &PrincipalId) -> bool {
        self.founding.iter().any(|it| it.key == *key)
    }

    fn find_rooted(&self, key: &PrincipalId) -> Option<Statement> {
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
    use quorumfs_bft::authentication::Signer;
    use quorumfs_bft::identity::Time;
    use quorumfs_metadata::genesis::SignedGenesis;
    use quorumfs_metadata::people::{PeopleChange, PeopleStep};
    use quorumfs_metadata::row::SignedBy;

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

    #[test]
    fn a_list_of_recovered_servers_takes_the_place_of_a_longer_one_if_it_is_signed() {
        let created = create(new_volume()).unwrap();
        let (_, genesis) = SignedGenesis::from_bytes(&created.genesis).unwrap();
        let roster = Roster::of(&genesis, created.recovery_kit.root.public());
        let owner = &created.owner.principal;
        let named = |by: &Principal, number: u32, name: &str| {
            let change = PeopleChange {
                volume: genesis.volume,
                number,
                epoch: RealmEpoch(0),
                step: PeopleStep::NameGroup {
                    gid: Gid(7),
                    name: name.into(),
                },
            };
            let change = change.to_bytes();
            let signature = by.sign(&PeopleChange::signed_bytes(&change));
            let signer = by.id().signing;
            let signed = SignedBy { signer, signature };
            SignedPeopleChange { change, signed }
        };
        let (first, second) = (named(owner, 1, "first"), named(owner, 2, "second"));
        roster.learn_changes(0, &[first.clone(), second]).unwrap();
        let other = named(owner, 2, "other");
        let refused = roster.learn_changes(1, std::slice::from_ref(&other));
        assert!(refused.unwrap_err().to_string().contains("another change"));
        let forged = named(&Principal::random().unwrap(), 2, "forged");
        assert!(roster.learn_anew(&[first.clone(), forged]).is_err());
        assert_eq!(roster.groups()[&Gid(7)], "second");
        roster.learn_anew(&[first, other]).unwrap();
        assert_eq!(roster.groups()[&Gid(7)], "other");
    }
}
