//! The keys of rows: a tag, a slash, and big-endian numbers.
//!
//! Rows of inodes are keyed by home and number, and an inode number begins with its home, so one
//! prefix `X/home` is one partition's part: the unit of transfer and deletion. The slash prevents a
//! tag from being the prefix of another.

use crate::attributes::Namespace;
use crate::identity::{
    AllocationId, AttributeHash, CloudIndex, Cookie, Home, InodeId, ObjectId, PrincipalId,
    PrincipalNumber, RealmId, SliceId, Uid,
};
use crate::row::Job;
use quorumfs_bft::identity::{SessionId, Time};

macro_rules! key {
    ($tag:expr $(, $part:expr)* $(,)?) => {{
        let mut key: Vec<u8> = Vec::with_capacity(40);
        key.extend_from_slice($tag);
        $(key.extend_from_slice(&$part);)*
        key
    }};
}

mod locks;
mod people;
mod realm;
mod share;
mod trailing;
mod trash;

#[cfg(test)]
use locks::{DUE_TURN, LOCK, LOCK_WAITER, LOCKED_INODE, LOCKED_INODES};
pub use locks::{
    LockPlace, MountPlace, all_locks, due_turn, due_turns, lock, lock_waiter, lock_waiters,
    locked_by, locked_inode, locked_inodes, locks, trailing_lock, trailing_locked, trailing_turn,
};
#[cfg(test)]
use people::{DUE_INVITATION, EXPIRY, FORMER, INVITATION, MACHINE, PEOPLE_CHANGE, PEOPLE_CHANGES};
pub use people::{
    all_people_changes, due_invitation, due_invitations, expiries, expiry, former, invitation,
    machine, machines, people_change, people_changes, trailing_expiry,
};
#[cfg(test)]
use realm::{EPOCH, MEMBER, MOUNT, OLD_KEYS, REALM};
pub use realm::{epoch, epochs, member, members, mount, mounts, old_keys, realm};
pub use share::*;
#[cfg(test)]
use share::{
    CAPSULE_POINT, SHARE, SHARE_BY_USER, SHARE_COUNT, SHARE_EXPIRY, SHARE_NUMBERS, SHARE_OF_INODE,
    SHARE_OF_TOKEN, SHARE_WITH_PERSON,
};
pub use trailing::*;
#[cfg(test)]
use trash::{PARTING, TRASH_PLACE, TRASH_SIZE, TRASHED, TRASHED_IN};
pub use trash::{
    all_trashed, all_trashed_in, parting, trash_place, trash_size, trashed, trashed_in,
};

const FORMAT: &[u8] = b"G/format";
const COUNTERS: &[u8] = b"G/counters";
const LOADING: &[u8] = b"G/loading";
const HOME: &[u8] = b"G/home/";
const CLOUD: &[u8] = b"G/cloud/";
const FLEET: &[u8] = b"CF/";
const CLOUD_CHANGE: &[u8] = b"CH/";
const DRAIN: &[u8] = b"CD/";
const PRINCIPAL: &[u8] = b"P/";
const NUMBERED: &[u8] = b"PN/";
const SUCCESSION: &[u8] = b"PS/";
const CLOUD_SECRET: &[u8] = b"PC/";
const SESSION: &[u8] = b"N/";
const ALLOCATION: &[u8] = b"NA/";
const ORPHAN: &[u8] = b"NO/";
const CHANGES: &[u8] = b"RC/";
const CHANGED: &[u8] = b"CL/";
const BELL: &[u8] = b"RB/";
const OWED_BELL: &[u8] = b"RO/";
const GRAVE: &[u8] = b"GR/";
const GRAVE_PLACE: &[u8] = b"GI/";
const INODE: &[u8] = b"I/";
const ENTRY: &[u8] = b"D/";
const RESEAL: &[u8] = b"DR/";
const EXTENDED: &[u8] = b"X/";
const EXTENT: &[u8] = b"E/";
const SLICE: &[u8] = b"S/";
const OBJECT: &[u8] = b"O/";
const UNREFERENCED: &[u8] = b"OG/";
const PACKED: &[u8] = b"OS/";
const SPARSE: &[u8] = b"OC/";
const UNDER_REPLICATED: &[u8] = b"U/";
const REAP: &[u8] = b"T/";
const EVIDENCE: &[u8] = b"V/";
const EVIDENCE_COUNT: &[u8] = b"VC/";
const QUOTA: &[u8] = b"Q/";
const USER_QUOTA: &[u8] = b"QU/";
const JOB: &[u8] = b"JB/";
const RETENTION: &[u8] = b"RT/";

/// The tags of all rows.
#[cfg(test)]
pub(crate) const TAGS: &[&[u8]] = &[
    JOB,
    RETENTION,
    FORMAT,
    COUNTERS,
    LOADING,
    HOME,
    CLOUD,
    FLEET,
    CLOUD_CHANGE,
    DRAIN,
    PRINCIPAL,
    SESSION,
    ALLOCATION,
    ORPHAN,
    REALM,
    EPOCH,
    MEMBER,
    OLD_KEYS,
    MOUNT,
    CHANGES,
    CHANGED,
    BELL,
    OWED_BELL,
    GRAVE,
    GRAVE_PLACE,
    INODE,
    ENTRY,
    RESEAL,
    EXTENDED,
    EXTENT,
    SLICE,
    OBJECT,
    UNREFERENCED,
    PACKED,
    SPARSE,
    UNDER_REPLICATED,
    REAP,
    NUMBERED,
    SUCCESSION,
    CLOUD_SECRET,
    PEOPLE_CHANGE,
    PEOPLE_CHANGES,
    EXPIRY,
    FORMER,
    MACHINE,
    INVITATION,
    DUE_INVITATION,
    EVIDENCE,
    EVIDENCE_COUNT,
    QUOTA,
    USER_QUOTA,
    TRASHED,
    TRASH_PLACE,
    TRASHED_IN,
    PARTING,
    TRASH_SIZE,
    LOCK,
    LOCK_WAITER,
    DUE_TURN,
    LOCKED_INODE,
    LOCKED_INODES,
    SHARE,
    SHARE_NUMBERS,
    SHARE_COUNT,
    SHARE_OF_TOKEN,
    SHARE_BY_USER,
    SHARE_WITH_PERSON,
    SHARE_OF_INODE,
    CAPSULE_POINT,
    SHARE_EXPIRY,
];

/// Tags of rows that are designed and not written yet. No other row may use them.
#[cfg(test)]
const RESERVED: [&[u8]; 1] = [b"HD/"];

/// The volume's format.
#[must_use]
pub fn format() -> Vec<u8> {
    FORMAT.to_vec()
}

/// The volume's counters.
#[must_use]
pub fn counters() -> Vec<u8> {
    COUNTERS.to_vec()
}

/// The state of a recovery that is not finished.
#[must_use]
pub fn loading() -> Vec<u8> {
    LOADING.to_vec()
}

/// A home's counters.
#[must_use]
pub fn home(home: Home) -> Vec<u8> {
    key!(HOME, home.0.to_be_bytes())
}

/// All clouds.
#[must_use]
pub fn clouds() -> Vec<u8> {
    CLOUD.to_vec()
}

/// A cloud.
#[must_use]
pub fn cloud(cloud: CloudIndex) -> Vec<u8> {
    key!(CLOUD, [cloud.0])
}

/// Which clouds take new shards.
#[must_use]
pub fn fleet() -> Vec<u8> {
    FLEET.to_vec()
}

/// All changes of the clouds.
#[must_use]
pub fn cloud_changes() -> Vec<u8> {
    CLOUD_CHANGE.to_vec()
}

/// A change of the clouds, by its number.
#[must_use]
pub fn cloud_change(number: u32) -> Vec<u8> {
    key!(CLOUD_CHANGE, number.to_be_bytes())
}

/// How far the shards of draining clouds have moved.
#[must_use]
pub fn drain() -> Vec<u8> {
    DRAIN.to_vec()
}

/// All principals.
#[must_use]
pub fn principals() -> Vec<u8> {
    PRINCIPAL.to_vec()
}

/// A principal.
#[must_use]
pub fn principal(principal: &PrincipalId) -> Vec<u8> {
    key!(PRINCIPAL, principal.0)
}

/// The principal of a number.
#[must_use]
pub fn numbered(number: PrincipalNumber) -> Vec<u8> {
    key!(NUMBERED, number.0.to_be_bytes())
}

/// All clouds' secrets that are wrapped for a principal.
#[must_use]
pub fn cloud_secrets(principal: &PrincipalId) -> Vec<u8> {
    key!(CLOUD_SECRET, principal.0)
}

/// A cloud's secret that is wrapped for a principal.
#[must_use]
pub fn cloud_secret(principal: &PrincipalId, cloud: CloudIndex) -> Vec<u8> {
    key!(CLOUD_SECRET, principal.0, [cloud.0])
}

/// All successions.
#[must_use]
pub fn successions() -> Vec<u8> {
    SUCCESSION.to_vec()
}

/// A succession, by its number.
#[must_use]
pub fn succession(number: u32) -> Vec<u8> {
    key!(SUCCESSION, number.to_be_bytes())
}

/// A session.
#[must_use]
pub fn session(session: SessionId) -> Vec<u8> {
    key!(SESSION, session.0.to_be_bytes())
}

/// An allocation.
#[must_use]
pub fn allocation(allocation: AllocationId) -> Vec<u8> {
    key!(ALLOCATION, allocation.0.to_be_bytes())
}

/// All orphans of a session.
#[must_use]
pub fn orphans(session: SessionId) -> Vec<u8> {
    key!(ORPHAN, session.0.to_be_bytes())
}

/// An orphan of a session.
#[must_use]
pub fn orphan(session: SessionId, inode: InodeId) -> Vec<u8> {
    key!(ORPHAN, session.0.to_be_bytes(), inode.0.to_be_bytes())
}

/// How far the names of a directory are resealed.
#[must_use]
pub fn reseal(directory: InodeId) -> Vec<u8> {
    key!(RESEAL, directory.0.to_be_bytes())
}

/// The end of a realm's change log.
#[must_use]
pub fn changes(realm: RealmId) -> Vec<u8> {
    key!(CHANGES, realm.0.to_be_bytes())
}

/// All entries of a realm's change log.
#[must_use]
pub fn all_changed(realm: RealmId) -> Vec<u8> {
    key!(CHANGED, realm.0.to_be_bytes())
}

/// A slot in the ring of a realm's change log.
#[must_use]
pub fn changed(realm: RealmId, slot: u16) -> Vec<u8> {
    key!(CHANGED, realm.0.to_be_bytes(), slot.to_be_bytes())
}

/// The bell of a realm.
#[must_use]
pub fn bell(realm: RealmId) -> Vec<u8> {
    key!(BELL, realm.0.to_be_bytes())
}

/// All bells that are owed, the first one due first.
#[must_use]
pub fn owed_bells() -> Vec<u8> {
    OWED_BELL.to_vec()
}

/// A bell that is owed.
#[must_use]
pub fn owed_bell(due: Time, realm: RealmId) -> Vec<u8> {
    key!(OWED_BELL, due.0.to_be_bytes(), realm.0.to_be_bytes())
}

/// All inodes in the grave, the first deadline first.
#[must_use]
pub fn graves() -> Vec<u8> {
    GRAVE.to_vec()
}

/// An inode in the grave; the deadline is of the lease clock.
#[must_use]
pub fn grave(deadline: Time, inode: InodeId) -> Vec<u8> {
    key!(GRAVE, deadline.0.to_be_bytes(), inode.0.to_be_bytes())
}

/// The place of an inode in the grave.
#[must_use]
pub fn grave_place(inode: InodeId) -> Vec<u8> {
    key!(GRAVE_PLACE, inode.0.to_be_bytes())
}

/// All inodes.
#[must_use]
pub fn all_inodes() -> Vec<u8> {
    INODE.to_vec()
}

/// An inode.
#[must_use]
pub fn inode(inode: InodeId) -> Vec<u8> {
    key!(INODE, inode.0.to_be_bytes())
}

/// All entries of a directory.
#[must_use]
pub fn entries(directory: InodeId) -> Vec<u8> {
    key!(ENTRY, directory.0.to_be_bytes())
}

/// An entry of a directory.
#[must_use]
pub fn entry(directory: InodeId, cookie: Cookie) -> Vec<u8> {
    key!(ENTRY, directory.0.to_be_bytes(), cookie.0.to_be_bytes())
}

/// All extended attributes of an inode.
#[must_use]
pub fn all_extended(inode: InodeId) -> Vec<u8> {
    key!(EXTENDED, inode.0.to_be_bytes())
}

/// An extended attribute of an inode.
#[must_use]
pub fn extended(inode: InodeId, namespace: Namespace, hash: AttributeHash) -> Vec<u8> {
    key!(
        EXTENDED,
        inode.0.to_be_bytes(),
        [namespace.number()],
        hash.0
    )
}

/// All extents of a file.
#[must_use]
pub fn extents(inode: InodeId) -> Vec<u8> {
    key!(EXTENT, inode.0.to_be_bytes())
}

/// An extent of a file, by its end (exclusive): the extent that covers an offset is then the first
/// one after it, and no scan has to go backwards.
#[must_use]
pub fn extent(inode: InodeId, end: u64) -> Vec<u8> {
    key!(EXTENT, inode.0.to_be_bytes(), end.to_be_bytes())
}

/// All slices.
#[must_use]
pub fn all_slices() -> Vec<u8> {
    SLICE.to_vec()
}

/// A slice.
#[must_use]
pub fn slice(home: Home, slice: SliceId) -> Vec<u8> {
    key!(SLICE, home.0.to_be_bytes(), slice.to_be_bytes())
}

/// All objects.
#[must_use]
pub fn all_objects() -> Vec<u8> {
    OBJECT.to_vec()
}

/// An object.
#[must_use]
pub fn object(object: ObjectId) -> Vec<u8> {
    key!(OBJECT, object.to_be_bytes())
}

/// All objects without references.
#[must_use]
pub fn all_unreferenced() -> Vec<u8> {
    UNREFERENCED.to_vec()
}

/// An object without references.
#[must_use]
pub fn unreferenced(object: ObjectId) -> Vec<u8> {
    key!(UNREFERENCED, object.to_be_bytes())
}

/// All slices in a pack.
#[must_use]
pub fn all_packed(pack: ObjectId) -> Vec<u8> {
    key!(PACKED, pack.to_be_bytes())
}

/// A slice in a pack.
#[must_use]
pub fn packed(pack: ObjectId, home: Home, slice: SliceId) -> Vec<u8> {
    key!(
        PACKED,
        pack.to_be_bytes(),
        home.0.to_be_bytes(),
        slice.to_be_bytes()
    )
}

/// All packs that are worth compacting.
#[must_use]
pub fn all_sparse() -> Vec<u8> {
    SPARSE.to_vec()
}

/// A pack that is worth compacting.
#[must_use]
pub fn sparse(pack: ObjectId) -> Vec<u8> {
    key!(SPARSE, pack.to_be_bytes())
}

/// All under-replicated objects, the most endangered first.
#[must_use]
pub fn all_under_replicated() -> Vec<u8> {
    UNDER_REPLICATED.to_vec()
}

/// An under-replicated object.
#[must_use]
pub fn under_replicated(priority: u8, object: ObjectId) -> Vec<u8> {
    key!(UNDER_REPLICATED, [priority], object.to_be_bytes())
}

/// The reap queue.
#[must_use]
pub fn reaps() -> Vec<u8> {
    REAP.to_vec()
}

/// A row of the reap queue.
#[must_use]
pub fn reap(number: u64) -> Vec<u8> {
    key!(REAP, number.to_be_bytes())
}

/// All evidence about a cloud.
#[must_use]
pub fn all_evidence(cloud: CloudIndex) -> Vec<u8> {
    key!(EVIDENCE, [cloud.0])
}

/// A slot in a cloud's ring of evidence.
#[must_use]
pub fn evidence(cloud: CloudIndex, place: u16) -> Vec<u8> {
    key!(EVIDENCE, [cloud.0], place.to_be_bytes())
}

/// The number of findings of a cloud.
#[must_use]
pub fn evidence_count(cloud: CloudIndex) -> Vec<u8> {
    key!(EVIDENCE_COUNT, [cloud.0])
}

/// The usage and quotas of a realm.
#[must_use]
pub fn quota(realm: RealmId) -> Vec<u8> {
    key!(QUOTA, realm.0.to_be_bytes())
}

/// The usage and quotas of each user of a realm.
#[must_use]
pub fn user_quotas(realm: RealmId) -> Vec<u8> {
    key!(USER_QUOTA, realm.0.to_be_bytes())
}

/// The usage and quota of a user of a realm.
#[must_use]
pub fn user_quota(realm: RealmId, uid: Uid) -> Vec<u8> {
    key!(USER_QUOTA, realm.0.to_be_bytes(), uid.0.to_be_bytes())
}

/// All jobs.
#[must_use]
pub fn jobs() -> Vec<u8> {
    JOB.to_vec()
}

/// A job.
#[must_use]
pub fn job(job: Job) -> Vec<u8> {
    key!(JOB, [job.number()])
}

/// All retained points.
#[must_use]
pub fn retentions() -> Vec<u8> {
    RETENTION.to_vec()
}

/// The retained points of a number.
#[must_use]
pub fn retention(number: u64) -> Vec<u8> {
    key!(RETENTION, number.to_be_bytes())
}

#[cfg(test)]
mod tests;
