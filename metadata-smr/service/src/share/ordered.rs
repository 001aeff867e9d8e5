//! The operations: a share begins, changes, ends and is forgotten.

use super::{UNKNOWN, capsule, has_ended, is_of};
use crate::change::{Asker, Change};
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::identity::{ShareId, Uid};
use crate::limits::{
    CAPSULES_OF_USER_MAX, SEAL_OVERHEAD_MAX, SHARE_PLACE_BYTES_MAX, SHARE_THROUGH_MAX, SHARES_MAX,
    SHARES_OF_USER_MAX, SHARES_WITH_PERSON_MAX,
};
use crate::operation::{ChangeShare, NewShare, NewShareWith};
use crate::people;
use crate::permission::{assert_credentials, owns};
use crate::reply::Done;
use crate::row::{
    Inode, InodeBody, Principal, Share, ShareAt, ShareCount, ShareIndexed, ShareNumbers, ShareWith,
    key,
};
use crate::rows::{Halt, Outcome, Rows, require};

/// Shares something.
pub(crate) fn share(change: &mut Change<'_, '_>, asker: &Asker, new: &NewShare) -> Outcome<Done> {
    let who = &new.credentials;
    assert_credentials(&asker.rights, who)?;
    let inode = change.inode(new.inode)?;
    require(owns(&inode, who), Error::NotPermitted)?;
    let can_be = matches!(inode.node, InodeBody::File(_) | InodeBody::Directory { .. });
    require(can_be, Error::WrongKind)?;
    check(change, new, &inode)?;
    let with = with(change, new)?;
    let mut row = Share {
        by: change.principal(&asker.caller.principal)?.number,
        uid: who.uid,
        inode: new.inode,
        with,
        expires: new.expires,
        created: change.time(),
        ended: false,
        place: new.place.clone(),
    };
    if let Some(id) = same(change, &row)? {
        update(change, id, &mut row)?;
        return Ok(Done::Shared { id });
    }
    let id = begin(change, &row)?;
    Ok(Done::Shared { id })
}

/// What can be checked of a new share by itself.
fn check(change: &Change<'_, '_>, new: &NewShare, inode: &Inode) -> Outcome<()> {
    let now = change.time();
    let lasts = new.expires.is_none_or(|at| at > now);
    let length = new.place.bytes.len();
    let fits = (1..=SHARE_PLACE_BYTES_MAX.saturating_add(SEAL_OVERHEAD_MAX)).contains(&length);
    require(lasts && fits, Error::Invalid)?;
    require_sealing(change, inode.realm, new.place.epoch)
}

/// With whom it is, as a row says it.
fn with(change: &Change<'_, '_>, new: &NewShare) -> Outcome<ShareWith> {
    match &new.with {
        NewShareWith::Link { token } => {
            let taken = change.has(&key::share_of_token(token))?;
            require(!taken, Error::Exists)?;
            Ok(ShareWith::Link { token: *token })
        }
        NewShareWith::Capsule { manifest } => capsule::begun(change, manifest, new.expires),
        NewShareWith::Person {
            principal,
            uid,
            writes,
            through,
        } => {
            let person: Option<Principal> = change.find(&key::principal(principal))?;
            let person = person.ok_or(Halt::Refused(UNKNOWN))?;
            let acts = person.rights.uids.contains(uid) && *uid != new.credentials.uid;
            require(acts && *uid != Uid(u32::MAX), Error::Invalid)?;
            let limit = SHARE_THROUGH_MAX as u32;
            require(through.len() <= SHARE_THROUGH_MAX, Error::TooMany { limit })?;
            let mut through = through.clone();
            through.sort_unstable();
            through.dedup();
            Ok(ShareWith::Person {
                principal: people::person_number(change, person.number)?,
                uid: *uid,
                writes: *writes,
                through,
            })
        }
    }
}

/// The share that a new one changes.
fn same(change: &Change<'_, '_>, row: &Share) -> Outcome<Option<ShareId>> {
    let Some(row_key) = of_inode(row) else {
        return Ok(None);
    };
    Ok(change.find::<ShareAt>(&row_key)?.map(|ShareAt { id }| id))
}

/// The key by which a share with a person is found again, while it has not ended.
fn of_inode(row: &Share) -> Option<Vec<u8>> {
    match &row.with {
        ShareWith::Person { principal, .. } => {
            Some(key::share_of_inode(row.inode, row.uid, *principal))
        }
        ShareWith::Link { .. } | ShareWith::Capsule { .. } => None,
    }
}

/// Changes a share. It keeps its age, and the directories above of which lists may be set.
fn update(change: &mut Change<'_, '_>, id: ShareId, row: &mut Share) -> Outcome<()> {
    let before: Option<Share> = change.find(&key::share(id))?;
    let before = before.ok_or(Halt::Refused(UNKNOWN))?;
    row.created = before.created;
    if let (
        ShareWith::Person {
            uid: old_uid,
            through: old,
            ..
        },
        ShareWith::Person { uid, through, .. },
    ) = (&before.with, &mut row.with)
    {
        // The lists of the user from before would be forgotten.
        require(old_uid == uid, Error::Exists)?;
        through.extend(old);
        through.sort_unstable();
        through.dedup();
        let limit = SHARE_THROUGH_MAX as u32;
        require(through.len() <= SHARE_THROUGH_MAX, Error::TooMany { limit })?;
    }
    if let Some(at) = before.expires {
        change.delete(key::share_expiry(at, id))?;
    }
    if let Some(at) = row.expires {
        change.put(key::share_expiry(at, id), &ShareIndexed)?;
    }
    change.put(key::share(id), row)
}

fn begin(change: &mut Change<'_, '_>, row: &Share) -> Outcome<ShareId> {
    let mut numbers: ShareNumbers = change.find(&key::share_numbers())?.unwrap_or_default();
    let last = numbers.last.checked_add(1);
    numbers.last = last.ok_or(Halt::Refused(Error::LimitReached))?;
    numbers.shares = one_more(numbers.shares, SHARES_MAX)?;
    let id = ShareId(numbers.last);
    change.put(key::share_numbers(), &numbers)?;
    count(change, key::shares_of_user(row.uid), SHARES_OF_USER_MAX)?;
    change.put(key::share_by(row.uid, id), &ShareIndexed)?;
    match &row.with {
        ShareWith::Link { token } => change.put(key::share_of_token(token), &ShareAt { id })?,
        ShareWith::Capsule { point, .. } => {
            count(change, key::capsules_of_user(row.uid), CAPSULES_OF_USER_MAX)?;
            change.put(key::capsule_point(*point, id), &ShareIndexed)?;
        }
        ShareWith::Person { principal, .. } => {
            let of_person = key::shares_of_person(*principal);
            count(change, of_person, SHARES_WITH_PERSON_MAX)?;
            change.put(key::share_with(*principal, id), &ShareIndexed)?;
        }
    }
    if let Some(row_key) = of_inode(row) {
        change.put(row_key, &ShareAt { id })?;
    }
    if let Some(at) = row.expires {
        change.put(key::share_expiry(at, id), &ShareIndexed)?;
    }
    change.put(key::share(id), row)?;
    Ok(id)
}

fn one_more(count: u32, limit: u32) -> Outcome<u32> {
    require(count < limit, Error::TooMany { limit })?;
    Ok(count.saturating_add(1))
}

/// Counts one share more.
fn count(change: &mut Change<'_, '_>, row_key: Vec<u8>, limit: u32) -> Outcome<()> {
    let ShareCount { shares } = change.find(&row_key)?.unwrap_or_default();
    let shares = one_more(shares, limit)?;
    change.put(row_key, &ShareCount { shares })
}

/// Counts one share less.
fn uncount(change: &mut Change<'_, '_>, row_key: Vec<u8>) -> Outcome<()> {
    let ShareCount { shares } = change.find(&row_key)?.unwrap_or_default();
    match shares.saturating_sub(1) {
        0 => change.delete(row_key),
        shares => change.put(row_key, &ShareCount { shares }),
    }
}

/// A share that the caller may change.
fn own(change: &Change<'_, '_>, asker: &Asker, asked: &ChangeShare) -> Outcome<Share> {
    assert_credentials(&asker.rights, &asked.credentials)?;
    let row: Option<Share> = change.find(&key::share(asked.id))?;
    let row = row.ok_or(Halt::Refused(UNKNOWN))?;
    let may = is_of(&row, asked.credentials.uid, &asker.rights);
    require(may, Error::NotPermitted)?;
    Ok(row)
}

/// Ends a share. One that has ended has ended.
pub(crate) fn end(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    asked: &ChangeShare,
) -> Outcome<Done> {
    let row = own(change, asker, asked)?;
    if !row.ended {
        end_now(change, asked.id, row)?;
    }
    Ok(Done::ShareEnded)
}

/// Removes the row of a share that has ended.
pub(crate) fn forget(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    asked: &ChangeShare,
) -> Outcome<Done> {
    let row = own(change, asker, asked)?;
    require(has_ended(change, &row)?, Error::Changed)?;
    remove(change, asked.id, &row)?;
    Ok(Done::ShareForgotten)
}

/// Ends a share that has not ended: the rows of a link or a capsule go, and those of a person's
/// share that say that it lives.
pub(super) fn end_now(change: &mut Change<'_, '_>, id: ShareId, mut row: Share) -> Outcome<()> {
    match &row.with {
        ShareWith::Link { .. } | ShareWith::Capsule { .. } => remove(change, id, &row),
        ShareWith::Person { .. } => {
            remove_live(change, id, &row)?;
            row.ended = true;
            change.put(key::share(id), &row)
        }
    }
}

/// Removes the rows that only a share that has not ended has.
fn remove_live(change: &mut Change<'_, '_>, id: ShareId, row: &Share) -> Outcome<()> {
    if row.ended {
        return Ok(());
    }
    if let Some(at) = row.expires {
        change.delete(key::share_expiry(at, id))?;
    }
    match of_inode(row) {
        Some(row_key) => change.delete(row_key),
        None => Ok(()),
    }
}

fn remove(change: &mut Change<'_, '_>, id: ShareId, row: &Share) -> Outcome<()> {
    remove_live(change, id, row)?;
    match &row.with {
        ShareWith::Link { token } => change.delete(key::share_of_token(token))?,
        ShareWith::Capsule { point, .. } => {
            change.delete(key::capsule_point(*point, id))?;
            uncount(change, key::capsules_of_user(row.uid))?;
        }
        ShareWith::Person { principal, .. } => {
            change.delete(key::share_with(*principal, id))?;
            uncount(change, key::shares_of_person(*principal))?;
        }
    }
    change.delete(key::share_by(row.uid, id))?;
    uncount(change, key::shares_of_user(row.uid))?;
    let mut numbers: ShareNumbers = change.find(&key::share_numbers())?.unwrap_or_default();
    numbers.shares = numbers.shares.saturating_sub(1);
    change.put(key::share_numbers(), &numbers)?;
    change.delete(key::share(id))
}
