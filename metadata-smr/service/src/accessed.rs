//! Times of access, which gateways report late and in bulk.
//!
//! No cache or precondition depends on the time of access, so neither ctime nor the version
//! changes: no commit is refused for a read, and no cache is invalidated. Times only move forward,
//! and not beyond the agreed one. An inode that was deleted in the meantime is skipped, and so is
//! one that the principal could not have read; neither affects the others of the step.

use crate::attributes::{Access, Timestamp};
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::limits::ACCESSED_MAX;
use crate::operation::Accessed;
use crate::permission::check_handle;
use crate::reply::StepDone;
use crate::row::{Inode, key};
use crate::rows::{Outcome, Rows, require};

/// Advances times of access.
pub(crate) fn accessed(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    read: &[Accessed],
) -> Outcome<StepDone> {
    let limit = ACCESSED_MAX as u32;
    require(read.len() <= ACCESSED_MAX, Error::TooMany { limit })?;
    let now = Timestamp::from(change.time());
    for accessed in read {
        require(accessed.time.is_valid(), Error::Invalid)?;
        let row_key = key::inode(accessed.inode);
        let Some(mut row) = change.find::<Inode>(&row_key)? else {
            continue;
        };
        let time = accessed.time.min(now);
        let could = check_handle(&row, &asker.rights, Access::READ).is_ok();
        if could && time > row.atime {
            row.atime = time;
            // The counted fields do not change.
            change.put(row_key, &row)?;
        }
    }
    Ok(StepDone::Accessed)
}
