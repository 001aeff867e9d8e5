//! chmod, chown, utimes and truncate, in one step.
//!
//! Source: Linux, `fs/attr.c` (`setattr_prepare`, `setattr_copy`), `fs/open.c` (`chown_common`).

use crate::attributes::{Access, Credentials, Mode, Timestamp};
use crate::change::{Asker, Change};
use crate::content::truncate;
use crate::error::Error;
use crate::extended::drop_capability;
use crate::identity::Uid;
use crate::operation::{SetAttributes, SetTime};
use crate::permission::{check, check_handle, new_mode, owns};
use crate::reply::StepDone;
use crate::row::{Inode, InodeBody};
use crate::rows::{Outcome, Rows, require};

/// Changes attributes of an inode.
pub(crate) fn set_attributes(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    who: &Credentials,
    time: Timestamp,
    step: &SetAttributes,
) -> Outcome<StepDone> {
    let mut row = change.inode(step.inode)?;
    check_owner(&row, who, step)?;
    check_times(&row, who, step)?;
    let given = step.uid.is_some() || step.gid.is_some();
    let in_group = who.may_keep_group(row.gid);
    row.uid = step.uid.unwrap_or(row.uid);
    row.gid = step.gid.unwrap_or(row.gid);
    if given && !row.is_directory() {
        row.mode = row.mode.without_set_id(in_group);
        drop_capability(change, step.inode, &mut row)?;
    }
    if let Some(mode) = step.mode {
        row.mode = new_mode(&row, who, mode);
    }
    if let Some(size) = step.size {
        set_size(change, asker, who, step, &mut row, size)?;
        row.mtime = time;
    }
    let at = |set: SetTime| match set {
        SetTime::Now => time,
        SetTime::To(given) => given,
    };
    row.atime = step.atime.map_or(row.atime, at);
    row.mtime = step.mtime.map_or(row.mtime, at);
    change.save(step.inode, &mut row)?;
    Ok(StepDone::Set(row.attributes(step.inode)))
}

/// Only the superuser gives files away; an owner may change a file's group to one of its own.
fn check_owner(row: &Inode, who: &Credentials, step: &SetAttributes) -> Outcome<()> {
    if let Some(mode) = step.mode {
        require(mode.0 & !Mode::ALL == 0, Error::Invalid)?;
        require(owns(row, who), Error::NotPermitted)?;
    }
    if who.uid == Uid::ROOT {
        return Ok(());
    }
    if let Some(uid) = step.uid {
        let keeps = who.uid == row.uid && uid == row.uid;
        require(keeps, Error::NotPermitted)?;
    }
    if let Some(gid) = step.gid {
        let allowed = who.uid == row.uid && (who.in_group(gid) || gid == row.gid);
        require(allowed, Error::NotPermitted)?;
    }
    Ok(())
}

/// Only owners set arbitrary times; callers with write permission may set them to now.
fn check_times(row: &Inode, who: &Credentials, step: &SetAttributes) -> Outcome<()> {
    for set in [step.atime, step.mtime].into_iter().flatten() {
        match set {
            SetTime::To(time) => {
                require(time.is_valid(), Error::Invalid)?;
                // A truncation through a handle carries its own time.
                let with_size = step.size.is_some() && step.by_handle;
                require(owns(row, who) || with_size, Error::NotPermitted)?;
            }
            SetTime::Now if owns(row, who) || step.size.is_some() => {}
            SetTime::Now => check(row, who, Access::WRITE)?,
        }
    }
    Ok(())
}

fn set_size(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    who: &Credentials,
    step: &SetAttributes,
    row: &mut Inode,
    size: u64,
) -> Outcome<()> {
    require(!row.is_directory(), Error::IsDirectory)?;
    if step.by_handle {
        check_handle(row, &asker.rights, Access::WRITE)?;
    } else {
        check(row, who, Access::WRITE)?;
    }
    if who.uid != Uid::ROOT && step.mode.is_none() {
        row.mode = row.mode.without_set_id(who.in_group(row.gid));
    }
    drop_capability(change, step.inode, row)?;
    match &mut row.node {
        InodeBody::File(file) => truncate(change, step.inode, file, size),
        _ => Err(Error::WrongKind.into()),
    }
}
