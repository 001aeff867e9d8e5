//! The replicated metadata of quorumfs: a file system's inodes, names and maps of content, as a
//! deterministic [`Service`](quorumfs_bft::service::Service) over an ordered key space.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`identity`] | the numbers that metadata is made of |
//! | [`attributes`] | modes, times, owners: what `stat` shows, and who asks |
//! | [`placement`] | how an object is spread over clouds |
//! | [`row`] | what the servers keep, and under which keys |
//! | [`operation`] | what changes it: compounds of steps, mounts, allocations |
//! | [`query`] | what is asked about it |
//! | [`reply`], [`error`] | what is answered |
//! | [`genesis`] | what a volume begins with |
//! | [`limits`] | every bound, with its reason |
//!
//! # What it is not
//!
//! It sees no plain name, target or content and holds no key. It touches no clock, network, disk,
//! thread, random source or unordered map.

pub mod attributes;
mod codec;
pub mod error;
pub mod genesis;
pub mod identity;
pub mod limits;
pub mod operation;
pub mod placement;
pub mod query;
pub mod reply;
pub mod row;

pub use codec::{DecodeError, VERSION};
