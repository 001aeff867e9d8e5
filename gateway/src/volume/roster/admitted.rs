//! The principals that administrators have admitted: the list of all changes, replayed.
//!
//! ```text
//! change 1, 2, … ──► signed by an administrator of its key epoch? ──► present principals
//!                      a founding one, or one that the changes before it admitted
//! ```
//!
//! A further machine of a member counts for the signature of another key of that member, if it has
//! no more rights than that.
//!
//! An administrator's signature counts for the key epochs during which it administered, the one in
//! which it was dismissed included: the servers have refused it since, and nothing that it signs
//! counts in a later one.

use crate::keys::KeyError;
use quorumfs_metadata::identity::{CloudIndex, Gid, PrincipalId, RealmEpoch, VolumeId};
use quorumfs_metadata::people::{People, PeopleChange, PeopleStep, SignedPeopleChange};
use quorumfs_metadata::row::Assertable;
use quorumfs_metadata::statement::Statement;
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong with a change.
pub(in crate::volume) fn untrusted_change(reason: &str) -> KeyError {
    KeyError::Untrusted {
        what: "a change of the volume's principals",
        reason: reason.into(),
    }
}

/// All known changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Admitted {
    changes: Vec<(SignedPeopleChange, PeopleChange)>,
    now: People,
    /// The administrator that stated each principal last.
    stated_by: BTreeMap<PrincipalId, PrincipalId>,
    /// The further machines that no administrator has changed, each with the key that stated it and
    /// the key epoch in which it did.
    added: BTreeMap<PrincipalId, (PrincipalId, RealmEpoch)>,
}

fn administers(people: &People, key: &PrincipalId) -> bool {
    let stated = people.stated.get(key);
    stated.is_some_and(|it| it.rights.administer)
}

impl Admitted {
    /// The number of the last change.
    pub(super) fn last(&self) -> u32 {
        u32::try_from(self.changes.len()).unwrap_or(u32::MAX)
    }

    /// All changes, in order.
    pub(super) fn signed(&self) -> Vec<SignedPeopleChange> {
        let signed = self.changes.iter().map(|(signed, _)| signed.clone());
        signed.collect()
    }

    /// The change of a number.
    pub(super) fn numbered(&self, number: u32) -> Option<&SignedPeopleChange> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.changes.get(index).map(|(signed, _)| signed)
    }

    /// The present principals, each with the administrator that stated it last.
    pub(super) fn present(&self) -> impl Iterator<Item = (&Statement, PrincipalId)> {
        let stated = self.now.stated.values();
        stated.filter_map(|it| Some((it, *self.stated_by.get(&it.key)?)))
    }

    /// The credentials of clouds that a principal was given, sealed for it.
    pub(super) fn given(&self, principal: &PrincipalId) -> BTreeMap<CloudIndex, Vec<u8>> {
        let given = self.now.credentials.iter();
        let mine = given.filter(|((of, _), _)| of == principal);
        mine.map(|((_, cloud), sealed)| (*cloud, sealed.clone()))
            .collect()
    }

    /// The names of groups.
    pub(super) fn groups(&self) -> BTreeMap<Gid, String> {
        self.now.groups.clone()
    }

    /// Adds the next change. `founding` says whether a key of a principal that the root has stated
    /// counts in a key epoch; `rooted` is the statement of a key that is or was such a principal's.
    pub(super) fn learn(
        &mut self,
        volume: VolumeId,
        signed: &SignedPeopleChange,
        founding: impl Fn(&PrincipalId, RealmEpoch) -> bool,
        rooted: impl Fn(&PrincipalId) -> Option<Statement>,
    ) -> Result<(), KeyError> {
        let change = signed
            .verified(volume)
            .ok_or_else(|| untrusted_change("its signature is not valid"))?;
        if change.epoch < self.now.epoch {
            return Err(untrusted_change("it is of an earlier key epoch"));
        }
        let signer = signed.signed.signer;
        let is_founding = founding(&signer, change.epoch);
        let rooted_signer = || rooted(&signer).filter(|_| is_founding);
        let counts = match &change.step {
            PeopleStep::AddMachine(added) => {
                let signed_by = self.now.stated.get(&signer).cloned();
                let signed_by = signed_by.or_else(rooted_signer);
                let person = self.now.person(&signer);
                signed_by.is_some_and(|by| added.follows_from(&by, &person))
            }
            step => is_founding || administers(&self.now, &signer) || self.drops_own(&signer, step),
        };
        if !counts {
            let reason = "its signer is no administrator of this volume, and it is not about a \
                          machine of its signer's";
            return Err(untrusted_change(reason));
        }
        let about = change.step.principal();
        if about.is_some_and(|about| *about == signer || rooted(about).is_some()) {
            let reason = "it is of its signer, or of a principal that the root has stated";
            return Err(untrusted_change(reason));
        }
        let mut now = self.now.clone();
        let applied = now.apply(&change);
        applied.map_err(|error| untrusted_change(&error.to_string()))?;
        match (&change.step, about) {
            (PeopleStep::Admit(_) | PeopleStep::Regrant { .. }, Some(about)) => {
                self.stated_by.insert(*about, signer);
                self.added.remove(about);
            }
            (PeopleStep::AddMachine(_), Some(about)) => {
                self.stated_by.insert(*about, signer);
                self.added.insert(*about, (signer, change.epoch));
            }
            _ => {}
        }
        self.now = now;
        self.changes.push((signed.clone(), change));
        Ok(())
    }

    /// Whether a step drops a key of the signer's person.
    fn drops_own(&self, signer: &PrincipalId, step: &PeopleStep) -> bool {
        let PeopleStep::DropMachine { principal } = step else {
            return false;
        };
        let is_one = self.now.stated.contains_key(signer);
        is_one && self.now.person(principal) == self.now.person(signer)
    }

    /// The present further machines, each with the first key of its person.
    pub(super) fn machines(&self) -> BTreeMap<PrincipalId, PrincipalId> {
        self.now.machines.clone()
    }

    /// Whether a key has stated a further machine during a key epoch, and no other statement of it
    /// has followed: then its signature counts for that machine's membership in that epoch.
    pub(super) fn has_added(
        &self,
        key: &PrincipalId,
        machine: &PrincipalId,
        epoch: RealmEpoch,
    ) -> bool {
        self.added.get(machine) == Some(&(*key, epoch))
    }

    /// Whether a key was an administrator's at some moment of a key epoch.
    pub(super) fn signs(&self, key: &PrincipalId, epoch: RealmEpoch) -> bool {
        let mut then = People::default();
        let mut signs = false;
        let until = self.changes.iter().map(|(_, change)| change);
        for change in until.take_while(|change| change.epoch <= epoch) {
            signs |= change.epoch == epoch && administers(&then, key);
            // It was applied before.
            let _ = then.apply(change);
        }
        signs || administers(&then, key)
    }

    /// The key epoch in which the last person or machine of this name was dismissed, if it was.
    pub(super) fn dismissed_in(&self, label: &str) -> Option<RealmEpoch> {
        let (mut then, mut labels) = (People::default(), BTreeMap::new());
        let mut dismissed = None;
        for (_, change) in &self.changes {
            let gone = match &change.step {
                PeopleStep::Dismiss { principal } => Some(principal),
                // A person is there as long as one of its machines is.
                PeopleStep::DropMachine { principal } => {
                    Some(principal).filter(|it| then.machines.contains_key(it))
                }
                _ => None,
            };
            let gone = gone.and_then(|gone| labels.get(gone));
            if gone.is_some_and(|gone: &String| gone == label) {
                dismissed = Some(change.epoch);
            }
            let _ = then.apply(change);
            let about = change.step.principal();
            let stated = about.and_then(|about| then.stated.get(about));
            labels.extend(stated.map(|it| (it.key, it.label.clone())));
        }
        dismissed
    }

    /// All user numbers that a principal ever acted for.
    pub(super) fn user_numbers(&self) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        for (_, change) in &self.changes {
            let rights = match &change.step {
                PeopleStep::Admit(statement) => &statement.rights,
                PeopleStep::Regrant { rights, .. } => rights,
                _ => continue,
            };
            if let Assertable::Only(uids) = &rights.uids {
                numbers.extend(uids.iter().map(|uid| uid.0));
            }
        }
        numbers
    }

    /// The last statement of a key, whether it is a principal's still or was dismissed.
    pub(super) fn find(&self, key: &PrincipalId) -> Option<Statement> {
        if let Some(present) = self.now.stated.get(key) {
            return Some(present.clone());
        }
        let mut then = People::default();
        let mut last = None;
        for (_, change) in &self.changes {
            let _ = then.apply(change);
            last = then.stated.get(key).cloned().or(last);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Principal;
    use quorumfs_bft::authentication::Signer;
    use quorumfs_bft::identity::{ClusterId, PublicKey, Time};
    use quorumfs_metadata::identity::Uid;
    use quorumfs_metadata::people::AddedMachine;
    use quorumfs_metadata::row::{Rights, SignedBy};

    const VOLUME: VolumeId = ClusterId([7; 16]);

    fn rights(administer: bool) -> Rights {
        Rights {
            uids: Assertable::Only(vec![Uid(1003)]),
            gids: Assertable::Only(Vec::new()),
            mount: true,
            reconcile: false,
            administer,
        }
    }

    fn admission(of: &Principal, administer: bool) -> PeopleStep {
        PeopleStep::Admit(Statement {
            key: of.id().signing,
            wrapping_key: of.id().wrapping.0,
            label: "someone".into(),
            rights: rights(administer),
            expires: None,
            cloud_secrets: Vec::new(),
        })
    }

    fn signed(by: &Principal, number: u32, epoch: u32, step: PeopleStep) -> SignedPeopleChange {
        signed_for(VOLUME, by, (number, epoch), step)
    }

    fn signed_for(
        volume: VolumeId,
        by: &Principal,
        (number, epoch): (u32, u32),
        step: PeopleStep,
    ) -> SignedPeopleChange {
        let change = PeopleChange {
            volume,
            number,
            epoch: RealmEpoch(epoch),
            step,
        };
        let change = change.to_bytes();
        let signature = by.sign(&PeopleChange::signed_bytes(&change));
        let signer = by.id().signing;
        SignedPeopleChange {
            change,
            signed: SignedBy { signer, signature },
        }
    }

    /// A list of which one founding principal may sign all.
    struct List {
        founder: Principal,
        admitted: Admitted,
    }

    impl List {
        fn new() -> Self {
            Self {
                founder: Principal::random().unwrap(),
                admitted: Admitted::default(),
            }
        }

        fn learn(&mut self, signed: &SignedPeopleChange) -> Result<(), String> {
            let founder = self.founder.id().signing;
            let founding = |key: &PrincipalId, _| *key == founder;
            let stated = |key: &PrincipalId| {
                let step = admission(&self.founder, true);
                match step {
                    PeopleStep::Admit(statement) if *key == founder => Some(statement),
                    _ => None,
                }
            };
            let learned = self.admitted.learn(VOLUME, signed, founding, stated);
            learned.map_err(|error| error.to_string())
        }

        #[track_caller]
        fn refuses(&mut self, signed: &SignedPeopleChange, why: &str) {
            let before = self.admitted.signed();
            let reason = self.learn(signed).unwrap_err();
            assert!(reason.contains(why), "{reason}");
            assert_eq!(self.admitted.signed(), before);
        }
    }

    #[test]
    fn only_what_an_administrator_signed_for_this_place_is_learned() {
        let mut list = List::new();
        let (founder, ann) = (list.founder.clone(), Principal::random().unwrap());
        let bob = Principal::random().unwrap();
        let right = signed(&founder, 1, 3, admission(&ann, true));
        list.refuses(
            &signed_for(ClusterId([8; 16]), &founder, (1, 3), admission(&ann, true)),
            "signature",
        );
        let mut forged = right.clone();
        forged.change[30] ^= 1;
        list.refuses(&forged, "signature");
        list.refuses(
            &signed(&bob, 1, 3, admission(&ann, true)),
            "no administrator",
        );
        list.refuses(
            &signed(&ann, 1, 3, admission(&ann, true)),
            "no administrator",
        );
        list.refuses(
            &signed(&founder, 2, 3, admission(&ann, true)),
            "does not follow",
        );
        list.refuses(&signed(&founder, 1, 3, admission(&founder, true)), "signer");
        list.learn(&right).unwrap();
        list.refuses(&right, "does not follow");
        list.refuses(
            &signed(&founder, 2, 2, admission(&bob, false)),
            "earlier key epoch",
        );
        list.refuses(&signed(&founder, 2, 3, admission(&ann, false)), "already");
        // Ann may admit from now on, and not change herself or the founder.
        let dismiss = |who: &Principal| PeopleStep::Dismiss {
            principal: who.id().signing,
        };
        list.refuses(&signed(&ann, 2, 3, dismiss(&ann)), "signer");
        list.refuses(&signed(&ann, 2, 3, dismiss(&founder)), "root has stated");
        list.learn(&signed(&ann, 2, 3, admission(&bob, false)))
            .unwrap();
        list.refuses(&signed(&bob, 3, 3, dismiss(&ann)), "no administrator");
        list.learn(&signed(&founder, 3, 4, dismiss(&ann))).unwrap();
        list.refuses(&signed(&ann, 4, 4, dismiss(&bob)), "no administrator");
        let present: Vec<_> = list.admitted.present().collect();
        assert_eq!(present.len(), 1);
        assert_eq!(present[0].1, ann.id().signing);
    }

    #[test]
    fn a_signature_counts_for_the_key_epochs_in_which_its_key_administered() {
        let mut list = List::new();
        let (founder, ann) = (list.founder.clone(), Principal::random().unwrap());
        let regrant = |administer| PeopleStep::Regrant {
            principal: ann.id().signing,
            label: "ann".into(),
            rights: rights(administer),
            expires: None,
        };
        let steps = [
            (2, admission(&ann, true)),
            (4, regrant(false)),
            (6, regrant(true)),
            (6, regrant(false)),
            (
                7,
                PeopleStep::Dismiss {
                    principal: ann.id().signing,
                },
            ),
        ];
        for (number, (epoch, step)) in (1..).zip(steps) {
            list.learn(&signed(&founder, number, epoch, step)).unwrap();
        }
        let key = ann.id().signing;
        let counts = (0..9).map(|epoch| list.admitted.signs(&key, RealmEpoch(epoch)));
        let expected = [false, false, true, true, true, false, true, false, false];
        assert!(counts.eq(expected));
        assert_eq!(list.admitted.find(&key).unwrap().label, "ann");
        assert_eq!(list.admitted.dismissed_in("ann"), Some(RealmEpoch(7)));
        assert_eq!(list.admitted.dismissed_in("someone"), None);
        assert!(list.admitted.user_numbers().into_iter().eq([1003]));
        assert_eq!(list.admitted.present().count(), 0);
    }

    fn machine(of: &Principal, (machine, label): (&Principal, &str)) -> AddedMachine {
        let PeopleStep::Admit(statement) = admission(machine, false) else {
            panic!("no statement");
        };
        AddedMachine {
            of: of.id().signing,
            statement: Statement {
                label: label.into(),
                ..statement
            },
            credentials: Vec::new(),
        }
    }

    #[test]
    fn a_machine_counts_for_its_persons_signature_and_goes_with_it() {
        let mut list = List::new();
        let founder = list.founder.clone();
        let [bob, eve, laptop, tablet] = [(); 4].map(|()| Principal::random().unwrap());
        let learn = |list: &mut List, number, by: &Principal, step| {
            list.learn(&signed(by, number, 3, step)).unwrap();
        };
        learn(&mut list, 1, &founder, admission(&bob, false));
        learn(&mut list, 2, &founder, admission(&eve, false));
        let right = machine(&bob, (&laptop, "someone@laptop"));
        type Change = fn(&mut AddedMachine);
        let wrong: [Change; 4] = [
            |it| it.statement.rights.administer = true,
            |it| it.statement.expires = Some(Time(9)),
            |it| it.statement.label = "other@laptop".into(),
            |it| it.of = PublicKey([1; 32]),
        ];
        for change in wrong {
            let mut added = right.clone();
            change(&mut added);
            let step = PeopleStep::AddMachine(added);
            list.refuses(&signed(&bob, 3, 3, step), "machine");
        }
        let step = PeopleStep::AddMachine(right);
        list.refuses(&signed(&eve, 3, 3, step.clone()), "machine");
        list.refuses(&signed(&founder, 3, 3, step.clone()), "machine");
        learn(&mut list, 3, &bob, step);
        let step = PeopleStep::AddMachine(machine(&bob, (&tablet, "someone@tablet")));
        learn(&mut list, 4, &laptop, step);
        let ids = [&bob, &laptop, &tablet, &eve].map(|it| it.id().signing);
        let [first, second, third, other] = ids;
        // Its own statement alone counts, and for this key epoch.
        let has_added =
            |by, machine, epoch| list.admitted.has_added(by, machine, RealmEpoch(epoch));
        assert!(has_added(&first, &second, 3) && has_added(&second, &third, 3));
        assert!(!has_added(&first, &third, 3) && !has_added(&other, &second, 3));
        assert!(!has_added(&first, &second, 2) && !has_added(&first, &second, 4));
        assert!(!has_added(&second, &first, 3));
        // Eve drops nothing of Bob's; his laptop drops his first key, and is Bob still.
        let drop = |principal| PeopleStep::DropMachine { principal };
        list.refuses(&signed(&eve, 5, 3, drop(second)), "machine");
        learn(&mut list, 5, &laptop, drop(first));
        list.refuses(&signed(&bob, 6, 3, drop(third)), "machine");
        learn(&mut list, 6, &laptop, drop(third));
        assert!(list.admitted.present().count() == 2);
        let step = PeopleStep::Dismiss { principal: second };
        learn(&mut list, 7, &founder, step);
        assert!(list.admitted.present().map(|(it, _)| it.key).eq([other]));
    }
}
