//! How a new key epoch is begun.
//!
//! ```text
//! prepare   the newest epoch opened ─► M, C drawn ─► shares put, n − f read back
//! begin     row and wrappings signed ─► one ordered operation ─► opened as every client opens it
//! ```
//!
//! Nothing is sealed under a key that could not be recovered: the key epoch is ordered after its
//! shares were seen on n − f clouds. A crash before that leaves shares under an id that was never
//! committed, which are garbage; after it, the key epoch has begun. If two clients do this at the
//! same time, one begins the key epoch, and the other gets an error.
//!
//! **The effect of a new key epoch.** Data sealed from then on uses the new key, so members that
//! were left out, and holders of an old wrapping and old shares, cannot read it. Older data stays
//! as it is: holders of the old key and the bytes can still read that. It is sealed anew as it is
//! overwritten.

use super::{Volume, VolumeError};
use crate::blocks::{Failures, ShareStore};
use crate::keys::{EpochSecret, RealmEpochKey, SharedSecret};
use crate::metadata::{AllocatedId, MetadataClient};
use async_recursion::async_recursion as boxed;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::{CloudIndex, PrincipalId, RealmEpoch};
use quorumfs_metadata::operation::BeginEpoch;
use quorumfs_metadata::row::{Epoch, Lock, Shares};
use quorumfs_metadata::statement::Statement;

/// A key epoch whose shares are on the clouds, and that is not ordered yet.
#[derive(Debug)]
pub struct PreparedEpoch {
    number: RealmEpoch,
    lock: Lock,
    previous: RealmEpochKey,
    secret: EpochSecret,
    shared: Option<(SharedSecret, Shares)>,
    members: Vec<PrincipalId>,
    failures: Failures,
    /// Holds the id of the shares.
    _id: Option<AllocatedId>,
}

/// The key epoch that was begun.
#[derive(Clone, Debug)]
pub struct Rekeyed {
    /// Its number.
    pub number: RealmEpoch,
    /// The secrets that opening it takes.
    pub lock: Lock,
    /// The clouds that were seen to hold their shares.
    pub confirmed: Vec<CloudIndex>,
    /// The faults of the others; the next scrub restores their shares.
    pub failures: Failures,
}

impl Volume {
    /// Begins a new key epoch: [`prepare_epoch`](Self::prepare_epoch) and
    /// [`begin_epoch`](Self::begin_epoch).
    ///
    /// # Errors
    /// As those.
    #[boxed]
    pub async fn rekey(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        lock: Lock,
        begun: Time,
    ) -> Result<Rekeyed, VolumeError> {
        let prepared = self.prepare_epoch(metadata, clouds, lock, &[]).await?;
        let begun = self.begin_epoch(metadata, clouds, prepared, begun).await?;
        self.give_keys_to_all(metadata, clouds).await?;
        Ok(begun)
    }

    /// Draws the keys of the next key epoch and, with the second lock, puts shares on the clouds.
    /// All members stay except those that `without` names.
    ///
    /// # Errors
    /// If the newest key epoch cannot be opened; if an administrator is to be left out; or if fewer
    /// than n − f clouds hold their shares. Nothing has changed then.
    #[boxed]
    pub async fn prepare_epoch(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        lock: Lock,
        without: &[PrincipalId],
    ) -> Result<PreparedEpoch, VolumeError> {
        self.learn_people(metadata).await?;
        let current = self.refresh(metadata, Some(clouds)).await?;
        let number = RealmEpoch(current.0.saturating_add(1));
        let mut members = self.members(metadata).await?;
        members.retain(|id| !without.contains(id));
        let left_out = |it: &&Statement| it.rights.administer && !members.contains(&it.key);
        if let Some(who) = self.roster.now().iter().find(left_out) {
            let label = who.label.clone();
            return Err(VolumeError::CannotLeaveOut { label });
        }
        let mut prepared = PreparedEpoch {
            number,
            lock,
            previous: self.epoch_key(current)?,
            secret: EpochSecret::random()?,
            shared: None,
            members,
            failures: Failures::default(),
            _id: None,
        };
        if lock == Lock::MembersAndClouds {
            let id = metadata.allocate().await?;
            let secret = SharedSecret::random()?;
            let sealed = clouds.seal(id.object(), &secret)?;
            let placed = clouds.place(&sealed).await?;
            prepared.failures = placed.failures;
            let shares = Shares {
                object: id.object(),
                threshold: self.policy().faulty().saturating_add(1),
                places: sealed.places,
                confirmed: placed.confirmed,
            };
            prepared.shared = Some((secret, shares));
            prepared._id = Some(id);
        }
        Ok(prepared)
    }

    /// Orders a prepared key epoch, and opens it like every client.
    ///
    /// # Errors
    /// `Raced` if another was begun meanwhile. Without an answer of the servers it may have been
    /// begun.
    #[boxed]
    pub async fn begin_epoch(
        &self,
        metadata: &MetadataClient,
        clouds: &ShareStore,
        prepared: PreparedEpoch,
        begun: Time,
    ) -> Result<Rekeyed, VolumeError> {
        let (number, realm, volume) = (prepared.number, self.realm.id(), self.id());
        let shared = prepared.shared.as_ref().map(|(secret, _)| secret);
        let key = prepared
            .secret
            .realm_epoch_key(shared, &volume, realm, number);
        let epoch = Epoch {
            begun,
            lock: prepared.lock,
            previous: key.seal_previous(&prepared.previous, &volume, realm)?,
            shares: prepared.shared.map(|(_, shares)| shares),
        };
        // The servers decide whose time is over; the clock of this machine has no say.
        let principals = self.roster.people();
        let principals = principals.iter().map(|it| &it.statement);
        let stays = |it: &&Statement| prepared.members.contains(&it.key);
        let signed = self.signed(number, &epoch);
        let members =
            signed.wrap_for(principals.filter(stays), &prepared.secret, &self.principal)?;
        let shares = epoch.shares.as_ref();
        let confirmed = shares.map_or_else(Vec::new, |shares| shares.confirmed.clone());
        let begin = BeginEpoch {
            realm,
            number,
            epoch,
            members,
        };
        let ordered = metadata.begin_epoch(&begin).await;
        let opened = self.refresh(metadata, Some(clouds)).await;
        // If it opens from the servers' rows and the signatures made here, it is the intended one,
        // and a lost answer does not matter.
        if self
            .epoch_key(number)
            .is_ok_and(|found| found.is_same(&key))
        {
            return Ok(Rekeyed {
                number,
                lock: prepared.lock,
                confirmed,
                failures: prepared.failures,
            });
        }
        match (opened, ordered) {
            (Ok(current), _) if current >= number => Err(VolumeError::Raced { current }),
            (_, Err(error)) => Err(error.into()),
            (Err(error), _) => Err(error),
            (Ok(current), _) => Err(VolumeError::Raced { current }),
        }
    }

    /// The principals that have the current key epoch's keys, as far as that is signed: a server
    /// cannot bring back a member that was left out.
    ///
    /// # Errors
    /// If the servers give no answer, or show a member that no administrator has signed. A further
    /// machine for which nothing valid is signed is left out.
    #[boxed]
    pub async fn members(
        &self,
        metadata: &MetadataClient,
    ) -> Result<Vec<PrincipalId>, VolumeError> {
        let (number, epochs, _) = metadata.newest_epoch().await?;
        let Some(epoch) = epochs.get(&number) else {
            return Ok(Vec::new());
        };
        let signed = self.signed(number, epoch);
        let mut members = Vec::new();
        for (id, member) in metadata.members().await? {
            match signed.check(&self.roster, &id, &member) {
                Ok(()) => members.push(id),
                // Its person has signed nonsense: that is its own loss.
                Err(error) if self.roster.machines().contains_key(&id) => {
                    let of = self.roster.principal(&id).map(|it| it.label);
                    tracing::warn!(%error, machine = ?of, "a machine is no member");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(members)
    }
}
