//! The keys of realms, their key epochs, members and mounts.

use crate::identity::{PrincipalId, RealmEpoch, RealmId};
use quorumfs_bft::identity::SessionId;

pub(super) const REALM: &[u8] = b"R/";
pub(super) const EPOCH: &[u8] = b"RE/";
pub(super) const MEMBER: &[u8] = b"RM/";
pub(super) const OLD_KEYS: &[u8] = b"RG/";
pub(super) const MOUNT: &[u8] = b"RX/";

/// A realm.
#[must_use]
pub fn realm(realm: RealmId) -> Vec<u8> {
    key!(REALM, realm.0.to_be_bytes())
}

/// A realm's epoch.
#[must_use]
pub fn epoch(realm: RealmId, epoch: RealmEpoch) -> Vec<u8> {
    key!(EPOCH, realm.0.to_be_bytes(), epoch.0.to_be_bytes())
}

/// All epochs of a realm.
#[must_use]
pub fn epochs(realm: RealmId) -> Vec<u8> {
    key!(EPOCH, realm.0.to_be_bytes())
}

/// Until when a realm's previous key epoch still seals.
#[must_use]
pub fn old_keys(realm: RealmId) -> Vec<u8> {
    key!(OLD_KEYS, realm.0.to_be_bytes())
}

/// A realm's member.
#[must_use]
pub fn member(realm: RealmId, principal: &PrincipalId) -> Vec<u8> {
    key!(MEMBER, realm.0.to_be_bytes(), principal.0)
}

/// All members of a realm.
#[must_use]
pub fn members(realm: RealmId) -> Vec<u8> {
    key!(MEMBER, realm.0.to_be_bytes())
}

/// All mounts of a realm.
#[must_use]
pub fn mounts(realm: RealmId) -> Vec<u8> {
    key!(MOUNT, realm.0.to_be_bytes())
}

/// A session's mount of a realm.
#[must_use]
pub fn mount(realm: RealmId, session: SessionId) -> Vec<u8> {
    key!(MOUNT, realm.0.to_be_bytes(), session.0.to_be_bytes())
}
