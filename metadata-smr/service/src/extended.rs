//! Extended attributes: permissions, space, removal.
//!
//! Invariant: an inode's row has the number of its attributes, their bytes, and its version at
//! their last change. So a client that has seen an inode knows whether it has attributes and
//! whether cached ones are still valid, without another request.
//!
//! A file's capabilities (`security.capability`) are a permission like the set-id bits and have a
//! namespace of their own, so that servers that cannot read names can clear them when content or
//! owner change. Every write clears them: even the superuser's write makes another program of the
//! file.
//!
//! Source: Linux, `fs/xattr.c` (`xattr_permission`), `security/commoncap.c`.

use crate::attributes::{Access, Credentials, Mode, Namespace};
use crate::change::Change;
use crate::content::Remainder;
use crate::epoch::require_sealing;
use crate::error::Error;
use crate::identity::{AttributeHash, InodeId, InodeVersion, Uid};
use crate::limits::{
    EXTENDED_BYTES_MAX, EXTENDED_MAX, EXTENDED_VALUE_BYTES_MAX, SEAL_OVERHEAD_MAX,
    SEALED_NAME_BYTES_MAX,
};
use crate::operation::{AttributePlace, SetExtended, SetMode};
use crate::permission::{check, check_handle, owns};
use crate::reply::{ListedExtended, StepDone};
use crate::row::{ExtendedAttribute, Inode, InodeBody, Rights, key};
use crate::rows::{Outcome, Rows, decode, require};

/// Sets an attribute.
pub(crate) fn set(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    step: &SetExtended,
) -> Outcome<StepDone> {
    let place = &step.place;
    let mut row = change.inode(place.inode)?;
    check_change(&row, who, place.namespace)?;
    check_place(change, &row, place)?;
    let sealed = &step.value.bytes;
    let limit = EXTENDED_VALUE_BYTES_MAX.saturating_add(SEAL_OVERHEAD_MAX);
    let too_many = Error::TooMany {
        limit: EXTENDED_VALUE_BYTES_MAX as u32,
    };
    require(sealed.len() <= limit, too_many)?;
    require(step.name.len() <= SEALED_NAME_BYTES_MAX, Error::NameTooLong)?;
    let sensible = !step.name.is_empty() && !sealed.is_empty();
    require(sensible, Error::Invalid)?;
    require_sealing(change, row.realm, step.value.epoch)?;
    let row_key = key::extended(place.inode, place.namespace, place.hash);
    let old: Option<ExtendedAttribute> = change.find(&row_key)?;
    match (step.mode, &old) {
        (SetMode::Create, Some(_)) => return Err(Error::Exists.into()),
        (SetMode::Replace, None) => return Err(Error::NoAttribute.into()),
        _ => {}
    }
    let new = ExtendedAttribute {
        name: step.name.clone(),
        value: step.value.clone(),
    };
    let mut extended = row.extended.unwrap_or_default();
    extended.generation = place.generation;
    extended.bytes = extended
        .bytes
        .saturating_sub(old.as_ref().map_or(0, ExtendedAttribute::bytes))
        .saturating_add(new.bytes());
    if old.is_none() {
        extended.count = extended.count.saturating_add(1);
    }
    let fits = extended.bytes <= EXTENDED_BYTES_MAX && extended.count <= EXTENDED_MAX;
    require(fits, Error::LimitReached)?;
    change.put(row_key, &new)?;
    row.extended = Some(extended);
    save(change, place.inode, &mut row)
}

/// Removes an attribute.
pub(crate) fn remove(
    change: &mut Change<'_, '_>,
    who: &Credentials,
    place: &AttributePlace,
) -> Outcome<StepDone> {
    let mut row = change.inode(place.inode)?;
    check_change(&row, who, place.namespace)?;
    check_place(change, &row, place)?;
    let removed = take(change, place.inode, &mut row, (place.namespace, place.hash))?;
    require(removed, Error::NoAttribute)?;
    save(change, place.inode, &mut row)
}

/// Deletes an attribute's row, if there is one; the caller saves the inode's.
fn take(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &mut Inode,
    (namespace, hash): (Namespace, AttributeHash),
) -> Outcome<bool> {
    let row_key = key::extended(inode, namespace, hash);
    let Some(old) = change.find::<ExtendedAttribute>(&row_key)? else {
        return Ok(false);
    };
    change.delete(row_key)?;
    if let Some(extended) = &mut row.extended {
        extended.bytes = extended.bytes.saturating_sub(old.bytes());
        extended.count = extended.count.saturating_sub(1);
        extended.changed = InodeVersion(row.version.0.saturating_add(1));
    }
    Ok(true)
}

/// Saves an inode whose attributes or lists changed.
pub(crate) fn save(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &mut Inode,
) -> Outcome<StepDone> {
    if let Some(extended) = &mut row.extended {
        extended.changed = InodeVersion(row.version.0.saturating_add(1));
    }
    change.save(inode, row)?;
    Ok(StepDone::Set(row.attributes(inode)))
}

/// Clears a file's capabilities, because its content or owner changes; the caller saves the inode's
/// row.
pub(crate) fn drop_capability(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &mut Inode,
) -> Outcome<()> {
    if row.extended.is_some_and(|extended| extended.count > 0) {
        let only = (Namespace::Capability, AttributeHash::ONLY);
        take(change, inode, row, only)?;
    }
    Ok(())
}

/// Whether `who` may set and remove attributes of a namespace.
fn check_change(row: &Inode, who: &Credentials, namespace: Namespace) -> Outcome<()> {
    match namespace {
        Namespace::User => {
            let has_content = row.is_directory() || matches!(row.node, InodeBody::File(_));
            require(has_content, Error::NotPermitted)?;
            let sticky = row.is_directory() && row.mode.has(Mode::STICKY);
            require(!sticky || owns(row, who), Error::NotPermitted)?;
            Ok(check(row, who, Access::WRITE)?)
        }
        Namespace::Trusted | Namespace::Security | Namespace::Capability => {
            require(who.uid == Uid::ROOT, Error::NotPermitted)
        }
    }
}

/// Whether the place is one of this inode's.
fn check_place(change: &Change<'_, '_>, row: &Inode, place: &AttributePlace) -> Outcome<()> {
    let only = place.namespace == Namespace::Capability;
    let sensible = !only || place.hash == AttributeHash::ONLY;
    require(sensible, Error::Invalid)?;
    match row.extended.filter(|extended| extended.count > 0) {
        Some(extended) => require(place.generation == extended.generation, Error::Changed),
        None => {
            let known = place.generation <= change.realm(row.realm)?.epoch;
            require(known, Error::Invalid)
        }
    }
}

/// All attributes of an inode that a principal may know of, each with its value if it may know it.
/// The gateway restricts what each caller sees, as with content.
pub(crate) fn list(
    rows: &impl Rows,
    inode: InodeId,
    row: &Inode,
    rights: &Rights,
) -> Outcome<Vec<ListedExtended>> {
    if row.extended.is_none_or(|extended| extended.count == 0) {
        return Ok(Vec::new());
    }
    let superuser = rights.uids.contains(&Uid::ROOT);
    let reads = check_handle(row, rights, Access::READ).is_ok();
    let prefix = key::all_extended(inode);
    let mut listed = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, EXTENDED_MAX.into())? {
        let found: ExtendedAttribute = decode(&row_key, &bytes)?;
        let Some((namespace, hash)) = key::trailing_attribute(&row_key) else {
            continue;
        };
        if namespace == Namespace::Trusted && !superuser {
            continue;
        }
        let shown = namespace != Namespace::User || reads;
        listed.push(ListedExtended {
            namespace,
            hash,
            name: found.name,
            value: shown.then_some(found.value),
        });
    }
    Ok(listed)
}

/// Deletes all attributes of an inode that is being deleted, or leaves more than `limit` for later.
pub(crate) fn remove_all(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    row: &Inode,
    limit: usize,
) -> Outcome<Remainder> {
    match row.extended.map_or(0, |extended| extended.count) {
        0 => Ok(Remainder::Nothing),
        count if usize::from(count) > limit => Ok(Remainder::Some),
        _ => reap(change, inode, limit),
    }
}

/// Deletes at most `limit` attributes of a deleted inode.
pub(crate) fn reap(
    change: &mut Change<'_, '_>,
    inode: InodeId,
    limit: usize,
) -> Outcome<Remainder> {
    let prefix = key::all_extended(inode);
    let found = change.scan(&prefix, &prefix, limit.saturating_add(1))?;
    for (row_key, _) in found.iter().take(limit) {
        change.delete(row_key.to_vec())?;
    }
    Ok(if found.len() > limit {
        Remainder::Some
    } else {
        Remainder::Nothing
    })
}
