//! The keys of locks and of those that wait for them.

use crate::identity::{InodeId, MountEpoch, RealmId};
use crate::locks::{LockKind, LockOwner};
use quorumfs_bft::identity::{SessionId, Time};

pub(super) const LOCK: &[u8] = b"K/";
pub(super) const LOCK_WAITER: &[u8] = b"KW/";
pub(super) const DUE_TURN: &[u8] = b"KT/";
pub(super) const LOCKED_INODE: &[u8] = b"KO/";
pub(super) const LOCKED_INODES: &[u8] = b"KN/";

/// A mount: its session, its realm and its number there. A session may have several, one after the
/// other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MountPlace {
    /// The session.
    pub session: SessionId,
    /// The realm.
    pub realm: RealmId,
    /// The mount's number.
    pub mount: MountEpoch,
}

/// A lock's place: where a listing goes on.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    borsh::BorshSerialize,
    borsh::BorshDeserialize,
)]
pub struct LockPlace {
    /// The inode.
    pub inode: InodeId,
    /// The kind.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The owner.
    pub owner: LockOwner,
}

/// All locks.
#[must_use]
pub fn all_locks() -> Vec<u8> {
    LOCK.to_vec()
}

/// All locks of an inode and a kind, by their first byte.
#[must_use]
pub fn locks(inode: InodeId, kind: LockKind) -> Vec<u8> {
    key!(LOCK, inode.0.to_be_bytes(), [kind.number()])
}

/// A lock.
#[must_use]
pub fn lock(place: &LockPlace) -> Vec<u8> {
    key!(
        LOCK,
        place.inode.0.to_be_bytes(),
        [place.kind.number()],
        place.start.to_be_bytes(),
        place.owner.session.0.to_be_bytes(),
        place.owner.number.to_be_bytes()
    )
}

/// All that wait for locks of an inode and a kind, the first one first.
#[must_use]
pub fn lock_waiters(inode: InodeId, kind: LockKind) -> Vec<u8> {
    key!(LOCK_WAITER, inode.0.to_be_bytes(), [kind.number()])
}

/// A request that waits, by its ticket.
#[must_use]
pub fn lock_waiter(inode: InodeId, kind: LockKind, ticket: u64) -> Vec<u8> {
    key!(
        LOCK_WAITER,
        inode.0.to_be_bytes(),
        [kind.number()],
        ticket.to_be_bytes()
    )
}

/// All waiters whose turn has come, in the order in which ticks look at them.
#[must_use]
pub fn due_turns() -> Vec<u8> {
    DUE_TURN.to_vec()
}

/// A waiter whose turn has come.
#[must_use]
pub fn due_turn(check: Time, inode: InodeId, kind: LockKind, ticket: u64) -> Vec<u8> {
    key!(
        DUE_TURN,
        check.0.to_be_bytes(),
        inode.0.to_be_bytes(),
        [kind.number()],
        ticket.to_be_bytes()
    )
}

/// All inodes and kinds of which a mount has locks or waits for some.
#[must_use]
pub fn locked_by(by: MountPlace) -> Vec<u8> {
    key!(
        LOCKED_INODE,
        by.session.0.to_be_bytes(),
        by.realm.0.to_be_bytes(),
        by.mount.0.to_be_bytes()
    )
}

/// One of them.
#[must_use]
pub fn locked_inode(by: MountPlace, inode: InodeId, kind: LockKind) -> Vec<u8> {
    let mut row_key = locked_by(by);
    row_key.extend_from_slice(&inode.0.to_be_bytes());
    row_key.push(kind.number());
    row_key
}

/// The number of them.
#[must_use]
pub fn locked_inodes(by: MountPlace) -> Vec<u8> {
    key!(
        LOCKED_INODES,
        by.session.0.to_be_bytes(),
        by.realm.0.to_be_bytes(),
        by.mount.0.to_be_bytes()
    )
}

/// The last 33 bytes of a key as a lock's place.
#[must_use]
pub fn trailing_lock(key: &[u8]) -> Option<LockPlace> {
    let (inode, rest) = key.last_chunk::<33>()?.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first_chunk::<1>()?;
    let (start, rest) = rest.split_first_chunk::<8>()?;
    let (session, number) = rest.split_first_chunk::<8>()?;
    Some(LockPlace {
        inode: InodeId(u64::from_be_bytes(*inode)),
        kind: LockKind::of_number(u8::from_be_bytes(*kind))?,
        start: u64::from_be_bytes(*start),
        owner: LockOwner {
            session: SessionId(u64::from_be_bytes(*session)),
            number: u64::from_be_bytes(number.try_into().ok()?),
        },
    })
}

/// The last 9 bytes of a key as an inode and a kind of its locks.
#[must_use]
pub fn trailing_locked(key: &[u8]) -> Option<(InodeId, LockKind)> {
    let (inode, kind) = key.last_chunk::<9>()?.split_first_chunk::<8>()?;
    let kind = kind.first().copied().and_then(LockKind::of_number)?;
    Some((InodeId(u64::from_be_bytes(*inode)), kind))
}

/// The last 25 bytes of a key as a waiter whose turn has come: when a tick has to look, inode, kind
/// and ticket.
#[must_use]
pub fn trailing_turn(key: &[u8]) -> Option<(Time, InodeId, LockKind, u64)> {
    let (check, rest) = key.last_chunk::<25>()?.split_first_chunk::<8>()?;
    let (waiter, ticket) = rest.split_first_chunk::<9>()?;
    let (inode, kind) = trailing_locked(waiter)?;
    let ticket = u64::from_be_bytes(ticket.try_into().ok()?);
    Some((Time(u64::from_be_bytes(*check)), inode, kind, ticket))
}
