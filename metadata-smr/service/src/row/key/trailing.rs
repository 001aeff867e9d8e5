//! What the end of a key says: the numbers after its tag, read back.

use crate::attributes::Namespace;
use crate::identity::{
    AttributeHash, CloudIndex, Home, InodeId, ObjectId, PrincipalId, RealmId, SliceId, Uid,
};
use quorumfs_bft::identity::Time;

/// The last 4 bytes of a key as a user.
#[must_use]
pub fn trailing_uid(key: &[u8]) -> Option<Uid> {
    key.last_chunk::<4>()
        .map(|bytes| Uid(u32::from_be_bytes(*bytes)))
}

/// The last 32 bytes of a key as a principal.
#[must_use]
pub fn trailing_principal(key: &[u8]) -> Option<PrincipalId> {
    key.last_chunk::<32>()
        .map(|bytes| quorumfs_bft::identity::PublicKey(*bytes))
}

/// The last byte of a key as a cloud.
#[must_use]
pub fn trailing_cloud(key: &[u8]) -> Option<CloudIndex> {
    key.last().map(|index| CloudIndex(*index))
}

/// The last 8 bytes of a key as a number: an inode, a cookie, an offset.
#[must_use]
pub fn trailing_number(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>()
        .map(|bytes| u64::from_be_bytes(*bytes))
}

/// The last 12 bytes of a key as the time when a realm's bell is due, and the realm.
#[must_use]
pub fn trailing_bell(key: &[u8]) -> Option<(Time, RealmId)> {
    let (due, realm) = key.last_chunk::<12>()?.split_first_chunk::<8>()?;
    let realm = realm.try_into().ok()?;
    Some((
        Time(u64::from_be_bytes(*due)),
        RealmId(u32::from_be_bytes(realm)),
    ))
}

/// The last 16 bytes of a key as a time and an inode: its removal, or its deadline in the grave.
#[must_use]
pub fn trailing_removal(key: &[u8]) -> Option<(Time, InodeId)> {
    let (at, inode) = key.last_chunk::<16>()?.split_first_chunk::<8>()?;
    let inode = inode.try_into().ok()?;
    Some((
        Time(u64::from_be_bytes(*at)),
        InodeId(u64::from_be_bytes(inode)),
    ))
}

/// The last 17 bytes of a key as an extended attribute's namespace and hash.
#[must_use]
pub fn trailing_attribute(key: &[u8]) -> Option<(Namespace, AttributeHash)> {
    let (namespace, hash) = key.last_chunk::<17>()?.split_first_chunk::<1>()?;
    let namespace = Namespace::of_number(u8::from_be_bytes(*namespace))?;
    Some((namespace, AttributeHash(hash.try_into().ok()?)))
}

/// The last 12 bytes of a key as an object's id.
#[must_use]
pub fn trailing_object(key: &[u8]) -> Option<ObjectId> {
    key.last_chunk::<12>()
        .and_then(|bytes| ObjectId::from_be_bytes(bytes))
}

/// The last 14 bytes of a key as a slice and the home of its row.
#[must_use]
pub fn trailing_slice(key: &[u8]) -> Option<(Home, SliceId)> {
    let (home, slice) = key.last_chunk::<14>()?.split_first_chunk::<2>()?;
    let home = Home(u16::from_be_bytes(*home));
    SliceId::from_be_bytes(slice).map(|slice| (home, slice))
}
