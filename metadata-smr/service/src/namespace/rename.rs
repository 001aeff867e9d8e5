//! rename(2), with `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.
//!
//! A directory must not become its own descendant. The check follows parents from the target
//! directory to the root, at most [`DEPTH_MAX`] of them; renames are executed one after the other,
//! so nothing moves in the meantime.
//!
//! Source: Linux, `fs/namei.c` (`do_renameat2`, `vfs_rename`), for the order of the checks.

use super::entry::{Adjustment, FoundEntry, add, adjust, lookup};
use super::remove::{Loss, check_empty, drop_link};
use crate::attributes::{Access, Credentials, Timestamp};
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::{Cookie, InodeId};
use crate::limits::DEPTH_MAX;
use crate::operation::{Rename, RenameMode};
use crate::permission::{check, check_removal};
use crate::reply::{Removed, StepDone};
use crate::row::{Inode, InodeBody, key};
use crate::rows::{Halt, Outcome, Rows, require};

/// Both ends of a rename, looked up.
struct Ends {
    from: Inode,
    to: Inode,
    source: FoundEntry,
    moved: Inode,
    target: Option<(FoundEntry, Inode)>,
}

/// Moves an entry.
pub(crate) fn rename(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    who: &Credentials,
    time: Timestamp,
    step: &Rename,
) -> Outcome<StepDone> {
    let ends = look_up(change, who, step)?;
    let source = ends.source.entry.inode;
    if let Some((target, _)) = &ends.target
        && target.entry.inode == source
    {
        // Two entries of one inode: POSIX requires that rename does nothing.
        let cookie = target.cookie;
        return done(change, step, source, cookie, None, None);
    }
    check_cycles(change, step, &ends)?;
    check_permissions(who, step, &ends)?;
    match (&ends.target, step.mode) {
        (Some((target, other)), RenameMode::Exchange) => {
            exchange(change, time, step, &ends, target, other)
        }
        _ => replace(change, asker, who, time, step, &ends),
    }
}

fn look_up(change: &Change<'_, '_>, who: &Credentials, step: &Rename) -> Outcome<Ends> {
    let from = change.directory(step.from.parent)?;
    let to = change.directory(step.to.parent)?;
    require(from.realm == to.realm, Error::CrossRealm)?;
    check(&from, who, Access::EXECUTE)?;
    check(&to, who, Access::EXECUTE)?;
    let not_found = Halt::Refused(Error::NotFound);
    let source = lookup(change, &from, &step.from)?.ok_or(not_found)?;
    let target = lookup(change, &to, &step.to)?;
    let found = target.as_ref().map(|target| target.entry.inode);
    let as_expected = step
        .expected_source
        .is_none_or(|inode| inode == source.entry.inode)
        && step.expected_target.is_none_or(|inode| inode == found);
    require(as_expected, Error::Changed)?;
    match step.mode {
        RenameMode::Replace => {}
        RenameMode::NoReplace => require(target.is_none(), Error::Exists)?,
        RenameMode::Exchange => require(target.is_some(), Error::NotFound)?,
    }
    require(to.links > 0, Error::NotFound)?;
    let moved = change.inode(source.entry.inode)?;
    let target = match target {
        Some(target) => {
            let row = change.inode(target.entry.inode)?;
            Some((target, row))
        }
        None => None,
    };
    Ok(Ends {
        from,
        to,
        source,
        moved,
        target,
    })
}

fn check_cycles(change: &Change<'_, '_>, step: &Rename, ends: &Ends) -> Outcome<()> {
    if step.from.parent == step.to.parent {
        return Ok(());
    }
    if ends.moved.is_directory() {
        refuse_descendant(change, step.to.parent, ends.source.entry.inode)?;
    }
    if step.mode == RenameMode::Exchange
        && let Some((target, row)) = &ends.target
        && row.is_directory()
    {
        refuse_descendant(change, step.from.parent, target.entry.inode)?;
    }
    Ok(())
}

/// Refuses if `inode` is `ancestor` or lies below it.
fn refuse_descendant(change: &Change<'_, '_>, inode: InodeId, ancestor: InodeId) -> Outcome<()> {
    let mut at = inode;
    for _ in 0..DEPTH_MAX {
        require(at != ancestor, Error::IntoItself)?;
        let InodeBody::Directory { parent, .. } = change.directory(at)?.node else {
            break;
        };
        if parent == at {
            return Ok(());
        }
        at = parent;
    }
    Err(Error::TooDeep.into())
}

fn check_permissions(who: &Credentials, step: &Rename, ends: &Ends) -> Outcome<()> {
    let changes_parent = step.from.parent != step.to.parent;
    let moves = |row: &Inode| -> Outcome<()> {
        // Its `..` changes, which is a write to the directory itself.
        if changes_parent && row.is_directory() {
            check(row, who, Access::WRITE)?;
        }
        Ok(())
    };
    check_removal(&ends.from, &ends.moved, who)?;
    match &ends.target {
        None => check(&ends.to, who, Access::CHANGE_ENTRIES)?,
        Some((_, other)) => {
            check_removal(&ends.to, other, who)?;
            if step.mode == RenameMode::Exchange {
                moves(other)?;
            } else if ends.moved.is_directory() {
                check_empty(other)?;
            } else {
                require(!other.is_directory(), Error::IsDirectory)?;
            }
        }
    }
    moves(&ends.moved)
}

/// Moves the source over the target, if there is one.
fn replace(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    who: &Credentials,
    time: Timestamp,
    step: &Rename,
    ends: &Ends,
) -> Outcome<StepDone> {
    let (from, to) = (step.from.parent, step.to.parent);
    let moves_directory = i32::from(ends.moved.is_directory());
    let mut replaced: Option<Removed> = None;
    let mut arriving = Adjustment {
        entries: 1,
        links: moves_directory,
    };
    if let Some((target, other)) = &ends.target {
        change.delete(key::entry(to, target.cookie))?;
        let loss = Loss::new(&step.to, target, who, step.held);
        replaced = Some(drop_link(change, asker, loss)?);
        arriving.entries -= 1;
        arriving.links -= i32::from(other.is_directory());
    }
    let leaving = Adjustment {
        entries: -1,
        links: -moves_directory,
    };
    let source = ends.source.entry.inode;
    change.delete(key::entry(from, ends.source.cookie))?;
    let cookie = add(change, &step.to, source, &ends.moved)?;
    // Removal first: a full directory may rename within itself.
    adjust(change, from, time, leaving)?;
    adjust(change, to, time, arriving)?;
    settle(change, source, to)?;
    done(change, step, source, cookie, replaced, None)
}

/// Exchanges the inodes of the two entries; each keeps its name and place.
fn exchange(
    change: &mut Change<'_, '_>,
    time: Timestamp,
    step: &Rename,
    ends: &Ends,
    target: &FoundEntry,
    other: &Inode,
) -> Outcome<StepDone> {
    let (from, to) = (step.from.parent, step.to.parent);
    let mut at_source = ends.source.entry.clone();
    let mut at_target = target.entry.clone();
    std::mem::swap(&mut at_source.inode, &mut at_target.inode);
    std::mem::swap(&mut at_source.file_type, &mut at_target.file_type);
    change.put(key::entry(from, ends.source.cookie), &at_source)?;
    change.put(key::entry(to, target.cookie), &at_target)?;
    let links = i32::from(ends.moved.is_directory()) - i32::from(other.is_directory());
    let by = |links| Adjustment { entries: 0, links };
    adjust(change, from, time, by(-links))?;
    adjust(change, to, time, by(links))?;
    settle(change, at_target.inode, to)?;
    settle(change, at_source.inode, from)?;
    let exchanged = Some(at_source.inode);
    done(
        change,
        step,
        at_target.inode,
        target.cookie,
        None,
        exchanged,
    )
}

/// Sets the new parent of a moved inode.
fn settle(change: &mut Change<'_, '_>, inode: InodeId, directory: InodeId) -> Outcome<()> {
    let mut row = change.inode(inode)?;
    if let InodeBody::Directory { parent, .. } = &mut row.node {
        *parent = directory;
    }
    change.save(inode, &mut row)
}

fn done(
    change: &Change<'_, '_>,
    step: &Rename,
    moved: InodeId,
    cookie: Cookie,
    replaced: Option<Removed>,
    exchanged: Option<InodeId>,
) -> Outcome<StepDone> {
    let attributes = |inode: InodeId| Ok::<_, Halt>(change.inode(inode)?.attributes(inode));
    Ok(StepDone::Renamed {
        moved: attributes(moved)?,
        replaced,
        exchanged: exchanged.map(attributes).transpose()?,
        from_parent: attributes(step.from.parent)?,
        to_parent: attributes(step.to.parent)?,
        cookie,
    })
}
