//! The genesis of a volume that is recovered from its clouds: another incarnation with other
//! servers, under the root that signed the first.
//!
//! It repeats what the volume began with: its id, clouds, policy, principals and first key epoch,
//! since everything later is proved from them. What came later is in the rows that are loaded
//! ([`crate::backup`]).

use super::VolumeError;
use super::founding::signed_genesis;
use crate::keys::VolumeRoot;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::genesis::Genesis;
use quorumfs_metadata::identity::{PrincipalId, VolumeIncarnation};
use quorumfs_metadata::row::ReplicaInfo;

/// The servers of the new incarnation.
#[derive(Clone, Debug)]
pub struct NewServers {
    /// u: failures of any kind that the metadata stays live with.
    pub up: u16,
    /// r: lying servers that the metadata stays correct with.
    pub right: u16,
    /// The metadata servers, numbered from 0.
    pub replicas: Vec<ReplicaInfo>,
    /// The present time, by the wall clock.
    pub created: Time,
}

/// The signed genesis of an incarnation that follows `before`. `by` loads the rows.
///
/// # Errors
/// If the servers cannot work together.
pub fn recovered_genesis(
    root: &VolumeRoot,
    before: &Genesis,
    incarnation: VolumeIncarnation,
    by: PrincipalId,
    servers: NewServers,
) -> Result<Vec<u8>, VolumeError> {
    let genesis = Genesis {
        incarnation,
        recovered_by: Some(by),
        created: servers.created,
        up: servers.up,
        right: servers.right,
        replicas: servers.replicas,
        ..before.clone()
    };
    signed_genesis(root, &genesis)
}
