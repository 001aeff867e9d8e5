//! The file system as a client sees it: keys, names, content and POSIX over ordered metadata.
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | [`backup`] | backups of the metadata on the clouds, and recovery from them |
//! | [`blocks`] | slices on several clouds: sealed, coded, verified, completed, repaired |
//! | [`capsule`] | links that need no server: the clouds and a key are enough |
//! | [`cost`] | prices, plans, bills and budgets, as arithmetic |
//! | [`disk_cache`] | recently read and written content, encrypted on this machine's disk |
//! | [`journal`] | written data that is not in the clouds yet, on this host |
//! | [`keys`] | who may read what: volume root, principals, key epochs, names, small values |
//! | [`volume`] | making a volume, and opening it with a key |
//! | [`memory`] | one setting for a mount's memory, and its division |
//! | [`metadata`] | the metadata servers, typed; or a service in this process |
//! | [`slices`] | sealed pieces of content, small ones together; the clouds as a store of them |
//! | [`vfs`] | the file system: every supported call of POSIX |
//!
//! # What it does not contain
//!
//! The kernel interface (that is `quorumfs-fuse`) and the command line.

pub mod backup;
pub mod blocks;
pub mod capsule;
mod clock;
pub mod cost;
#[cfg(any(test, feature = "decoders"))]
#[doc(hidden)]
pub mod decoders;
pub mod disk_cache;
mod error;
pub mod journal;
pub mod keys;
pub mod lock;
pub mod memory;
pub mod metadata;
pub mod slices;
pub mod vfs;
pub mod volume;
