//! The keys of all key epochs that a client could open, and how it fetches new ones.
//!
//! ```text
//! servers: realm in epoch e, its row, my membership
//!    │ not below an epoch that was seen        or the servers are out of date, or lie
//!    │ signed by an administrator, with its row    or they lie
//!    ▼
//! M_e unwrapped ─────────┐
//! C_e cached or fetched ─┴─► REK_e ─ opens ─► REK_{e−1} ─ opens ─► … down to a known one
//! ```
//!
//! Invariants: keys are only added, so that readable data stays readable. Each key comes with a
//! signature or from another key, and a key epoch that is reached twice must have the same key both
//! times. C_e is fetched once for each key epoch and process, or once for each key epoch and
//! machine where its shares are cached.

use super::membership::Signed;
use super::{Volume, VolumeError, no_member};
use crate::blocks::ShareStore;
use crate::keys::{KeyError, RealmEpochKey, Sealing, ShareCache, SharedSecret};
use crate::metadata::{MetadataClient, MetadataError};
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::RealmEpoch;
use quorumfs_metadata::row::{Epoch, Lock, Member, Shares};
use std::collections::BTreeMap;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
struct Keys {
    epochs: BTreeMap<RealmEpoch, RealmEpochKey>,
    /// The newest key epoch's shares, if it has the second lock.
    shares: Option<Shares>,
}

/// The keys.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    keys: RwLock<Keys>,
    sealing: Sealing,
    /// The newest key epoch that the servers showed before this process began.
    shown_before: OnceLock<RealmEpoch>,
    /// Held during a query of the servers: a second one would repeat the work.
    refreshing: tokio::sync::Mutex<()>,
}

impl Keyring {
    fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys_mut(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_sealing(&mut self, sealing: Sealing) {
        self.sealing = sealing;
        for key in self.keys_mut().epochs.values_mut() {
            *key = key.clone().with_sealing(sealing);
        }
    }

    pub(super) fn current(&self) -> Result<RealmEpochKey, KeyError> {
        let keys = self.keys();
        let newest = keys.epochs.last_key_value();
        newest.map(|(_, key)| key.clone()).ok_or(KeyError::Locked {
            epoch: RealmEpoch(0),
        })
    }

    pub(super) fn newest(&self) -> Option<RealmEpoch> {
        let keys = self.keys();
        keys.epochs.last_key_value().map(|(epoch, _)| *epoch)
    }

    pub(super) fn find(&self, epoch: RealmEpoch) -> Result<RealmEpochKey, KeyError> {
        let keys = self.keys();
        let found = keys.epochs.get(&epoch).cloned();
        found.ok_or(KeyError::NoEpoch { epoch })
    }

    fn add(&self, opened: Vec<RealmEpochKey>, shares: Option<Shares>) {
        let mut keys = self.keys_mut();
        for key in opened {
            keys.epochs
                .insert(key.epoch(), key.with_sealing(self.sealing));
        }
        keys.shares = shares;
    }
}

impl Volume {
    /// Checks the membership in genesis, and opens the first key epoch if it has no second lock.
    pub(super) fn open_founding(&self) -> Result<(), VolumeError> {
        let member = self.founding_member()?;
        let signed = self.signed(RealmEpoch(0), &self.genesis.epoch);
        signed.check(&self.roster, &self.principal.id().signing, member)?;
        let secret = signed.open(&self.principal, member)?;
        if self.genesis.epoch.lock == Lock::Members {
            let key = secret.realm_epoch_key(None, signed.volume, signed.realm, signed.number);
            self.realm.keyring.add(vec![key], None);
        }
        Ok(())
    }

    /// Opens the first key epoch with the clouds' shares, without the servers; data that was sealed
    /// later needs the servers' rows.
    ///
    /// # Errors
    /// If fewer than f + 1 clouds give their share.
    #[boxed]
    pub async fn unlock(&self, clouds: &ShareStore) -> Result<(), VolumeError> {
        if self.current_epoch().is_some() {
            return Ok(());
        }
        let member = self.founding_member()?;
        let epoch = &self.genesis.epoch;
        let key = self.open_epoch(RealmEpoch(0), epoch, member, Some(clouds));
        self.realm
            .keyring
            .add(vec![key.await?], epoch.shares.clone());
        Ok(())
    }

    /// Refuses servers that report an earlier key epoch than this one, which they showed to an
    /// earlier process.
    pub fn epoch_shown_before(&self, epoch: RealmEpoch) {
        let _ = self.realm.keyring.shown_before.set(epoch);
    }

    /// Asks the servers for the realm's newest key epoch, and opens it and all earlier ones that
    /// are not open yet.
    ///
    /// # Errors
    /// If the servers give no answer, or one that is not signed, or one that is older than an
    /// answer that this process, or [an earlier one](Self::epoch_shown_before), has seen; if the
    /// clouds do not give the second lock's shares; or if this principal is no member any more.
    /// Opened keys stay open.
    #[boxed]
    pub async fn refresh(
        &self,
        metadata: &MetadataClient,
        clouds: Option<&ShareStore>,
    ) -> Result<RealmEpoch, VolumeError> {
        let _alone = self.realm.keyring.refreshing.lock().await;
        let (number, epochs, member) = metadata.newest_epoch().await?;
        let (open, before) = (
            self.current_epoch(),
            self.realm.keyring.shown_before.get().copied(),
        );
        if let Some(shown) = open.max(before).filter(|shown| *shown > number) {
            return Err(out_of_date(number, shown).into());
        }
        if open == Some(number) {
            return Ok(number);
        }
        let member = member.ok_or_else(|| no_member(&self.principal, self.realm.id()))?;
        let epoch = epochs
            .get(&number)
            .ok_or_else(|| untrusted_epoch("the servers did not show the newest one"))?;
        // Its signer may have become an administrator since this process began, and this principal
        // may have another role.
        self.learn_people(metadata).await?;
        let key = self.open_epoch(number, epoch, &member, clouds).await?;
        let shares = epoch.shares.clone();
        let opened = self.open_before(metadata, key, epochs).await?;
        self.realm.keyring.add(opened, shares);
        Ok(number)
    }

    /// The newest key epoch's shares; `None` if it has no second lock.
    #[must_use]
    pub fn current_shares(&self) -> Option<Shares> {
        self.realm.keyring.keys().shares.clone()
    }

    pub(super) fn signed<'a>(&'a self, number: RealmEpoch, epoch: &'a Epoch) -> Signed<'a> {
        Signed {
            volume: &self.genesis.volume,
            realm: self.realm.id(),
            number,
            epoch,
        }
    }

    /// Opens a key epoch by its locks.
    async fn open_epoch(
        &self,
        number: RealmEpoch,
        epoch: &Epoch,
        member: &Member,
        clouds: Option<&ShareStore>,
    ) -> Result<RealmEpochKey, VolumeError> {
        let signed = self.signed(number, epoch);
        signed.check(&self.roster, &self.principal.id().signing, member)?;
        if !epoch.is_sound(number, &self.policy()) {
            return Err(untrusted_epoch("it does not match its lock").into());
        }
        let secret = signed.open(&self.principal, member)?;
        let shared = match (&epoch.shares, clouds) {
            (None, _) => None,
            (Some(shares), Some(clouds)) => Some(self.shared(number, shares, clouds).await?),
            (Some(_), None) => return Err(KeyError::Locked { epoch: number }.into()),
        };
        let (volume, realm) = (signed.volume, signed.realm);
        Ok(secret.realm_epoch_key(shared.as_ref(), volume, realm, number))
    }

    /// C_e: from the cached shares, if they are proved; else from the clouds, and cached.
    async fn shared(
        &self,
        number: RealmEpoch,
        shares: &Shares,
        clouds: &ShareStore,
    ) -> Result<SharedSecret, VolumeError> {
        let Some(kept) = self.kept.get() else {
            return Ok(clouds.fetch(shares).await?);
        };
        match kept.load(self.realm.id(), number) {
            Ok(None) => {}
            Ok(Some(found)) => match clouds.join(shares, &found) {
                Some(secret) => return Ok(secret),
                None => drop_cached(kept, "they do not have the digests in the epoch's row"),
            },
            Err(error) => drop_cached(kept, &error.to_string()),
        }
        let found = clouds.gather(shares).await?;
        let wrong = || untrusted_epoch("its shares are not of one secret");
        let secret = clouds.join(shares, &found).ok_or_else(wrong)?;
        if let Err(error) = kept.store(self.realm.id(), number, &found) {
            tracing::warn!(%error, "the clouds' shares of the key are not cached on this machine");
        }
        Ok(secret)
    }

    /// All keys from `newest` down to one that is known already, or the first.
    async fn open_before(
        &self,
        metadata: &MetadataClient,
        newest: RealmEpochKey,
        mut epochs: BTreeMap<RealmEpoch, Epoch>,
    ) -> Result<Vec<RealmEpochKey>, VolumeError> {
        let mut opened = Vec::new();
        let mut key = newest;
        while let Some(before) = key.epoch().0.checked_sub(1).map(RealmEpoch) {
            let number = key.epoch();
            if !epochs.contains_key(&number) {
                let end = RealmEpoch(number.0.saturating_add(1));
                epochs = metadata.epochs_before(end).await?;
            }
            let epoch = epochs.get(&number);
            let epoch =
                epoch.ok_or_else(|| untrusted_epoch("the servers did not show an older one"))?;
            let previous = key.open_previous(&epoch.previous, &self.id(), self.realm.id())?;
            opened.push(std::mem::replace(&mut key, previous));
            if let Ok(known) = self.epoch_key(before) {
                if known.is_same(&key) {
                    return Ok(opened);
                }
                return Err(
                    untrusted_epoch("it opens to another key than this process has").into(),
                );
            }
        }
        opened.push(key);
        Ok(opened)
    }
}

/// Removes cached shares that cannot be used.
fn drop_cached(kept: &ShareCache, reason: &str) {
    let path = kept.path().display();
    tracing::warn!(%path, reason, "the cached shares of the key are dropped; the clouds are asked");
    if let Err(error) = kept.forget() {
        tracing::warn!(%error, "the cached shares could not be removed; they are not used");
    }
}

fn untrusted_epoch(reason: &str) -> KeyError {
    KeyError::Untrusted {
        what: "the realm's key epoch",
        reason: reason.into(),
    }
}

fn out_of_date(answered: RealmEpoch, shown: RealmEpoch) -> MetadataError {
    let reason = format!("they report key epoch {answered}, and reported {shown} before");
    MetadataError::WentBack { reason }
}
