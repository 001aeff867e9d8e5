//! Where the twins may differ, each with its reason. There are no others.
//!
//! Every one is a statement of docs/SEMANTICS.md.

use super::act::{Outcome, Value};
use super::picture::{Picture, Time};
use super::step::Operation;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Times of names and attributes are those of the servers' agreed clock, which ticks with their
/// batches: two changes that are closer than this may bear the same.
pub const TICK: Duration = Duration::from_millis(60);

/// Times of tmpfs are those of the kernel's coarse clock, which ticks a hundred times in a second
/// or more often: the same holds there.
pub const JIFFY: Duration = Duration::from_millis(12);

/// What is compared of an inode. The length of a directory means nothing; the number of an inode is
/// each file system's own; the time of access moves as each file system likes, and is compared
/// where it was set; times are compared by [`explicit`] and by whether they moved.
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

/// Whether what came of an operation is the same. Where data and holes are, tmpfs knows by the
/// page, and takes for data what was only read through a mapping or reserved: what is data here is
/// data there, and what is a hole there is one here. Only in the last page that a file can have
/// tmpfs finds no data, whatever was written there.
///
/// Who gives another's file with set-id bits to nobody may not. While it is open for writing the
/// kernel tells us of that in the same words as of a write, so that we do nothing and say that it
/// is done. Who has it open is not known here: that he is refused while nobody has, a test of the
/// gateway says.
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

/// A time that is not of the run itself was set by somebody, and has to be the same to the
/// nanosecond.
#[must_use]
pub fn explicit(time: Time, began: Time) -> bool {
    time.0 < began.0 - 2 || time.0 > now().0 + 2
}

/// Whether the time of change may stay where it is on our side: tmpfs moves it with every access
/// control list that is set or removed, also where nothing changes by it; a list that was not there
/// and is removed, or says what the mode says, changes nothing here.
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

/// Files of the reference that were written through a mapping, and when tmpfs says that they were
/// modified: it leaves their times as they are. Other file systems move them, as ours does; until
/// something else moves them there too, those of the twins differ.
pub type Mapped = BTreeMap<u64, Time>;

/// Named pipes: what goes through them passes the kernel alone, and a file system in user space
/// hears nothing of it, so that only tmpfs moves their times with it.
#[must_use]
pub fn pipes(picture: &Picture, operation: &Operation) -> bool {
    picture.is_pipe()
        && matches!(
            operation,
            Operation::Write { .. } | Operation::WriteAt { .. }
        )
}

/// Whether times may move on our side alone: see [`Mapped`].
#[must_use]
pub fn maps(operation: &Operation) -> bool {
    matches!(operation, Operation::Map { .. })
}

/// Whether a time was so near when a step began that the clock may not have ticked since.
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
