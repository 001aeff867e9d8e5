//! unlink, rmdir, and the fate of an inode that loses its last entry: the trash, or its end.
//!
//! An inode that a session holds open lives on as that session's *orphan* until the session
//! releases it or ends. The removal carries whether the gateway has the inode open, so that opening
//! needs no ordered operation. If another session has the realm mounted, the servers cannot know
//! what it has open. If that session is alone the inode becomes its orphan too, and it releases
//! what it does not need. If it shares the realm the inode waits in the grave (`grave`).

use super::entry::{Adjustment, FoundEntry, adjust, lookup};
use crate::attributes::{Access, Credentials, Timestamp};
use crate::change::{Asker, Change};
use crate::content::{Remainder, remove_all};
use crate::error::Error;
use crate::extended;
use crate::grave;
use crate::identity::InodeId;
use crate::limits::{EXTENDED_DROPPED_MAX, EXTENTS_DROPPED_MAX};
use crate::mount::mounts;
use crate::operation::{EntryPlace, Remove};
use crate::permission::{check, check_removal};
use crate::reply::{Removed, StepDone};
use crate::row::{
    Inode, InodeBody, MountMode, Orphan, Parting, Reap, RemovedEntry, SealedName, key,
};
use crate::rows::{Halt, Outcome, Rows, damaged, require};
use crate::trash;
use quorumfs_bft::identity::SessionId;

/// Removes the entry of anything but a directory.
pub(crate) fn unlink(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    who: &Credentials,
    time: Timestamp,
    step: &Remove,
) -> Outcome<StepDone> {
    let (found, inode) = removable(change, who, &step.place, step.expected)?;
    require(!inode.is_directory(), Error::IsDirectory)?;
    change.delete(key::entry(step.place.parent, found.cookie))?;
    let loss = Loss::new(&step.place, &found, who, step.held);
    let removed = drop_link(change, asker, loss)?;
    let by = Adjustment {
        entries: -1,
        links: 0,
    };
    let parent = adjust(change, step.place.parent, time, by)?;
    Ok(StepDone::Removed { removed, parent })
}

/// Removes an empty directory.
pub(crate) fn remove_directory(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    who: &Credentials,
    time: Timestamp,
    step: &Remove,
) -> Outcome<StepDone> {
    let (found, inode) = removable(change, who, &step.place, step.expected)?;
    check_empty(&inode)?;
    change.delete(key::entry(step.place.parent, found.cookie))?;
    let loss = Loss::new(&step.place, &found, who, step.held);
    let removed = drop_link(change, asker, loss)?;
    let by = Adjustment {
        entries: -1,
        links: -1,
    };
    let parent = adjust(change, step.place.parent, time, by)?;
    Ok(StepDone::Removed { removed, parent })
}

/// Refuses unless the inode is a directory without entries.
pub(super) fn check_empty(inode: &Inode) -> Outcome<()> {
    match inode.node {
        InodeBody::Directory { entries: 0, .. } => Ok(()),
        InodeBody::Directory { .. } => Err(Error::NotEmpty.into()),
        _ => Err(Error::NotDirectory.into()),
    }
}

/// The entry at `place`, which `who` may remove.
fn removable(
    change: &Change<'_, '_>,
    who: &Credentials,
    place: &EntryPlace,
    expected: Option<InodeId>,
) -> Outcome<(FoundEntry, Inode)> {
    let parent = change.directory(place.parent)?;
    check(&parent, who, Access::EXECUTE)?;
    let found = lookup(change, &parent, place)?.ok_or(Halt::Refused(Error::NotFound))?;
    let as_expected = expected.is_none_or(|inode| inode == found.entry.inode);
    require(as_expected, Error::Changed)?;
    let inode = change.inode(found.entry.inode)?;
    check_removal(&parent, &inode, who)?;
    Ok((found, inode))
}

/// An inode loses an entry.
pub(super) struct Loss {
    inode: InodeId,
    entry: RemovedEntry,
    /// Whether the session has the inode open.
    held: bool,
}

impl Loss {
    /// `who` removes the entry that was found at `place`.
    pub(super) fn new(
        place: &EntryPlace,
        found: &FoundEntry,
        who: &Credentials,
        held: bool,
    ) -> Self {
        let name = SealedName {
            cookie: found.cookie,
            generation: found.entry.generation,
            bytes: found.entry.name.clone(),
        };
        let entry = RemovedEntry {
            directory: place.parent,
            name,
            by: who.uid,
        };
        Self {
            inode: found.entry.inode,
            entry,
            held,
        }
    }
}

/// Removes one link of an inode; a directory loses all of its links with its only entry.
pub(super) fn drop_link(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    loss: Loss,
) -> Outcome<Removed> {
    let Loss { inode, entry, held } = loss;
    let mut row = change.inode(inode)?;
    row.links = if row.is_directory() {
        0
    } else {
        row.links
            .checked_sub(1)
            .ok_or_else(|| damaged::<Inode>(&key::inode(inode), "it has an entry but no link"))?
    };
    if row.links > 0 {
        change.save(inode, &mut row)?;
        return Ok(Removed {
            inode: row.attributes(inode),
            held: false,
        });
    }
    let Openers { holders, unknown } = openers(change, asker, &row, held)?;
    row.holders = u32::try_from(holders.len()).unwrap_or(u32::MAX);
    change.save(inode, &mut row)?;
    let attributes = row.attributes(inode);
    for session in &holders {
        change.put(key::orphan(*session, inode), &Orphan { realm: row.realm })?;
    }
    let keeps = trash::keeps(change, inode, &row)?;
    let at = change.time();
    match (holders.is_empty(), keeps) {
        (true, true) => trash::put(change, inode, &row, Parting { at, entry })?,
        (false, true) => trash::part(change, inode, &Parting { at, entry })?,
        (_, false) if unknown => grave::bury(change, inode)?,
        (true, false) => destroy(change, inode, &row)?,
        (false, false) => {}
    }
    Ok(Removed {
        inode: attributes,
        held: !holders.is_empty(),
    })
}

/// Who has an inode open.
struct Openers {
    /// The sessions that have, or may have it open, and hold it from now on.
    holders: Vec<SessionId>,
    /// Whether others may have it open, which will claim it.
    unknown: bool,
}

fn openers(change: &Change<'_, '_>, asker: &Asker, row: &Inode, held: bool) -> Outcome<Openers> {
    let mut holders = Vec::new();
    if held {
        holders.push(asker.caller.session);
    }
    let mut unknown = false;
    // Of two mounts at least one is another session's.
    for mount in mounts(change, row.realm, 2)? {
        match mount.session == asker.caller.session {
            true => {}
            false if mount.mode == MountMode::Shared => unknown = true,
            false => holders.push(mount.session),
        }
    }
    Ok(Openers { holders, unknown })
}

/// Releases an orphan that the session has closed.
pub(crate) fn release(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    inode: InodeId,
) -> Outcome<StepDone> {
    let session = asker.caller.session;
    let held = change.find::<Orphan>(&key::orphan(session, inode))?;
    require(held.is_some(), Error::Stale(inode))?;
    drop_holder(change, session, inode)?;
    Ok(StepDone::Released)
}

/// Removes one holder of an orphan; the orphan goes with the last one, perhaps to the trash.
pub(crate) fn drop_holder(
    change: &mut Change<'_, '_>,
    session: SessionId,
    inode: InodeId,
) -> Outcome<()> {
    change.delete(key::orphan(session, inode))?;
    let mut row: Inode = change.expect_row(&key::inode(inode))?;
    row.holders = row.holders.saturating_sub(1);
    if row.holders > 0 {
        return change.put_inode(inode, &row);
    }
    match trash::parted(change, inode, &row)? {
        Some(parting) => trash::put(change, inode, &row, parting),
        None if grave::holds(change, inode)? => change.put_inode(inode, &row),
        None => destroy(change, inode, &row),
    }
}

/// The time of an inode in the grave is over: it goes, unless a session holds it.
pub(crate) fn expire(change: &mut Change<'_, '_>, inode: InodeId) -> Outcome<()> {
    let row: Inode = change.expect_row(&key::inode(inode))?;
    if row.holders > 0 {
        return Ok(());
    }
    change.delete_inode(inode)?;
    free(change, inode, &row, Freeing::Later)
}

/// Deletes an inode without entries and holders, and its content now or later.
fn destroy(change: &mut Change<'_, '_>, inode: InodeId, row: &Inode) -> Outcome<()> {
    change.delete_inode(inode)?;
    free(change, inode, row, Freeing::Now)
}

/// When content of a deleted inode goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freeing {
    /// At once, unless that is too much for one operation.
    Now,
    /// By ticks, except for what costs a few rows: many inodes go in one operation.
    Later,
}

/// Frees the content of an inode whose row is gone.
pub(crate) fn free(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &Inode,
    freeing: Freeing,
) -> Outcome<()> {
    let (extents, attributes) = match freeing {
        Freeing::Now => (EXTENTS_DROPPED_MAX, EXTENDED_DROPPED_MAX),
        Freeing::Later => (0, 0),
    };
    if let InodeBody::File(file) = &row.node
        && remove_all(change, inode, file, extents)? == Remainder::Some
    {
        let since = change.time();
        change.queue(&Reap::Content { inode, since })?;
    }
    if extended::remove_all(change, inode, row, attributes)? == Remainder::Some {
        let since = change.time();
        change.queue(&Reap::Extended { inode, since })?;
    }
    let home = inode.home();
    let mut counters = change.home(home)?;
    counters.inodes = counters.inodes.saturating_sub(1);
    change.put(key::home(home), &counters)
}
