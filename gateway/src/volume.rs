//! A volume as a client holds it: made once, opened with a key, and trusted only as far as it is
//! signed.
//!
//! ```text
//! create ──► genesis (signed by the root, everything secret in it wrapped)
//!        ├─► owner's key file    pins the volume and its root key
//!        └─► recovery kit        root secret, principal `recovery`, genesis
//! open(genesis, key file) ── pins, signature, membership chain, unwrap ──► Volume
//! refresh(servers, clouds) ── the newest epoch, as signed; shares; the epochs before ──► its keys
//! ```
//!
//! Invariants: a [`Volume`] exists only for a genesis that the pinned root key signed; each
//! membership in it is signed by an administrator of that genesis; and no key in it came from a
//! server. Keys are only ever added: a key epoch that was seen stays, and no earlier one is
//! accepted as the newest any more. The errors are [`VolumeError`]s.
//!
//! | Module | Content |
//! |---|---|
//! | `fleet` | the clouds, and changes of them |
//! | `founding` | making a volume |
//! | `membership` | wrapped keys, and their signatures |
//! | `people` | principals that administrators admit, change and dismiss |
//! | `realm` | the realm: its id, its root and its keys |
//! | `keyring` | the keys of all key epochs, and fetching new ones |
//! | `rekey` | beginning a new key epoch |
//! | `reseal` | sealing names anew, after a key epoch has begun |
//! | `recovered` | the genesis of a further incarnation, after all servers were lost |
//! | `roster` | who is a principal, and whose signature counts |
//! | `succession` | the replacement of the owner's key |

mod fleet;
mod founding;
mod keyring;
mod membership;
mod people;
mod realm;
mod recovered;
mod rekey;
mod reseal;
mod roster;
mod succession;

pub use fleet::{AddedCloud, KnownCloud, LearnedChange};
pub use founding::{Created, Founding, NewCloud, NewVolume, create};
pub use people::{Grant, KnownPeople, Person};
pub use realm::Realm;
pub use recovered::{NewServers, recovered_genesis};
pub use rekey::{PreparedEpoch, Rekeyed};
pub use reseal::Resealed;

use crate::blocks::{Lineage, ShareError};
use crate::error::VfsError;
use crate::keys::{
    CloudSecret, KeyError, KeyFile, Principal, RealmEpochKey, RootKey, Sealing, ShareCache,
    SliceKey, WrappingKey,
};
use crate::metadata::MetadataError;
use fleet::KnownFleet;
use membership::parse;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::fleet::FleetError;
use quorumfs_metadata::genesis::{Genesis, GenesisError, SignedGenesis};
use quorumfs_metadata::identity::{
    Gid, InodeId, PrincipalId, RealmEpoch, RealmId, SliceId, Uid, VolumeId,
};
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::row::{Assertable, Cloud, Member, MemberRole, Rights, SliceSalt};
use quorumfs_metadata::statement::Statement;
use roster::Roster;
use std::sync::{Arc, OnceLock};

/// A volume that cannot be made, opened or given a new key.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The genesis is invalid.
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    /// A key is wrong, missing or not trusted.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The clouds do not give, or do not take, their shares of a key.
    #[error(transparent)]
    Shares(#[from] ShareError),
    /// The servers gave no answer, or refused.
    #[error(transparent)]
    Metadata(#[from] VfsError),
    /// The servers are at an earlier state than one that they showed before.
    #[error(transparent)]
    WentBack(#[from] MetadataError),
    /// A change contradicts the volume's clouds.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// More clouds than a volume can have.
    #[error("{count} clouds are more than a volume can have")]
    TooManyClouds {
        /// The number of clouds.
        count: usize,
    },
    /// Another key epoch was begun meanwhile.
    #[error(
        "another client began key epoch {current} at the same time, so this one was not begun; \
         check with `quorumfs volume epochs` whether another is needed"
    )]
    Raced {
        /// The realm's current key epoch.
        current: RealmEpoch,
    },
    /// An administrator would be left out of a key epoch.
    #[error("{label} administers the volume and cannot be left out of a key epoch")]
    CannotLeaveOut {
        /// The administrator's label.
        label: String,
    },
}

/// A volume with every key that its principal has.
#[derive(Debug)]
pub struct Volume {
    genesis: Genesis,
    root_key: RootKey,
    roster: Roster,
    principal: Principal,
    realm: Realm,
    /// The secrets of the genesis' clouds.
    clouds: Vec<CloudSecret>,
    fleet: KnownFleet,
    /// The cached shares of the clouds' secret on this machine, if enabled.
    kept: OnceLock<ShareCache>,
}

impl Volume {
    /// Opens a volume from its genesis, from any source, with a key file. If its first key epoch
    /// has the second lock, its keys come with [`refresh`](Self::refresh) or
    /// [`unlock`](Self::unlock).
    ///
    /// # Errors
    /// If the genesis is damaged, newer, or not signed by the root that the key file pins; or if
    /// the key is not a member's.
    pub fn open(genesis: &[u8], key: &KeyFile) -> Result<Self, VolumeError> {
        Self::open_after(genesis, &KnownPeople::default(), key)
    }

    /// The same after principals were replaced, admitted or dismissed.
    ///
    /// # Errors
    /// As [`open`](Self::open), or if what is known of that is not signed as it has to be, or does
    /// not follow.
    pub fn open_after(
        genesis: &[u8],
        people: &KnownPeople,
        key: &KeyFile,
    ) -> Result<Self, VolumeError> {
        let untrusted = |what, reason: &str| KeyError::Untrusted {
            what,
            reason: reason.into(),
        };
        let (signed, genesis) = SignedGenesis::from_bytes(genesis)?;
        if signed.root_key != key.root.0 || genesis.volume != key.volume() {
            return Err(untrusted(
                "the genesis",
                "it belongs to another volume than the key file; use the genesis and the key file \
                 of one volume",
            )
            .into());
        }
        if !key
            .root
            .verify(&Genesis::signed_bytes(&signed.genesis), &signed.signature)
        {
            return Err(untrusted(
                "the genesis",
                "the volume root's signature is not valid: it was changed; take it from a backup \
                 or from the recovery kit",
            )
            .into());
        }
        let roster = Roster::of(&genesis, key.root);
        roster.learn(&people.successions)?;
        roster.learn_changes(0, &people.changes)?;
        let me = key.principal.id().signing;
        let realm = Realm::first();
        let not_a_member = || no_member(&key.principal, realm.id());
        let mine = roster.find(&me).ok_or_else(not_a_member)?;
        let is_founding = roster.is_founding(&me);
        let clouds = genesis
            .clouds
            .iter()
            .map(|cloud| {
                let wrapped = mine.cloud_secret(cloud.index);
                let wrapped = parse(&wrapped.ok_or_else(not_a_member)?.bytes)?;
                let info = CloudSecret::wrapping_info(&genesis.volume, cloud.index);
                let secret = key.principal.unwrap("cloud secret", &wrapped, &info)?;
                Ok(CloudSecret::from_secret(secret))
            })
            .collect::<Result<_, KeyError>>()?;
        let volume = Self {
            principal: key.principal.clone(),
            realm,
            clouds,
            fleet: KnownFleet::founding(&genesis.clouds),
            genesis,
            root_key: key.root,
            roster,
            kept: OnceLock::new(),
        };
        // A later principal gets its membership from the servers.
        if is_founding {
            volume.open_founding()?;
        }
        Ok(volume)
    }

    /// The same volume for a control run: names and small values are sealed according to `sealing`.
    /// Slices have their own switch in [`crate::blocks::BlockConfig`].
    #[doc(hidden)]
    #[must_use]
    pub fn with_sealing(mut self, sealing: Sealing) -> Self {
        self.realm.keyring.set_sealing(sealing);
        self
    }

    /// Caches the clouds' shares on this machine from now on, so that the volume can be opened
    /// while the clouds are unreachable. Only the first call counts.
    pub fn cache_shares(&self, kept: ShareCache) {
        let _ = self.kept.set(kept);
    }

    /// The volume's id.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.genesis.volume
    }

    /// The incarnation that its genesis began, and its root.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        Lineage {
            incarnation: self.genesis.incarnation,
            root: self.root_key,
        }
    }

    /// The principals that may administer the volume, to this process's knowledge.
    #[must_use]
    pub fn administrators(&self) -> Vec<Statement> {
        let principals = self.roster.now();
        let administers = |it: &Statement| it.rights.administer;
        principals.into_iter().filter(administers).collect()
    }

    /// Whether a key is of a principal that may reconcile.
    #[must_use]
    pub fn may_reconcile(&self, key: &PrincipalId) -> bool {
        // One whose time is over made what it made before that.
        let mut people = self.roster.people().into_iter();
        let person = people.find(|it| it.statement.key == *key);
        person.is_some_and(|it| it.statement.rights.reconcile)
    }

    /// The genesis that it began with.
    #[must_use]
    pub fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// The principal that opened it.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Each cloud of the genesis with its secret, by index. Changes since then are not in it; see
    /// [`known_clouds`](Self::known_clouds).
    pub fn clouds(&self) -> impl Iterator<Item = (&Cloud, &CloudSecret)> {
        self.genesis.clouds.iter().zip(&self.clouds)
    }

    /// How the root realm spreads its objects.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.genesis.policy
    }

    /// The key that seals new data.
    ///
    /// # Errors
    /// If no epoch was opened yet.
    pub fn current_key(&self) -> Result<RealmEpochKey, KeyError> {
        self.realm.current_key()
    }

    /// The newest key epoch that was opened.
    #[must_use]
    pub fn current_epoch(&self) -> Option<RealmEpoch> {
        self.realm.current_epoch()
    }

    /// The key of one key epoch.
    ///
    /// # Errors
    /// If this principal does not have it, or not yet.
    pub fn epoch_key(&self, epoch: RealmEpoch) -> Result<RealmEpochKey, KeyError> {
        self.realm.epoch_key(epoch)
    }

    /// The key of a slice that was sealed in `epoch`, and for which its writer drew `salt`.
    ///
    /// # Errors
    /// If this principal does not have that epoch's key.
    pub fn slice_key(
        &self,
        epoch: RealmEpoch,
        slice: SliceId,
        salt: &SliceSalt,
    ) -> Result<SliceKey, KeyError> {
        self.realm.slice_key(epoch, slice, salt)
    }

    /// This principal's rights, to this process's knowledge.
    #[must_use]
    pub fn own_rights(&self) -> Option<Rights> {
        let mine = self.roster.principal(&self.principal.id().signing);
        mine.map(|it| it.rights)
    }

    /// Whether this principal may change nothing, to this process's knowledge.
    #[must_use]
    pub fn is_reader(&self) -> bool {
        let rights = self.own_rights();
        rights.is_some_and(|rights| rights.role() == MemberRole::Read)
    }

    /// Credentials that this principal may speak for: the superuser's, if it may.
    #[must_use]
    pub fn own_credentials(&self) -> Credentials {
        let rights = self.own_rights();
        let rights = rights.as_ref();
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

    /// The realm whose keys it has.
    #[must_use]
    pub fn realm(&self) -> &Realm {
        &self.realm
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.realm.root()
    }

    /// This principal's membership in the first key epoch.
    fn founding_member(&self) -> Result<&Member, KeyError> {
        let me = self.principal.id().signing;
        let mut members = self.genesis.members.iter();
        let member = members.find(|(id, _)| *id == me).map(|(_, member)| member);
        member.ok_or_else(|| no_member(&self.principal, self.realm.id()))
    }
}

fn no_member(principal: &Principal, realm: RealmId) -> KeyError {
    KeyError::NoMember {
        principal: principal.id().signing.to_string(),
        realm,
    }
}

impl From<VolumeError> for VfsError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::Key(error) => Self::Key(Arc::new(error)),
            VolumeError::Metadata(error) => error,
            other => Self::Data {
                doing: "opening the volume's newest keys",
                kind: crate::blocks::BlockErrorKind::Io,
                reason: other.to_string(),
            },
        }
    }
}

/// An X25519 key as a genesis has it.
impl From<[u8; 32]> for WrappingKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests;
