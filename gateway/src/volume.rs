//! A volume as a client holds it: made once, opened with a key, believed only as far as it is
//! signed.
//!
//! ```text
//! create ──► genesis (signed by the root, everything secret in it wrapped)
//!        ├─► owner's key file    pins the volume and its root key
//!        └─► recovery kit        root secret, principal `recovery`, genesis
//! open(genesis, key file) ── pins, signature, membership chain, unwrap ──► Volume
//! ```
//!
//! What always holds: a [`Volume`] exists only for a genesis that the pinned root key signed; each
//! membership in it is signed by the owner; and no key in it came from a server. What can go wrong
//! is a [`VolumeError`].

use crate::keys::{
    CloudSecret, EpochSecret, KeyError, KeyFile, Principal, PrincipalId as PublicKeys,
    RealmEpochKey, RecoveryKit, Sealing, SliceKey, VolumeRoot, Wrapped, WrappingKey, wrap,
};
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::genesis::{
    FEATURES, FORMAT, Genesis, GenesisError, GenesisPrincipal, SignedGenesis,
};
use quorumfs_metadata::identity::{
    CloudIndex, Gid, InodeId, PrincipalId, RealmEpoch, RealmId, SliceId, Uid, VolumeId,
};
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::row::{
    Assertable, Cloud, Epoch, Lock, Member, ReplicaInfo, Rights, WrappedKey,
};
use std::collections::BTreeMap;

/// What a membership's signature begins with.
const MEMBERSHIP_CONTEXT: &[u8] = b"quorumfs 2026 realm membership v1\0";

/// A volume that cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The genesis makes no sense.
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    /// A key is wrong, missing or not to be trusted.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// More clouds than a volume can have.
    #[error("{count} clouds are more than a volume can have")]
    TooManyClouds {
        /// How many were named.
        count: usize,
    },
}

/// A cloud of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCloud {
    /// Which backend speaks to it; `local` is a directory.
    pub kind: String,
    /// Who could lose all of it at once.
    pub failure_domain: String,
    /// What people call it.
    pub name: String,
}

/// What a volume is to be like.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// u: failures of any kind that the metadata stays live with.
    pub up: u16,
    /// r: commission failures that it stays right with.
    pub right: u16,
    /// The metadata servers, numbered from 0.
    pub replicas: Vec<ReplicaInfo>,
    /// The clouds.
    pub clouds: Vec<NewCloud>,
    /// How objects are spread over them.
    pub policy: Policy,
    /// What people call the owner.
    pub owner_label: String,
    /// Which users the owner's gateways may speak for. Whoever mounts for several users, or wants
    /// files to keep their owners, needs all of them.
    pub owner_uids: Assertable<Uid>,
    /// Which groups.
    pub owner_gids: Assertable<Gid>,
    /// Now, by the wall clock.
    pub created: Time,
}

/// A volume that was just made.
#[derive(Debug)]
pub struct Created {
    /// What every replica is initialised with, and every client opens the volume with.
    pub genesis: Vec<u8>,
    /// The owner's key.
    pub owner: KeyFile,
    /// What to print and keep.
    pub recovery_kit: RecoveryKit,
}

/// Makes a volume: its root, its owner, the principal `recovery`, and every secret that it begins
/// with. Nothing is written anywhere.
///
/// # Errors
/// If there is no randomness, or what was asked for makes no sense.
pub fn create(new: NewVolume) -> Result<Created, VolumeError> {
    let root = VolumeRoot::random()?;
    let volume = root.volume();
    let (owner, recovery) = (Principal::random()?, Principal::random()?);
    let (realm, epoch) = (RealmId::ROOT, RealmEpoch(0));
    let everybody = [owner.id(), recovery.id()];

    let secret = EpochSecret::random()?;
    let mut members = Vec::new();
    for id in everybody {
        let info = EpochSecret::wrapping_info(&volume, realm, epoch);
        let wrapped = wrap("realm epoch secret", secret.secret(), &id.wrapping, &info)?;
        let wrapped = wrapped.0.to_vec();
        let message = membership(&volume, realm, epoch, &id.signing, &wrapped);
        let signature = owner.sign(&message);
        let member = Member {
            epoch,
            wrapped,
            signer: owner.id().signing,
            signature,
        };
        members.push((id.signing, member));
    }

    let mut clouds = Vec::new();
    let count = new.clouds.len();
    for (index, cloud) in new.clouds.into_iter().enumerate() {
        let index = u8::try_from(index).map_err(|_| VolumeError::TooManyClouds { count })?;
        clouds.push(found_cloud(&volume, CloudIndex(index), cloud, &everybody)?);
    }

    let rights = Rights {
        uids: new.owner_uids,
        gids: new.owner_gids,
        ..Rights::all()
    };
    let genesis = Genesis {
        volume,
        format: FORMAT,
        features: FEATURES,
        created: new.created,
        up: new.up,
        right: new.right,
        replicas: new.replicas,
        clouds,
        policy: new.policy,
        principals: vec![
            principal(&owner, rights, new.owner_label),
            principal(&recovery, Rights::all(), "recovery".into()),
        ],
        epoch: Epoch {
            lock: Lock::Members,
            previous: Vec::new(),
            share_digests: Vec::new(),
        },
        members,
    };
    genesis.validate()?;
    let bytes = genesis.to_bytes();
    let signature = root.sign(&Genesis::signed_bytes(&bytes));
    let signed = SignedGenesis {
        genesis: bytes,
        root_key: root.public().0,
        signature,
    };
    let genesis = signed.to_bytes();
    Ok(Created {
        owner: KeyFile {
            principal: owner,
            root: root.public(),
        },
        recovery_kit: RecoveryKit {
            root,
            recovery,
            genesis: genesis.clone(),
        },
        genesis,
    })
}

fn principal(principal: &Principal, rights: Rights, label: String) -> GenesisPrincipal {
    let id = principal.id();
    GenesisPrincipal {
        key: id.signing,
        wrapping_key: id.wrapping.0,
        rights,
        label,
    }
}

fn found_cloud(
    volume: &VolumeId,
    index: CloudIndex,
    cloud: NewCloud,
    writers: &[PublicKeys],
) -> Result<Cloud, KeyError> {
    let secret = CloudSecret::random()?;
    let info = CloudSecret::wrapping_info(volume, index);
    let naming_keys = writers
        .iter()
        .map(|id| {
            let wrapped = wrap("cloud secret", secret.secret(), &id.wrapping, &info)?;
            Ok(WrappedKey {
                recipient: id.signing,
                bytes: wrapped.0.to_vec(),
            })
        })
        .collect::<Result<_, KeyError>>()?;
    Ok(Cloud {
        index,
        kind: cloud.kind,
        failure_domain: cloud.failure_domain,
        name: cloud.name,
        naming_keys,
    })
}

/// What the signer of a membership signs.
fn membership(
    volume: &VolumeId,
    realm: RealmId,
    epoch: RealmEpoch,
    member: &PrincipalId,
    wrapped: &[u8],
) -> Vec<u8> {
    let mut message = MEMBERSHIP_CONTEXT.to_vec();
    message.extend_from_slice(&volume.0);
    message.extend_from_slice(&realm.0.to_be_bytes());
    message.extend_from_slice(&epoch.0.to_be_bytes());
    message.extend_from_slice(&member.0);
    message.extend_from_slice(wrapped);
    message
}

/// A volume with every key that its principal has.
#[derive(Debug)]
pub struct Volume {
    genesis: Genesis,
    principal: Principal,
    epochs: BTreeMap<RealmEpoch, RealmEpochKey>,
    current: RealmEpochKey,
    clouds: Vec<CloudSecret>,
}

impl Volume {
    /// Opens a volume from its genesis, wherever that came from, with a key file.
    ///
    /// # Errors
    /// If the genesis is damaged, newer, or not signed by the root that the key file pins; or if
    /// the key is not a member's.
    pub fn open(genesis: &[u8], key: &KeyFile) -> Result<Self, VolumeError> {
        let untrusted = |what, reason: &str| KeyError::Untrusted {
            what,
            reason: reason.into(),
        };
        let (signed, genesis) = SignedGenesis::from_bytes(genesis)?;
        if signed.root_key != key.root.0 || genesis.volume != key.volume() {
            return Err(untrusted(
                "the genesis",
                "it is of another volume than the key file; use the pair that belongs together",
            )
            .into());
        }
        if !key
            .root
            .verify(&Genesis::signed_bytes(&signed.genesis), &signed.signature)
        {
            return Err(untrusted(
                "the genesis",
                "the volume root's signature does not hold: it was changed; take it from a backup \
                 or from the recovery kit",
            )
            .into());
        }
        let me = key.principal.id().signing;
        let (realm, volume) = (RealmId::ROOT, genesis.volume);
        let nobody = || KeyError::NoMember {
            principal: me.to_string(),
            realm,
        };
        let (_, member) = genesis
            .members
            .iter()
            .find(|(id, _)| *id == me)
            .ok_or_else(nobody)?;
        let owner = genesis.principals.first().map(|owner| owner.key);
        let message = membership(&volume, realm, member.epoch, &me, &member.wrapped);
        if owner != Some(member.signer)
            || !crate::keys::verify(&member.signer, &message, &member.signature)
        {
            return Err(untrusted(
                "the membership of this principal",
                "the owner's signature over it does not hold",
            )
            .into());
        }
        let info = EpochSecret::wrapping_info(&volume, realm, member.epoch);
        let secret = key
            .principal
            .unwrap("realm epoch key", &parse(&member.wrapped)?, &info)?;
        let current = EpochSecret::from_secret(secret).realm_epoch_key(
            genesis.epoch.lock,
            &volume,
            realm,
            member.epoch,
        )?;
        let clouds = genesis
            .clouds
            .iter()
            .map(|cloud| {
                let mine = cloud.naming_keys.iter().find(|key| key.recipient == me);
                let wrapped = parse(&mine.ok_or_else(nobody)?.bytes)?;
                let info = CloudSecret::wrapping_info(&volume, cloud.index);
                let secret = key.principal.unwrap("cloud secret", &wrapped, &info)?;
                Ok(CloudSecret::from_secret(secret))
            })
            .collect::<Result<_, KeyError>>()?;
        Ok(Self {
            principal: key.principal.clone(),
            epochs: BTreeMap::from([(member.epoch, current.clone())]),
            current,
            clouds,
            genesis,
        })
    }

    /// The same volume for a control run: names and small values are sealed as `sealing` says.
    /// Slices have their own switch in [`crate::blocks::BlockConfig`].
    #[doc(hidden)]
    #[must_use]
    pub fn with_sealing(mut self, sealing: Sealing) -> Self {
        self.current = self.current.with_sealing(sealing);
        self.epochs = std::mem::take(&mut self.epochs)
            .into_iter()
            .map(|(epoch, key)| (epoch, key.with_sealing(sealing)))
            .collect();
        self
    }

    /// The volume's id.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.genesis.volume
    }

    /// What it began with.
    #[must_use]
    pub fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// Who opened it.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Each cloud with its secret, by index.
    pub fn clouds(&self) -> impl Iterator<Item = (&Cloud, &CloudSecret)> {
        self.genesis.clouds.iter().zip(&self.clouds)
    }

    /// How the root realm spreads its objects.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.genesis.policy
    }

    /// What is sealed from now on is sealed under this key.
    #[must_use]
    pub fn current_key(&self) -> &RealmEpochKey {
        &self.current
    }

    /// The key of one epoch.
    ///
    /// # Errors
    /// If this principal does not have it.
    pub fn epoch_key(&self, epoch: RealmEpoch) -> Result<&RealmEpochKey, KeyError> {
        self.epochs.get(&epoch).ok_or(KeyError::NoEpoch { epoch })
    }

    /// The key of a slice that was sealed in `epoch`.
    ///
    /// # Errors
    /// If this principal does not have that epoch's key.
    pub fn slice_key(&self, epoch: RealmEpoch, slice: SliceId) -> Result<SliceKey, KeyError> {
        Ok(self.epoch_key(epoch)?.slice_key(slice))
    }

    /// Credentials that this principal may speak for: the superuser's, if it may.
    #[must_use]
    pub fn own_credentials(&self) -> Credentials {
        let me = self.principal.id().signing;
        let rights = self
            .genesis
            .principals
            .iter()
            .find(|row| row.key == me)
            .map(|row| &row.rights);
        let uid = match rights.map(|rights| &rights.uids) {
            Some(Assertable::Only(uids)) if !uids.contains(&Uid::ROOT) => uids.first().copied(),
            _ => None,
        };
        let gid = match rights.map(|rights| &rights.gids) {
            Some(Assertable::Only(gids)) if !gids.contains(&Gid(0)) => gids.first().copied(),
            _ => None,
        };
        Credentials::user(uid.unwrap_or(Uid::ROOT), gid.unwrap_or(Gid(0)))
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        InodeId::ROOT
    }
}

fn parse(wrapped: &[u8]) -> Result<Wrapped, KeyError> {
    wrapped
        .try_into()
        .map(Wrapped)
        .map_err(|_| KeyError::Unwrap { what: "secret" })
}

/// An X25519 key as a genesis has it.
impl From<[u8; 32]> for WrappingKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use quorumfs_bft::identity::{PublicKey, ReplicaId};

    /// A volume of four replicas and four clouds, as most tests want it.
    pub(crate) fn new_volume() -> NewVolume {
        NewVolume {
            up: 1,
            right: 1,
            replicas: (0..4)
                .map(|number| ReplicaInfo {
                    id: ReplicaId(number),
                    key: PublicKey([number as u8 + 1; 32]),
                    address: format!("127.0.0.1:{}", 7000 + number),
                })
                .collect(),
            clouds: (0..4)
                .map(|number| NewCloud {
                    kind: "local".into(),
                    failure_domain: format!("domain {number}"),
                    name: format!("cloud {number}"),
                })
                .collect(),
            policy: Policy::new(4, 1, 2, 4).unwrap(),
            owner_label: "owner".into(),
            owner_uids: Assertable::Any,
            owner_gids: Assertable::Any,
            created: Time(1),
        }
    }

    #[test]
    fn the_owner_and_the_recovery_kit_hold_the_same_keys() {
        let created = create(new_volume()).unwrap();
        let owner = Volume::open(&created.genesis, &created.owner).unwrap();
        let kit = RecoveryKit::from_text(&created.recovery_kit.to_text()).unwrap();
        let key = KeyFile {
            root: kit.root.public(),
            principal: kit.recovery.clone(),
        };
        let recovery = Volume::open(&kit.genesis, &key).unwrap();
        let slice = SliceId::default();
        assert_eq!(
            owner.slice_key(RealmEpoch(0), slice).unwrap().expose(),
            recovery.slice_key(RealmEpoch(0), slice).unwrap().expose()
        );
        let secrets = |volume: &Volume| -> Vec<[u8; 32]> {
            volume
                .clouds()
                .map(|(_, secret)| *secret.expose())
                .collect()
        };
        assert_eq!(secrets(&owner), secrets(&recovery));
        assert_eq!(secrets(&owner).len(), 4);
    }

    #[test]
    fn a_stranger_and_another_volumes_key_are_told_so() {
        let (one, other) = (create(new_volume()).unwrap(), create(new_volume()).unwrap());
        let error = Volume::open(&one.genesis, &other.owner)
            .unwrap_err()
            .to_string();
        assert!(error.contains("another volume"), "{error}");
        let stranger = KeyFile {
            principal: Principal::random().unwrap(),
            root: one.owner.root,
        };
        let error = Volume::open(&one.genesis, &stranger)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not a member"), "{error}");
    }

    #[test]
    fn any_changed_byte_of_the_genesis_is_noticed() {
        let created = create(new_volume()).unwrap();
        for at in 0..created.genesis.len() {
            let mut changed = created.genesis.clone();
            changed[at] ^= 1;
            assert!(Volume::open(&changed, &created.owner).is_err(), "byte {at}");
        }
    }

    #[test]
    fn no_secret_lies_open_in_the_genesis() {
        let created = create(new_volume()).unwrap();
        let volume = Volume::open(&created.genesis, &created.owner).unwrap();
        for (_, secret) in volume.clouds() {
            let found = created
                .genesis
                .windows(32)
                .any(|window| window == secret.expose());
            assert!(!found);
        }
    }
}
