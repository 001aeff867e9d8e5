//! How a volume is made: its root, its owner, the principal `recovery`, and all of its initial
//! secrets.
//!
//! With the second lock the clouds have to exist before the volume: the genesis names the digests
//! of their shares and the clouds that were seen to hold one, and its signer must not sign anything
//! false. No id can be allocated at that time, so these shares lie under an id that no allocation
//! ever has.

use super::VolumeError;
use super::membership::Signed;
use super::realm::FIRST;
use crate::blocks::{PlacedShares, ShareStore};
use crate::keys::{
    CloudSecret, EpochSecret, KeyError, KeyFile, Principal, RecoveryKit, SharedSecret, VolumeRoot,
    WrappingKey, wrap,
};
use async_recursion::async_recursion as boxed;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{PublicKey, ReplicaId, Time};
use quorumfs_metadata::genesis::{
    CHANNELS_AUTHENTICATE, FORMAT, Genesis, SignedGenesis, TRASH_SECONDS,
};
use quorumfs_metadata::identity::{
    CloudIndex, Gid, ObjectId, RealmEpoch, Uid, VolumeId, VolumeIncarnation,
};
use quorumfs_metadata::placement::{Policy, PolicyError};
use quorumfs_metadata::row::{
    Assertable, Believe, Cloud, Epoch, Lock, ReplicaInfo, Rights, Shares,
};
use quorumfs_metadata::statement::{Statement, WrappedSecret};

/// A cloud of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCloud {
    /// The backend; `local` is a directory.
    pub kind: String,
    /// The party that could lose all of it at once.
    pub failure_domain: String,
    /// Its name for people.
    pub name: String,
}

/// The properties of a new volume.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// u: failures of any kind that the metadata stays live with.
    pub up: u16,
    /// r: lying servers that the metadata stays correct with.
    pub right: u16,
    /// The metadata servers, numbered from 0.
    pub replicas: Vec<ReplicaInfo>,
    /// The clouds.
    pub clouds: Vec<NewCloud>,
    /// How objects are spread over them.
    pub policy: Policy,
    /// How the metadata servers authenticate votes.
    pub authentication: Authentication,
    /// How long what is removed stays in the trash, in seconds; 0: there is none.
    pub trash_seconds: u64,
    /// The owner's label.
    pub owner_label: String,
    /// The owner of the root directory, and the first user that can write in it.
    pub root_owner: (Uid, Gid),
    /// The users that the owner's gateways may speak for. Mounting for several users, or keeping
    /// files' owners, requires all of them.
    pub owner_uids: Assertable<Uid>,
    /// The same for groups.
    pub owner_gids: Assertable<Gid>,
    /// The present time, by the wall clock.
    pub created: Time,
}

impl NewVolume {
    /// A volume of four replicas and four clouds in one process, for tests and measurements.
    ///
    /// # Errors
    /// Never, unless the policies change.
    #[doc(hidden)]
    pub fn in_process() -> Result<Self, PolicyError> {
        let replica = |number: u16| ReplicaInfo {
            id: ReplicaId(number),
            key: PublicKey([u8::try_from(number).unwrap_or_default().saturating_add(1); 32]),
            address: format!("127.0.0.1:{}", 7000_u16.saturating_add(number)),
        };
        let cloud = |number: u16| NewCloud {
            kind: "local".into(),
            failure_domain: format!("domain {number}"),
            name: format!("cloud {number}"),
        };
        Ok(Self {
            up: 1,
            right: 1,
            replicas: (0..4).map(replica).collect(),
            clouds: (0..4).map(cloud).collect(),
            policy: Policy::new(4, 1, 2, 4)?,
            authentication: Authentication::Sig,
            trash_seconds: TRASH_SECONDS,
            owner_label: "owner".into(),
            root_owner: (Uid::ROOT, Gid(0)),
            owner_uids: Assertable::Any,
            owner_gids: Assertable::Any,
            created: Time(1),
        })
    }
}

/// A volume that was just made.
#[derive(Debug)]
pub struct Created {
    /// The file that every replica is initialised with, and every client opens the volume with.
    pub genesis: Vec<u8>,
    /// The owner's key.
    pub owner: KeyFile,
    /// The kit to print and keep.
    pub recovery_kit: RecoveryKit,
}

/// A volume that is being made: all its initial secrets, and nothing written anywhere.
#[derive(Debug)]
pub struct Founding {
    root: VolumeRoot,
    owner: Principal,
    recovery: Principal,
    secret: EpochSecret,
    /// The second lock, once the clouds hold it.
    shared: Option<Shares>,
    clouds: Vec<Cloud>,
    secrets: Vec<CloudSecret>,
    new: NewVolume,
}

/// Makes a volume: its root, its owner, the principal `recovery`, and all of its initial secrets.
/// Nothing is written anywhere. Its keys have the first lock alone; see [`Founding`].
///
/// # Errors
/// If there is no randomness, or the properties contradict each other.
pub fn create(new: NewVolume) -> Result<Created, VolumeError> {
    Founding::begin(new)?.finish()
}

impl Founding {
    /// Draws the secrets.
    ///
    /// # Errors
    /// If there is no randomness, or there are too many clouds.
    pub fn begin(new: NewVolume) -> Result<Self, VolumeError> {
        let root = VolumeRoot::random()?;
        let (owner, recovery) = (Principal::random()?, Principal::random()?);
        let (mut clouds, mut secrets) = (Vec::new(), Vec::new());
        let count = new.clouds.len();
        for (index, cloud) in new.clouds.iter().enumerate() {
            let index = u8::try_from(index).map_err(|_| VolumeError::TooManyClouds { count })?;
            clouds.push(Cloud {
                index: CloudIndex(index),
                kind: cloud.kind.clone(),
                failure_domain: cloud.failure_domain.clone(),
                name: cloud.name.clone(),
            });
            secrets.push(CloudSecret::random()?);
        }
        Ok(Self {
            secret: EpochSecret::random()?,
            shared: None,
            root,
            owner,
            recovery,
            clouds,
            secrets,
            new,
        })
    }

    /// The volume's id.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.root.volume()
    }

    /// How it spreads its objects.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.new.policy
    }

    /// Each cloud's index with its secret.
    pub fn clouds(&self) -> impl Iterator<Item = (CloudIndex, &CloudSecret)> {
        let indexes = self.clouds.iter().map(|cloud| cloud.index);
        indexes.zip(&self.secrets)
    }

    /// Adds the second lock: a secret of which each cloud gets a share, and without which the
    /// members' keys open nothing.
    ///
    /// # Errors
    /// If fewer than n − f clouds were seen to hold theirs.
    #[boxed]
    pub async fn lock_with_clouds(
        &mut self,
        store: &ShareStore,
    ) -> Result<PlacedShares, VolumeError> {
        let secret = SharedSecret::random()?;
        let sealed = store.seal(ObjectId::FOUNDING, &secret)?;
        let placed = store.place(&sealed).await?;
        self.shared = Some(Shares {
            object: ObjectId::FOUNDING,
            threshold: self.new.policy.faulty().saturating_add(1),
            places: sealed.places,
            confirmed: placed.confirmed.clone(),
        });
        Ok(placed)
    }

    /// Signs the genesis.
    ///
    /// # Errors
    /// If the properties contradict each other.
    pub fn finish(self) -> Result<Created, VolumeError> {
        let volume = self.root.volume();
        let owner_rights = Rights {
            uids: self.new.owner_uids.clone(),
            gids: self.new.owner_gids.clone(),
            ..Rights::all()
        };
        let owner_label = self.new.owner_label.clone();
        let principals = vec![
            self.state(&self.owner, owner_rights, owner_label)?,
            self.state(&self.recovery, Rights::all(), "recovery".into())?,
        ];
        let Self {
            root, owner, new, ..
        } = self;
        let epoch = Epoch {
            begun: new.created,
            lock: match self.shared {
                None => Lock::Members,
                Some(_) => Lock::MembersAndClouds,
            },
            previous: Vec::new(),
            shares: self.shared,
        };
        let signed = Signed {
            volume: &volume,
            realm: FIRST,
            number: RealmEpoch(0),
            epoch: &epoch,
        };
        let members = signed.wrap_for(principals.iter(), &self.secret, &owner)?;
        let genesis = Genesis {
            volume,
            format: FORMAT,
            features: match new.authentication {
                Authentication::Sig => 0,
                Authentication::Mac => CHANNELS_AUTHENTICATE,
            },
            incarnation: VolumeIncarnation(0),
            recovered_by: None,
            created: new.created,
            up: new.up,
            right: new.right,
            replicas: new.replicas,
            clouds: self.clouds,
            policy: new.policy,
            trash_seconds: new.trash_seconds,
            believe: Believe::Principal,
            principals,
            members,
            epoch,
            root_owner: new.root_owner,
        };
        let genesis = signed_genesis(&root, &genesis)?;
        Ok(Created {
            owner: KeyFile {
                principal: owner,
                root: root.public(),
            },
            recovery_kit: RecoveryKit {
                root,
                recovery: self.recovery,
                genesis: genesis.clone(),
                clouds: Vec::new(),
                changed: None,
            },
            genesis,
        })
    }

    /// The statement of a principal, with all clouds' secrets wrapped for it.
    fn state(
        &self,
        principal: &Principal,
        rights: Rights,
        label: String,
    ) -> Result<Statement, KeyError> {
        let id = principal.id();
        Ok(Statement {
            key: id.signing,
            wrapping_key: id.wrapping.0,
            label,
            rights,
            expires: None,
            cloud_secrets: wrap_secrets(&self.volume(), self.clouds(), &id.wrapping)?,
        })
    }
}

/// A genesis as servers and clients get it, under the root's signature.
pub(super) fn signed_genesis(root: &VolumeRoot, genesis: &Genesis) -> Result<Vec<u8>, VolumeError> {
    genesis.validate()?;
    let bytes = genesis.to_bytes();
    let signature = root.sign(&Genesis::signed_bytes(&bytes));
    let signed = SignedGenesis {
        genesis: bytes,
        root_key: root.public().0,
        signature,
    };
    Ok(signed.to_bytes())
}

/// The clouds' secrets, wrapped for a principal.
pub(super) fn wrap_secrets<'a>(
    volume: &VolumeId,
    secrets: impl Iterator<Item = (CloudIndex, &'a CloudSecret)>,
    to: &WrappingKey,
) -> Result<Vec<WrappedSecret>, KeyError> {
    secrets
        .map(|(cloud, secret)| {
            let info = CloudSecret::wrapping_info(volume, cloud);
            let wrapped = wrap("cloud secret", secret.secret(), to, &info)?;
            let bytes = wrapped.0.to_vec();
            Ok(WrappedSecret { cloud, bytes })
        })
        .collect()
}
