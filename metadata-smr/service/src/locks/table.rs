//! The locks of one inode and kind: which of them is in the way of another, and what is held after
//! a grant or an unlock.
//!
//! These functions hold no state and know no rows, so a mount that is alone keeps a table of its
//! own with them.
//!
//! What always holds of a table: it is sorted by start and owner; locks of one owner do not overlap
//! and, if they touch, differ in their mode; of locks of different owners that overlap none is
//! exclusive. [`apply`] keeps the first two by itself, and the third if [`conflict`] was asked.
//!
//! Source: `fcntl(2)` and POSIX, XSH `fcntl`, "Advisory locking".

use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::SessionId;

/// The kinds of locks. They do not see each other, as on Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum LockKind {
    /// `fcntl`, with `F_SETLK` or `F_OFD_SETLK`: ranges of bytes.
    Ranges,
    /// `flock`: the whole file.
    Whole,
    /// Of mounts, not of processes: the right to write at the end of a file (`O_APPEND`), which is
    /// at another place after each such write.
    Appends,
}

impl LockKind {
    /// Its number in keys.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Ranges => 0,
            Self::Whole => 1,
            Self::Appends => 2,
        }
    }

    /// The kind of a number in keys.
    #[must_use]
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Ranges),
            1 => Some(Self::Whole),
            2 => Some(Self::Appends),
            _ => None,
        }
    }

    /// Whether locks of this kind can have this range.
    #[must_use]
    pub fn allows(self, range: LockRange) -> bool {
        match self {
            Self::Ranges => range.start <= range.end,
            Self::Whole | Self::Appends => range == LockRange::WHOLE,
        }
    }
}

/// A range of bytes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last byte; the largest number: to the end of the file, wherever that is.
    pub end: u64,
}

impl LockRange {
    /// All bytes.
    pub const WHOLE: Self = Self {
        start: 0,
        end: u64::MAX,
    };

    /// Whether two ranges have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether two ranges overlap, or one begins where the other ends.
    const fn touches(self, other: Self) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }
}

/// The owner of a lock: what the kernel of one mount calls its owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockOwner {
    /// The session of the mount.
    pub session: SessionId,
    /// The kernel's number for a process's or an open file's locks.
    pub number: u64,
}

/// A lock that is held, or one that is wished for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FileLock {
    /// The owner.
    pub owner: LockOwner,
    /// The bytes.
    pub range: LockRange,
    /// Whether no other owner may have a lock there, or only no exclusive one.
    pub exclusive: bool,
    /// The process, for people and for `F_GETLK`.
    pub pid: u32,
}

impl FileLock {
    /// Whether this lock and the other cannot be held at a time.
    #[must_use]
    pub fn conflicts(&self, other: &Self) -> bool {
        self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.range.overlaps(other.range)
    }
}

/// What an owner is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockGrant {
    /// Whether the lock is exclusive.
    pub exclusive: bool,
    /// The process.
    pub pid: u32,
}

/// The first lock of another owner that is in the way of a lock.
#[must_use]
pub fn conflict(
    locks: &[FileLock],
    owner: LockOwner,
    range: LockRange,
    exclusive: bool,
) -> Option<FileLock> {
    let wish = FileLock {
        owner,
        range,
        exclusive,
        pid: 0,
    };
    locks.iter().find(|held| held.conflicts(&wish)).copied()
}

/// The locks after an owner was granted a lock of a range, or has unlocked it (`None`).
///
/// The new lock replaces what the owner had in the range. What is left of its older locks on either
/// side stays, and becomes one with the new one if it is of the same mode.
#[must_use]
pub fn apply(
    locks: &[FileLock],
    owner: LockOwner,
    range: LockRange,
    grant: Option<LockGrant>,
) -> Vec<FileLock> {
    let mut after = Vec::with_capacity(locks.len().saturating_add(2));
    let mut granted = range;
    for held in locks {
        let same_mode = grant.is_some_and(|grant| grant.exclusive == held.exclusive);
        if held.owner != owner {
            after.push(*held);
        } else if same_mode && held.range.touches(range) {
            granted.start = granted.start.min(held.range.start);
            granted.end = granted.end.max(held.range.end);
        } else {
            after.extend(outside(held, range));
        }
    }
    after.extend(grant.map(|grant| FileLock {
        owner,
        range: granted,
        exclusive: grant.exclusive,
        pid: grant.pid,
    }));
    after.sort_by_key(|held| (held.range.start, held.owner));
    after
}

/// What is left of a lock outside of a range.
fn outside(held: &FileLock, range: LockRange) -> impl Iterator<Item = FileLock> + use<> {
    let held = *held;
    let part = move |start: u64, end: u64| FileLock {
        range: LockRange { start, end },
        ..held
    };
    let (start, end) = (held.range.start, held.range.end);
    let before = range.start.checked_sub(1).map(|last| last.min(end));
    let after = range.end.checked_add(1).map(|first| first.max(start));
    let before = before.filter(|last| start <= *last);
    let after = after.filter(|first| *first <= end);
    let before = before.map(|last| part(start, last));
    before
        .into_iter()
        .chain(after.map(|first| part(first, end)))
}

#[cfg(test)]
mod tests;
