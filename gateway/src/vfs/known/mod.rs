//! What is known of the servers' metadata without asking: one owner of all that is cached of it.
//!
//! ```text
//!                    ┌ attributes, names ──── a stamp each ─┐
//!  lookups ──► known ┤ pages of directories ─ a stamp each ─┼─ valid? ◄── validity ◄── coherence
//!                    └ extents, extended attributes: of one version of an inode
//! ```
//!
//! What always holds:
//! * **Nothing invalid is returned.** An entry that may be out of date is unknown, as if it had
//!   never been cached; so there is no question "is it valid?" whose answer could be old when the
//!   entry is read.
//! * **Changes by this mount are entered as they happen**, and overtake answers to earlier queries.
//! * **Bounded**: each cache evicts its oldest entries.
//!
//! Entries become invalid in two ways. What others have changed is learnt through [`coherence`],
//! and makes the older stamps of that inode, or of all, invalid at once ([`validity`]). What this
//! mount knows to be wrong is removed by [`KnownMetadata::invalidate`]; nothing else removes what
//! the servers said.
//!
//! | Module | Content |
//! |---|---|
//! | `owner` | [`KnownMetadata`] and its one surface |
//! | `cache` | attributes and names |
//! | `pages` | pages of listed directories |
//! | `content`, `extent_cache` | where the bytes of a file lie |
//! | `extended`, `extended_name` | decrypted extended attributes |
//! | `last_open` | the content of which the kernel may have pages |
//! | `lookups` | which directories are worth listing whole |
//! | `validity`, `changed` | how long something is valid; which inodes others have changed |
//! | `coherence`, `revalidation` | asking what others have changed |
//! | `standing` | whether this mount acts as alone |
//! | `invalidations` | what the kernel has to drop |
//! | `segmented_lru` | a bounded map |

mod cache;
mod changed;
mod coherence;
mod content;
mod extended;
mod extended_name;
mod extent_cache;
mod invalidations;
mod last_open;
mod lookups;
mod owner;
mod pages;
mod revalidation;
mod segmented_lru;
mod standing;
mod validity;

pub(in crate::vfs) use cache::{Known, Stamp};
pub(in crate::vfs) use coherence::ChangeLog;
pub(in crate::vfs) use content::{ContentMap, Piece, ReadSource};
pub(in crate::vfs) use extended::{DecryptedAttributes, Plain, Value};
pub(in crate::vfs) use extended_name::Name;
pub use invalidations::{Invalidation, Invalidations};
pub(in crate::vfs) use owner::{KnownMetadata, Scope};
pub use pages::DirectoryEntry;
pub(in crate::vfs) use pages::Page;
pub use revalidation::CACHED_FOR;
pub(in crate::vfs) use revalidation::spawn;
pub(in crate::vfs) use standing::BeforeSharing;
pub(in crate::vfs) use validity::{QueryStamp, VALID_FOR};
