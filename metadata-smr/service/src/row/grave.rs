//! Inodes without a name that some mount may have open.

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// An inode in the grave: it lost its last name while others had the realm mounted, and goes at the
/// deadline unless a session holds it. The deadline, by the lease clock, and the inode are in the
/// key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Grave {
    /// When a tick has to look again, by the agreed clock: the lease clock may be behind it.
    pub check: Time,
}

/// Where an inode is in the grave. The inode is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct GravePlace {
    /// The deadline, by the lease clock.
    pub deadline: Time,
}
