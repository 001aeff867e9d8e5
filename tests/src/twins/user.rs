//! Who does things: the superuser and three others, of whom two share a group.

use super::step::Operation;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// File-system user.
    pub uid: u32,
    /// File-system group.
    pub gid: u32,
    /// Groups beside that.
    pub groups: &'static [u32],
}

/// All of them; the first one is the superuser.
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

/// What files are given to: these, and a group that nobody has for the first one.
pub const GROUPS: [u32; 5] = [0, 61_001, 61_002, 61_003, 61_100];

/// Who does it instead of the user that was drawn. Lists of access are removed by the superuser:
/// with one that is removed by somebody who is not of the group tmpfs takes the set-group-id bit,
/// also where there was none. Other file systems keep it, as ours does.
#[must_use]
pub fn performer(user: usize, operation: &Operation) -> usize {
    match operation {
        Operation::RemoveAttribute { name, .. } if name.0 == b"system.posix_acl_access" => 0,
        _ => user,
    }
}
