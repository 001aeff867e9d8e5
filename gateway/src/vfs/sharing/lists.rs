//! Access control lists with and without a person: pure.
//!
//! What always holds: **no other user gains anything**, nor loses, except under a mask that grants
//! nothing. The mask bounds all users and groups that a list names, and the owning group. So before
//! it is widened for the person, the others get the rights that they have within the present one.
//! Under an empty mask the users and groups of a list count as the others, which no other list can
//! say: they have no rights then.

use quorumfs_metadata::acl::{Acl, Named};
use quorumfs_metadata::identity::Uid;

/// The lists of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lists {
    pub(super) access: Acl,
    /// Of a directory, if it has one.
    pub(super) default: Option<Acl>,
}

/// What a person is to have of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Granted {
    /// The rights of its entry in the access list; `None`: it has no entry.
    pub(super) rights: Option<u8>,
    /// Of a directory: whether what is made in it is shared too, and may be written.
    pub(super) inherited: Option<bool>,
}

/// The list of a mode.
pub(super) fn of_mode(mode: u16) -> Acl {
    let class = |shift: u16| (mode >> shift & 7).to_le_bytes()[0];
    Acl {
        owner: class(6),
        group: class(3),
        other: class(0),
        mask: None,
        named: Named::default(),
    }
}

/// The rights of a user's entry.
pub(super) fn rights_of(acl: &Acl, uid: Uid) -> Option<u8> {
    let mut users = acl.named.users.iter();
    users.find(|(user, _)| *user == uid).map(|(_, it)| *it)
}

/// Gives a user an entry with these rights, and no other user more than before.
pub(super) fn give(acl: &mut Acl, uid: Uid, rights: u8) {
    let mask = acl.mask.unwrap_or(acl.group);
    acl.named.users.retain(|(user, _)| *user != uid);
    let within = within(acl, mask);
    let needed = union(&within) | rights;
    if needed & !mask != 0 || acl.mask.is_none() {
        *acl = within;
        acl.mask = Some(needed);
    }
    let at = acl.named.users.partition_point(|(user, _)| *user < uid);
    acl.named.users.insert(at, (uid, rights));
}

/// Takes a user's entry away.
pub(super) fn take(acl: &mut Acl, uid: Uid) {
    let mask = acl.mask.unwrap_or(acl.group);
    if rights_of(acl, uid).is_none() {
        return;
    }
    acl.named.users.retain(|(user, _)| *user != uid);
    *acl = within(acl, mask);
    // An empty mask would make the users and groups that are left count as the others.
    let left = Some(union(acl)).filter(|left| *left != 0);
    acl.mask = (!acl.named.is_empty()).then_some(left.unwrap_or(mask));
}

/// The list in which all entries have the rights that they have within the mask.
fn within(acl: &Acl, mask: u8) -> Acl {
    let users = acl.named.users.iter();
    let groups = acl.named.groups.iter();
    Acl {
        group: acl.group & mask,
        named: Named {
            users: users.map(|(uid, it)| (*uid, it & mask)).collect(),
            groups: groups.map(|(gid, it)| (*gid, it & mask)).collect(),
        },
        ..acl.clone()
    }
}

fn union(acl: &Acl) -> u8 {
    let users = acl.named.users.iter().map(|(_, it)| *it);
    let groups = acl.named.groups.iter().map(|(_, it)| *it);
    users.chain(groups).fold(acl.group, |all, it| all | it)
}

impl Lists {
    /// The same with what a person is to have. What a person writes in a shared directory, the
    /// directory's owner may read and change, as it may its own.
    pub(super) fn settled(&self, uid: Uid, owner: Uid, granted: Granted) -> Self {
        let mut access = self.access.clone();
        match granted.rights {
            Some(rights)
                if rights_of(&access, uid) == Some(rights) && is_within(&access, rights) => {}
            Some(rights) => give(&mut access, uid, rights),
            None => take(&mut access, uid),
        }
        let default = match granted.inherited {
            Some(writes) => Some(self.inheriting(uid, owner, writes)),
            None => self.no_longer_inheriting(uid, owner),
        };
        Self { access, default }
    }

    /// The part of the access list that a mode without a list would be.
    fn plain(&self) -> Acl {
        Acl {
            mask: None,
            group: self.access.group & self.access.mask.unwrap_or(7),
            named: Named::default(),
            ..self.access.clone()
        }
    }

    fn inheriting(&self, uid: Uid, owner: Uid, writes: bool) -> Acl {
        let mut list = self.default.clone().unwrap_or_else(|| self.plain());
        let rights = if writes { 7 } else { 5 };
        if rights_of(&list, uid) != Some(rights) || !is_within(&list, rights) {
            give(&mut list, uid, rights);
        }
        if writes && owner != uid && rights_of(&list, owner).is_none() {
            give(&mut list, owner, 7);
        }
        list
    }

    fn no_longer_inheriting(&self, uid: Uid, owner: Uid) -> Option<Acl> {
        let mut list = self.default.clone()?;
        if rights_of(&list, uid).is_none() {
            return Some(list);
        }
        take(&mut list, uid);
        if list.named.groups.is_empty() && list.named.users == [(owner, 7)] {
            take(&mut list, owner);
        }
        (list != self.plain()).then_some(list)
    }
}

/// Whether the mask lets so many rights through.
fn is_within(acl: &Acl, rights: u8) -> bool {
    acl.mask.is_some_and(|mask| rights & !mask == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quorumfs_metadata::acl::permits;
    use quorumfs_metadata::attributes::{Access, Credentials, Mode};
    use quorumfs_metadata::identity::Gid;

    const BOB: Uid = Uid(3);
    const OWNER: Uid = Uid(0);

    fn an_acl() -> impl Strategy<Value = Acl> {
        let map = || proptest::collection::btree_map(1_u32..6, 0_u8..8, 0..4);
        (0_u8..8, 0_u8..8, 0_u8..8, 0_u8..8, map(), map()).prop_map(
            |(owner, group, other, mask, users, groups)| {
                let users = users.into_iter().map(|(uid, it)| (Uid(uid), it));
                let groups = groups.into_iter().map(|(gid, it)| (Gid(gid), it));
                let named = Named {
                    users: users.collect(),
                    groups: groups.collect(),
                };
                let mask = (!named.is_empty()).then_some(mask);
                Acl {
                    owner,
                    group,
                    other,
                    mask,
                    named,
                }
            },
        )
    }

    fn may(acl: &Acl, who: &Credentials, access: u8) -> bool {
        let of = (OWNER, Gid(2), Mode(acl.mode()));
        permits(of, acl.clone().beyond_mode().as_ref(), who, Access(access))
    }

    fn users() -> impl Iterator<Item = Credentials> {
        let each = |uid| (1..5).map(move |gid| Credentials::user(Uid(uid), Gid(gid)));
        (0..7).flat_map(each)
    }

    proptest! {
        #[test]
        fn a_person_gets_its_rights_and_no_other_user_gains(

            acl in an_acl(), rights in 0_u8..8,
        ) {
            let mut given = acl.clone();
            give(&mut given, BOB, rights);
            prop_assert!(given.check().is_ok());
            let mut taken = given.clone();
            take(&mut taken, BOB);
            prop_assert!(taken.check().is_ok());
            prop_assert_eq!(rights_of(&taken, BOB), None);
            let mut without = acl.clone();
            take(&mut without, BOB);
            for who in users() {
                for access in 1..8 {
                    if who.uid != BOB {
                        let before = may(&acl, &who, access);
                        for after in [&given, &taken] {
                            let after = may(after, &who, access);
                            let is_right = after == before || (!after && acl.mask == Some(0));
                            prop_assert!(is_right, "{:?}: {} {}", &who, before, after);
                        }
                    } else if given.mask != Some(0) {
                        prop_assert_eq!(may(&given, &who, access), rights & access == access);
                    }
                }
            }
        }

        #[test]
        fn what_is_settled_once_is_settled(
            access in an_acl(), default in proptest::option::of(an_acl()),
            rights in proptest::option::of(0_u8..8),
            inherited in proptest::option::of(any::<bool>()),
        ) {
            let granted = Granted { rights, inherited };
            let lists = Lists { access, default };
            let once = lists.settled(BOB, OWNER, granted);
            prop_assert_eq!(once.settled(BOB, OWNER, granted), once.clone());
            let default = once.default.as_ref();
            prop_assert_eq!(rights_of(&once.access, BOB), rights);
            let inherits = default.and_then(|list| rights_of(list, BOB));
            prop_assert_eq!(inherits, inherited.map(|writes| if writes { 7 } else { 5 }));
        }

        #[test]
        fn what_was_given_to_a_mode_is_a_mode_again(
            mode in 0_u16..0o1000, writes in any::<bool>(),
        ) {
            let lists = Lists { access: of_mode(mode), default: None };
            let granted = Granted { rights: Some(5), inherited: Some(writes) };
            let given = lists.settled(BOB, OWNER, granted);
            prop_assert!(given.default.is_some());
            prop_assert_eq!(given.settled(BOB, OWNER, Granted::default()), lists);
        }
    }

    #[test]
    fn an_owner_may_change_what_a_person_makes_in_a_shared_directory() {
        let lists = Lists {
            access: of_mode(0o700),
            default: None,
        };
        let granted = Granted {
            rights: Some(7),
            inherited: Some(true),
        };
        let default = lists.settled(BOB, OWNER, granted).default.unwrap();
        let (made, mode) = default.inherited(Mode(0o644));
        let of = (BOB, Gid(3), mode);
        let may = |uid, access| {
            let who = Credentials::user(uid, Gid(9));
            permits(of, made.as_ref(), &who, Access(access))
        };
        assert!(may(OWNER, 4) && may(BOB, 6));
        assert!(!may(Uid(5), 4));
    }
}
