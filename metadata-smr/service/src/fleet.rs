//! The fleet: the clouds of a volume, and which of them take new shards.
//!
//! Clouds are added and replaced while the volume is in use. An administrator signs each change,
//! clients verify the chain of all changes from the genesis on, and so servers cannot invent a
//! cloud. Exactly as many clouds as the policy spreads over are *active*:
//!
//! ```text
//!   add ──► spare ──replace──► active ──replaced──► draining ──no row names it──► retired
//!                                ▲                     │                            │
//!                                └───────replace───────┴────────────────────────────┘
//! ```
//!
//! A *spare* is known and holds nothing. A *draining* cloud takes nothing new while its shards
//! move to active clouds; it may be dead or lie. A *retired* cloud is not needed any more: a
//! reconciler reports that, and nothing but convenience depends on it. A commit that names a
//! retired cloud, from a client that has not learned of the change yet, makes it draining again.
//!
//! Invariants:
//! * **Only an administrator changes the fleet.** The servers check the signature of the sender,
//!   which must be an administrator now; clients check it too.
//! * **Changes follow each other one by one**, so that of two concurrent ones only one succeeds.
//! * **Indexes are never used again**, since names, shares and headers depend on them.
//! * Active clouds are of different failure domains.
//!
//! Failure modes: *the answer is lost*. The same bytes again are the same success. *Servers hide a
//! change*. Clients go on writing to the cloud that was replaced, which loses nothing. *A key of a
//! former administrator*: a change counts only if it was signed before its key epoch's succession,
//! as for key epochs.

use crate::change::{Asker, Change};
use crate::codec;
use crate::error::Error;
use crate::identity::{CloudIndex, PrincipalId, RealmEpoch, RealmId, VolumeId};
use crate::limits::{
    CLOUD_CHANGE_BYTES_MAX, CLOUD_CHANGES_MAX, CLOUD_DESCRIPTION_BYTES_MAX, CLOUDS_MAX,
    LABEL_BYTES_MAX, MEMBERS_MAX, PRINCIPALS_READ_MAX, WRAPPED_KEY_BYTES_MAX,
};
use crate::reply::{Done, QueryResult};
use crate::row::{
    Cloud, CloudSecretRow, Drain, Epoch, Format, FormerPrincipal, Principal, Row, SignedBy, key,
};
use crate::rows::{Outcome, Rows, decode, require};
use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_zebra::VerificationKey;
use quorumfs_bft::identity::{Digest, Signature};
use std::collections::{BTreeMap, BTreeSet};

/// The context that an administrator signs under, before the change's bytes.
pub const SIGNING_CONTEXT: &[u8] = b"quorumfs 2026 cloud change v1\0";

/// A change of the fleet.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CloudChange {
    /// The volume.
    pub volume: VolumeId,
    /// Its number among the volume's changes, from 1 on.
    pub number: u32,
    /// The root realm's key epoch, by which clients know whose signatures count.
    pub epoch: RealmEpoch,
    /// What changes.
    pub step: CloudStep,
}

/// What changes.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum CloudStep {
    /// A cloud is added as a spare.
    Add {
        /// The cloud. Its index is the next one.
        cloud: Cloud,
        /// The hash of its secret: a server cannot show another one.
        secret: Digest,
        /// Its location, sealed under its secret: opaque to the servers.
        description: Vec<u8>,
    },
    /// A cloud takes the place of an active one, which is draining from now on.
    Replace {
        /// The active cloud.
        old: CloudIndex,
        /// The cloud that is active from now on: a spare, or one that was replaced before.
        new: CloudIndex,
    },
}

/// A change with an administrator's signature over it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SignedCloudChange {
    /// [`CloudChange::to_bytes`], as signed.
    pub change: Vec<u8>,
    /// The administrator and its signature over [`CloudChange::signed_bytes`].
    pub signed: SignedBy,
}

/// The ordered operation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ChangeClouds {
    /// The change.
    pub signed: SignedCloudChange,
    /// The secret of a new cloud, wrapped for each principal; empty for any other change.
    pub secrets: Vec<(PrincipalId, Vec<u8>)>,
}

/// Which clouds take new shards.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Fleet {
    /// The active clouds. A cloud takes the position of the one that it replaces.
    pub active: Vec<CloudIndex>,
    /// Clouds that were active and were replaced, in the order of their indexes.
    pub former: Vec<CloudIndex>,
    /// Those of them that are retired, in the order of their indexes.
    pub retired: Vec<CloudIndex>,
    /// The number of changes so far.
    pub changes: u32,
    /// The key epoch of the last change.
    pub epoch: RealmEpoch,
}

/// The state of a cloud of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CloudState {
    /// It takes new shards.
    Active,
    /// It is known and holds nothing.
    Spare,
    /// It takes nothing new, and its shards move to active clouds.
    Draining,
    /// Nothing on it is needed any more.
    Retired,
}

impl CloudState {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Spare => "spare",
            Self::Draining => "draining",
            Self::Retired => "retired",
        }
    }
}

/// Why a change contradicts the fleet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FleetError {
    /// The new cloud's index is not the next one.
    #[error("cloud {0} is not the next index")]
    NotNext(CloudIndex),
    /// The volume has as many clouds as it can have.
    #[error("a volume can have {CLOUDS_MAX} clouds in its life, and has had them")]
    TooMany,
    /// A label is empty or too long.
    #[error("a name, kind, failure domain or description is empty or too long")]
    Label,
    /// The name is taken.
    #[error("the volume has or had a cloud `{0}`")]
    NameTaken(String),
    /// There is no such cloud.
    #[error("there is no cloud {0}")]
    Unknown(CloudIndex),
    /// The cloud to be replaced is not active.
    #[error("cloud {0} is not active")]
    NotActive(CloudIndex),
    /// The cloud that is to replace it is active already.
    #[error("cloud {0} is active already")]
    Active(CloudIndex),
    /// Two active clouds would fail together.
    #[error("the clouds `{one}` and `{other}` fail together: both are {domain}'s")]
    SharedDomain {
        /// One.
        one: String,
        /// The other.
        other: String,
        /// Their failure domain.
        domain: String,
    },
}

/// The clouds of a volume, by index.
pub type KnownClouds = BTreeMap<CloudIndex, Cloud>;

impl Row for Fleet {
    const NAME: &'static str = "fleet";
}

impl Row for SignedCloudChange {
    const NAME: &'static str = "change of the clouds";
}

impl CloudChange {
    /// The change's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// The bytes that an administrator signs: [`SIGNING_CONTEXT`], then the change's bytes.
    #[must_use]
    pub fn signed_bytes(change: &[u8]) -> Vec<u8> {
        [SIGNING_CONTEXT, change].concat()
    }
}

impl SignedCloudChange {
    /// The change, without a look at its signature.
    #[must_use]
    pub fn decoded(&self) -> Option<CloudChange> {
        codec::decode(&self.change, CLOUD_CHANGE_BYTES_MAX).ok()
    }

    /// The signed change, if the signer that it names signed it for this volume. Whether that
    /// signer may is another question.
    #[must_use]
    pub fn verified(&self, volume: VolumeId) -> Option<CloudChange> {
        let change = self.decoded()?;
        let key = VerificationKey::try_from(self.signed.signer.0).ok()?;
        let message = CloudChange::signed_bytes(&self.change);
        let Signature(signature) = self.signed.signature;
        let signature = ed25519_zebra::Signature::from(signature);
        let signed = key.verify(&signature, &message).is_ok();
        (signed && change.volume == volume).then_some(change)
    }
}

impl Fleet {
    /// The fleet of a volume whose clouds were never changed: all are active.
    #[must_use]
    pub fn founding(clouds: &KnownClouds) -> Self {
        Self {
            active: clouds.keys().copied().collect(),
            ..Self::default()
        }
    }

    /// The state of a cloud that the volume has.
    #[must_use]
    pub fn state(&self, cloud: CloudIndex) -> CloudState {
        if self.active.contains(&cloud) {
            CloudState::Active
        } else if self.retired.contains(&cloud) {
            CloudState::Retired
        } else if self.former.contains(&cloud) {
            CloudState::Draining
        } else {
            CloudState::Spare
        }
    }

    /// Whether shards have to move: some cloud is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.former
            .iter()
            .any(|cloud| !self.retired.contains(cloud))
    }

    /// Applies the next change to the fleet and the list of clouds.
    ///
    /// # Errors
    /// If it contradicts them; nothing has changed then.
    pub fn apply(
        &mut self,
        clouds: &mut KnownClouds,
        change: &CloudChange,
    ) -> Result<(), FleetError> {
        match &change.step {
            CloudStep::Add {
                cloud, description, ..
            } => add(clouds, cloud, description)?,
            CloudStep::Replace { old, new } => self.replace(clouds, *old, *new)?,
        }
        self.changes = change.number;
        self.epoch = change.epoch;
        Ok(())
    }

    fn replace(
        &mut self,
        clouds: &KnownClouds,
        old: CloudIndex,
        new: CloudIndex,
    ) -> Result<(), FleetError> {
        let known = clouds.get(&new).ok_or(FleetError::Unknown(new))?;
        if self.active.contains(&new) {
            return Err(FleetError::Active(new));
        }
        let others = self.active.iter().filter(|cloud| **cloud != old);
        for other in others.filter_map(|cloud| clouds.get(cloud)) {
            if other.failure_domain == known.failure_domain {
                return Err(FleetError::SharedDomain {
                    one: known.name.clone(),
                    other: other.name.clone(),
                    domain: known.failure_domain.clone(),
                });
            }
        }
        let mut places = self.active.iter_mut();
        let place = places.find(|cloud| **cloud == old);
        *place.ok_or(FleetError::NotActive(old))? = new;
        self.former.retain(|cloud| *cloud != new);
        self.retired.retain(|cloud| *cloud != new);
        self.former.push(old);
        self.former.sort_unstable();
        Ok(())
    }
}

fn add(clouds: &mut KnownClouds, cloud: &Cloud, description: &[u8]) -> Result<(), FleetError> {
    if clouds.len() >= CLOUDS_MAX {
        return Err(FleetError::TooMany);
    }
    if usize::from(cloud.index.0) != clouds.len() {
        return Err(FleetError::NotNext(cloud.index));
    }
    let fits = |label: &String| (1..=LABEL_BYTES_MAX).contains(&label.len());
    let labels = [&cloud.kind, &cloud.failure_domain, &cloud.name];
    if !labels.into_iter().all(fits) || description.len() > CLOUD_DESCRIPTION_BYTES_MAX {
        return Err(FleetError::Label);
    }
    if clouds.values().any(|known| known.name == cloud.name) {
        return Err(FleetError::NameTaken(cloud.name.clone()));
    }
    clouds.insert(cloud.index, cloud.clone());
    Ok(())
}

/// Orders a change.
pub(crate) fn change_clouds(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    ordered: &ChangeClouds,
) -> Outcome<Done> {
    require(asker.rights.administer, Error::NoRight)?;
    let format: Format = change.expect_row(&key::format())?;
    let signer = ordered.signed.signed.signer;
    let verified = ordered.signed.verified(format.volume);
    let Some(step) = verified.filter(|_| signer == asker.caller.principal) else {
        return Err(Error::BadCloudChange.into());
    };
    let done = Done::CloudsChanged {
        number: step.number,
    };
    let row_key = key::cloud_change(step.number);
    if let Some(known) = change.find::<SignedCloudChange>(&row_key)? {
        require(known == ordered.signed, Error::Changed)?;
        return Ok(done);
    }
    let mut clouds = known_clouds(change)?;
    let mut fleet = fleet(change)?;
    let follows = fleet.changes.checked_add(1) == Some(step.number);
    require(follows, Error::Changed)?;
    let limit = CLOUD_CHANGES_MAX as u32;
    require(step.number <= limit, Error::TooMany { limit })?;
    let current = change.realm(RealmId::ROOT)?.epoch;
    require(step.epoch == current, Error::WrongEpoch { current })?;
    let applied = fleet.apply(&mut clouds, &step);
    require(applied.is_ok(), Error::BadCloudChange)?;
    match &step.step {
        CloudStep::Add { cloud, .. } => {
            change.put(key::cloud(cloud.index), cloud)?;
            give_secrets(change, cloud.index, ordered)?;
        }
        CloudStep::Replace { .. } => {
            require(ordered.secrets.is_empty(), Error::BadCloudChange)?;
            let drain = Drain {
                since: change.time(),
                ..Drain::default()
            };
            change.put(key::drain(), &drain)?;
        }
    }
    change.put(row_key, &ordered.signed)?;
    change.put_fleet(&fleet)?;
    Ok(done)
}

/// Writes the wrapped secret of a new cloud for each principal.
fn give_secrets(
    change: &mut Change<'_, '_>,
    cloud: CloudIndex,
    ordered: &ChangeClouds,
) -> Outcome<()> {
    let secrets = &ordered.secrets;
    let principals: BTreeSet<_> = secrets.iter().map(|(principal, _)| *principal).collect();
    let fits = |it: &(PrincipalId, Vec<u8>)| (1..=WRAPPED_KEY_BYTES_MAX).contains(&it.1.len());
    let sound = principals.len() == secrets.len()
        && principals.len() <= MEMBERS_MAX
        && secrets.iter().all(fits)
        && principals.contains(&ordered.signed.signed.signer);
    require(sound, Error::BadCloudChange)?;
    // Without the secret a principal could not follow the changes of the clouds any more. One that
    // was admitted since the sender looked is a reason to look again.
    let prefix = key::principals();
    for (row_key, _) in change.scan(&prefix, &prefix, PRINCIPALS_READ_MAX)? {
        let present = key::trailing_principal(&row_key);
        let named = present.is_none_or(|present| principals.contains(&present));
        require(named, Error::Changed)?;
    }
    for (principal, bytes) in secrets {
        let row = change.find::<Principal>(&key::principal(principal))?;
        if row.is_none() {
            // It may have gone since the sender looked.
            let former: Option<FormerPrincipal> = change.find(&key::former(principal))?;
            require(former.is_some(), Error::BadCloudChange)?;
            continue;
        }
        let row = CloudSecretRow {
            bytes: bytes.clone(),
            signed: Some(ordered.signed.signed),
        };
        change.put(key::cloud_secret(principal, cloud), &row)?;
    }
    Ok(())
}

/// Reports that no needed row names a draining cloud any more.
pub(crate) fn retire(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    cloud: CloudIndex,
) -> Outcome<Done> {
    require(asker.rights.reconcile, Error::NoRight)?;
    let mut fleet = fleet(change)?;
    require(fleet.former.contains(&cloud), Error::BadCloudChange)?;
    let realm = change.realm(RealmId::ROOT)?;
    let epoch: Epoch = change.expect_row(&key::epoch(RealmId::ROOT, realm.epoch))?;
    let holds = |epoch: &Epoch| {
        let shares = epoch.shares.as_ref();
        shares.is_some_and(|shares| shares.digest(cloud).is_some())
    };
    // Its share of the second lock is needed until a key epoch without it has begun.
    require(!holds(&epoch), Error::CloudHoldsShare(cloud))?;
    if !fleet.retired.contains(&cloud) {
        fleet.retired.push(cloud);
        fleet.retired.sort_unstable();
        change.put_fleet(&fleet)?;
    }
    Ok(Done::CloudRetired)
}

/// The volume's clouds, by index.
pub(crate) fn known_clouds(rows: &impl Rows) -> Outcome<KnownClouds> {
    let prefix = key::clouds();
    let mut clouds = KnownClouds::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, CLOUDS_MAX)? {
        let cloud: Cloud = decode(&row_key, &bytes)?;
        clouds.insert(cloud.index, cloud);
    }
    Ok(clouds)
}

/// Which clouds take new shards.
pub(crate) fn fleet(rows: &impl Rows) -> Outcome<Fleet> {
    match rows.find(&key::fleet())? {
        Some(fleet) => Ok(fleet),
        None => Ok(Fleet::founding(&known_clouds(rows)?)),
    }
}

/// The changes behind one, the fleet, and how far its drain is.
pub(crate) fn answer(rows: &impl Rows, after: u32) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let prefix = key::cloud_changes();
    let from = key::cloud_change(after.saturating_add(1));
    let mut changes = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &from, CLOUD_CHANGES_MAX)? {
        changes.push(decode(&row_key, &bytes)?);
    }
    Ok(QueryResult::CloudChanges {
        changes,
        fleet: fleet(rows)?,
        drain: rows.find(&key::drain())?.unwrap_or_default(),
    })
}
