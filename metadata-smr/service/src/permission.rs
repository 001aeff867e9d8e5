//! Permissions by uid, gid, mode and access control list, by the rules of Linux.
//!
//! There are two checks. The credentials of a request decide what a *caller* may do ([`check`]).
//! The principal's rights alone decide what an open *handle* may still do ([`check_handle`]):
//! permission was checked at open, perhaps under a mode that has changed since, so the servers only
//! ensure that the principal could have had the right at all.
//!
//! Source: Linux, `fs/namei.c` (`generic_permission`, `may_delete`), `fs/attr.c`.

use crate::acl::{class, grants, permits};
use crate::attributes::{Access, Credentials, Mode};
use crate::error::Error;
use crate::identity::Uid;
use crate::limits::GROUPS_MAX;
use crate::row::{Assertable, Inode, Rights};

/// Whether the principal may act for `who`.
pub(crate) fn assert_credentials(rights: &Rights, who: &Credentials) -> Result<(), Error> {
    if who.groups.len() > GROUPS_MAX {
        return Err(Error::TooMany {
            limit: GROUPS_MAX as u32,
        });
    }
    if rights.may_assert(who) {
        Ok(())
    } else {
        Err(Error::NoRight)
    }
}

/// Whether `who` may do all of `access` to the inode.
pub(crate) fn check(inode: &Inode, who: &Credentials, access: Access) -> Result<(), Error> {
    if who.uid == Uid::ROOT {
        let executes = access.has(Access::EXECUTE);
        if executes && !inode.is_directory() && !inode.mode.has_execute_bit() {
            return Err(Error::Denied);
        }
        return Ok(());
    }
    let (of, acl) = ((inode.uid, inode.gid, inode.mode), inode.acl.as_ref());
    if permits(of, acl, who, access) {
        Ok(())
    } else {
        Err(Error::Denied)
    }
}

/// Whether some identity that the principal may act for has `access`, if necessary after an owner
/// gives itself the right.
pub(crate) fn check_handle(inode: &Inode, rights: &Rights, access: Access) -> Result<(), Error> {
    let has_no_uids = matches!(&rights.uids, Assertable::Only(uids) if uids.is_empty());
    let could = rights.uids.contains(&Uid::ROOT)
        || rights.uids.contains(&inode.uid)
        || (!has_no_uids
            && (grants(class(inode.mode, 0), access) || group_class(inode, rights, access)));
    if could { Ok(()) } else { Err(Error::Denied) }
}

/// Whether an identity in the class of the mode's group bits, for which the principal may act, has
/// all of `access`: the owning group, users and groups that the access list names.
fn group_class(inode: &Inode, rights: &Rights, access: Access) -> bool {
    let mask = class(inode.mode, 3);
    let Some(acl) = &inode.acl else {
        return rights.gids.contains(&inode.gid) && grants(mask, access);
    };
    let users = acl.named.users.iter();
    let groups = acl.named.groups.iter();
    (rights.gids.contains(&inode.gid) && grants(acl.group & mask, access))
        || users
            .filter(|(uid, _)| rights.uids.contains(uid))
            .any(|(_, granted)| grants(granted & mask, access))
        || groups
            .filter(|(gid, _)| rights.gids.contains(gid))
            .any(|(_, granted)| grants(granted & mask, access))
}

/// The requested mode, without set-gid for a group that the caller is not in.
pub(crate) fn new_mode(inode: &Inode, who: &Credentials, mode: Mode) -> Mode {
    if who.may_keep_group(inode.gid) {
        mode
    } else {
        mode.without(Mode::SET_GID)
    }
}

/// Whether `who` owns the inode or is the superuser.
pub(crate) fn owns(inode: &Inode, who: &Credentials) -> bool {
    who.uid == Uid::ROOT || who.uid == inode.uid
}

/// Whether `who` may remove an entry of `inode` from `directory`.
pub(crate) fn check_removal(
    directory: &Inode,
    inode: &Inode,
    who: &Credentials,
) -> Result<(), Error> {
    check(directory, who, Access::CHANGE_ENTRIES)?;
    let sticky = directory.mode.has(Mode::STICKY);
    if sticky && !owns(inode, who) && who.uid != directory.uid {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{AccessAcl, Named};
    use crate::attributes::Timestamp;
    use crate::identity::{Gid, InodeVersion, RealmId};
    use crate::row::{FileBody, InodeBody};
    use proptest::prelude::*;

    fn file(uid: u32, gid: u32, mode: u16) -> Inode {
        Inode {
            realm: RealmId::ROOT,
            mode: Mode(mode),
            uid: Uid(uid),
            gid: Gid(gid),
            links: 1,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            created: Timestamp::default(),
            version: InodeVersion(0),
            holders: 0,
            acl: None,
            default_acl: None,
            extended: None,
            held: false,
            node: InodeBody::File(FileBody::empty()),
        }
    }

    #[test]
    fn the_first_class_that_matches_decides_even_against_the_caller() {
        let owner = Credentials::user(Uid(7), Gid(8));
        assert!(check(&file(7, 8, 0o077), &owner, Access::READ).is_err());
        let group = Credentials::user(Uid(9), Gid(8));
        assert!(check(&file(7, 8, 0o707), &group, Access::READ).is_err());
        assert!(check(&file(7, 8, 0o070), &group, Access::READ).is_ok());
    }

    #[test]
    fn the_superuser_executes_only_files_with_an_execute_bit() {
        let root = Credentials::root();
        assert!(check(&file(7, 8, 0o000), &root, Access(6)).is_ok());
        assert!(check(&file(7, 8, 0o666), &root, Access::EXECUTE).is_err());
        assert!(check(&file(7, 8, 0o001), &root, Access::EXECUTE).is_ok());
    }

    proptest! {
        /// A handle gives a principal at most the access of its identities together, and at least
        /// that of each.
        #[test]
        fn a_handle_has_the_access_of_any_identity_of_its_principal(
            uid in 1_u32..4, gid in 1_u32..4, mode in 0_u16..0o1000, bits in 1_u8..8,
            uids in proptest::collection::vec(1_u32..4, 0..3),
            gids in proptest::collection::vec(1_u32..4, 1..3),
            acl in proptest::option::of((0_u8..8, 1_u32..4, 0_u8..8, 1_u32..4, 0_u8..8)),
        ) {
            let mut inode = file(uid, gid, mode);
            inode.acl = acl.map(|(group, user, theirs, team, its)| AccessAcl {
                group,
                named: Named {
                    users: vec![(Uid(user), theirs)],
                    groups: vec![(Gid(team), its)],
                },
            });
            let rights = Rights {
                uids: Assertable::Only(uids.iter().copied().map(Uid).collect()),
                gids: Assertable::Only(gids.iter().copied().map(Gid).collect()),
                mount: false, reconcile: false, administer: false,
            };
            let access = Access(bits);
            let now = uids.iter().any(|u| gids.iter().any(|g| {
                check(&inode, &Credentials::user(Uid(*u), Gid(*g)), access).is_ok()
            }));
            let by_handle = check_handle(&inode, &rights, access).is_ok();
            prop_assert!(by_handle || !now);
            prop_assert!(!by_handle || !uids.is_empty());
        }
    }
}
