//! What users have shared: with a person, by a link or by a capsule.

use crate::identity::{InodeId, ObjectId, PrincipalNumber, Uid};
use crate::row::Sealed;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Sequence, Time};

/// Something that a user shares. The number is in the key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Share {
    /// The principal that ordered it last.
    pub by: PrincipalNumber,
    /// The user who shares.
    pub uid: Uid,
    /// What is shared: a file, or a directory with all that is below it.
    pub inode: InodeId,
    /// With whom.
    pub with: ShareWith,
    /// When it ends by itself, by the agreed time.
    pub expires: Option<Time>,
    /// When it was begun, by the agreed time.
    pub created: Time,
    /// Whether it has ended. Only a share with a person is kept then, until a client has taken the
    /// access lists back.
    pub ended: bool,
    /// Where the inode was when it was shared, for clients: opaque to the servers.
    pub place: Sealed,
}

/// With whom something is shared.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum ShareWith {
    /// With a person of the volume: access lists give it the access.
    Person {
        /// The person's number. One that goes and returns has another.
        principal: PrincipalNumber,
        /// The user for whom the person acts.
        uid: Uid,
        /// Whether it may write.
        writes: bool,
        /// The directories above that let the person pass for its name alone.
        through: Vec<InodeId>,
    },
    /// With those that have a link.
    Link {
        /// A hash of the link's secret token.
        token: [u8; 32],
    },
    /// With those that have a capsule: a link that needs no server of the volume's.
    Capsule {
        /// The objects of its manifest, for the client that ends it.
        manifest: Vec<ObjectId>,
        /// The batch in which it was ordered. What the volume needed then is not forgotten before
        /// it ends.
        point: Sequence,
    },
}

/// The share that an index leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ShareAt {
    /// Its number.
    pub id: crate::identity::ShareId,
}

/// A place in an index of shares. All of it is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ShareIndexed;

/// The numbers of the volume's shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct ShareNumbers {
    /// The number of the last share.
    pub last: u64,
    /// The shares that there are.
    pub shares: u32,
}

/// The number of shares of a user, or with a person.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct ShareCount {
    /// The shares that there are.
    pub shares: u32,
}
