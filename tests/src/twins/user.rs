//! The users: the superuser and three others, two of whom share a group.

use super::step::Operation;

/// A user.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// File-system user.
    pub uid: u32,
    /// File-system group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'static [u32],
}

/// All users; the first one is the superuser.
pub const USERS: [User; 4] = [
    User {
        uid: 0,
        gid: 0,
        groups: &[],
    },
    User {
        uid: 61_001,
        gid: 61_001,
        groups: &[61_100, 61_002],
    },
    User {
        uid: 61_002,
        gid: 61_002,
        groups: &[61_100],
    },
    User {
        uid: 61_003,
        gid: 61_003,
        groups: &[],
    },
];

/// The groups that files are given to: those of the users, and one that the first user lacks.
pub const GROUPS: [u32; 5] = [0, 61_001, 61_002, 61_003, 61_100];

/// The user that executes an operation, which may differ from the drawn one. The superuser removes
/// access control lists: if a user outside of the group removes one, tmpfs clears the set-group-id
/// bit, even if there was no list. Other file systems keep it, as ours does.
#[must_use]
pub fn performer(user: usize, operation: &Operation) -> usize {
    match operation {
        Operation::RemoveAttribute { name, .. } if name.0 == b"system.posix_acl_access" => 0,
        _ => user,
    }
}
