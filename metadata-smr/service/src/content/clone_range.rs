//! Clones bytes of one file into another without moving them: both refer to the same slices.
//!
//! ```text
//!   source        |--- extent a ---|   hole   |--- extent b ---|
//!                         |<------------ cloned ----->|
//!   destination           |- a, +8 |   hole   |- b ---|
//! ```
//!
//! An extent may name any part of a slice, so no alignment is needed. The service looks up the
//! slices of the source itself: a client that could name arbitrary slices could get the bytes of
//! files that it may not read. The old content of the destination is removed first; holes stay
//! holes.

use super::extent_map::{Placed, clear, extents_after, set};
use super::references;
use crate::attributes::Access;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{InodeId, RealmId, SliceId};
use crate::limits::{CLONE_EXTENTS_MAX, FILE_SIZE_MAX};
use crate::operation::CloneRange;
use crate::permission::check_handle;
use crate::row::{Content, FileBody, InodeBody};
use crate::rows::{Halt, Outcome, Rows, require};
use std::collections::BTreeMap;
use std::ops::Range;

/// Makes a run of `file` refer to the source's content.
pub(super) fn clone_range(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    (inode, realm): (InodeId, RealmId),
    file: &mut FileBody,
    wanted: &CloneRange,
) -> Outcome<()> {
    require(wanted.length > 0, Error::BadContent)?;
    let end = wanted
        .offset
        .checked_add(wanted.length)
        .filter(|end| *end <= FILE_SIZE_MAX)
        .ok_or(Halt::Refused(Error::FileTooLarge))?;
    let from = wanted.source_offset;
    let to = from
        .checked_add(wanted.length)
        .ok_or(Halt::Refused(Error::BadContent))?;
    let found = if wanted.source == inode {
        let apart = to <= wanted.offset || end <= from;
        require(apart && to <= file.size, Error::BadContent)?;
        extents(change, inode, file, from..to)?
    } else {
        source(change, asker, (inode, realm), wanted, from..to)?
    };
    let alive = file.dead_from.is_none_or(|dead| end <= dead);
    require(alive, Error::Reaping)?;
    // References are counted before any are dropped: the overwritten content may be the cloned one.
    let mut counts: BTreeMap<SliceId, u32> = BTreeMap::new();
    for placed in &found {
        let count = counts.entry(placed.extent.slice).or_default();
        *count = count.saturating_add(1);
    }
    for (slice, count) in counts {
        references::add(change, inode.home(), slice, count)?;
    }
    clear(change, inode, file, wanted.offset, end)?;
    let moved: Vec<Placed> = found
        .iter()
        .map(|placed| Placed {
            start: wanted
                .offset
                .saturating_add(placed.start.saturating_sub(from)),
            ..*placed
        })
        .collect();
    set(change, inode, file, &moved)?;
    file.size = file.size.max(end);
    Ok(())
}

/// The extents of another file, if the principal may read it.
fn source(
    change: &Change<'_, '_>,
    asker: &Asker,
    (inode, realm): (InodeId, RealmId),
    wanted: &CloneRange,
    range: Range<u64>,
) -> Outcome<Vec<Placed>> {
    let row = change.inode(wanted.source)?;
    check_handle(&row, &asker.rights, Access::READ)?;
    let unchanged = wanted.expected.is_none_or(|seen| seen == row.version);
    require(unchanged, Error::Changed)?;
    // Slices belong to a home, and their keys to the realm.
    let together = row.realm == realm && wanted.source.home() == inode.home();
    require(together, Error::CrossRealm)?;
    let InodeBody::File(file) = &row.node else {
        return Err(Error::WrongKind.into());
    };
    require(range.end <= file.size, Error::BadContent)?;
    extents(change, wanted.source, file, range)
}

/// The extents within a range of a file, cut to it.
fn extents(
    change: &Change<'_, '_>,
    inode: InodeId,
    file: &FileBody,
    range: Range<u64>,
) -> Outcome<Vec<Placed>> {
    let found = match &file.content {
        Content::Empty => Vec::new(),
        Content::Inline(_) => return Err(Error::BadContent.into()),
        Content::One { offset, extent } => vec![Placed {
            start: *offset,
            extent: *extent,
        }],
        Content::Extents => {
            let limit = CLONE_EXTENTS_MAX.saturating_add(1);
            let found = extents_after(change, inode, range.start, limit)?;
            let more = found.get(CLONE_EXTENTS_MAX);
            let fits = more.is_none_or(|more| more.start >= range.end);
            require(fits, Error::TooManyRows)?;
            found
        }
    };
    let parts = found.iter().filter_map(|placed| {
        let (from, to) = (placed.start.max(range.start), placed.end().min(range.end));
        (from < to).then(|| placed.part(from, to))
    });
    Ok(parts.collect())
}
