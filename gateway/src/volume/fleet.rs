//! The clouds of a volume, as its administrators have changed them since its creation.
//!
//! ```text
//! genesis: clouds, secrets ──► signed change 1, 2, … ──► the clouds now, each with its secret
//!                                │ signed by an administrator of its key epoch
//!                                │ the next number, and no contradiction
//!                                └ a new cloud's secret has the signed hash
//! ```
//!
//! Invariants: a change is accepted for an administrator's signature alone, and on no server's
//! word; changes are accepted in order, and none is ever undone. Which replaced clouds are
//! *retired* is the servers' word: it decides who is waited for, and not where anything is written.
//!
//! A key that was replaced counts for changes up to the key epoch that its succession names, as for
//! key epochs; its successor counts from that one on.
//!
//! Possible failure: *servers hide a change*. New objects then go to the cloud that was replaced,
//! and are moved later.

use super::{Volume, VolumeError, parse};
use crate::keys::{CloudSecret, KeyError, wrap};
use crate::metadata::MetadataClient;
use async_recursion::async_recursion as boxed;
use quorumfs_bft::authentication::Signer;
use quorumfs_metadata::fleet::{
    ChangeClouds, CloudChange, CloudState, CloudStep, Fleet, KnownClouds, SignedCloudChange,
};
use quorumfs_metadata::identity::{CloudIndex, PrincipalId};
use quorumfs_metadata::row::{Cloud, CloudSecretRow, SignedBy};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// How long after its end a principal is not counted any more, whatever the clock here says.
const LONG_AGO_SECONDS: u64 = 24 * 60 * 60;

/// A change of the clouds, with this principal's wrapped secret if a cloud was added: what a client
/// stores to open the volume without the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedChange {
    /// The change.
    pub signed: SignedCloudChange,
    /// The wrapped secret of the cloud that it adds; empty for any other change.
    pub wrapped: Vec<u8>,
}

/// A cloud of the volume, active or not.
#[derive(Clone, Debug)]
pub struct KnownCloud {
    /// The cloud.
    pub cloud: Cloud,
    /// Its secret.
    pub secret: CloudSecret,
    /// Whether it takes new shards.
    pub state: CloudState,
    /// Its location, if it was added after the volume's creation.
    pub location: Option<String>,
}

/// A cloud that is to be added.
#[derive(Clone, Debug)]
pub struct AddedCloud {
    /// Its index: the next one.
    pub index: CloudIndex,
    /// The backend.
    pub kind: String,
    /// The party that could lose all of it at once.
    pub failure_domain: String,
    /// Its name for people.
    pub name: String,
    /// Its secret.
    pub secret: CloudSecret,
    /// Its location, for the volume's other machines.
    pub location: String,
}

#[derive(Debug)]
struct Known {
    clouds: KnownClouds,
    fleet: Fleet,
    /// The secrets and locations of clouds that were added.
    added: BTreeMap<CloudIndex, (CloudSecret, String)>,
    changes: Vec<LearnedChange>,
}

/// The clouds, to this process's knowledge.
#[derive(Debug)]
pub(super) struct KnownFleet(RwLock<Known>);

fn untrusted(reason: &str) -> KeyError {
    KeyError::Untrusted {
        what: "a change of the clouds",
        reason: reason.into(),
    }
}

impl KnownFleet {
    /// The clouds of the genesis.
    pub(super) fn founding(clouds: &[Cloud]) -> Self {
        let clouds: KnownClouds = clouds.iter().map(|it| (it.index, it.clone())).collect();
        Self(RwLock::new(Known {
            fleet: Fleet::founding(&clouds),
            clouds,
            added: BTreeMap::new(),
            changes: Vec::new(),
        }))
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    /// All clouds that the volume ever had, by index, to this process's knowledge.
    #[must_use]
    pub fn known_clouds(&self) -> Vec<KnownCloud> {
        let known = self.fleet.known();
        let secret_of = |index: CloudIndex| match known.added.get(&index) {
            Some((secret, location)) => Some((secret.clone(), Some(location.clone()))),
            None => {
                let secret = self.clouds.get(usize::from(index.0)).cloned();
                secret.map(|secret| (secret, None))
            }
        };
        let clouds = known.clouds.values().filter_map(|cloud| {
            let (secret, location) = secret_of(cloud.index)?;
            Some(KnownCloud {
                cloud: cloud.clone(),
                state: known.fleet.state(cloud.index),
                secret,
                location,
            })
        });
        clouds.collect()
    }

    /// Which clouds take new shards, to this process's knowledge.
    #[must_use]
    pub fn fleet(&self) -> Fleet {
        self.fleet.known().fleet.clone()
    }

    /// The changes of the clouds, to this process's knowledge, in order: the argument of
    /// [`remember_clouds`](Self::remember_clouds).
    #[must_use]
    pub fn cloud_changes(&self) -> Vec<LearnedChange> {
        self.fleet.known().changes.clone()
    }

    /// Learns changes that an earlier process has stored.
    ///
    /// # Errors
    /// At the first one that is not signed by an administrator, does not follow, or whose secret
    /// this principal cannot open. Those before it are learned.
    pub fn remember_clouds(&self, all: &[LearnedChange]) -> Result<(), VolumeError> {
        let count = self.fleet.known().changes.len();
        for learned in all.iter().skip(count) {
            self.learn_change(learned)?;
        }
        Ok(())
    }

    /// Asks the servers for changes of the clouds. Returns whether anything is new.
    ///
    /// # Errors
    /// If the servers give no answer, or show a change that is not signed by an administrator or
    /// does not follow.
    #[boxed]
    pub async fn learn_clouds(&self, metadata: &MetadataClient) -> Result<bool, VolumeError> {
        let before = self.fleet();
        let (changes, shown, _) = metadata.cloud_changes(before.changes).await?;
        let mut secrets = BTreeMap::new();
        if !changes.is_empty() {
            secrets.extend(metadata.wrapped_secrets().await?);
            // Perhaps a signer has become an administrator since this process began.
            self.learn_people(metadata).await?;
        }
        for signed in changes {
            let wrapped = added_by(&signed)
                .and_then(|cloud| secrets.remove(&cloud))
                .map_or_else(Vec::new, |row: CloudSecretRow| row.bytes);
            self.learn_change(&LearnedChange { signed, wrapped })?;
        }
        self.remember_retired(&shown.retired);
        Ok(self.fleet() != before)
    }

    /// Learns which clouds are retired, as the servers say or said.
    pub fn remember_retired(&self, retired: &[CloudIndex]) {
        let mut known = self.fleet.0.write().unwrap_or_else(PoisonError::into_inner);
        let former = known.fleet.former.clone();
        let retired = retired.iter().copied();
        known.fleet.retired = retired.filter(|cloud| former.contains(cloud)).collect();
    }

    fn learn_change(&self, learned: &LearnedChange) -> Result<(), VolumeError> {
        let signed = &learned.signed;
        let change = signed
            .verified(self.id())
            .ok_or_else(|| untrusted("its signature is not valid"))?;
        let signer = &signed.signed.signer;
        if !self.roster.signs_during(signer, change.epoch) {
            return Err(untrusted("its signer is no administrator of this volume").into());
        }
        let mut known = self.fleet.0.write().unwrap_or_else(PoisonError::into_inner);
        let follows = known.fleet.changes.checked_add(1) == Some(change.number)
            && change.epoch >= known.fleet.epoch;
        if !follows {
            return Err(untrusted("it does not follow the change before it").into());
        }
        let (mut fleet, mut clouds) = (known.fleet.clone(), known.clouds.clone());
        let applied = fleet.apply(&mut clouds, &change);
        applied.map_err(|error| untrusted(&error.to_string()))?;
        if let CloudStep::Add {
            cloud,
            secret,
            description,
        } = &change.step
        {
            let info = CloudSecret::wrapping_info(&self.id(), cloud.index);
            let wrapped = parse(&learned.wrapped)?;
            let opened = self.principal.unwrap("cloud secret", &wrapped, &info)?;
            let opened = CloudSecret::from_secret(opened);
            if opened.digest() != *secret {
                return Err(untrusted("the new cloud's secret is not the signed one").into());
            }
            let location = opened.open_location(&self.id(), cloud.index, description)?;
            known.added.insert(cloud.index, (opened, location));
        }
        (known.fleet, known.clouds) = (fleet, clouds);
        known.changes.push(learned.clone());
        Ok(())
    }

    /// The cloud that would be added next, with a fresh secret.
    ///
    /// # Errors
    /// If there is no randomness, or the volume has had as many clouds as it can have.
    pub fn next_cloud(&self) -> Result<(CloudIndex, CloudSecret), VolumeError> {
        let count = self.fleet.known().clouds.len();
        let index = u8::try_from(count).map_err(|_| VolumeError::TooManyClouds { count })?;
        Ok((CloudIndex(index), CloudSecret::random()?))
    }

    /// Adds a cloud as a spare.
    ///
    /// # Errors
    /// If it contradicts the volume's clouds, this principal does not administer, another change
    /// was quicker, or the servers do not answer: it may have been added then.
    #[boxed]
    pub async fn add_cloud(
        &self,
        metadata: &MetadataClient,
        new: &AddedCloud,
    ) -> Result<(), VolumeError> {
        let sealed = new
            .secret
            .seal_location(&self.id(), new.index, &new.location)?;
        let step = CloudStep::Add {
            cloud: Cloud {
                index: new.index,
                kind: new.kind.clone(),
                failure_domain: new.failure_domain.clone(),
                name: new.name.clone(),
            },
            secret: new.secret.digest(),
            description: sealed,
        };
        let info = CloudSecret::wrapping_info(&self.id(), new.index);
        self.learn_people(metadata).await?;
        // Those too whose time is over by this machine's clock, since the servers know better; but
        // no clock is so wrong that what ended long ago has not.
        let now = u64::try_from(crate::clock::now().seconds).unwrap_or_default();
        let long_ago = now.saturating_sub(LONG_AGO_SECONDS);
        let mut people = self.roster.people();
        people.retain(|it| {
            let end = it.statement.expires.map(|end| end.0 / 1_000_000_000);
            end.is_none_or(|end| end > long_ago)
        });
        let wrapped = people.iter().map(|it| &it.statement).map(|it| {
            let to = it.wrapping_key.into();
            let wrapped = wrap("cloud secret", new.secret.secret(), &to, &info)?;
            Ok((it.key, wrapped.0.to_vec()))
        });
        let secrets = wrapped.collect::<Result<Vec<_>, KeyError>>()?;
        self.order_change(metadata, step, secrets).await
    }

    /// Lets a cloud take the place of an active one.
    ///
    /// # Errors
    /// As [`add_cloud`](Self::add_cloud).
    #[boxed]
    pub async fn replace_cloud(
        &self,
        metadata: &MetadataClient,
        old: CloudIndex,
        new: CloudIndex,
    ) -> Result<(), VolumeError> {
        let step = CloudStep::Replace { old, new };
        self.order_change(metadata, step, Vec::new()).await
    }

    async fn order_change(
        &self,
        metadata: &MetadataClient,
        step: CloudStep,
        secrets: Vec<(PrincipalId, Vec<u8>)>,
    ) -> Result<(), VolumeError> {
        let (epoch, _, _) = metadata.newest_epoch().await?;
        let change = {
            let known = self.fleet.known();
            let change = CloudChange {
                volume: self.id(),
                number: known.fleet.changes.saturating_add(1),
                epoch,
                step,
            };
            let (mut fleet, mut clouds) = (known.fleet.clone(), known.clouds.clone());
            fleet.apply(&mut clouds, &change)?;
            change
        };
        let bytes = change.to_bytes();
        let signature = self.principal.sign(&CloudChange::signed_bytes(&bytes));
        let signer = self.principal.id().signing;
        let ordered = ChangeClouds {
            signed: SignedCloudChange {
                change: bytes,
                signed: SignedBy { signer, signature },
            },
            secrets,
        };
        let done = metadata.change_clouds(&ordered, change.number).await;
        let learned = self.learn_clouds(metadata).await;
        let is_mine = |it: &LearnedChange| it.signed == ordered.signed;
        if self.cloud_changes().iter().any(is_mine) {
            return Ok(());
        }
        learned?;
        Ok(done?)
    }
}

/// The cloud that a change adds, if it is one of those.
fn added_by(signed: &SignedCloudChange) -> Option<CloudIndex> {
    let change = signed.decoded()?;
    match change.step {
        CloudStep::Add { cloud, .. } => Some(cloud.index),
        CloudStep::Replace { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{create, tests::new_volume};
    use super::*;
    use crate::keys::{Principal, WrappingKey};
    use quorumfs_metadata::identity::RealmEpoch;

    fn opened() -> Volume {
        let created = create(new_volume()).unwrap();
        Volume::open(&created.genesis, &created.owner).unwrap()
    }

    /// A change signed by a principal, with the secret wrapped for the volume's.
    fn signed(
        volume: &Volume,
        by: &Principal,
        step: CloudStep,
        (number, secret): (u32, &CloudSecret),
    ) -> LearnedChange {
        let change = CloudChange {
            volume: volume.id(),
            number,
            epoch: RealmEpoch(0),
            step,
        };
        let bytes = change.to_bytes();
        let wrapped = match &change.step {
            CloudStep::Add { cloud, .. } => {
                let info = CloudSecret::wrapping_info(&volume.id(), cloud.index);
                let to: WrappingKey = volume.principal.id().wrapping;
                let wrapped = wrap("cloud secret", secret.secret(), &to, &info);
                wrapped.unwrap().0.to_vec()
            }
            CloudStep::Replace { .. } => Vec::new(),
        };
        LearnedChange {
            signed: SignedCloudChange {
                signed: SignedBy {
                    signer: by.id().signing,
                    signature: by.sign(&CloudChange::signed_bytes(&bytes)),
                },
                change: bytes,
            },
            wrapped,
        }
    }

    fn adding(volume: &Volume, index: u8, secret: &CloudSecret) -> CloudStep {
        let index = CloudIndex(index);
        CloudStep::Add {
            cloud: Cloud {
                index,
                kind: "local".into(),
                failure_domain: format!("new {}", index.0),
                name: format!("new {}", index.0),
            },
            secret: secret.digest(),
            description: secret
                .seal_location(&volume.id(), index, "/somewhere")
                .unwrap(),
        }
    }

    #[test]
    fn a_signed_change_is_learned_and_shows_the_cloud_with_its_secret_and_location() {
        let volume = opened();
        let owner = volume.principal.clone();
        let secret = CloudSecret::random().unwrap();
        let add = adding(&volume, 4, &secret);
        let (old, new) = (CloudIndex(0), CloudIndex(4));
        let replace = CloudStep::Replace { old, new };
        let all = [
            signed(&volume, &owner, add, (1, &secret)),
            signed(&volume, &owner, replace, (2, &secret)),
        ];
        volume.remember_clouds(&all).unwrap();
        let known = volume.known_clouds();
        let states: Vec<_> = known.iter().map(|it| it.state.name()).collect();
        assert_eq!(states, ["draining", "active", "active", "active", "active"]);
        assert_eq!(known[4].location.as_deref(), Some("/somewhere"));
        assert_eq!(known[4].secret.expose(), secret.expose());
        assert_eq!(volume.cloud_changes(), all);
        // Known ones again are no news, and fewer of them take nothing back.
        volume.remember_clouds(&all[..1]).unwrap();
        assert_eq!(volume.fleet().changes, 2);
    }

    #[test]
    fn servers_cannot_invent_a_cloud_nor_exchange_its_secret_or_its_order() {
        let volume = opened();
        let owner = volume.principal.clone();
        let stranger = Principal::random().unwrap();
        let (secret, other) = (
            CloudSecret::random().unwrap(),
            CloudSecret::random().unwrap(),
        );
        let add = || adding(&volume, 4, &secret);
        let right = signed(&volume, &owner, add(), (1, &secret));
        let mut changed = right.clone();
        *changed.signed.change.last_mut().unwrap() ^= 1;
        let mut renamed = right.clone();
        renamed.signed.signed.signer = stranger.id().signing;
        let mut bare = right.clone();
        bare.wrapped.clear();
        let (old, new) = (CloudIndex(0), CloudIndex(4));
        for (what, wrong) in [
            ("invented", signed(&volume, &stranger, add(), (1, &secret))),
            ("changed", changed),
            ("in another's name", renamed),
            (
                "with another secret",
                signed(&volume, &owner, add(), (1, &other)),
            ),
            ("without its secret", bare),
            ("out of turn", signed(&volume, &owner, add(), (2, &secret))),
            (
                "of another index",
                signed(&volume, &owner, adding(&volume, 5, &secret), (1, &secret)),
            ),
            (
                "by an unknown cloud",
                signed(
                    &volume,
                    &owner,
                    CloudStep::Replace { old, new },
                    (1, &secret),
                ),
            ),
        ] {
            assert!(volume.remember_clouds(&[wrong]).is_err(), "{what}");
            assert_eq!(volume.fleet().changes, 0, "{what}");
            assert_eq!(volume.known_clouds().len(), 4, "{what}");
        }
        volume.remember_clouds(&[right]).unwrap();
    }
}
