//! Questions about all objects and slices, and the queues over them: page by page, in the order of
//! keys. They have no row that covers them.

use super::page;
use crate::content::{garbage, retained};
use crate::identity::{Home, ObjectId, RealmEpoch, SliceId};
use crate::limits::{QUEUE_PAGE_MAX, SLICES_COUNTED_MAX};
use crate::reply::{QueryResult, SealedUnder, UnderReplicatedObject};
use crate::row::{Object, Session, Slice, Sparse, key};
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
