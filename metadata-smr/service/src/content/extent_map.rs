//! A file's extents: replaced, split, cut.
//!
//! Extents are keyed by their end, so the first row after an offset is the extent that covers it,
//! if any does (bcachefs keys its extents so for the same reason). A file's only extent is stored
//! in its inode instead.
//!
//! A truncation drops a short tail at once. The extents of a long tail stay, *dead*: the inode
//! holds the offset where they begin and ticks delete them. Until then that range can be neither
//! grown into nor written, or old bytes would reappear.

use crate::change::Change;
use crate::error::Error;
use crate::identity::InodeId;
use crate::limits::{EXTENTS_DROPPED_MAX, FILE_SIZE_MAX};
use crate::row::{Content, Extent, FileBody, Reap, key};
use crate::rows::{Outcome, Rows, damaged, decode, require};

/// Whether a part was left for later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remainder {
    /// All is done.
    Nothing,
    /// A part is left.
    Some,
}

/// An extent and its position in its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) start: u64,
    pub(crate) extent: Extent,
}

impl Placed {
    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.extent.length as u64)
    }

    /// The part between `from` and `to`, which lie within it.
    pub(super) fn part(&self, from: u64, to: u64) -> Self {
        let skipped = u32::try_from(from.saturating_sub(self.start)).unwrap_or(u32::MAX);
        let length = u32::try_from(to.saturating_sub(from)).unwrap_or(u32::MAX);
        Self {
            start: from,
            extent: Extent {
                slice_offset: self.extent.slice_offset.saturating_add(skipped),
                length,
                ..self.extent
            },
        }
    }
}

/// The first `limit` extents that end after `from`.
pub(crate) fn extents_after(
    rows: &impl Rows,
    inode: InodeId,
    from: u64,
    limit: usize,
) -> Outcome<Vec<Placed>> {
    let prefix = key::extents(inode);
    let first = key::extent(inode, from.saturating_add(1));
    let found = rows.scan(&prefix, &first, limit)?;
    found
        .iter()
        .map(|(row_key, bytes)| {
            let extent: Extent = decode(row_key, bytes)?;
            let start = key::trailing_number(row_key)
                .and_then(|end| end.checked_sub(u64::from(extent.length)))
                .ok_or_else(|| damaged::<Extent>(row_key, "it is too long"))?;
            Ok(Placed { start, extent })
        })
        .collect()
}

/// Sets runs of a file, which are sorted and do not overlap. Their old content is dropped. The
/// caller counts the references of the new extents.
pub(super) fn set(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    new: &[Placed],
) -> Outcome<()> {
    let Some(last) = new.last() else {
        return Ok(());
    };
    let dead = file.dead_from.is_some_and(|from| last.end() > from);
    require(!dead, Error::Reaping)?;
    let alone = match new {
        [only] => Some(*only),
        _ => None,
    };
    match (&file.content, alone) {
        (Content::Inline(inline), _) => {
            require(covers(new, u64::from(inline.length)), Error::BadContent)?;
            file.content = Content::Empty;
        }
        (Content::One { offset, extent }, Some(only))
            if only.start <= *offset
                && only.end() >= offset.saturating_add(u64::from(extent.length)) =>
        {
            let old = *extent;
            drop_bytes(change, inode, file, &old)?;
            file.content = Content::Empty;
        }
        _ => {}
    }
    if matches!(file.content, Content::Empty)
        && let Some(only) = alone
    {
        add_bytes(change, inode, file, &only.extent)?;
        file.content = Content::One {
            offset: only.start,
            extent: only.extent,
        };
        return Ok(());
    }
    if let Content::One { offset, extent } = file.content {
        let end = offset.saturating_add(u64::from(extent.length));
        change.put(key::extent(inode, end), &extent)?;
    }
    file.content = Content::Extents;
    for placed in new {
        punch(change, inode, file, placed.start, placed.end())?;
        change.put(key::extent(inode, placed.end()), &placed.extent)?;
        add_bytes(change, inode, file, &placed.extent)?;
    }
    Ok(())
}

/// Removes a run from a file's content; the part beyond the file's end is ignored.
pub(super) fn clear(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    from: u64,
    to: u64,
) -> Outcome<()> {
    // Dead extents lie beyond the end: all extents up to it are live.
    let to = to.min(file.size);
    if from >= to {
        return Ok(());
    }
    match &file.content {
        Content::Empty => Ok(()),
        Content::Inline(inline) => {
            let length = u64::from(inline.length);
            if from >= length {
                return Ok(());
            }
            // The servers cannot cut a piece out of ciphertext.
            require(from == 0 && to >= length, Error::BadContent)?;
            file.content = Content::Empty;
            Ok(())
        }
        Content::One { offset, extent } => {
            let (start, extent) = (*offset, *extent);
            let end = start.saturating_add(u64::from(extent.length));
            if to <= start || end <= from {
                return Ok(());
            }
            if from <= start && end <= to {
                drop_bytes(change, inode, file, &extent)?;
                file.content = Content::Empty;
                return Ok(());
            }
            change.put(key::extent(inode, end), &extent)?;
            file.content = Content::Extents;
            punch(change, inode, file, from, to)
        }
        Content::Extents => punch(change, inode, file, from, to),
    }
}

/// Whether sorted runs cover everything below `length`.
fn covers(new: &[Placed], length: u64) -> bool {
    let mut covered = 0;
    for placed in new {
        if placed.start > covered {
            break;
        }
        covered = covered.max(placed.end());
    }
    covered >= length
}

/// The first page of extents that are read for a run; most runs touch one or two. Every row read
/// counts, so reading far beyond a run would refuse a commit of many runs that touch few extents.
const PUNCH_PAGE: usize = 3;
/// The page of extents for a run over very many.
const PUNCH_PAGE_MAX: usize = 256;

/// Removes the run from `from` to `to` from the extents that cover it.
fn punch(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    from: u64,
    to: u64,
) -> Outcome<()> {
    let (mut at, mut limit) = (from, PUNCH_PAGE);
    loop {
        let found = extents_after(change, inode, at, limit)?;
        punch_some(change, inode, file, (from, to), &found)?;
        // The bound of written rows ends the loop: each page but the last is deleted completely.
        match found.last() {
            Some(last) if found.len() == limit && last.end() < to => at = last.end(),
            _ => return Ok(()),
        }
        limit = limit.saturating_mul(2).min(PUNCH_PAGE_MAX);
    }
}

fn punch_some(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    (from, to): (u64, u64),
    found: &[Placed],
) -> Outcome<()> {
    for old in found.iter().take_while(|old| old.start < to) {
        change.delete(key::extent(inode, old.end()))?;
        let mut parts = 0;
        if old.start < from {
            parts += 1;
            let left = old.part(old.start, from);
            change.put(key::extent(inode, from), &left.extent)?;
        }
        if old.end() > to {
            parts += 1;
            let right = old.part(to, old.end());
            change.put(key::extent(inode, old.end()), &right.extent)?;
        }
        match parts {
            0 => drop_reference(change, inode, &old.extent),
            1 => {}
            _ => super::references::add(change, inode.home(), old.extent.slice, 1)?,
        }
        let gone = old.end().min(to).saturating_sub(old.start.max(from));
        file.allocated = file.allocated.saturating_sub(gone);
        change.allocate(inode.home(), 0, gone)?;
    }
    Ok(())
}

/// Sets a file's length: cuts the content beyond it, or extends the file with zeros.
pub(crate) fn truncate(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    size: u64,
) -> Outcome<()> {
    require(size <= FILE_SIZE_MAX, Error::FileTooLarge)?;
    if size < file.size {
        cut(change, inode, file, size)?;
    } else if matches!(file.content, Content::Extents) {
        let dead = file.dead_from.is_some_and(|from| size > from);
        require(!dead, Error::Reaping)?;
    }
    file.size = size;
    Ok(())
}

fn cut(change: &mut Change<'_, '_>, inode: InodeId, file: &mut FileBody, size: u64) -> Outcome<()> {
    match &mut file.content {
        Content::Empty => {}
        Content::Inline(inline) => {
            let length = u16::try_from(size).unwrap_or(u16::MAX);
            inline.length = inline.length.min(length);
            if inline.length == 0 {
                file.content = Content::Empty;
            }
        }
        Content::One { offset, extent } => {
            let placed = Placed {
                start: *offset,
                extent: *extent,
            };
            if placed.start >= size {
                drop_bytes(change, inode, file, &placed.extent)?;
                file.content = Content::Empty;
            } else if placed.end() > size {
                let gone = placed.end().saturating_sub(size);
                *extent = placed.part(placed.start, size).extent;
                file.allocated = file.allocated.saturating_sub(gone);
                change.allocate(inode.home(), 0, gone)?;
            }
        }
        Content::Extents => {
            cut_tail(change, inode, file, size)?;
            if size == 0 {
                file.content = Content::Empty;
                // Dead extents cover nothing. `allocated` shows whether a file has bytes in extents
                // or in its inode.
                file.allocated = 0;
            }
        }
    }
    Ok(())
}

fn cut_tail(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    size: u64,
) -> Outcome<()> {
    let mut found = extents_after(change, inode, size, EXTENTS_DROPPED_MAX.saturating_add(2))?;
    let straddling = found.first().copied().filter(|first| first.start < size);
    if let Some(first) = straddling {
        found.remove(0);
        let gone = first.end().saturating_sub(size);
        change.delete(key::extent(inode, first.end()))?;
        let left = first.part(first.start, size);
        change.put(key::extent(inode, size), &left.extent)?;
        file.allocated = file.allocated.saturating_sub(gone);
        change.allocate(inode.home(), 0, gone)?;
    }
    if found.len() > EXTENTS_DROPPED_MAX {
        if file.dead_from.is_none() {
            let since = change.time();
            change.queue(&Reap::Tail { inode, since })?;
        }
        file.dead_from = Some(size);
        return Ok(());
    }
    for placed in &found {
        change.delete(key::extent(inode, placed.end()))?;
        drop_bytes(change, inode, file, &placed.extent)?;
    }
    // The dead extents were removed with the tail; the work queued for them will find nothing.
    file.dead_from = None;
    Ok(())
}

/// Drops all of a file's content with its inode, unless it has more than `limit` extents in rows of
/// their own.
pub(crate) fn remove_all(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &FileBody,
    limit: usize,
) -> Outcome<Remainder> {
    if let Content::One { extent, .. } = &file.content {
        let extent = *extent;
        drop_reference(change, inode, &extent);
        change.allocate(inode.home(), 0, u64::from(extent.length))?;
    }
    if !matches!(file.content, Content::Extents) && file.dead_from.is_none() {
        return Ok(Remainder::Nothing);
    }
    let found = extents_after(change, inode, 0, limit.saturating_add(1))?;
    if found.len() > limit {
        return Ok(Remainder::Some);
    }
    for placed in &found {
        reap_one(change, inode, placed)?;
    }
    Ok(Remainder::Nothing)
}

/// Drops at most `limit` extents from `from` on, for the reap queue; returns the bytes that they
/// covered and whether some are left.
pub(crate) fn reap_extents(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    from: u64,
    limit: usize,
) -> Outcome<(u64, Remainder)> {
    let found = extents_after(change, inode, from, limit.saturating_add(1))?;
    let mut bytes = 0_u64;
    for placed in found.iter().take(limit) {
        reap_one(change, inode, placed)?;
        bytes = bytes.saturating_add(u64::from(placed.extent.length));
    }
    let kept = if found.len() > limit {
        Remainder::Some
    } else {
        Remainder::Nothing
    };
    Ok((bytes, kept))
}

fn reap_one(change: &mut Change<'_, '_>, inode: InodeId, placed: &Placed) -> Outcome<()> {
    change.delete(key::extent(inode, placed.end()))?;
    drop_reference(change, inode, &placed.extent);
    change.allocate(inode.home(), 0, u64::from(placed.extent.length))
}

fn drop_reference(change: &mut Change<'_, '_>, inode: InodeId, extent: &Extent) {
    let dropped = change
        .dropped
        .entry((inode.home(), extent.slice))
        .or_default();
    *dropped = dropped.saturating_add(1);
}

fn drop_bytes(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    extent: &Extent,
) -> Outcome<()> {
    let bytes = u64::from(extent.length);
    drop_reference(change, inode, extent);
    file.allocated = file.allocated.saturating_sub(bytes);
    change.allocate(inode.home(), 0, bytes)
}

fn add_bytes(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    file: &mut FileBody,
    extent: &Extent,
) -> Outcome<()> {
    let bytes = u64::from(extent.length);
    file.allocated = file.allocated.saturating_add(bytes);
    change.allocate(inode.home(), bytes, 0)
}
