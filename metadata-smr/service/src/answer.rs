//! Queries, answered from one state.
//!
//! An answer's version is that of the last change of the rows that were read. An answer that
//! something is absent or complete therefore reads a row that covers it: a directory's inode for
//! its names, a file's for its extents, a home's counters for its inodes. Rare questions without
//! such a row depend on everything.

use crate::attributes::Access;
use crate::content::{evidence, extents_after, fates, numbered};
use crate::epoch;
use crate::error::Error;
use crate::extended;
use crate::fleet;
use crate::identity::{Cookie, InodeId, ObjectId, RealmEpoch, RealmId, SliceId};
use crate::invitations;
use crate::limits::{
    CLOUDS_MAX, DIRECTORY_PAGE_MAX, EPOCHS_PAGE_MAX, EXTENT_PAGE_MAX, MOUNTS_MAX, QUEUE_PAGE_MAX,
};
use crate::locks;
use crate::log;
use crate::mount::mounts;
use crate::namespace::lookup;
use crate::operation::EntryPlace;
use crate::people;
use crate::permission::{assert_credentials, check, check_handle};
use crate::query::{Query, Question};
use crate::quota;
use crate::reply::{ContentPage, DirectoryPage, ListedEntry, ListedExtent, QueryResult};
use crate::roles::Needs;
use crate::row::{
    Cloud, Content, EntryRow, Epoch, FileBody, Format, HomeCounters, InodeBody, Mount, Numbered,
    Object, Principal, Session, Slice, key,
};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use crate::session::orphans;
use crate::share;
use crate::succession;
use crate::trash;
use quorumfs_bft::service::Caller;
use std::collections::BTreeMap;

mod queues;

/// Answers a query of `caller`.
pub(crate) fn answer(rows: &impl Rows, caller: &Caller, query: &Query) -> Outcome<QueryResult> {
    let found = find(rows, caller, query);
    if let Err(Halt::Refused(error)) = &found {
        cover(rows, error)?;
    }
    found
}

/// Reads a row that changes whenever the refusal would: an absent row has no version. A directory's
/// inode, which is always read, covers the names in it.
fn cover(rows: &impl Rows, refusal: &Error) -> Outcome<()> {
    match refusal {
        Error::Stale(inode) => {
            let _: Option<HomeCounters> = rows.find(&key::home(inode.home()))?;
        }
        Error::NoObject(_)
        | Error::NoRealm
        | Error::NoRight
        | Error::NoSession
        | Error::NotMember => {
            rows.view().depend_on_everything();
        }
        _ => {}
    }
    Ok(())
}

fn find(rows: &impl Rows, caller: &Caller, query: &Query) -> Outcome<QueryResult> {
    let principal = match rows.principal(&caller.principal) {
        Ok(principal) => principal,
        Err(refusal) => {
            return invitations::answer_as_guest(rows, caller, &query.question, refusal);
        }
    };
    refuse_fenced(rows, caller, &query.question)?;
    let needs = Needs::of_question(&query.question);
    needs.require(rows, &caller.principal, &principal.rights)?;
    // What every principal may ask it may ask in any name: one that acts for another user from now
    // on has to learn of it.
    if needs > Needs::Principal {
        assert_credentials(&principal.rights, &query.credentials)?;
    }
    let who = &query.credentials;
    match &query.question {
        Question::Lookup(place) => find_entry(rows, query, place),
        Question::Attributes(inode) => {
            let row = rows.inode(*inode)?;
            Ok(QueryResult::Attributes(row.attributes(*inode)))
        }
        Question::Access { inode, access } => {
            require(access.0 <= 7, Error::Invalid)?;
            check(&rows.inode(*inode)?, who, *access)?;
            Ok(QueryResult::Allowed)
        }
        Question::Directory {
            inode,
            after,
            limit,
            by_handle,
        } => {
            let row = rows.directory(*inode)?;
            if *by_handle {
                check_handle(&row, &principal.rights, Access::READ)?;
            } else {
                check(&row, who, Access::READ)?;
            }
            list(rows, *inode, *after, *limit)
        }
        Question::Symlink(inode) => match rows.inode(*inode)?.node {
            InodeBody::Symlink { target, .. } => Ok(QueryResult::Symlink(target)),
            _ => Err(Error::WrongKind.into()),
        },
        Question::Extended(inode) => {
            let row = rows.inode(*inode)?;
            Ok(QueryResult::Extended {
                attributes: row.attributes(*inode),
                listed: extended::list(rows, *inode, &row, &principal.rights)?,
                acl: row.acl,
                default_acl: row.default_acl,
            })
        }
        Question::Content {
            inode,
            from,
            to,
            limit,
        } => {
            let row = rows.inode(*inode)?;
            check_handle(&row, &principal.rights, Access::READ)?;
            let InodeBody::File(file) = &row.node else {
                return Err(Error::WrongKind.into());
            };
            let mut page = ContentPage {
                attributes: row.attributes(*inode),
                inline: None,
                extents: Vec::new(),
                slices: Vec::new(),
                objects: Vec::new(),
                more: false,
            };
            map(rows, *inode, file, *from..*to, *limit, &mut page)?;
            Ok(QueryResult::Content(page))
        }
        Question::Trash {
            realm,
            after,
            limit,
        } => trash::all(rows, who, *realm, *after, *limit),
        Question::TrashedIn {
            directory,
            after,
            limit,
        } => trash::inside(rows, who, *directory, *after, *limit),
        Question::Trashed(inode) => trash::one(rows, who, *inode),
        Question::Shares { of, after, limit } => {
            let asker = (&caller.principal, &principal);
            share::all(rows, asker, who, of, (*after, *limit))
        }
        Question::ShareOfToken(token) => share::of_token(rows, token),
        Question::Invitation(key) => invitations::answer(rows, caller, key),
        other => answer_about_volume(rows, caller, principal, other),
    }
}

/// A fenced session may ask only for its identity and the volume; other questions get the fencing.
fn refuse_fenced(rows: &impl Rows, caller: &Caller, question: &Question) -> Outcome<()> {
    if matches!(
        question,
        Question::WhoAmI | Question::Volume | Question::Realm(_)
    ) {
        return Ok(());
    }
    let session: Option<Session> = rows.find(&key::session(caller.session))?;
    match session.and_then(|session| session.fenced_by) {
        Some(by) => Err(Error::Fenced { by }.into()),
        None => Ok(()),
    }
}

fn answer_about_volume(
    rows: &impl Rows,
    caller: &Caller,
    principal: Principal,
    question: &Question,
) -> Outcome<QueryResult> {
    match question {
        Question::Usage(realm) => {
            let home = rows.realm(*realm)?.home;
            let counters: HomeCounters = rows.expect_row(&key::home(home))?;
            Ok(QueryResult::Usage {
                inodes: counters.inodes,
                allocated: counters.allocated,
            })
        }
        Question::Object(id) => match rows.find(&key::object(*id))? {
            Some(object) => Ok(QueryResult::Object(object)),
            None => Err(Error::NoObject(*id).into()),
        },
        Question::UnderReplicated { after, limit } => {
            queues::under_replicated(rows, caller, *after, *limit)
        }
        Question::Unreferenced { after, limit } => queues::unreferenced(rows, *after, *limit),
        Question::Objects { after, limit } => queues::all_objects(rows, *after, *limit),
        Question::SparsePacks { after, limit } => queues::sparse_packs(rows, *after, *limit),
        Question::PackedSlices { pack, after, limit } => {
            queues::packed_slices(rows, *pack, *after, *limit)
        }
        Question::Orphans { after, limit } => {
            rows.view().depend_on_everything();
            let limit = page(*limit, QUEUE_PAGE_MAX);
            let mut inodes = orphans(rows, caller.session, *after, limit.saturating_add(1))?;
            let more = inodes.len() > limit;
            inodes.truncate(limit);
            Ok(QueryResult::Orphans { inodes, more })
        }
        Question::Principal(number) => {
            rows.view().depend_on_everything();
            let row = rows.find::<Numbered>(&key::numbered(*number))?;
            row.map(QueryResult::Principal)
                .ok_or(Halt::Refused(Error::NotFound))
        }
        Question::Evidence(cloud) => {
            rows.view().depend_on_everything();
            let (total, kept) = evidence(rows, *cloud)?;
            Ok(QueryResult::Evidence { total, kept })
        }
        Question::Epochs {
            realm,
            before,
            limit,
        } => {
            let current = rows.realm(*realm)?.epoch;
            // A begun epoch never changes; only a future epoch could appear.
            let end = before.0.min(current.0.saturating_add(1));
            let first = end.saturating_sub((*limit).clamp(1, EPOCHS_PAGE_MAX));
            let epochs = epochs(rows, *realm, first..end)?;
            Ok(QueryResult::Epochs { epochs })
        }
        Question::Members(realm) => {
            rows.view().depend_on_everything();
            rows.realm(*realm)?;
            Ok(QueryResult::Members(epoch::members(rows, *realm)?))
        }
        Question::Quota { realm, uid } => quota::of_user(rows, &principal.rights, *realm, *uid),
        Question::Quotas {
            realm,
            after,
            limit,
        } => quota::of_users(rows, &principal.rights, *realm, *after, *limit),
        Question::SlicesByEpoch { after, limit } => queues::slices_by_epoch(rows, *after, *limit),
        Question::NamesByEpoch {
            realm,
            after,
            limit,
        } => queues::names_by_epoch(rows, *realm, *after, *limit),
        Question::SlicesToReseal {
            realm,
            after,
            limit,
        } => {
            require(principal.rights.reconcile, Error::NoRight)?;
            queues::slices_to_reseal(rows, *realm, *after, *limit)
        }
        Question::NamesToReseal {
            directory,
            after,
            limit,
        } => {
            let rights = &principal.rights;
            require(rights.administer || rights.reconcile, Error::NoRight)?;
            queues::names_to_reseal(rows, *directory, *after, *limit)
        }
        Question::Volume => volume(rows),
        Question::Realm(realm) => find_realm(rows, caller, *realm),
        Question::Successions => {
            rows.view().depend_on_everything();
            Ok(QueryResult::Successions(succession::all(rows)?))
        }
        Question::Fates { objects } => {
            require(principal.rights.reconcile, Error::NoRight)?;
            rows.view().depend_on_everything();
            Ok(QueryResult::Fates(fates(rows, objects)?))
        }
        Question::CloudSecrets => cloud_secrets(rows, caller),
        Question::Retained => {
            rows.view().depend_on_everything();
            Ok(QueryResult::Retained(numbered(rows)?))
        }
        Question::TrashSize(realm) => trash::size(rows, *realm),
        Question::CloudChanges { after } => fleet::answer(rows, *after),
        Question::People { after } => people::answer(rows, *after),
        Question::Mounted(realm) => {
            // A mount's own row has a version of its own, so that the replicas' answers match while
            // others change the volume.
            let own = rows.find::<Mount>(&key::mount(*realm, caller.session))?;
            if own.is_some() {
                return Ok(QueryResult::Mounted(own));
            }
            Ok(QueryResult::Mounted(all_mounts(rows, *realm, 1)?.pop()))
        }
        Question::Mounts(realm) => Ok(QueryResult::Mounts(all_mounts(rows, *realm, MOUNTS_MAX)?)),
        Question::News { realm, after } => log::news(rows, caller, *realm, *after),
        Question::Lock { .. } | Question::Locks { .. } => locks::answer(rows, caller, question),
        _ => {
            let row: Session = rows
                .find(&key::session(caller.session))?
                .ok_or(Halt::Refused(Error::NoSession))?;
            Ok(QueryResult::WhoAmI {
                session: caller.session,
                row,
                principal: caller.principal,
                rights: principal,
            })
        }
    }
}

/// The first mounts of a realm, and the row that covers how many there are.
fn all_mounts(rows: &impl Rows, realm: RealmId, limit: usize) -> Outcome<Vec<Mount>> {
    if !log::is_covered(rows, realm)? {
        rows.view().depend_on_everything();
    }
    mounts(rows, realm, limit)
}

/// The number of rows of a page: at least one, so that a client that asks for none makes progress.
fn page(asked: u32, bound: u32) -> usize {
    usize::try_from(asked.clamp(1, bound)).unwrap_or(1)
}

fn find_entry(rows: &impl Rows, query: &Query, place: &EntryPlace) -> Outcome<QueryResult> {
    let parent = rows.directory(place.parent)?;
    check(&parent, &query.credentials, Access::EXECUTE)?;
    let found = lookup(rows, &parent, place)?.ok_or(Halt::Refused(Error::NotFound))?;
    let inode = found.entry.inode;
    Ok(QueryResult::Entry {
        cookie: found.cookie,
        inode: rows.inode(inode)?.attributes(inode),
        parent: parent.attributes(place.parent),
    })
}

fn list(rows: &impl Rows, directory: InodeId, after: Cookie, limit: u32) -> Outcome<QueryResult> {
    let limit = page(limit, DIRECTORY_PAGE_MAX);
    let prefix = key::entries(directory);
    let mut entries = Vec::new();
    let mut more = false;
    if let Some(next) = after.0.checked_add(1) {
        let from = key::entry(directory, Cookie(next));
        for (row_key, bytes) in rows.scan(&prefix, &from, limit.saturating_add(1))? {
            if entries.len() == limit {
                more = true;
                break;
            }
            let entry: EntryRow = decode(&row_key, &bytes)?;
            let inode = rows.inode(entry.inode)?.attributes(entry.inode);
            entries.push(ListedEntry {
                cookie: Cookie(key::trailing_number(&row_key).unwrap_or_default()),
                generation: entry.generation,
                name: entry.name,
                inode,
            });
        }
    }
    Ok(QueryResult::Directory(DirectoryPage {
        directory: rows.directory(directory)?.attributes(directory),
        entries,
        more,
    }))
}

/// Fills a page with the extents that overlap `range`.
fn map(
    rows: &impl Rows,
    inode: InodeId,
    file: &FileBody,
    range: std::ops::Range<u64>,
    limit: u32,
    page_of: &mut ContentPage,
) -> Outcome<()> {
    let limit = page(limit, EXTENT_PAGE_MAX);
    match &file.content {
        Content::Empty => {}
        Content::Inline(inline) => page_of.inline = Some(inline.clone()),
        Content::One { offset, extent } => {
            let end = offset.saturating_add(u64::from(extent.length));
            if end > range.start && *offset < range.end {
                page_of.extents.push(ListedExtent {
                    offset: *offset,
                    extent: *extent,
                });
            }
        }
        Content::Extents => {
            let alive_to = file.dead_from.unwrap_or(u64::MAX);
            let to = range.end.min(alive_to);
            let found = extents_after(rows, inode, range.start, limit.saturating_add(1))?;
            for placed in found.iter().take_while(|placed| placed.start < to) {
                if page_of.extents.len() == limit {
                    page_of.more = true;
                    break;
                }
                page_of.extents.push(ListedExtent {
                    offset: placed.start,
                    extent: placed.extent,
                });
            }
        }
    }
    let mut slices: BTreeMap<SliceId, Slice> = BTreeMap::new();
    let mut objects: BTreeMap<ObjectId, Object> = BTreeMap::new();
    for listed in &page_of.extents {
        let id = listed.extent.slice;
        if slices.contains_key(&id) {
            continue;
        }
        let slice: Slice = rows.expect_row(&key::slice(inode.home(), id))?;
        if let std::collections::btree_map::Entry::Vacant(vacant) = objects.entry(slice.object) {
            vacant.insert(rows.expect_row(&key::object(slice.object))?);
        }
        slices.insert(id, slice);
    }
    page_of.slices = slices.into_iter().collect();
    page_of.objects = objects.into_iter().collect();
    Ok(())
}

fn volume(rows: &impl Rows) -> Outcome<QueryResult> {
    let format: Format = rows.expect_row(&key::format())?;
    rows.view().depend_on_everything();
    let prefix = key::clouds();
    let clouds = rows
        .scan(&prefix, &prefix, CLOUDS_MAX)?
        .iter()
        .map(|(row_key, bytes)| decode::<Cloud>(row_key, bytes))
        .collect::<Outcome<Vec<_>>>()?;
    Ok(QueryResult::Volume { format, clouds })
}

fn cloud_secrets(rows: &impl Rows, caller: &Caller) -> Outcome<QueryResult> {
    rows.view().depend_on_everything();
    let prefix = key::cloud_secrets(&caller.principal);
    let mut secrets = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, CLOUDS_MAX)? {
        if let Some(cloud) = key::trailing_cloud(&row_key) {
            secrets.push((cloud, decode(&row_key, &bytes)?));
        }
    }
    Ok(QueryResult::CloudSecrets(secrets))
}

fn find_realm(rows: &impl Rows, caller: &Caller, id: RealmId) -> Outcome<QueryResult> {
    // Members and the mount change without the realm's own row.
    rows.view().depend_on_everything();
    let realm = rows.realm(id)?;
    let end = realm.epoch.0.saturating_add(1);
    let epochs = epochs(rows, id, end.saturating_sub(EPOCHS_PAGE_MAX)..end)?;
    Ok(QueryResult::Realm {
        member: rows.find(&key::member(id, &caller.principal))?,
        mount: mounts(rows, id, 1)?.pop(),
        realm,
        epochs,
    })
}

/// Some epochs of a realm, oldest first.
fn epochs(
    rows: &impl Rows,
    realm: RealmId,
    numbers: std::ops::Range<u32>,
) -> Outcome<Vec<(RealmEpoch, Epoch)>> {
    let numbers = numbers.map(RealmEpoch);
    numbers
        .map(|number| Ok((number, rows.expect_row(&key::epoch(realm, number))?)))
        .collect()
}
