//! Finding a sealed name in its directory.
//!
//! A name's hash gives the first of eight adjacent places. A name may be at any of them, because
//! entries never move when another is removed: `readdir` continues from their cookies.

use crate::attributes::{Attributes, NameGenerations, Timestamp};
use crate::change::Change;
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::identity::{Cookie, InodeId, RealmId};
use crate::limits::{COOKIE_COLLISIONS_MAX, LINKS_MAX, SEALED_NAME_BYTES_MAX};
use crate::operation::{EntryName, EntryPlace};
use crate::row::{EntryRow, Inode, InodeBody, SealedName, key};
use crate::rows::{Halt, Outcome, Rows, damaged, decode, require};

/// An entry and its place.
#[derive(Debug)]
pub(crate) struct FoundEntry {
    pub(crate) cookie: Cookie,
    pub(crate) entry: EntryRow,
}

/// The entry of a name, in either generation.
pub(crate) fn lookup(
    rows: &impl Rows,
    directory: &Inode,
    place: &EntryPlace,
) -> Outcome<Option<FoundEntry>> {
    check_name(directory, &place.name)?;
    if let Some(found) = find_sealed(rows, place.parent, &place.name.current)?.0 {
        return Ok(Some(found));
    }
    match &place.name.previous {
        Some(name) => Ok(find_sealed(rows, place.parent, name)?.0),
        None => Ok(None),
    }
}

/// The entry of a sealed name, and the first free place for it.
fn find_sealed(
    rows: &impl Rows,
    directory: InodeId,
    name: &SealedName,
) -> Outcome<(Option<FoundEntry>, Option<Cookie>)> {
    let first = name.cookie.0;
    let end = first.saturating_add(COOKIE_COLLISIONS_MAX);
    let prefix = key::entries(directory);
    let from = key::entry(directory, name.cookie);
    let mut free = first;
    let neighbours = usize::try_from(COOKIE_COLLISIONS_MAX).unwrap_or(usize::MAX);
    for (row_key, bytes) in rows.scan(&prefix, &from, neighbours)? {
        let Some(cookie) = key::trailing_number(&row_key).filter(|cookie| *cookie < end) else {
            break;
        };
        let entry: EntryRow = decode(&row_key, &bytes)?;
        if entry.generation == name.generation && entry.name == name.bytes {
            let cookie = Cookie(cookie);
            return Ok((Some(FoundEntry { cookie, entry }), None));
        }
        if cookie == free {
            free = cookie.saturating_add(1);
        }
    }
    Ok((None, (free < end).then_some(Cookie(free))))
}

/// Whether the name can belong to the directory.
fn check_name(directory: &Inode, name: &EntryName) -> Outcome<()> {
    let InodeBody::Directory { generations, .. } = &directory.node else {
        return Err(Error::NotDirectory.into());
    };
    require(generations.is_within(directory.realm), Error::CrossRealm)?;
    let NameGenerations { current, previous } = *generations;
    let other = || Error::OtherGeneration { current };
    check_sealed(&name.current)?;
    require(name.current.generation == current, other())?;
    match (&name.previous, previous) {
        (Some(sealed), Some(previous)) => {
            check_sealed(sealed)?;
            require(sealed.generation == previous.epoch, other())
        }
        (None, None) => Ok(()),
        _ => Err(other().into()),
    }
}

/// Adds an entry for a name that is known to be absent.
pub(super) fn add(
    change: &mut Change<'_, '_>,
    place: &EntryPlace,
    inode: InodeId,
    row: &Inode,
) -> Outcome<Cookie> {
    let name = &place.name.current;
    require_new_name(change, row.realm, place)?;
    let (_, free) = find_sealed(change, place.parent, name)?;
    let cookie = free.ok_or(Halt::Refused(Error::LimitReached))?;
    let entry = EntryRow {
        inode,
        file_type: row.file_type(),
        generation: name.generation,
        name: name.bytes.clone(),
        folded: None,
    };
    change.put(key::entry(place.parent, cookie), &entry)?;
    Ok(cookie)
}

/// A new name is sealed under a key epoch that still seals. While a directory has names of two
/// generations already, its names cannot get a third one, and new ones have the second.
fn require_new_name(change: &Change<'_, '_>, realm: RealmId, place: &EntryPlace) -> Outcome<()> {
    match place.name.previous {
        Some(_) => Ok(()),
        None => require_sealing(change, realm, place.name.current.generation),
    }
}

/// The first free place for a name, whether or not it is there already.
pub(super) fn free_place(
    rows: &impl Rows,
    directory: InodeId,
    first: Cookie,
) -> Outcome<Option<Cookie>> {
    let end = first.0.saturating_add(COOKIE_COLLISIONS_MAX);
    let prefix = key::entries(directory);
    let from = key::entry(directory, first);
    let neighbours = usize::try_from(COOKIE_COLLISIONS_MAX).unwrap_or(usize::MAX);
    let mut free = first.0;
    for (row_key, _) in rows.scan(&prefix, &from, neighbours)? {
        match key::trailing_number(&row_key) {
            Some(taken) if taken == free => free = taken.saturating_add(1),
            _ => break,
        }
    }
    Ok((free < end).then_some(Cookie(free)))
}

/// Whether a sealed name can be one.
pub(super) fn check_sealed(sealed: &SealedName) -> Outcome<()> {
    require(
        sealed.bytes.len() <= SEALED_NAME_BYTES_MAX,
        Error::NameTooLong,
    )?;
    require(
        sealed.cookie.is_base() && !sealed.bytes.is_empty(),
        Error::BadName,
    )
}

/// How a directory changes with its entries.
#[derive(Clone, Copy, Default)]
pub(super) struct Adjustment {
    pub(super) entries: i64,
    pub(super) links: i32,
}

/// Changes a directory's counts and times.
pub(super) fn adjust(
    change: &mut Change<'_, '_>,
    directory: InodeId,
    time: Timestamp,
    by: Adjustment,
) -> Outcome<Attributes> {
    let mut row = change.directory(directory)?;
    let row_key = key::inode(directory);
    row.links = row
        .links
        .checked_add_signed(by.links)
        .ok_or_else(|| damaged::<Inode>(&row_key, "it would have a negative number of links"))?;
    require(row.links <= LINKS_MAX, Error::TooManyLinks)?;
    if let InodeBody::Directory { entries, .. } = &mut row.node {
        *entries = entries.checked_add_signed(by.entries).ok_or_else(|| {
            damaged::<Inode>(&row_key, "it would have a negative number of entries")
        })?;
    }
    row.mtime = time;
    change.save(directory, &mut row)?;
    Ok(row.attributes(directory))
}
