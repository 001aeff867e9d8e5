//! Questions about the trash. Their answers depend on everything, because what is absent from the
//! trash has no row that covers it.

use super::{find, may_see};
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::{InodeId, RealmId};
use crate::limits::TRASH_PAGE_MAX;
use crate::reply::{QueryResult, TrashedEntry};
use crate::row::{TrashPlace, TrashSize, Trashed, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::identity::Time;

fn page(limit: u32) -> usize {
    usize::try_from(limit.clamp(1, TRASH_PAGE_MAX)).unwrap_or(1)
}

fn listed(at: Time, inode: InodeId, trashed: Trashed) -> TrashedEntry {
    TrashedEntry {
        at,
        entry: trashed.entry,
        inode: trashed.inode.attributes(inode),
    }
}

/// A page of a realm's trash.
pub(crate) fn all(
    rows: &impl Rows,
    who: &Credentials,
    realm: RealmId,
    after: Option<(Time, InodeId)>,
    limit: u32,
) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let limit = page(limit);
    let prefix = key::all_trashed(realm);
    let from = match after {
        None => prefix.clone(),
        Some((at, inode)) => {
            let mut from = key::trashed(realm, at, inode);
            from.push(0);
            from
        }
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut entries = Vec::new();
    let mut last = None;
    for (row_key, bytes) in found.iter().take(limit) {
        let Some((at, inode)) = key::trailing_removal(row_key) else {
            continue;
        };
        last = Some((at, inode));
        let trashed: Trashed = decode(row_key, bytes)?;
        if may_see(&trashed, who) {
            entries.push(listed(at, inode, trashed));
        }
    }
    let next = last.filter(|_| more);
    Ok(QueryResult::Trash { entries, next })
}

/// A page of what was removed from a directory.
pub(crate) fn inside(
    rows: &impl Rows,
    who: &Credentials,
    directory: InodeId,
    after: Option<InodeId>,
    limit: u32,
) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let limit = page(limit);
    let prefix = key::all_trashed_in(directory);
    let from = match after {
        None => prefix.clone(),
        Some(inode) => {
            let mut from = key::trashed_in(directory, inode);
            from.push(0);
            from
        }
    };
    let found = rows.scan(&prefix, &from, limit.saturating_add(1))?;
    let more = found.len() > limit;
    let mut entries = Vec::new();
    let mut last = None;
    for (row_key, bytes) in found.iter().take(limit) {
        let Some(number) = key::trailing_number(row_key) else {
            continue;
        };
        let inode = InodeId(number);
        let TrashPlace { realm, at } = decode(row_key, bytes)?;
        last = Some((at, inode));
        let trashed: Trashed = rows.expect_row(&key::trashed(realm, at, inode))?;
        if may_see(&trashed, who) {
            entries.push(listed(at, inode, trashed));
        }
    }
    let next = last.filter(|_| more);
    Ok(QueryResult::Trash { entries, next })
}

/// One inode in the trash.
pub(crate) fn one(rows: &impl Rows, who: &Credentials, inode: InodeId) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let (place, trashed) = find(rows, inode)?;
    require(may_see(&trashed, who), Error::NotPermitted)?;
    Ok(QueryResult::Trash {
        entries: vec![listed(place.at, inode, trashed)],
        next: None,
    })
}

/// The size of a realm's trash.
pub(crate) fn size(rows: &impl Rows, realm: RealmId) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let seconds = rows.realm(realm)?.trash_seconds;
    let TrashSize { held } = rows.find(&key::trash_size(realm))?.unwrap_or_default();
    Ok(QueryResult::TrashSize { seconds, held })
}
