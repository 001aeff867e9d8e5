//! Metadata for simulators and tests: a small volume, stand-in seals, and (in [`workload`]) random
//! operations with the model that judges their replies.
//!
//! Nothing here is secret or random: names are "sealed" by copying them, and their keyed hash is so
//! short that collisions are frequent.

pub mod locks;
pub mod model;
pub mod people;
pub mod workload;

use crate::attributes::{Credentials, Timestamp};
use crate::genesis::{Genesis, SignedGenesis};
use crate::identity::{
    CloudIndex, Cookie, Gid, InodeId, PrincipalId, RealmEpoch, Uid, VolumeIncarnation,
};
use crate::operation::{Compound, EntryPlace, Operation, Step};
use crate::placement::{Policy, PolicyError};
use crate::row::{
    Assertable, Believe, Cloud, Epoch, Lock, Member, MemberRole, ReplicaInfo, Rights, SealedName,
};
use crate::statement::Statement;
use quorumfs_bft::identity::{ClusterId, PublicKey, ReplicaId, Signature, Time};

/// A genesis with four clouds, the policy (4, 1, 2), and `owners` with all rights. `replicas`
/// metadata servers are listed but do not exist. There is no trash, because the model that judges a
/// cluster's replies does not know when an operation was ordered.
///
/// # Errors
/// Never, unless the policies of this crate change.
pub fn genesis(
    owners: &[PrincipalId],
    (up, right, replicas): (u16, u16, u16),
) -> Result<Vec<u8>, PolicyError> {
    let principals = owners
        .iter()
        .map(|key| principal(*key, Rights::all()))
        .collect();
    let mut genesis = unsigned_genesis(principals, (up, right, replicas))?;
    genesis.trash_seconds = 0;
    Ok(sign(&genesis))
}

/// A principal of a simulated volume.
#[must_use]
pub fn principal(key: PrincipalId, rights: Rights) -> Statement {
    Statement {
        key,
        wrapping_key: [7; 32],
        label: "somebody".to_string(),
        rights,
        expires: None,
        cloud_secrets: Vec::new(),
    }
}

/// Rights of an ordinary user: one uid and one gid, and to mount.
#[must_use]
pub fn ordinary(uid: Uid, gid: Gid) -> Rights {
    Rights {
        mount: true,
        ..reader(uid, gid)
    }
}

/// Rights of a user that reads: one uid and one gid, nothing else.
#[must_use]
pub fn reader(uid: Uid, gid: Gid) -> Rights {
    Rights {
        uids: Assertable::Only(vec![uid]),
        gids: Assertable::Only(vec![gid]),
        mount: false,
        reconcile: false,
        administer: false,
    }
}

/// The same genesis with the given principals, to be changed before it is signed.
///
/// # Errors
/// Never, unless the policies of this crate change.
pub fn unsigned_genesis(
    principals: Vec<Statement>,
    (up, right, replicas): (u16, u16, u16),
) -> Result<Genesis, PolicyError> {
    let owner = principals
        .first()
        .map_or(PublicKey([0; 32]), |owner| owner.key);
    let members = principals
        .iter()
        .map(|row| (row.key, member(owner, row.rights.role())));
    Ok(Genesis {
        volume: ClusterId([9; 16]),
        format: crate::genesis::FORMAT,
        features: 0,
        incarnation: VolumeIncarnation(0),
        recovered_by: None,
        created: Time(1_700_000_000_000_000_000),
        up,
        right,
        replicas: (0..replicas).map(replica).collect(),
        clouds: (0..4).map(cloud).collect(),
        policy: Policy::new(4, 1, 2, 4)?,
        trash_seconds: crate::genesis::TRASH_SECONDS,
        believe: Believe::Principal,
        members: members.collect(),
        root_owner: (Uid::ROOT, Gid(0)),
        principals,
        epoch: Epoch {
            begun: Time(1_700_000_000_000_000_000),
            lock: Lock::Members,
            previous: Vec::new(),
            shares: None,
        },
    })
}

fn member(signer: PrincipalId, role: MemberRole) -> Member {
    Member {
        epoch: RealmEpoch(0),
        role,
        expires: None,
        wrapped: b"wrapped".to_vec(),
        signer,
        signature: Signature([3; 64]),
    }
}

fn replica(index: u16) -> ReplicaInfo {
    let mut key = [0x55; 32];
    key[..2].copy_from_slice(&index.to_be_bytes());
    ReplicaInfo {
        id: ReplicaId(index),
        key: PublicKey(key),
        address: format!("127.0.0.1:{}", 7000_u32.saturating_add(u32::from(index))),
    }
}

fn cloud(index: u8) -> Cloud {
    Cloud {
        index: CloudIndex(index),
        kind: "local".to_string(),
        failure_domain: format!("domain-{index}"),
        name: format!("cloud-{index}"),
    }
}

/// A genesis with a signature that is not verified here.
#[must_use]
pub fn sign(genesis: &Genesis) -> Vec<u8> {
    SignedGenesis {
        genesis: genesis.to_bytes(),
        root_key: PublicKey([1; 32]),
        signature: Signature([2; 64]),
    }
    .to_bytes()
}

/// A stand-in for a sealed name. The hash has only four values, so that names collide.
#[must_use]
pub fn seal_name(directory: InodeId, name: &str) -> SealedName {
    let mixed = name.bytes().fold(directory.0, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    SealedName {
        cookie: Cookie::from_prf(1 + mixed % 4),
        generation: RealmEpoch(0),
        bytes: name.as_bytes().to_vec(),
    }
}

/// A name in a directory.
#[must_use]
pub fn place(parent: InodeId, name: &str) -> EntryPlace {
    EntryPlace {
        parent,
        name: seal_name(parent, name).into(),
    }
}

/// Steps of a caller, without preconditions.
#[must_use]
pub fn compound(credentials: Credentials, time: Timestamp, steps: Vec<Step>) -> Operation {
    Operation::Compound(Compound {
        credentials,
        time,
        preconditions: Vec::new(),
        steps,
    })
}
