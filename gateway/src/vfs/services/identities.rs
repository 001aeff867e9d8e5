//! Whom a machine's user is in the volume.
//!
//! Users have numbers, and two machines give the same number to different people. So a principal
//! that acts for one user of the volume is that user on its machine, whatever number the machine
//! has for it:
//!
//! ```text
//! this machine            the volume
//!   1000 (or root) ─────►   1003        requests, chown, access control lists
//!   1000           ◄─────   1003        what is shown
//!   1003           ◄────►   1000        another person's files stay another person's
//! ```
//!
//! Both numbers are exchanged in both directions, so that no two users of the volume are shown as
//! one. All other numbers are as they are, and the servers refuse requests of users for whom the
//! principal may not act. A principal that may act for the machine's user by its number, and for
//! every group, needs none of this.
//!
//! Groups are exchanged in the same way. The user's further groups in the volume are shown as the
//! machine's group too: the kernel checks permissions by what is shown, and knows of no others.

use super::caller::{Caller, GroupSource};
use quorumfs_metadata::row::{Assertable, Rights};

/// The version of an access control list in an extended attribute, and the size of its parts.
const ACL_HEAD_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;
/// The tags of entries that name a user or a group (`include/uapi/linux/posix_acl.h`).
const ACL_USER: u16 = 2;
const ACL_GROUP: u16 = 8;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    /// User and group on this machine.
    local: (u32, u32),
    /// User and group in the volume.
    volume: (u32, u32),
    /// All groups of the user in the volume.
    groups: Vec<u32>,
}

const fn exchanged(number: u32, one: u32, other: u32) -> u32 {
    if number == one {
        other
    } else if number == other {
        one
    } else {
        number
    }
}

impl Identities {
    /// What a principal with these rights needs on a machine where its user has this number and
    /// this group; `None`: nothing.
    #[must_use]
    pub fn of(rights: &Rights, local: (u32, u32)) -> Option<Self> {
        let Assertable::Only(uids) = &rights.uids else {
            return None;
        };
        let is_same = uids.iter().any(|uid| uid.0 == local.0);
        let uid = match is_same {
            true => local.0,
            false => uids.first()?.0,
        };
        let groups = match &rights.gids {
            Assertable::Any if is_same => return None,
            Assertable::Any => Vec::new(),
            Assertable::Only(gids) => gids.iter().map(|gid| gid.0).collect(),
        };
        let gid = groups.first().copied().unwrap_or(local.1);
        Some(Self {
            local,
            volume: (uid, gid),
            groups,
        })
    }

    /// The volume's number of a user of this machine, and the other way round.
    #[must_use]
    pub const fn user(&self, uid: u32) -> u32 {
        exchanged(uid, self.local.0, self.volume.0)
    }

    /// The volume's number of a group of this machine.
    #[must_use]
    pub const fn group(&self, gid: u32) -> u32 {
        exchanged(gid, self.local.1, self.volume.1)
    }

    /// The group as which this machine is shown one of the volume's.
    #[must_use]
    pub fn shown_group(&self, gid: u32) -> u32 {
        match self.groups.contains(&gid) {
            true => self.local.1,
            false => self.group(gid),
        }
    }

    /// On whose behalf a call of this machine is made. The machine's superuser counts as its user.
    #[must_use]
    pub fn caller(&self, caller: Caller) -> Caller {
        if caller.uid != self.local.0 && caller.uid != 0 {
            // Another user of the machine, which the servers refuse under its own number.
            return Caller {
                uid: self.user(caller.uid),
                gid: self.group(caller.gid),
                ..caller
            };
        }
        Caller {
            uid: self.volume.0,
            gid: self.volume.1,
            groups: GroupSource::Known(self.groups.clone()),
            umask: caller.umask,
        }
    }

    /// An access control list as an extended attribute has it, with the other side's numbers.
    /// Anything else stays as it is.
    #[must_use]
    pub fn acl(&self, value: &[u8]) -> Vec<u8> {
        let mut value = value.to_vec();
        let entries = value.get_mut(ACL_HEAD_BYTES..).unwrap_or_default();
        for entry in entries.chunks_exact_mut(ACL_ENTRY_BYTES) {
            let [tag, tag_high, _, _, id @ ..] = entry else {
                continue;
            };
            let number = match <[u8; 4]>::try_from(&*id) {
                Ok(bytes) => u32::from_le_bytes(bytes),
                Err(_) => continue,
            };
            let number = match u16::from_le_bytes([*tag, *tag_high]) {
                ACL_USER => self.user(number),
                ACL_GROUP => self.group(number),
                _ => continue,
            };
            id.copy_from_slice(&number.to_le_bytes());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::{Gid, Uid};

    fn rights(uids: &[u32], gids: &[u32]) -> Rights {
        Rights {
            uids: Assertable::Only(uids.iter().copied().map(Uid).collect()),
            gids: Assertable::Only(gids.iter().copied().map(Gid).collect()),
            ..Rights::all()
        }
    }

    #[test]
    fn two_people_with_one_number_stay_two() {
        let bob = Identities::of(&rights(&[1003], &[1003, 2000]), (1000, 100)).unwrap();
        assert_eq!(
            [1000, 1003, 1001, 0].map(|it| bob.user(it)),
            [1003, 1000, 1001, 0]
        );
        assert_eq!([100, 1003, 2000].map(|it| bob.group(it)), [1003, 100, 2000]);
        for number in 0..3000 {
            assert_eq!(bob.user(bob.user(number)), number);
            assert_eq!(bob.group(bob.group(number)), number);
        }
        // The machine's kernel lets bob in where the volume's groups do.
        let shown = [1003, 2000, 100, 7].map(|it| bob.shown_group(it));
        assert_eq!(shown, [100, 100, 1003, 7]);
        let called = bob.caller(Caller::user(1000, 100, vec![100, 4]));
        assert_eq!(called, Caller::user(1003, 1003, vec![1003, 2000]));
        assert_eq!(bob.caller(Caller::user(0, 0, vec![])).uid, 1003);
        let other = Caller::user(1001, 1001, vec![]);
        assert_eq!(bob.caller(other.clone()), other);
        // A user whose number on the machine is bob's in the volume is not bob.
        let namesake = bob.caller(Caller::user(1003, 1003, vec![]));
        assert_eq!((namesake.uid, namesake.gid), (1000, 100));
    }

    #[test]
    fn who_may_act_for_the_machines_user_by_its_number_does() {
        assert_eq!(Identities::of(&Rights::all(), (1000, 1000)), None);
        assert_eq!(Identities::of(&rights(&[], &[]), (1000, 1000)), None);
        // With the same number it still has the volume's groups, not the machine's.
        let same = Identities::of(&rights(&[5, 1000], &[1000]), (1000, 100)).unwrap();
        let called = same.caller(Caller::user(1000, 100, vec![100, 27]));
        assert_eq!(called, Caller::user(1000, 1000, vec![1000]));
        assert_eq!(same.user(1000), 1000);
    }

    #[test]
    fn named_entries_of_a_list_are_exchanged_and_others_stay() {
        let bob = Identities::of(&rights(&[1003], &[1003]), (1000, 100)).unwrap();
        let entry = |tag: u16, id: u32| {
            let parts = [
                &tag.to_le_bytes()[..],
                &7_u16.to_le_bytes(),
                &id.to_le_bytes(),
            ];
            parts.concat()
        };
        let list = |user, group| {
            let parts = [
                2_u32.to_le_bytes().to_vec(),
                entry(1, u32::MAX),
                entry(ACL_USER, user),
                entry(ACL_GROUP, group),
                entry(32, u32::MAX),
            ];
            parts.concat()
        };
        assert_eq!(bob.acl(&list(1000, 100)), list(1003, 1003));
        assert_eq!(bob.acl(&list(1001, 7)), list(1001, 7));
        for cut in 0..list(1, 2).len() {
            assert_eq!(bob.acl(&list(1000, 100)[..cut]).len(), cut);
        }
    }
}
