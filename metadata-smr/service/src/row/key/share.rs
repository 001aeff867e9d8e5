//! The keys of shares, and of the indexes over them.

use crate::identity::{InodeId, PrincipalNumber, ShareId, Uid};
use quorumfs_bft::identity::{Sequence, Time};

pub(super) const SHARE: &[u8] = b"SH/";
pub(super) const SHARE_NUMBERS: &[u8] = b"SN/";
pub(super) const SHARE_COUNT: &[u8] = b"SC/";
pub(super) const SHARE_OF_TOKEN: &[u8] = b"ST/";
pub(super) const SHARE_BY_USER: &[u8] = b"SU/";
pub(super) const SHARE_WITH_PERSON: &[u8] = b"SP/";
pub(super) const SHARE_OF_INODE: &[u8] = b"SI/";
pub(super) const CAPSULE_POINT: &[u8] = b"SR/";
/// Behind all other rows of a share: one that has a row here is whole, while rows are loaded too.
pub(super) const SHARE_EXPIRY: &[u8] = b"SX/";

/// All shares.
#[must_use]
pub fn all_shares() -> Vec<u8> {
    SHARE.to_vec()
}

/// A share.
#[must_use]
pub fn share(id: ShareId) -> Vec<u8> {
    key!(SHARE, id.0.to_be_bytes())
}

/// The numbers of shares.
#[must_use]
pub fn share_numbers() -> Vec<u8> {
    SHARE_NUMBERS.to_vec()
}

/// The number of shares of a user.
#[must_use]
pub fn shares_of_user(uid: Uid) -> Vec<u8> {
    key!(SHARE_COUNT, [0], uid.0.to_be_bytes())
}

/// The number of shares with a person.
#[must_use]
pub fn shares_of_person(person: PrincipalNumber) -> Vec<u8> {
    key!(SHARE_COUNT, [1], person.0.to_be_bytes())
}

/// The number of capsules of a user.
#[must_use]
pub fn capsules_of_user(uid: Uid) -> Vec<u8> {
    key!(SHARE_COUNT, [2], uid.0.to_be_bytes())
}

/// The share of a link, by the hash of its token.
#[must_use]
pub fn share_of_token(token: &[u8; 32]) -> Vec<u8> {
    key!(SHARE_OF_TOKEN, *token)
}

/// All shares of a user.
#[must_use]
pub fn all_shares_by(uid: Uid) -> Vec<u8> {
    key!(SHARE_BY_USER, uid.0.to_be_bytes())
}

/// A share of a user.
#[must_use]
pub fn share_by(uid: Uid, id: ShareId) -> Vec<u8> {
    key!(SHARE_BY_USER, uid.0.to_be_bytes(), id.0.to_be_bytes())
}

/// All shares with a person.
#[must_use]
pub fn all_shares_with(person: PrincipalNumber) -> Vec<u8> {
    key!(SHARE_WITH_PERSON, person.0.to_be_bytes())
}

/// A share with a person.
#[must_use]
pub fn share_with(person: PrincipalNumber, id: ShareId) -> Vec<u8> {
    key!(
        SHARE_WITH_PERSON,
        person.0.to_be_bytes(),
        id.0.to_be_bytes()
    )
}

/// The share of an inode by a user with a person that has not ended.
#[must_use]
pub fn share_of_inode(inode: InodeId, uid: Uid, person: PrincipalNumber) -> Vec<u8> {
    key!(
        SHARE_OF_INODE,
        inode.0.to_be_bytes(),
        uid.0.to_be_bytes(),
        person.0.to_be_bytes()
    )
}

/// All capsules, the earliest point first.
#[must_use]
pub fn capsule_points() -> Vec<u8> {
    CAPSULE_POINT.to_vec()
}

/// Where the capsules of a point begin.
#[must_use]
pub fn capsules_from(point: Sequence) -> Vec<u8> {
    key!(CAPSULE_POINT, point.0.to_be_bytes())
}

/// A capsule of a point.
#[must_use]
pub fn capsule_point(point: Sequence, id: ShareId) -> Vec<u8> {
    key!(CAPSULE_POINT, point.0.to_be_bytes(), id.0.to_be_bytes())
}

/// All shares that end by themselves, the first one first.
#[must_use]
pub fn share_expiries() -> Vec<u8> {
    SHARE_EXPIRY.to_vec()
}

/// A share that ends then, by the agreed time.
#[must_use]
pub fn share_expiry(at: Time, id: ShareId) -> Vec<u8> {
    key!(SHARE_EXPIRY, at.0.to_be_bytes(), id.0.to_be_bytes())
}

/// The last 8 bytes of a key as a share's number.
#[must_use]
pub fn trailing_share(key: &[u8]) -> Option<ShareId> {
    let id = key.last_chunk::<8>()?;
    Some(ShareId(u64::from_be_bytes(*id)))
}

/// The last 16 bytes of a key as a time and the share that ends then.
#[must_use]
pub fn trailing_share_expiry(key: &[u8]) -> Option<(Time, ShareId)> {
    let (at, id) = trailing_place(key)?;
    Some((Time(at), id))
}

/// The last 16 bytes of a key as a point and a capsule of it.
#[must_use]
pub fn trailing_capsule(key: &[u8]) -> Option<(Sequence, ShareId)> {
    let (point, id) = trailing_place(key)?;
    Some((Sequence(point), id))
}

fn trailing_place(key: &[u8]) -> Option<(u64, ShareId)> {
    let (at, id) = key.last_chunk::<16>()?.split_first_chunk::<8>()?;
    let id = id.try_into().ok()?;
    Some((u64::from_be_bytes(*at), ShareId(u64::from_be_bytes(id))))
}
