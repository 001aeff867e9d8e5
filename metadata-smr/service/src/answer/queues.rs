//! Questions about all objects and slices, and the queues over them: page by page, in the order of
//! keys. They have no row that covers them.

use super::page;
use crate::content::{garbage, retained};
use crate::identity::{Cookie, Home, InodeId, ObjectId, RealmEpoch, RealmId, SliceId};
use crate::limits::{
    DIRECTORY_PAGE_MAX, INODES_LOOKED_AT_MAX, MOVE_SLICES_MAX, QUEUE_PAGE_MAX, SLICES_COUNTED_MAX,
};
use crate::reply::{OldName, OldNames, OldSlice, QueryResult, SealedUnder, UnderReplicatedObject};
use crate::row::{EntryRow, Inode, InodeBody, Object, Reseal, Session, Slice, Sparse, key};
use crate::rows::{Outcome, Rows, decode};
use quorumfs_bft::service::Caller;
use std::collections::BTreeMap;

pub(super) fn under_replicated(
    rows: &impl Rows,
    caller: &Caller,
    after: Option<(u8, ObjectId)>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, QUEUE_PAGE_MAX);
    rows.view().depend_on_everything();
    let prefix = key::all_under_replicated();
    let from = match after {
        None => prefix.clone(),
        Some((priority, id)) => key_after(key::under_replicated(priority, id)),
    };
    let mut objects = Vec::new();
    let mut more = false;
    for (row_key, _) in rows.scan(&prefix, &from, limit.saturating_add(1))? {
        if objects.len() == limit {
            more = true;
            break;
        }
        let priority = row_key.get(prefix.len()).copied().unwrap_or_default();
        if let Some(id) = key::trailing_object(&row_key) {
            let row: Object = rows.expect_row(&key::object(id))?;
            let writer = rows.find::<Session>(&key::session(row.writer))?;
            objects.push(UnderReplicatedObject {
                priority,
                object: id,
                writer_lives: row.writer != caller.session
                    && writer.is_some_and(|session| session.fenced_by.is_none()),
                row,
            });
        }
    }
    Ok(QueryResult::UnderReplicated { objects, more })
}

pub(super) fn unreferenced(
    rows: &impl Rows,
    after: Option<ObjectId>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, QUEUE_PAGE_MAX);
    rows.view().depend_on_everything();
    let prefix = key::all_unreferenced();
    let from = match after {
        None => prefix.clone(),
        Some(id) => key_after(key::unreferenced(id)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let retained = retained(rows)?;
    let more = found.len() > limit;
    let mut objects = Vec::with_capacity(limit.min(found.len()));
    for (row_key, _) in found.iter().take(limit) {
        if let Some(id) = key::trailing_object(row_key) {
            objects.extend(garbage(rows, &retained, id)?);
        }
    }
    Ok(QueryResult::Unreferenced { objects, more })
}

pub(super) fn all_objects(
    rows: &impl Rows,
    after: Option<ObjectId>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, QUEUE_PAGE_MAX);
    rows.view().depend_on_everything();
    let prefix = key::all_objects();
    let from = match after {
        None => prefix.clone(),
        Some(id) => key_after(key::object(id)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut objects = Vec::with_capacity(limit.min(found.len()));
    for (row_key, bytes) in found.iter().take(limit) {
        if let Some(id) = key::trailing_object(row_key) {
            objects.push((id, decode(row_key, bytes)?));
        }
    }
    Ok(QueryResult::Objects { objects, more })
}

pub(super) fn sparse_packs(
    rows: &impl Rows,
    after: Option<ObjectId>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, QUEUE_PAGE_MAX);
    rows.view().depend_on_everything();
    let prefix = key::all_sparse();
    let from = match after {
        None => prefix.clone(),
        Some(id) => key_after(key::sparse(id)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut packs = Vec::with_capacity(limit.min(found.len()));
    for (row_key, bytes) in found.iter().take(limit) {
        let Sparse { since } = decode(row_key, bytes)?;
        if let Some(id) = key::trailing_object(row_key) {
            packs.push((id, rows.expect_row(&key::object(id))?, since));
        }
    }
    Ok(QueryResult::SparsePacks { packs, more })
}

pub(super) fn packed_slices(
    rows: &impl Rows,
    pack: ObjectId,
    after: Option<(Home, SliceId)>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, QUEUE_PAGE_MAX);
    rows.view().depend_on_everything();
    let prefix = key::all_packed(pack);
    let from = match after {
        None => prefix.clone(),
        Some((home, slice)) => key_after(key::packed(pack, home, slice)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut slices = Vec::with_capacity(limit.min(found.len()));
    for (row_key, bytes) in found.iter().take(limit) {
        if let Some((home, slice)) = key::trailing_slice(row_key) {
            slices.push((home, slice, decode(row_key, bytes)?));
        }
    }
    Ok(QueryResult::PackedSlices { slices, more })
}

/// The first key after `row_key`.
fn key_after(mut row_key: Vec<u8>) -> Vec<u8> {
    row_key.push(0);
    row_key
}

/// Counts at most `limit` slices after `after`.
pub(super) fn slices_by_epoch(
    rows: &impl Rows,
    after: Option<(Home, SliceId)>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, SLICES_COUNTED_MAX);
    rows.view().depend_on_everything();
    let prefix = key::all_slices();
    let from = match after {
        None => prefix.clone(),
        Some((home, slice)) => key_after(key::slice(home, slice)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut counted: BTreeMap<RealmEpoch, (u64, u64)> = BTreeMap::new();
    let mut last = None;
    for (row_key, bytes) in found.iter().take(limit) {
        let slice: Slice = decode(row_key, bytes)?;
        let (slices, length) = counted.entry(slice.epoch()).or_default();
        *slices = slices.saturating_add(1);
        *length = length.saturating_add(u64::from(slice.length));
        last = key::trailing_slice(row_key);
    }
    let epochs = counted
        .into_iter()
        .map(|(epoch, (slices, bytes))| SealedUnder {
            epoch,
            slices,
            bytes,
        });
    Ok(QueryResult::SlicesByEpoch {
        epochs: epochs.collect(),
        next: last.filter(|_| more),
    })
}

/// Looks at at most `limit` inodes after `after`.
pub(super) fn names_by_epoch(
    rows: &impl Rows,
    realm: RealmId,
    after: Option<InodeId>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, INODES_LOOKED_AT_MAX);
    rows.view().depend_on_everything();
    let newest = rows.realm(realm)?.epoch;
    let prefix = key::all_inodes();
    let from = match after {
        None => prefix.clone(),
        Some(inode) => key_after(key::inode(inode)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let (mut directories, mut last) = (Vec::new(), None);
    for (row_key, bytes) in found.iter().take(limit) {
        let inode: Inode = decode(row_key, bytes)?;
        let directory = InodeId(key::trailing_number(row_key).unwrap_or_default());
        last = Some(directory);
        if inode.realm != realm {
            continue;
        }
        if let InodeBody::Directory {
            generations,
            entries,
            ..
        } = inode.node
            && (generations.current < newest || generations.previous.is_some())
        {
            let reseal: Option<Reseal> = rows.find(&key::reseal(directory))?;
            directories.push(OldNames {
                directory,
                generations,
                after: reseal.map_or(Cookie::START, |reseal| reseal.after),
                entries,
            });
        }
    }
    Ok(QueryResult::NamesByEpoch {
        directories,
        next: last.filter(|_| more),
    })
}

/// Looks at at most `limit` entries of a directory after `after`.
pub(super) fn names_to_reseal(
    rows: &impl Rows,
    directory: InodeId,
    after: Cookie,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, DIRECTORY_PAGE_MAX);
    rows.view().depend_on_everything();
    let row = rows.directory(directory)?;
    let newest = rows.realm(row.realm)?.epoch;
    let prefix = key::entries(directory);
    let from = key::entry(directory, Cookie(after.0.saturating_add(1)));
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let (mut names, mut last) = (Vec::new(), None);
    let InodeBody::Directory { generations, .. } = row.node else {
        return Ok(QueryResult::NamesToReseal { names, next: None });
    };
    for (row_key, bytes) in found.iter().take(limit) {
        let entry: EntryRow = decode(row_key, bytes)?;
        let at = Cookie(key::trailing_number(row_key).unwrap_or_default());
        last = Some(at);
        let is_old = match generations.previous {
            Some(previous) => entry.generation == previous.epoch,
            None => entry.generation < newest,
        };
        if is_old {
            names.push(OldName {
                at,
                generation: entry.generation,
                bytes: entry.name,
            });
        }
    }
    Ok(QueryResult::NamesToReseal {
        names,
        next: last.filter(|_| more),
    })
}

/// Looks at at most `limit` slices after `after`, or at fewer if the page is full.
pub(super) fn slices_to_reseal(
    rows: &impl Rows,
    realm: RealmId,
    after: Option<(Home, SliceId)>,
    limit: u32,
) -> Outcome<QueryResult> {
    let limit = page(limit, SLICES_COUNTED_MAX);
    rows.view().depend_on_everything();
    let newest = rows.realm(realm)?.epoch;
    let prefix = key::all_slices();
    let from = match after {
        None => prefix.clone(),
        Some((home, slice)) => key_after(key::slice(home, slice)),
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let (mut slices, mut last, mut looked_at) = (Vec::new(), None, 0);
    for (row_key, bytes) in found.iter().take(limit) {
        if slices.len() == MOVE_SLICES_MAX {
            break;
        }
        looked_at += 1;
        let slice: Slice = decode(row_key, bytes)?;
        last = key::trailing_slice(row_key);
        let Some((home, id)) = last.filter(|_| slice.epoch() < newest) else {
            continue;
        };
        let object = rows.expect_row(&key::object(slice.object))?;
        slices.push(OldSlice {
            home,
            id,
            slice,
            object,
        });
    }
    let more = looked_at < found.len();
    Ok(QueryResult::SlicesToReseal {
        slices,
        next: last.filter(|_| more),
    })
}
