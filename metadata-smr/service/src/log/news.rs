//! What a mount is told: the entries that it has not seen, up to the bell.

use crate::error::Error;
use crate::identity::{InodeId, LogPosition, RealmId};
use crate::limits::{LOG_INODES_MAX, NEWS_ENTRIES_MAX, NEWS_INODES_MAX};
use crate::reply::QueryResult;
use crate::row::{Bell, Changed, Mount, Session, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use quorumfs_bft::service::Caller;
use std::collections::BTreeSet;

// So that each answer covers an entry at least.
const _: () = assert!(LOG_INODES_MAX <= NEWS_INODES_MAX);

impl Bell {
    /// The slot of a position.
    pub(super) fn slot(&self, position: LogPosition) -> u16 {
        let slot = position.0.checked_rem(u64::from(self.slots));
        u16::try_from(slot.unwrap_or(0)).unwrap_or(0)
    }

    /// The number of entries before its position that are told one by one. The other half of the
    /// ring is for entries behind the position, which overwrite the oldest: what is told must be
    /// the same while they come.
    fn told(&self) -> u64 {
        u64::from(self.slots) / 2
    }
}

/// Reads the row that covers how many mounts a realm has, and which; returns whether there is one.
/// A realm that was never mounted has none.
pub(crate) fn is_covered(rows: &impl Rows, realm: RealmId) -> Outcome<bool> {
    Ok(rows.find::<Bell>(&key::bell(realm))?.is_some())
}

/// The changes by other sessions than the caller's.
pub(crate) fn news(
    rows: &impl Rows,
    caller: &Caller,
    realm: RealmId,
    after: Option<LogPosition>,
) -> Outcome<QueryResult> {
    let session: Session = rows
        .find(&key::session(caller.session))?
        .ok_or(Halt::Refused(Error::NoSession))?;
    require(session.mounted == Some(realm), Error::NotMounted)?;
    let own = rows.find::<Mount>(&key::mount(realm, caller.session))?;
    let recalled = own.is_some_and(|own| own.recall.is_some());
    let Some(bell) = rows.find::<Bell>(&key::bell(realm))? else {
        rows.view().depend_on_everything();
        return Ok(gap(&Bell::default(), recalled));
    };
    let to = bell.position;
    // A position behind the bell's was never told: it is another volume's, or a lie.
    let told = |after: &LogPosition| to.0.checked_sub(after.0).is_some_and(|n| n <= bell.told());
    let Some(after) = after.filter(told) else {
        return Ok(gap(&bell, recalled));
    };
    let number = to.0.saturating_sub(after.0).min(NEWS_ENTRIES_MAX);
    let entries = entries(rows, realm, &bell, after, number)?;
    let mut inodes: BTreeSet<InodeId> = BTreeSet::new();
    let mut position = after;
    for entry in entries {
        let next = LogPosition(position.0.saturating_add(1));
        let listed = match entry {
            entry if entry.position != next => return Ok(gap(&bell, recalled)),
            entry if entry.by == Some(caller.session) => Vec::new(),
            Changed { inodes: None, .. } => return Ok(gap(&bell, recalled)),
            Changed {
                inodes: Some(listed),
                ..
            } => listed,
        };
        if inodes.len().saturating_add(listed.len()) > NEWS_INODES_MAX {
            break;
        }
        inodes.extend(listed);
        position = next;
    }
    // An entry that should be there is not.
    if position == after && position < to {
        return Ok(gap(&bell, recalled));
    }
    Ok(QueryResult::News {
        position,
        gap: false,
        inodes: inodes.into_iter().collect(),
        more: position < to,
        others: bell.mounts > 1,
        recalled,
    })
}

/// Anything may have changed up to the bell.
fn gap(bell: &Bell, recalled: bool) -> QueryResult {
    QueryResult::News {
        position: bell.position,
        gap: true,
        inodes: Vec::new(),
        more: false,
        others: bell.mounts > 1,
        recalled,
    }
}

/// The rows of `number` entries after a position, in the order of their positions.
fn entries(
    rows: &impl Rows,
    realm: RealmId,
    bell: &Bell,
    after: LogPosition,
    number: u64,
) -> Outcome<Vec<Changed>> {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    let first = bell.slot(LogPosition(after.0.saturating_add(1)));
    let before_the_end = usize::from(bell.slots.saturating_sub(first)).min(number);
    let prefix = key::all_changed(realm);
    let mut found = Vec::with_capacity(number);
    let rest = number.saturating_sub(before_the_end);
    for (slot, limit) in [(first, before_the_end), (0, rest)] {
        if limit == 0 {
            continue;
        }
        for (row_key, bytes) in rows.scan(&prefix, &key::changed(realm, slot), limit)? {
            found.push(decode(&row_key, &bytes)?);
        }
    }
    Ok(found)
}
