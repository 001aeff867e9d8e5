//! create, mknod, mkdir, symlink and link.

use super::entry::{Adjustment, add, adjust, lookup};
use crate::attributes::{Access, Credentials, Mode, NameGenerations, Timestamp};
use crate::change::Change;
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::identity::{Gid, InodeId, InodeVersion, RealmEpoch, Uid, VolumeIncarnation};
use crate::limits::{LINKS_MAX, SEAL_OVERHEAD_MAX, SYMLINK_BYTES_MAX};
use crate::operation::{Create, EntryPlace, NewInode};
use crate::permission::check;
use crate::reply::StepDone;
use crate::row::{FileBody, Inode, InodeBody, Realm, key};
use crate::rows::{Halt, Outcome, Rows, require};

/// Creates an inode and its entry.
pub(crate) fn create(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    time: Timestamp,
    step: &Create,
) -> Outcome<StepDone> {
    let sensible = step.mode.0 & !Mode::ALL == 0 && step.number.is_none();
    require(sensible, Error::Invalid)?;
    let parent_id = step.place.parent;
    let parent = change.directory(parent_id)?;
    check(&parent, who, Access::EXECUTE)?;
    if let Some(found) = lookup(change, &parent, &step.place)? {
        let opens = !step.exclusive && matches!(step.kind, NewInode::File);
        require(opens, Error::Exists)?;
        let inode = change.inode(found.entry.inode)?;
        require(!inode.is_directory(), Error::IsDirectory)?;
        return Ok(StepDone::Created {
            inode: inode.attributes(found.entry.inode),
            cookie: found.cookie,
            parent: parent.attributes(parent_id),
            existed: true,
        });
    }
    // A directory that was removed while it was open accepts no new entries.
    require(parent.links > 0, Error::NotFound)?;
    check(&parent, who, Access::CHANGE_ENTRIES)?;
    let realm = change.realm(parent.realm)?;
    let row = new_inode(change, who, time, step, &parent, &realm)?;
    let inode = number(change, &realm)?;
    change.put_inode(inode, &row)?;
    let cookie = add(change, &step.place, inode, &row)?;
    let by = Adjustment {
        entries: 1,
        links: i32::from(row.is_directory()),
    };
    let parent = adjust(change, parent_id, time, by)?;
    Ok(StepDone::Created {
        inode: row.attributes(inode),
        cookie,
        parent,
        existed: false,
    })
}

fn new_inode(
    change: &Change<'_, '_>,
    who: &Credentials,
    time: Timestamp,
    step: &Create,
    parent: &Inode,
    realm: &Realm,
) -> Outcome<Inode> {
    if let NewInode::Symlink { target, .. } = &step.kind {
        require_sealing(change, parent.realm, target.epoch)?;
    }
    let node = node(who, &step.kind, step.place.parent, realm.epoch)?;
    let is_directory = step.kind.is_directory();
    let (gid, mode) = inherit(who, parent, step.mode, is_directory);
    let (acl, mode) = match (&step.kind, &parent.default_acl) {
        (NewInode::Symlink { .. }, _) => (None, Mode(0o777)),
        (_, Some(default)) => default.inherited(mode),
        (_, None) => (None, mode.without(step.umask.0 & 0o777)),
    };
    let default_acl = parent.default_acl.clone().filter(|_| is_directory);
    let now = Timestamp::from(change.time());
    Ok(Inode {
        realm: parent.realm,
        mode,
        uid: who.uid,
        gid,
        links: if is_directory { 2 } else { 1 },
        atime: time,
        mtime: time,
        ctime: now,
        created: now,
        version: InodeVersion(1),
        holders: 0,
        acl,
        default_acl,
        extended: None,
        held: false,
        node,
    })
}

/// The group and mode of a new inode: a set-gid directory passes its group on, and a caller that is
/// not in that group creates no set-gid program for it.
fn inherit(who: &Credentials, parent: &Inode, mode: Mode, is_directory: bool) -> (Gid, Mode) {
    if !parent.mode.has(Mode::SET_GID) {
        return (who.gid, mode);
    }
    if is_directory {
        return (parent.gid, mode.with(Mode::SET_GID));
    }
    let outsider = !who.may_keep_group(parent.gid);
    if outsider && mode.has(Mode::SET_GID | 0o010) {
        return (parent.gid, mode.without(Mode::SET_GID));
    }
    (parent.gid, mode)
}

fn node(
    who: &Credentials,
    kind: &NewInode,
    parent: InodeId,
    epoch: RealmEpoch,
) -> Outcome<InodeBody> {
    Ok(match kind {
        NewInode::File => InodeBody::File(FileBody::empty()),
        NewInode::Directory => InodeBody::Directory {
            parent,
            generations: NameGenerations {
                current: epoch,
                previous: None,
            },
            entries: 0,
        },
        NewInode::Symlink { length, target } => {
            let fits = usize::from(*length) <= SYMLINK_BYTES_MAX
                && target.bytes.len() <= SYMLINK_BYTES_MAX + SEAL_OVERHEAD_MAX;
            require(fits, Error::NameTooLong)?;
            let sensible = *length > 0 && !target.bytes.is_empty();
            require(sensible, Error::Invalid)?;
            InodeBody::Symlink {
                length: *length,
                target: target.clone(),
            }
        }
        NewInode::Fifo => InodeBody::Fifo,
        NewInode::Socket => InodeBody::Socket,
        NewInode::CharacterDevice(number) => {
            require(who.uid == Uid::ROOT, Error::NotPermitted)?;
            InodeBody::CharacterDevice(*number)
        }
        NewInode::BlockDevice(number) => {
            require(who.uid == Uid::ROOT, Error::NotPermitted)?;
            InodeBody::BlockDevice(*number)
        }
    })
}

/// The next inode number of the realm's home.
fn number(change: &mut Change<'_, '_>, realm: &Realm) -> Outcome<InodeId> {
    let mut counters = change.home(realm.home)?;
    let next = counters.next_inode.saturating_add(1);
    // The last number of an incarnation is never used, so the next one's never begin early.
    let is_left =
        VolumeIncarnation::of_inode(next) == VolumeIncarnation::of_inode(counters.next_inode);
    require(is_left, Error::LimitReached)?;
    let limit_reached = Halt::Refused(Error::LimitReached);
    let inode = InodeId::new(realm.home, counters.next_inode).ok_or(limit_reached)?;
    counters.next_inode = next;
    counters.inodes = counters.inodes.saturating_add(1);
    change.put(key::home(realm.home), &counters)?;
    Ok(inode)
}

/// Whether `who` may create another name for an inode: its owner, and callers that may read and
/// write it, provided that it gives them no rights that they lack. The owner pays for each name,
/// and a name preserves a program that the owner removed.
///
/// Source: Linux, `fs/namei.c` (`may_linkat`, `safe_hardlink_source`).
fn may_link(row: &Inode, who: &Credentials) -> bool {
    let gives_rights = row.mode.has(Mode::SET_UID) || row.mode.has(Mode::SET_GID | 0o010);
    let harmless = matches!(row.node, InodeBody::File(_)) && !gives_rights;
    let read_and_write = Access(Access::READ.0 | Access::WRITE.0);
    who.uid == Uid::ROOT
        || who.uid == row.uid
        || (harmless && check(row, who, read_and_write).is_ok())
}

/// Creates a further entry for an inode that is not a directory.
pub(crate) fn link(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    time: Timestamp,
    inode: InodeId,
    place: &EntryPlace,
) -> Outcome<StepDone> {
    let mut row = change.inode(inode)?;
    let parent = change.directory(place.parent)?;
    check(&parent, who, Access::EXECUTE)?;
    let taken = lookup(change, &parent, place)?.is_some();
    require(!taken, Error::Exists)?;
    require(parent.links > 0 && row.links > 0, Error::NotFound)?;
    check(&parent, who, Access::CHANGE_ENTRIES)?;
    require(row.realm == parent.realm, Error::CrossRealm)?;
    require(!row.is_directory(), Error::NotPermitted)?;
    require(may_link(&row, who), Error::NotPermitted)?;
    require(row.links < LINKS_MAX, Error::TooManyLinks)?;
    row.links = row.links.saturating_add(1);
    change.save(inode, &mut row)?;
    let cookie = add(change, place, inode, &row)?;
    let by = Adjustment {
        entries: 1,
        links: 0,
    };
    let parent = adjust(change, place.parent, time, by)?;
    Ok(StepDone::Linked {
        inode: row.attributes(inode),
        cookie,
        parent,
    })
}
