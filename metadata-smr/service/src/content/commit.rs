//! New content of a file: create objects, replace extents, count, set the length last.

use super::bring_in::{bring_in, owns};
use super::clone_range::clone_range;
use super::extent_map::{Placed, clear, set, truncate};
use super::references;
use crate::attributes::Access;
use crate::change::{Asker, Change};
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::extended::drop_capability;
use crate::identity::{Home, SliceId, Uid};
use crate::limits::{COMMIT_EXTENTS_MAX, FILE_SIZE_MAX, INLINE_BYTES_MAX, SEAL_OVERHEAD_MAX};
use crate::operation::{Commit, NewContent, NewExtent};
use crate::permission::check_handle;
use crate::reply::StepDone;
use crate::row::{Content, Extent, FileBody, Inline, InodeBody, Slice, key};
use crate::rows::{Halt, Outcome, Rows, require};
use std::collections::BTreeMap;

/// Commits new content of a file.
pub(crate) fn commit(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    step: &Commit,
) -> Outcome<StepDone> {
    let mut row = change.inode(step.inode)?;
    check_handle(&row, &asker.rights, Access::WRITE)?;
    let unchanged = step.expected.is_none_or(|version| version == row.version);
    require(unchanged, Error::Changed)?;
    let sensible = step.mtime.is_none_or(|mtime| mtime.is_valid());
    require(sensible, Error::Invalid)?;
    let (realm, is_directory) = (row.realm, row.is_directory());
    let InodeBody::File(file) = &mut row.node else {
        let error = if is_directory {
            Error::IsDirectory
        } else {
            Error::WrongKind
        };
        return Err(error.into());
    };
    let home = step.inode.home();
    bring_in(change, asker, (realm, home), &step.objects, &step.slices)?;
    match &step.content {
        NewContent::Same => {}
        NewContent::Inline(inline) => {
            require_sealing(change, realm, inline.sealed.epoch)?;
            set_inline(change, step, file, inline)?;
        }
        NewContent::Extents(extents) => set_extents(change, asker, step, file, extents)?,
        NewContent::Hole { offset, length } => {
            let end = offset.saturating_add(*length);
            clear(change, step.inode, file, *offset, end)?;
        }
        NewContent::Clone(range) => {
            clone_range(change, asker, (step.inode, realm), file, range)?;
        }
    }
    for slice in &step.slices {
        let row: Slice = change.expect_row(&key::slice(home, slice.id))?;
        require(row.references > 0, Error::BadContent)?;
    }
    if let Some(size) = step.size {
        truncate(change, step.inode, file, size)?;
    }
    if !matches!(step.content, NewContent::Same) && !asker.rights.uids.contains(&Uid::ROOT) {
        // Like Linux after a write by any user but the superuser.
        row.mode = row
            .mode
            .without_set_id(asker.rights.gids.contains(&row.gid));
    }
    if !matches!(step.content, NewContent::Same) {
        drop_capability(change, step.inode, &mut row)?;
    }
    if let Some(mtime) = step.mtime {
        row.mtime = mtime;
    }
    change.save(step.inode, &mut row)?;
    Ok(StepDone::Committed(row.attributes(step.inode)))
}

/// Stores all of a tiny file's bytes in its inode.
fn set_inline(
    change: &mut Change<'_, '_>,
    step: &Commit,
    file: &mut FileBody,
    inline: &Inline,
) -> Outcome<()> {
    let length = u64::from(inline.length);
    let bound = INLINE_BYTES_MAX as usize + SEAL_OVERHEAD_MAX;
    let fits = length <= u64::from(INLINE_BYTES_MAX)
        && inline.length > 0
        && inline.sealed.bytes.len() <= bound
        && inline.sealed.bytes.len() >= usize::from(inline.length)
        && step.size.is_none_or(|size| size >= length);
    require(fits, Error::BadContent)?;
    truncate(change, step.inode, file, 0)?;
    file.content = Content::Inline(inline.clone());
    file.size = length;
    Ok(())
}

fn set_extents(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    step: &Commit,
    file: &mut FileBody,
    extents: &[NewExtent],
) -> Outcome<()> {
    let limit = COMMIT_EXTENTS_MAX as u32;
    require(
        extents.len() <= COMMIT_EXTENTS_MAX,
        Error::TooMany { limit },
    )?;
    let end = check_order(extents)?;
    let fits = step.size.is_none_or(|size| size >= end);
    require(fits, Error::BadContent)?;
    let home = step.inode.home();
    let mut references: BTreeMap<SliceId, u32> = BTreeMap::new();
    let mut placed = Vec::with_capacity(extents.len());
    for new in extents {
        check_slice(change, asker, home, new)?;
        let count = references.entry(new.slice).or_default();
        *count = count.saturating_add(1);
        placed.push(Placed {
            start: new.offset,
            extent: Extent {
                slice: new.slice,
                slice_offset: new.slice_offset,
                length: new.length,
                unwritten: false,
            },
        });
    }
    for (slice, count) in references {
        references::add(change, home, slice, count)?;
    }
    set(change, step.inode, file, &placed)?;
    file.size = file.size.max(end);
    Ok(())
}

/// Checks that extents are sorted, do not overlap and lie within a file's bounds; returns their
/// end.
fn check_order(extents: &[NewExtent]) -> Outcome<u64> {
    let mut end = 0_u64;
    for new in extents {
        let sorted = new.length > 0 && new.offset >= end;
        require(sorted, Error::BadContent)?;
        end = new
            .offset
            .checked_add(u64::from(new.length))
            .filter(|end| *end <= FILE_SIZE_MAX)
            .ok_or(Halt::Refused(Error::FileTooLarge))?;
    }
    Ok(end)
}

/// Checks that an extent names a run of a slice that the session created in a live allocation.
fn check_slice(change: &Change<'_, '_>, asker: &Asker, home: Home, new: &NewExtent) -> Outcome<()> {
    let not_owned = || Error::SliceNotOwned(new.slice);
    require(owns(asker, new.slice.allocation), not_owned())?;
    let row: Slice = change
        .find(&key::slice(home, new.slice))?
        .ok_or(Halt::Refused(not_owned()))?;
    let end = new.slice_offset.checked_add(new.length);
    let fits = end.is_some_and(|end| end <= row.length);
    require(fits, Error::BadContent)
}
