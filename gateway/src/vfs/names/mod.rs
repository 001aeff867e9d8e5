//! Calls on names: looking them up, making, moving and removing them, listing them, and opening
//! what they lead to.
//!
//! These calls own no state. What is known of names is in [`known`](super::known), what is open in
//! [`files`](super::files).
//!
//! | Module | Content |
//! |---|---|
//! | `namespace` | creation, renaming and removal |
//! | `lookup` | where a name leads |
//! | `sealed` | names as the servers have them |
//! | `directory` | listing |
//! | `reseal` | new generations of names, and calls that have to be repeated for them |
//! | `shared` | what others share with this mount's person |
//! | `open` | opening, creating and closing files |
//! | `orphans` | inodes that lost their names |
//! | `claims` | keeping what is open here and lost its last name on another mount |
//! | `temporary` | names of entries in progress |
//! | `trash` | what was removed, restoring and purging it |

mod claims;
mod directory;
mod lookup;
mod namespace;
mod open;
mod orphans;
mod reseal;
mod sealed;
mod shared;
mod temporary;
mod trash;

pub(in crate::vfs) use claims::spawn as spawn_claims;
pub use namespace::{RenameMode, RenamedInodes};
pub use open::OpenedFile;
pub use temporary::{is_temporary_name, temporary_name};
pub use trash::{InTrash, PURGED_AT_ONCE};
