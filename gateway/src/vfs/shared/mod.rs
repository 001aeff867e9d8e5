//! `Shared with me`: what others share with this mount's person, as a directory that is in no row.
//!
//! The root shows it to a person with whom something is shared, unless it has an entry of that
//! name. It has a symbolic link for each share, which leads to the shared thing from there
//! (`../Photos/2024`). No operation is ordered for it: names and places come from the shares, which
//! are asked for when it is looked at, and not more often than every three seconds.
//!
//! What always holds:
//! * **No number of it is an inode's**: its home is one that no realm has.
//! * **Nothing in it can be changed**: `EROFS`.
//! * **Only people have it.** A principal that acts for every user, as the volume's owner does, has
//!   access without a share.
//!
//! If the servers do not answer, what they said last is shown.
//!
//! | Module | Content |
//! |---|---|
//! | `directory` | the directory and its links |
//! | `place` | where something was when it was shared |
//! | `taking_back` | when to look for shares that have ended |

mod directory;
mod place;
mod taking_back;

pub use directory::SHARED_NAME;
pub(in crate::vfs) use directory::{
    NOT_SHARED, READ_ONLY, SHARED_COOKIE, SHARED_DIRECTORY, SharedLink, SharedWithMe, is_shared,
};
pub use place::SharedPlace;
pub(in crate::vfs) use taking_back::TakingBack;
