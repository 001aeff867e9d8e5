//! The file system as a client sees it: keys, names, content and POSIX over ordered metadata.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`blocks`] | slices on several clouds: sealed, coded, verified, completed, repaired |
//! | [`disk_cache`] | what was read or written, kept encrypted on this machine |
//! | [`journal`] | what was written and is not in the clouds yet, kept on this host |
//! | [`keys`] | who may read what: volume root, principals, realm epochs, names, small values |
//! | [`volume`] | a volume made, and opened with a key |
//! | [`memory`] | one setting for a mount's memory, and how it is divided |
//! | [`metadata`] | the metadata servers, typed; or a service in this process |
//! | [`vfs`] | the file system: every call of POSIX that is supported |
//!
//! # What it is not
//!
//! It knows no kernel (that is `quorumfs-fuse`) and no command line.

pub mod blocks;
#[cfg(any(test, feature = "decoders"))]
#[doc(hidden)]
pub mod decoders;
pub mod disk_cache;
pub mod journal;
pub mod keys;
pub mod lock;
pub mod memory;
pub mod metadata;
pub mod vfs;
pub mod volume;
