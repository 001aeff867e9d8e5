//! People: principals that administrators admit to a volume, change, and dismiss.
//!
//! ```text
//! guest: a key pair ── the two public keys ──► administrator
//!    │ statement: keys, name, rights, end, the clouds' secrets wrapped for the guest
//!    │ membership: the current key epoch's secret wrapped for the guest
//!    ▼
//! signed by the administrator ──► ordered ──► the guest may open sessions
//!                             └─► in the list of all changes, which clients replay (`roster`)
//! ```
//!
//! No secret is exchanged between the two: the guest's half never leaves its machine, and what is
//! wrapped for it lies on the servers.
//!
//! A member adds further machines of its own in the same way, under its own signature; how their
//! keys reach it is said in [`crate::keys::MachineLine`].
//!
//! Invariants: a client takes a principal for one because an administrator signed its statement,
//! and that administrator's statement leads back to the genesis in the same way; on no server's
//! word. A change names the key epoch in which it was made and its number among all changes, so
//! that it can be neither repeated nor moved.
//!
//! Failure modes: *the answer is lost*. The same bytes again are the same success. *Another
//! administrator was quicker*: the servers refuse the number, and the caller is told to look again.
//! *A dismissed principal* has what it could read so far; what is sealed after the next key epoch
//! it cannot read (docs/THREAT_MODEL.md). *Servers hide a dismissal*: a client goes on taking the
//! signatures of a dismissed administrator for what they were until it learns of it.

use super::founding::wrap_secrets;
use super::roster::untrusted_change;
use super::{Volume, VolumeError};
use crate::blocks::ShareStore;
use crate::keys::{CredentialsPlace, KeyError, PrincipalId as PublicKeys};
use crate::metadata::MetadataClient;
use async_recursion::async_recursion as boxed;
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::{CloudIndex, Gid, PrincipalId, RealmEpoch, VolumeIncarnation};
use quorumfs_metadata::people::{
    AddedMachine, ChangePeople, PeopleChange, PeopleStep, SignedPeopleChange, label_of_machine,
};
use quorumfs_metadata::row::{Member, Rights, SignedBy};
use quorumfs_metadata::statement::Statement;
use quorumfs_metadata::succession::SignedSuccession;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use zeroize::Zeroizing;

/// A principal of the volume, to this process's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Its statement.
    pub statement: Statement,
    /// The administrator that admitted it or changed it last; `None`: the volume's root did.
    pub stated_by: Option<PrincipalId>,
}

/// Who the principals are, as another process has learned it: the argument of
/// [`Volume::open_after`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPeople {
    /// The replacements of principals that the root has stated, in order.
    pub successions: Vec<SignedSuccession>,
    /// The changes that administrators made, in order.
    pub changes: Vec<SignedPeopleChange>,
}

/// How often a change is tried again that another one has overtaken.
const TRIES_MAX: u32 = 8;

/// Whether another change was quicker.
fn is_raced(error: &VolumeError) -> bool {
    match error {
        VolumeError::Raced { .. } => true,
        VolumeError::Metadata(error) => error.errno() == Errno::AGAIN,
        _ => false,
    }
}

/// What is granted to a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its name.
    pub label: String,
    /// Its rights.
    pub rights: Rights,
    /// When it ceases to be a principal.
    pub expires: Option<Time>,
}

impl Volume {
    /// The principals, to this process's knowledge: those of the genesis or their successors first.
    #[must_use]
    pub fn people(&self) -> Vec<Person> {
        self.roster.people()
    }

    /// The names of groups, to this process's knowledge.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<Gid, String> {
        self.roster.groups()
    }

    /// The changes of principals that administrators have made, to this process's knowledge, in
    /// order: a part of [`KnownPeople`].
    #[must_use]
    pub fn people_changes(&self) -> Vec<SignedPeopleChange> {
        self.roster.signed_changes()
    }

    /// All user numbers for which a person of this volume acts or has acted: the files of a person
    /// that was removed are not the next one's.
    #[must_use]
    pub fn user_numbers(&self) -> BTreeSet<u32> {
        self.roster.user_numbers()
    }

    /// The key epoch in which the last person of this name was dismissed, if it was.
    #[must_use]
    pub fn dismissed_in(&self, label: &str) -> Option<RealmEpoch> {
        self.roster.dismissed_in(label)
    }

    /// Asks the servers who the principals are.
    ///
    /// # Errors
    /// If they give no answer, or show what is not signed or does not follow.
    #[boxed]
    pub async fn learn_people(&self, metadata: &MetadataClient) -> Result<(), VolumeError> {
        self.learn_successions(metadata).await?;
        let after = self.roster.changes();
        // Servers that were recovered from a backup may lack changes that this client has seen.
        let is_recovered = self.genesis.incarnation != VolumeIncarnation(0);
        let learned = match metadata.people(after).await? {
            Some(shown) => self.roster.learn_changes(after, &shown),
            None if is_recovered => Err(untrusted_change("the servers know fewer")),
            // Those that are out of date are noticed by what they have executed.
            None => Ok(()),
        };
        if learned.is_err() && is_recovered {
            let all = metadata.people(0).await?.unwrap_or_default();
            return Ok(self.roster.learn_anew(&all)?);
        }
        Ok(learned?)
    }

    /// Admits the holder of these keys.
    ///
    /// # Errors
    /// If this principal does not administer, the key is a principal's already, or the servers do
    /// not answer: it may be admitted then.
    #[boxed]
    pub async fn admit(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        keys: &PublicKeys,
        grant: Grant,
    ) -> Result<(), VolumeError> {
        let admits = || {
            let known = self.known_clouds();
            let secrets = known.iter().map(|it| (it.cloud.index, &it.secret));
            let statement = Statement {
                key: keys.signing,
                wrapping_key: keys.wrapping.0,
                label: grant.label.clone(),
                rights: grant.rights.clone(),
                expires: grant.expires,
                cloud_secrets: wrap_secrets(&self.id(), secrets, &keys.wrapping)?,
            };
            Ok((PeopleStep::Admit(statement.clone()), statement))
        };
        self.change_member(metadata, clouds, admits).await?;
        self.give_keys_to_all(metadata, clouds).await
    }

    /// Changes a principal's name, rights and end.
    ///
    /// # Errors
    /// As [`admit`](Self::admit); and if the volume's root has stated it, or it is this one.
    #[boxed]
    pub async fn regrant(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        principal: PrincipalId,
        grant: Grant,
    ) -> Result<(), VolumeError> {
        let regrants = || {
            let present = self.roster.principal(&principal);
            let present = present.ok_or_else(|| untrusted_change("its principal is unknown"))?;
            let changed = Statement {
                label: grant.label.clone(),
                rights: grant.rights.clone(),
                expires: grant.expires,
                ..present
            };
            let step = PeopleStep::Regrant {
                principal,
                label: grant.label.clone(),
                rights: grant.rights.clone(),
                expires: grant.expires,
            };
            Ok((step, changed))
        };
        self.change_member(metadata, clouds, regrants).await
    }

    /// Dismisses a principal. It is refused everything from then on; what it could read it can
    /// read until the next key epoch, and older content as long as it reaches the clouds. This
    /// needs no cloud, and no key.
    ///
    /// # Errors
    /// As [`regrant`](Self::regrant).
    #[boxed]
    pub async fn dismiss(
        &self,
        metadata: &MetadataClient,
        principal: PrincipalId,
    ) -> Result<(), VolumeError> {
        let step = PeopleStep::Dismiss { principal };
        self.change(metadata, &step).await
    }

    /// Adds a further machine of this principal's person: its keys, its name, and credentials of
    /// clouds for it.
    ///
    /// # Errors
    /// If this principal is not a member, the person has too many machines, or the servers do not
    /// answer: it may be added then.
    #[boxed]
    pub async fn add_machine(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        (keys, name): (&PublicKeys, &str),
        credentials: &BTreeMap<CloudIndex, Zeroizing<Vec<u8>>>,
    ) -> Result<(), VolumeError> {
        let volume = self.id();
        let adds = || {
            let me = self.principal.id().signing;
            let mine = self.roster.principal(&me);
            let mine = mine.ok_or_else(|| untrusted_change("this key is no principal's"))?;
            let of = self.roster.machines().get(&me).copied().unwrap_or(me);
            let label = label_of_machine((&mine.label, of == me), name);
            let label = label.ok_or_else(|| untrusted_change("the machine's name is too long"))?;
            let known = self.known_clouds();
            let secrets = known.iter().map(|it| (it.cloud.index, &it.secret));
            let statement = Statement {
                key: keys.signing,
                wrapping_key: keys.wrapping.0,
                label,
                rights: mine.rights,
                expires: mine.expires,
                cloud_secrets: wrap_secrets(&volume, secrets, &keys.wrapping)?,
            };
            let sealed = credentials.iter().map(|(&cloud, credentials)| {
                let volume = &volume;
                let place = CredentialsPlace { volume, cloud };
                Ok((cloud, place.seal(keys, credentials)?))
            });
            let added = AddedMachine {
                of,
                statement: statement.clone(),
                credentials: sealed.collect::<Result<_, KeyError>>()?,
            };
            Ok((PeopleStep::AddMachine(added), statement))
        };
        self.change_member(metadata, clouds, adds).await
    }

    /// Drops a key of this principal's person, or of any one if it administers. The person's other
    /// keys stay.
    ///
    /// # Errors
    /// As [`regrant`](Self::regrant).
    #[boxed]
    pub async fn drop_machine(
        &self,
        metadata: &MetadataClient,
        principal: PrincipalId,
    ) -> Result<(), VolumeError> {
        let step = PeopleStep::DropMachine { principal };
        self.change(metadata, &step).await
    }

    /// The last statements of people whose first key was dropped and who have other machines, to
    /// this process's knowledge.
    #[must_use]
    pub fn people_without_first_key(&self) -> Vec<Statement> {
        let machines = self.roster.machines();
        let first: BTreeSet<_> = machines.values().collect();
        let people = self.roster.people();
        let is_there = |key: &PrincipalId| people.iter().any(|it| it.statement.key == *key);
        let gone = first.into_iter().filter(|key| !is_there(key));
        gone.filter_map(|key| self.roster.find(key)).collect()
    }

    /// The further machines of people, to this process's knowledge, each with the first key of its
    /// person.
    #[must_use]
    pub fn machines(&self) -> BTreeMap<PrincipalId, PrincipalId> {
        self.roster.machines()
    }

    /// Gives a group a name; an empty one takes it away.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    #[boxed]
    pub async fn name_group(
        &self,
        metadata: &MetadataClient,
        gid: Gid,
        name: String,
    ) -> Result<(), VolumeError> {
        let step = PeopleStep::NameGroup { gid, name };
        self.change(metadata, &step).await
    }

    /// Gives a principal credentials of a cloud, sealed for it; none: it has none any more.
    ///
    /// # Errors
    /// As [`regrant`](Self::regrant).
    #[boxed]
    pub async fn give_credentials(
        &self,
        metadata: &MetadataClient,
        to: &PublicKeys,
        (cloud, credentials): (CloudIndex, Option<&[u8]>),
    ) -> Result<(), VolumeError> {
        let volume = self.id();
        let place = CredentialsPlace {
            volume: &volume,
            cloud,
        };
        let step = PeopleStep::GiveCredentials {
            principal: to.signing,
            cloud,
            sealed: match credentials {
                Some(credentials) => place.seal(to, credentials)?,
                None => Vec::new(),
            },
        };
        self.change(metadata, &step).await
    }

    /// Gives the current keys to all people that lack them: a key epoch that began while one was
    /// admitted may lack that one.
    pub(super) async fn give_keys_to_all(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
    ) -> Result<(), VolumeError> {
        self.learn_people(metadata).await?;
        let members = self.members(metadata).await?;
        let me = self.principal.id().signing;
        for Person {
            statement,
            stated_by,
        } in self.people()
        {
            let lasts = self.roster.principal(&statement.key).is_some();
            let lacks = stated_by.is_some() && lasts && !members.contains(&statement.key);
            if lacks && statement.key != me {
                let grant = Grant {
                    label: statement.label,
                    rights: statement.rights,
                    expires: statement.expires,
                };
                self.regrant(metadata, clouds, statement.key, grant).await?;
            }
        }
        Ok(())
    }

    /// The clouds of which a principal was given credentials, to this process's knowledge.
    #[must_use]
    pub fn given_clouds(&self, principal: &PrincipalId) -> Vec<CloudIndex> {
        self.roster.given(principal).into_keys().collect()
    }

    /// The credentials that this principal was given, by cloud, to this process's knowledge; an
    /// error for those that do not open.
    #[must_use]
    pub fn own_credentials_of_clouds(
        &self,
    ) -> BTreeMap<CloudIndex, Result<Zeroizing<Vec<u8>>, KeyError>> {
        let volume = self.id();
        let given = self.roster.given(&self.principal.id().signing);
        let opened = given.into_iter().map(|(cloud, sealed)| {
            let place = CredentialsPlace {
                volume: &volume,
                cloud,
            };
            (cloud, place.open(&self.principal, &sealed))
        });
        opened.collect()
    }

    /// Orders a change of who is a member, as `make` says after everything was learned. Another
    /// change that is quicker leads to another try.
    async fn change_member(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        make: impl Fn() -> Result<(PeopleStep, Statement), KeyError> + Send + Sync,
    ) -> Result<(), VolumeError> {
        let mut tries = 0;
        loop {
            self.learn_people(metadata).await?;
            let current = self.refresh(metadata, Some(clouds)).await?;
            self.learn_clouds(metadata).await?;
            let (step, statement) = make()?;
            let member = self.membership_for(metadata, current, &statement).await?;
            let ordered = self.order_people(metadata, current, step, Some(member));
            match ordered.await {
                Err(error) if is_raced(&error) && tries < TRIES_MAX => tries += 1,
                done => return done,
            }
        }
    }

    /// Orders any other change.
    async fn change(
        &self,
        metadata: &MetadataClient,
        step: &PeopleStep,
    ) -> Result<(), VolumeError> {
        let mut tries = 0;
        loop {
            self.learn_people(metadata).await?;
            let (current, _, _) = metadata.newest_epoch().await?;
            let ordered = self.order_people(metadata, current, step.clone(), None);
            match ordered.await {
                Err(error) if is_raced(&error) && tries < TRIES_MAX => tries += 1,
                done => return done,
            }
        }
    }

    async fn order_people(
        &self,
        metadata: &MetadataClient,
        epoch: RealmEpoch,
        step: PeopleStep,
        member: Option<Member>,
    ) -> Result<(), VolumeError> {
        let before = self.roster.changes();
        let change = PeopleChange {
            volume: self.id(),
            number: before.saturating_add(1),
            epoch,
            step,
        };
        let bytes = change.to_bytes();
        let signature = self.principal.sign(&PeopleChange::signed_bytes(&bytes));
        let signer = self.principal.id().signing;
        let signed = SignedPeopleChange {
            change: bytes,
            signed: SignedBy { signer, signature },
        };
        // What every client will refuse is not ordered.
        self.roster.would_learn(&signed)?;
        let ordered = ChangePeople { signed, member };
        metadata.change_people(&ordered, change.number).await?;
        Ok(self.roster.learn_changes(before, &[ordered.signed])?)
    }
}
