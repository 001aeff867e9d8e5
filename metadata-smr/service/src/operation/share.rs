//! Operations on shares.

use crate::attributes::Credentials;
use crate::identity::{InodeId, ObjectId, PrincipalId, ShareId, Uid};
use crate::row::Sealed;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// Shares a file or a directory, which its owner and the superuser may. A second share of the same
/// inode by the same user with the same person changes the first: access, end and place.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NewShare {
    /// The user who shares.
    pub credentials: Credentials,
    /// The file or directory.
    pub inode: InodeId,
    /// With whom.
    pub with: NewShareWith,
    /// When it ends by itself, by the agreed time: not a time that has come already. A capsule has
    /// an end, at most [`CAPSULE_SECONDS_MAX`](crate::limits::CAPSULE_SECONDS_MAX) ahead.
    pub expires: Option<Time>,
    /// Where the inode is, for clients: at most
    /// [`SHARE_PLACE_BYTES_MAX`](crate::limits::SHARE_PLACE_BYTES_MAX) bytes, not empty.
    pub place: Sealed,
}

/// With whom something is to be shared.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum NewShareWith {
    /// With a person of the volume.
    Person {
        /// The person's key.
        principal: PrincipalId,
        /// The user for whom the person acts: one of its own, and not the one who shares.
        uid: Uid,
        /// Whether it may write.
        writes: bool,
        /// The directories above that let the person pass for its name alone, at most
        /// [`SHARE_THROUGH_MAX`](crate::limits::SHARE_THROUGH_MAX). Those of the share that this
        /// one changes are added.
        through: Vec<InodeId>,
    },
    /// With those that have a link.
    Link {
        /// A hash of the link's secret token, which no other link has.
        token: [u8; 32],
    },
    /// With those that have a capsule: a link that needs no server of the volume's.
    Capsule {
        /// The objects of its manifest, which some file has now: at least one, and at most
        /// [`MANIFEST_OBJECTS_MAX`](crate::limits::MANIFEST_OBJECTS_MAX).
        manifest: Vec<ObjectId>,
    },
}

/// Ends a share, or removes the row of one that has ended: the user who shares, the superuser, and
/// a principal that administers may.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ChangeShare {
    /// The caller.
    pub credentials: Credentials,
    /// The share.
    pub id: ShareId,
}
