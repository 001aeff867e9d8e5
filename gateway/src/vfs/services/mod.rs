//! What every part of the file system works with: the servers, the volume's keys, the slices, and
//! on whose behalf a call is made.
//!
//! | Module | Content |
//! |---|---|
//! | `caller` | on whose behalf a call is made |
//! | `cancel_safe` | work that runs to its end |
//! | `identities` | whom a machine's user is in the volume |
//! | `given` | [`Services`]: what a file system was given |
//! | `key_rotation` | how it gets the keys of new epochs |
//! | `options` | bounds and waits |
//! | `tier` | what close and fsync wait for |

mod caller;
mod cancel_safe;
mod given;
mod identities;
mod key_rotation;
mod options;
mod tier;

pub use caller::{Caller, GroupSource};
pub(in crate::vfs) use cancel_safe::cancel_safe;
pub(in crate::vfs) use given::Services;
pub use identities::Identities;
pub use key_rotation::UnderOldEpochs;
pub use options::VfsOptions;
pub use tier::Tier;
