//! The permitted differences of the twins, each with its reason. There are no others.
//!
//! Each is a statement of docs/SEMANTICS.md.

use super::act::{Outcome, Value};
use super::picture::{Picture, Time};
use super::step::Operation;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Times of names and attributes are those of the servers' agreed clock, which ticks with their
/// batches: two changes that are closer than this may have the same time.
pub const TICK: Duration = Duration::from_millis(60);

/// Times of tmpfs are those of the kernel's coarse clock, which ticks at least a hundred times a
/// second: the same holds there.
pub const JIFFY: Duration = Duration::from_millis(12);

/// The part of an inode that is compared. The length of a directory has no meaning; inode numbers
/// belong to each file system; the time of access moves as each file system decides, and is
/// compared where it was set; times are compared by [`explicit`] and by whether they moved.
#[must_use]
pub fn compared(picture: &Picture) -> Picture {
    let mut compared = picture.clone();
    if compared.is_directory() {
        compared.length = 0;
    }
    compared.inode = 0;
    (compared.accessed, compared.modified, compared.changed) = Default::default();
    compared
}

/// Whether the results of an operation are the same. tmpfs knows data and holes by the page, and
/// treats as data what was only read through a mapping or reserved: our data is data there, and a
/// hole there is a hole here. Only in the last page that a file can have, tmpfs never finds data.
///
/// A user may not `chown` another user's file with set-id bits to no user and no group (−1, −1).
/// While the file is open for writing, the kernel sends us the same request as for a write, so that
/// we do nothing and report success. This function does not know which files are open; a test of
/// the gateway checks that the call is refused while the file is not open.
#[must_use]
pub fn same(operation: &Operation, reference: &Outcome, ours: &Outcome) -> bool {
    const NXIO: i32 = 6;
    const PERM: i32 = 1;
    const LAST_PAGE: u64 = i64::MAX as u64 - 4095;
    let place = |outcome: &Outcome| match outcome {
        Ok(Value::Number(place)) => Some(*place),
        _ => None,
    };
    match (operation, reference, ours) {
        (Operation::Seek { whence: 3, .. }, Ok(_), Err(NXIO)) => true,
        (Operation::Seek { whence: 3, .. }, Err(NXIO), Ok(_)) => place(ours) >= Some(LAST_PAGE),
        (Operation::Seek { whence: 3, .. }, Ok(_), Ok(_)) => place(ours) >= place(reference),
        (
            Operation::Seek {
                whence: 4, offset, ..
            },
            Ok(_),
            Ok(_),
        ) => {
            let found = place(ours);
            found <= place(reference) && found >= u64::try_from(*offset).ok()
        }
        (
            Operation::Chown {
                user: None,
                group: None,
                ..
            }
            | Operation::ChownOpen {
                user: None,
                group: None,
                ..
            },
            Err(PERM),
            Ok(_),
        ) => true,
        (_, Ok(Value::Attributes(reference)), Ok(Value::Attributes(ours))) => {
            compared(reference) == compared(ours)
        }
        _ => reference == ours,
    }
}

/// Nanoseconds since 1970 of a wall clock.
#[must_use]
pub fn now() -> Time {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (now.as_secs() as i64, now.subsec_nanos())
}

/// A time outside of the run was set explicitly, and has to be the same to the nanosecond.
#[must_use]
pub fn explicit(time: Time, began: Time) -> bool {
    time.0 < began.0 - 2 || time.0 > now().0 + 2
}

/// Whether our time of change may stay unchanged: tmpfs moves it with every access control list
/// that is set or removed, even if nothing changes. Here, removing a missing list, or one that is
/// equivalent to the mode, changes nothing.
#[must_use]
pub fn may_change_nothing(operation: &Operation) -> bool {
    match operation {
        Operation::SetAcl { .. } => true,
        Operation::RemoveAttribute { name, .. } | Operation::SetAttribute { name, .. } => {
            name.0.starts_with(b"system.posix_acl")
        }
        _ => false,
    }
}

/// Files of the reference that were written through a mapping, with their time of modification on
/// tmpfs, which does not move it. Other file systems move it, as ours does; until another operation
/// moves it on tmpfs too, the twins differ.
pub type Mapped = BTreeMap<u64, Time>;

/// Named pipes: the kernel alone transfers their data, and a file system in user space does not see
/// it, so that only tmpfs moves their times.
#[must_use]
pub fn pipes(picture: &Picture, operation: &Operation) -> bool {
    picture.is_pipe()
        && matches!(
            operation,
            Operation::Write { .. } | Operation::WriteAt { .. }
        )
}

/// Whether times may move only on our side: see [`Mapped`].
#[must_use]
pub fn maps(operation: &Operation) -> bool {
    matches!(operation, Operation::Map { .. })
}

/// Whether a time was so close before a step that the clock may not have ticked since.
#[must_use]
pub fn within_a_tick(time: Time, began: Time) -> bool {
    within(time, began, TICK)
}

/// The same for the clock of tmpfs.
#[must_use]
pub fn within_a_jiffy(time: Time, began: Time) -> bool {
    within(time, began, JIFFY)
}

fn within(time: Time, began: Time, tick: Duration) -> bool {
    let nanos = |it: Time| i128::from(it.0) * 1_000_000_000 + i128::from(it.1);
    nanos(began) - nanos(time) < tick.as_nanos() as i128
}
