//! The genesis: the bytes that every replica is initialised from.
//!
//! The volume root key, which lies offline in the recovery kit, signs the genesis. Clients verify
//! that signature and pin the root key; to the servers it is opaque. Every secret in it is wrapped
//! for the principals that may have it.

use crate::codec::{self, DecodeError};
use crate::identity::{Gid, PrincipalId, RealmEpoch, Uid, VolumeId, VolumeIncarnation};
use crate::limits::{
    CLOUDS_MAX, GENESIS_BYTES_MAX, GENESIS_PRINCIPALS_MAX, LABEL_BYTES_MAX, WRAPPED_KEY_BYTES_MAX,
};
use crate::placement::Policy;
use crate::row::{Believe, Cloud, Epoch, Member, ReplicaInfo, Shares};
use crate::statement::Statement;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::{FaultModel, FaultModelError};
use quorumfs_bft::identity::{PublicKey, Signature, Time};
use std::collections::BTreeSet;

/// The format that this program writes.
pub const FORMAT: u32 = 3;
/// The feature of a volume whose cluster authenticates votes by channels: see
/// [`Genesis::authentication`].
pub const CHANNELS_AUTHENTICATE: u64 = 1;
/// The features that this program understands.
pub const FEATURES: u64 = CHANNELS_AUTHENTICATE;
/// The age up to which deleted files stay in the trash of a new volume: a week, in which a user
/// notices what is missing.
pub const TRASH_SECONDS: u64 = 7 * 24 * 60 * 60;
/// The context that the volume root key signs under, before the genesis' bytes.
pub const SIGNING_CONTEXT: &[u8] = b"quorumfs 2026 volume genesis v1\0";

/// The initial state of a volume.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Genesis {
    /// The volume, which is the cluster.
    pub volume: VolumeId,
    /// The format of everything in it.
    pub format: u32,
    /// Bits of features that a reader must understand beyond the format.
    pub features: u64,
    /// 0 for a new volume; one more after each recovery from its clouds.
    pub incarnation: VolumeIncarnation,
    /// The principal that recovers the volume and is alone admitted until that is done; for all
    /// incarnations but the first.
    pub recovered_by: Option<PrincipalId>,
    /// The time of its creation, by the creator's clock.
    pub created: Time,
    /// u: failures of any kind that the metadata service tolerates and stays live.
    pub up: u16,
    /// r: commission failures that it tolerates and stays right.
    pub right: u16,
    /// The metadata servers.
    pub replicas: Vec<ReplicaInfo>,
    /// The object stores, by index from 0.
    pub clouds: Vec<Cloud>,
    /// How the root realm spreads its objects.
    pub policy: Policy,
    /// How long what is deleted in the root realm stays in the trash, in seconds; 0: there is none.
    pub trash_seconds: u64,
    /// Whose content the members of the root realm believe.
    pub believe: Believe,
    /// The principals that may open sessions. The first is the volume's owner.
    pub principals: Vec<Statement>,
    /// The root realm's epoch 0.
    pub epoch: Epoch,
    /// The members of the root realm.
    pub members: Vec<(PrincipalId, Member)>,
    /// The owner of the root directory.
    pub root_owner: (Uid, Gid),
}

/// A genesis with the signature of the volume root key over it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SignedGenesis {
    /// [`Genesis::to_bytes`], as signed.
    pub genesis: Vec<u8>,
    /// The volume root key.
    pub root_key: PublicKey,
    /// Its signature over [`Genesis::signed_bytes`].
    pub signature: Signature,
}

/// An invalid genesis.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GenesisError {
    /// The bytes do not decode.
    #[error("the genesis does not decode: {0}")]
    Decode(#[from] DecodeError),
    /// Written by a newer program.
    #[error(
        "the volume has format {format}, features {features:#x}; this program knows format \
         {FORMAT}, features {FEATURES:#x}: upgrade it"
    )]
    Newer {
        /// The volume's format.
        format: u32,
        /// The volume's features.
        features: u64,
    },
    /// Written by a release whose volumes this one cannot read.
    #[error(
        "the volume has format {format}; this program knows format {FORMAT} alone: copy its \
         content out with the release that made it, and into a new volume"
    )]
    Older {
        /// The volume's format.
        format: u32,
    },
    /// The fault model is impossible.
    #[error("the metadata servers cannot work together: {0}")]
    FaultModel(#[from] FaultModelError),
    /// Something in it contradicts something else or a bound.
    #[error("the genesis is invalid: {0}")]
    Nonsense(&'static str),
}

impl Genesis {
    /// The genesis' bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// The bytes that the volume root key signs: [`SIGNING_CONTEXT`], then the genesis' bytes.
    #[must_use]
    pub fn signed_bytes(genesis: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNING_CONTEXT.to_vec();
        bytes.extend_from_slice(genesis);
        bytes
    }

    /// How the cluster's replicas authenticate votes, for good.
    #[must_use]
    pub const fn authentication(&self) -> Authentication {
        match self.features & CHANNELS_AUTHENTICATE {
            0 => Authentication::Sig,
            _ => Authentication::Mac,
        }
    }

    /// The fault model of the metadata servers.
    ///
    /// # Errors
    /// If the numbers are impossible.
    pub fn fault_model(&self) -> Result<FaultModel, FaultModelError> {
        let replicas = u16::try_from(self.replicas.len()).unwrap_or(u16::MAX);
        FaultModel::new(self.up, self.right, replicas)
    }

    /// Checks everything that can be checked without the root key.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(&self) -> Result<(), GenesisError> {
        if self.format != FORMAT || self.features & !FEATURES != 0 {
            return Err(GenesisError::Newer {
                format: self.format,
                features: self.features,
            });
        }
        self.fault_model()?;
        let invalid = |holds: bool, what| {
            if holds {
                Ok(())
            } else {
                Err(GenesisError::Nonsense(what))
            }
        };
        let label_fits = |label: &str| !label.is_empty() && label.len() <= LABEL_BYTES_MAX;

        let keys: BTreeSet<_> = self.replicas.iter().map(|replica| replica.key).collect();
        invalid(
            keys.len() == self.replicas.len(),
            "two metadata servers share a key",
        )?;
        invalid(
            self.replicas
                .iter()
                .enumerate()
                .all(|(index, replica)| usize::from(replica.id.0) == index),
            "metadata servers must be numbered from 0",
        )?;
        invalid(
            self.replicas
                .iter()
                .all(|replica| label_fits(&replica.address)),
            "a metadata server has no address or one that is too long",
        )?;

        invalid(
            self.clouds.len() <= CLOUDS_MAX
                && self.clouds.len() >= usize::from(self.policy.clouds()),
            "there are fewer clouds than the policy spreads over, or too many",
        )?;
        invalid(
            self.clouds
                .iter()
                .enumerate()
                .all(|(index, cloud)| usize::from(cloud.index.0) == index),
            "clouds must be numbered from 0",
        )?;
        invalid(
            self.clouds.iter().all(|cloud| {
                label_fits(&cloud.kind)
                    && label_fits(&cloud.failure_domain)
                    && label_fits(&cloud.name)
            }),
            "a cloud has an empty or too long label",
        )?;
        let domains: BTreeSet<_> = self
            .clouds
            .iter()
            .map(|cloud| &cloud.failure_domain)
            .collect();
        invalid(
            domains.len() >= usize::from(self.policy.clouds()),
            "there are fewer failure domains than the policy spreads over",
        )?;
        invalid(
            self.believe == Believe::Principal,
            "members believe each other, which this program does not know",
        )?;
        self.validate_principals()
    }

    fn validate_principals(&self) -> Result<(), GenesisError> {
        let invalid = |what| Err(GenesisError::Nonsense(what));
        if self.principals.is_empty() || self.principals.len() > GENESIS_PRINCIPALS_MAX {
            return invalid("there must be at least one principal, and not too many");
        }
        let keys: BTreeSet<_> = self.principals.iter().map(|row| row.key).collect();
        if keys.len() != self.principals.len() {
            return invalid("two principals share a key");
        }
        let is_recovered = self.incarnation != VolumeIncarnation(0);
        if self.recovered_by.is_some() != is_recovered {
            return invalid("only a volume that is recovered has a principal that recovers it");
        }
        if self.recovered_by.is_some_and(|by| !keys.contains(&by)) {
            return invalid("the principal that recovers the volume is not one of its principals");
        }
        for principal in &self.principals {
            principal
                .check_lasting(self.clouds.len())
                .map_err(GenesisError::Nonsense)?;
        }
        let fits = |(key, member): &(PrincipalId, Member)| {
            let principal = self.principals.iter().find(|row| row.key == *key);
            principal.is_none_or(|principal| member.fits(&principal.rights))
        };
        if !self.members.iter().all(fits) {
            return invalid("a member's role is not that of its rights, or it expires");
        }
        let members: BTreeSet<_> = self.members.iter().map(|(key, _)| *key).collect();
        if members.len() != self.members.len() || !members.is_subset(&keys) {
            return invalid("a member is named twice or is no principal");
        }
        let epoch_zero = |member: &Member| {
            member.epoch == RealmEpoch(0) && member.wrapped.len() <= WRAPPED_KEY_BYTES_MAX
        };
        if !self.members.iter().all(|(_, member)| epoch_zero(member)) {
            return invalid("a member's wrapped key is too long or not of epoch 0");
        }
        let confirmed = |shares: &Shares| shares.is_confirmed(&self.policy);
        if !self.epoch.is_sound(RealmEpoch(0), &self.policy)
            || !self.epoch.shares.as_ref().is_none_or(confirmed)
        {
            return invalid("epoch 0 does not fit its lock, or too few clouds confirmed it");
        }
        Ok(())
    }
}

/// The format of a genesis, even if the rest does not decode: it follows the version byte and the
/// volume.
fn format_of(genesis: &[u8]) -> Option<u32> {
    let format = genesis.get(17..21)?;
    Some(u32::from_le_bytes(format.try_into().ok()?))
}

impl SignedGenesis {
    /// The bytes that replicas are initialised with.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads [`Self::to_bytes`] and checks what can be checked without the root key. The caller
    /// verifies the signature.
    ///
    /// # Errors
    /// If the bytes do not decode or the genesis is invalid.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, Genesis), GenesisError> {
        let signed: Self = codec::decode(bytes, GENESIS_BYTES_MAX)?;
        if let Some(format) = format_of(&signed.genesis).filter(|format| *format < FORMAT) {
            return Err(GenesisError::Older { format });
        }
        let genesis: Genesis = codec::decode(&signed.genesis, GENESIS_BYTES_MAX)?;
        genesis.validate()?;
        Ok((signed, genesis))
    }
}
