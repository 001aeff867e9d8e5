//! Access control lists of the POSIX.1e draft, as Linux implements them.
//!
//! An inode's *access* list gives rights to users and groups in addition to its owner, its group
//! and the others. It extends the mode and never repeats it: the mode's owner bits are the owner's
//! entry, its other bits the others', and its group bits the *mask*, which bounds all entries but
//! those two. So chmod changes the mask, `stat` shows it, and the two cannot disagree. A list that
//! a mode can express is not stored.
//!
//! A directory's *default* list is the initial list of new entries, in place of the umask.
//!
//! Source: IEEE 1003.1e draft 17, 23.1.5 (access check); Linux, `fs/posix_acl.c`
//! (`posix_acl_permission`, `posix_acl_create_masq`).

use crate::attributes::{Access, Credentials, Mode};
use crate::error::Error;
use crate::identity::{Gid, Uid};
use crate::limits::ACL_ENTRIES_MAX;
use borsh::{BorshDeserialize, BorshSerialize};

/// Entries for users and groups, each sorted by number, each number once. Rights are the low three
/// bits of a mode.
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, BorshSerialize, BorshDeserialize,
)]
pub struct Named {
    /// Users.
    pub users: Vec<(Uid, u8)>,
    /// Groups.
    pub groups: Vec<(Gid, u8)>,
}

/// The part of an inode's access list that its mode lacks. The mask is always the mode's group
/// bits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub struct AccessAcl {
    /// The owning group's rights, within the mask.
    pub group: u8,
    /// The named users and groups.
    pub named: Named,
}

/// A complete list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub struct Acl {
    /// The owner's rights.
    pub owner: u8,
    /// The owning group's rights.
    pub group: u8,
    /// The rights of all others.
    pub other: u8,
    /// The bound of the owning group's and all named entries; required if there are named entries.
    pub mask: Option<u8>,
    /// The named users and groups.
    pub named: Named,
}

/// One of an inode's lists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum AclKind {
    /// The rights to the inode itself.
    Access,
    /// The initial list of new entries: of directories alone.
    Default,
}

impl Named {
    fn check(&self) -> Result<(), Error> {
        let count = self.users.len().saturating_add(self.groups.len());
        if count > ACL_ENTRIES_MAX {
            return Err(Error::LimitReached);
        }
        let users = self.users.iter().map(|(uid, rights)| (uid.0, *rights));
        let groups = self.groups.iter().map(|(gid, rights)| (gid.0, *rights));
        if is_sorted(users) && is_sorted(groups) {
            Ok(())
        } else {
            Err(Error::Invalid)
        }
    }

    /// The number of named entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len().saturating_add(self.groups.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }
}

/// Whether the numbers ascend and the rights are valid.
fn is_sorted(entries: impl Iterator<Item = (u32, u8)>) -> bool {
    let mut last = None;
    for (number, rights) in entries {
        // No user has the last number: it stands for "no id" in every interface of Linux.
        let sensible = rights <= 7 && number != u32::MAX && last.is_none_or(|last| last < number);
        if !sensible {
            return false;
        }
        last = Some(number);
    }
    true
}

impl Acl {
    /// Whether it is a valid list.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if it has more than [`ACL_ENTRIES_MAX`] named entries,
    /// [`Error::Invalid`] if it is not a valid list.
    pub fn check(&self) -> Result<(), Error> {
        self.named.check()?;
        let rights = [self.owner, self.group, self.other, self.mask.unwrap_or(0)];
        let masked = self.mask.is_some() || self.named.is_empty();
        if masked && rights.iter().all(|rights| *rights <= 7) {
            Ok(())
        } else {
            Err(Error::Invalid)
        }
    }

    /// The nine permission bits that represent it.
    #[must_use]
    pub fn mode(&self) -> u16 {
        let group = self.mask.unwrap_or(self.group);
        u16::from(self.owner) << 6 | u16::from(group) << 3 | u16::from(self.other)
    }

    /// The part that a mode cannot express, if there is one.
    #[must_use]
    pub fn beyond_mode(self) -> Option<AccessAcl> {
        self.mask.map(|_| AccessAcl {
            group: self.group,
            named: self.named,
        })
    }

    /// The list and mode of a new inode that is created with `mode` in a directory with this
    /// default list.
    #[must_use]
    pub fn inherited(&self, mode: Mode) -> (Option<AccessAcl>, Mode) {
        let bits = self.mode() & mode.0;
        (self.clone().beyond_mode(), Mode(mode.0 & !0o777 | bits))
    }
}

impl AccessAcl {
    /// The complete list of an inode of this mode.
    #[must_use]
    pub fn with_mode(&self, mode: Mode) -> Acl {
        Acl {
            owner: class(mode, 6),
            group: self.group,
            other: class(mode, 0),
            mask: Some(class(mode, 3)),
            named: self.named.clone(),
        }
    }

    /// The rights of a caller that does not own the inode: those of a named user, else of any group
    /// that has all of `access`, else of the others; `None` for the others.
    fn granted(&self, gid: Gid, who: &Credentials, access: Access) -> Option<u8> {
        let named = self.named.users.iter().find(|(uid, _)| *uid == who.uid);
        if let Some((_, rights)) = named {
            return Some(*rights);
        }
        let owning = who.in_group(gid).then_some(self.group);
        let named = self.named.groups.iter();
        let named = named.filter_map(|(gid, rights)| who.in_group(*gid).then_some(*rights));
        let mut groups = owning.into_iter().chain(named).peekable();
        groups.peek()?;
        Some(groups.find(|rights| grants(*rights, access)).unwrap_or(0))
    }
}

/// Whether the permission bits of a mode, and the list that extends it, allow `who` all of
/// `access`. The superuser is not considered.
///
/// Like the kernel, which checks first and would otherwise allow what we refuse, this ignores a
/// list whose mask grants nothing: named users then count as others, unless they are in the owning
/// group. Source: Linux, `fs/namei.c` (`acl_permission_check`).
#[must_use]
pub fn permits(
    (uid, gid, mode): (Uid, Gid, Mode),
    acl: Option<&AccessAcl>,
    who: &Credentials,
    access: Access,
) -> bool {
    if who.uid == uid {
        return grants(class(mode, 6), access);
    }
    let granted = match acl.filter(|_| class(mode, 3) != 0) {
        None => who.in_group(gid).then(|| class(mode, 3)),
        Some(acl) => {
            let granted = acl.granted(gid, who, access);
            granted.map(|rights| rights & class(mode, 3))
        }
    };
    grants(granted.unwrap_or_else(|| class(mode, 0)), access)
}

/// The three bits of one class in a mode.
pub(crate) const fn class(mode: Mode, shift: u16) -> u8 {
    (mode.0 >> shift) as u8 & 7
}

/// Whether rights include all of `access`.
pub(crate) const fn grants(rights: u8, access: Access) -> bool {
    rights & access.0 == access.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// An entry as in the draft: a tag, a qualifier, rights.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Entry {
        Owner(u8),
        User(u32, u8),
        OwningGroup(u8),
        Group(u32, u8),
        Mask(u8),
        Other(u8),
    }

    fn entries(acl: &Acl) -> Vec<Entry> {
        let users = acl
            .named
            .users
            .iter()
            .map(|(uid, r)| Entry::User(uid.0, *r));
        let groups = acl
            .named
            .groups
            .iter()
            .map(|(gid, r)| Entry::Group(gid.0, *r));
        let mut entries = vec![Entry::Owner(acl.owner)];
        entries.extend(users);
        entries.push(Entry::OwningGroup(acl.group));
        entries.extend(groups);
        entries.extend(acl.mask.map(Entry::Mask));
        entries.push(Entry::Other(acl.other));
        entries
    }

    /// The draft's algorithm, step by step over a list of entries; without the named ones if the
    /// mask grants nothing, as in Linux.
    fn model(
        entries: &[Entry],
        (owner, owning): (u32, u32),
        who: &Credentials,
        wanted: u8,
    ) -> bool {
        let mask = entries.iter().find_map(|entry| match entry {
            Entry::Mask(rights) => Some(*rights),
            _ => None,
        });
        let counts = |entry: &&Entry| {
            mask != Some(0) || !matches!(entry, Entry::User(..) | Entry::Group(..))
        };
        let entries: Vec<Entry> = entries.iter().filter(counts).copied().collect();
        let masked = |rights: u8| (rights & mask.unwrap_or(7)) & wanted == wanted;
        for entry in &entries {
            match entry {
                Entry::Owner(rights) if who.uid.0 == owner => return rights & wanted == wanted,
                Entry::User(uid, rights) if who.uid.0 == *uid => return masked(*rights),
                _ => {}
            }
        }
        let mut is_member = false;
        for entry in &entries {
            let (gid, rights) = match entry {
                Entry::OwningGroup(rights) => (owning, *rights),
                Entry::Group(gid, rights) => (*gid, *rights),
                _ => continue,
            };
            if who.in_group(Gid(gid)) {
                is_member = true;
                if masked(rights) {
                    return true;
                }
            }
        }
        !is_member
            && entries
                .iter()
                .any(|entry| matches!(entry, Entry::Other(rights) if rights & wanted == wanted))
    }

    fn an_acl() -> impl Strategy<Value = Acl> {
        let map = || proptest::collection::btree_map(0_u32..5, 0_u8..8, 0..4);
        (
            0_u8..8,
            0_u8..8,
            0_u8..8,
            proptest::option::of(0_u8..8),
            map(),
            map(),
        )
            .prop_map(
                |(owner, group, other, mask, users, groups): (
                    _,
                    _,
                    _,
                    _,
                    BTreeMap<_, _>,
                    BTreeMap<_, _>,
                )| {
                    let named = Named {
                        users: users
                            .into_iter()
                            .map(|(uid, rights)| (Uid(uid), rights))
                            .collect(),
                        groups: groups
                            .into_iter()
                            .map(|(gid, rights)| (Gid(gid), rights))
                            .collect(),
                    };
                    let mask = if named.is_empty() {
                        mask
                    } else {
                        Some(mask.unwrap_or(5))
                    };
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

    proptest! {
        /// For every list the decision is that of the draft's algorithm.
        #[test]
        fn a_list_decides_as_the_drafts_algorithm_does(
            acl in an_acl(), owner in 0_u32..5, owning in 0_u32..5,
            uid in 0_u32..6, gid in 0_u32..6, groups in proptest::collection::vec(0_u32..6, 0..3),
            wanted in 0_u8..8,
        ) {
            prop_assert!(acl.check().is_ok());
            let who = Credentials {
                uid: Uid(uid),
                gid: Gid(gid),
                groups: groups.into_iter().map(Gid).collect(),
            };
            let expected = model(&entries(&acl), (owner, owning), &who, wanted);
            let mode = Mode(acl.mode());
            let kept = acl.clone().beyond_mode();
            let inode = (Uid(owner), Gid(owning), mode);
            prop_assert_eq!(permits(inode, kept.as_ref(), &who, Access(wanted)), expected);
            if let Some(kept) = kept {
                prop_assert_eq!(kept.with_mode(mode), acl, "and it is shown as it was set");
            }
        }

        /// A new inode grants no more than the default list and the requested mode.
        #[test]
        fn inherited_rights_are_within_the_default_list_and_the_mode(
            default in an_acl(), mode in 0_u16..0o10000,
        ) {
            let (own, given) = default.inherited(Mode(mode));
            prop_assert_eq!(given.0 & !0o777, mode & !0o777);
            prop_assert_eq!(given.0 & 0o777, mode & default.mode());
            prop_assert_eq!(own.is_some(), default.mask.is_some());
            if let Some(own) = own {
                prop_assert_eq!(own.named, default.named);
                prop_assert_eq!(own.group, default.group);
            }
        }
    }

    #[test]
    fn malformed_lists_are_refused() {
        let good = Acl {
            owner: 7,
            group: 5,
            other: 0,
            mask: Some(5),
            named: Named {
                users: vec![(Uid(1), 7), (Uid(2), 4)],
                groups: vec![(Gid(1), 6)],
            },
        };
        assert_eq!(good.check(), Ok(()));
        let refused = |change: fn(&mut Acl)| {
            let mut acl = good.clone();
            change(&mut acl);
            acl.check().unwrap_err()
        };
        assert_eq!(refused(|acl| acl.mask = None), Error::Invalid);
        assert_eq!(refused(|acl| acl.owner = 8), Error::Invalid);
        assert_eq!(refused(|acl| acl.mask = Some(8)), Error::Invalid);
        assert_eq!(refused(|acl| acl.named.groups[0].1 = 9), Error::Invalid);
        assert_eq!(refused(|acl| acl.named.users.swap(0, 1)), Error::Invalid);
        assert_eq!(refused(|acl| acl.named.users[1].0 = Uid(1)), Error::Invalid);
        assert_eq!(
            refused(|acl| acl.named.users[1].0 = Uid(u32::MAX)),
            Error::Invalid
        );
        let many = |acl: &mut Acl| {
            acl.named.users = (0..=ACL_ENTRIES_MAX as u32)
                .map(|uid| (Uid(uid), 0))
                .collect();
        };
        assert_eq!(refused(many), Error::LimitReached);
    }
}
