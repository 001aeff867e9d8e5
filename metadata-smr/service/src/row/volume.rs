//! Rows of the whole volume.

use crate::identity::{CloudIndex, ObjectId, PrincipalId, VolumeId, VolumeIncarnation};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{PublicKey, ReplicaId, Time};

/// The volume's identity and the layout of everything in it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Format {
    /// The volume, which is the cluster.
    pub volume: VolumeId,
    /// The format of rows, objects and messages.
    pub format: u32,
    /// Bits of features that a reader must understand beyond the format.
    pub features: u64,
    /// Increases when a volume is recovered from its clouds; fences the collectors of the old
    /// cluster.
    pub incarnation: VolumeIncarnation,
    /// u: failures of any kind that the metadata service tolerates and stays live.
    pub up: u16,
    /// r: commission failures that it tolerates and stays right.
    pub right: u16,
    /// The servers of membership epoch 0.
    pub replicas: Vec<ReplicaInfo>,
    /// The volume root key, which signed the genesis and lies offline.
    pub root_key: PublicKey,
}

/// One metadata server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ReplicaInfo {
    /// Its index.
    pub id: ReplicaId,
    /// Its key: for votes and, as a pinned identity, for TLS.
    pub key: PublicKey,
    /// Its address: host and port.
    pub address: String,
}

/// One object store.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Cloud {
    /// Its index in the volume's list.
    pub index: CloudIndex,
    /// The backend; `local` is a directory.
    pub kind: String,
    /// The party that could lose all of it at once: owner and control plane. f counts these.
    pub failure_domain: String,
    /// Its name for people.
    pub name: String,
}

/// How far the shards of draining clouds have moved, as the processes report that do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Drain {
    /// When the last cloud was replaced.
    pub since: Time,
    /// The last object that the present pass over all objects has finished.
    pub after: Option<ObjectId>,
    /// Shards that have moved since then.
    pub shards: u64,
    /// Stored bytes of them.
    pub bytes: u64,
}

/// Numbers of the volume that only increase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Counters {
    /// The next allocation.
    pub next_allocation: u64,
    /// The next row of the reap queue.
    pub next_reap: u64,
    /// The next principal's number.
    pub next_principal: u64,
    /// The next number of retained points.
    pub next_retention: u64,
}

/// The state of a recovery that is not finished.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Loading {
    /// The principal that recovers the volume.
    pub by: PrincipalId,
    /// The key of the last row that was loaded; empty: none was.
    pub last: Vec<u8>,
    /// The number of rows that were loaded.
    pub rows: u64,
}

/// Numbers of one home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct HomeCounters {
    /// The next inode's counter.
    pub next_inode: u64,
    /// Inodes that exist, orphans included.
    pub inodes: u64,
    /// Bytes that their extents cover.
    pub allocated: u64,
}
