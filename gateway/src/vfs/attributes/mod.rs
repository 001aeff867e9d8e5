//! Calls on the attributes of inodes: showing and changing them, extended ones and access lists.
//!
//! These calls own no state. What is known of attributes is in [`known`](super::known), and changes
//! that ride with a commit are in the node ([`files`](super::files)).
//!
//! | Module | Content |
//! |---|---|
//! | `show` | `stat`, `access`, `statfs` |
//! | `change` | changing them at once, or with a commit |
//! | `extended`, `acl` | extended attributes, and the access lists among them |
//! | `tier` | a file's own tier, an extended attribute |

mod acl;
mod change;
#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod extended;
mod show;
mod tier;

pub use change::{AttributeChange, TimeChange};
pub use extended::SetMode;
pub use show::Usage;
