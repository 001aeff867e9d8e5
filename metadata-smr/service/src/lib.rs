//! The replicated metadata of quorumfs: a file system's inodes, names and maps of content, as a
//! deterministic [`Service`](quorumfs_bft::service::Service) over an ordered key space.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`identity`] | the numbers that metadata is made of |
//! | [`attributes`] | modes, times, owners: what `stat` shows, and who asks |
//! | [`acl`] | access control lists, and whom they let in |
//! | [`placement`] | how an object is spread over clouds |
//! | [`row`] | what the servers keep, and under which keys |
//! | [`operation`] | what changes it: compounds of steps, mounts, allocations |
//! | [`query`] | what is asked about it |
//! | [`reply`], [`error`] | what is answered |
//! | [`genesis`] | what a volume begins with |
//! | [`limits`] | every bound, with its reason |
//! | `service` | [`Metadata`]: decodes, admits, executes, answers |
//! | `permission` | who may do what, by uid, gid and mode |
//! | `namespace` | create, link, unlink, rename |
//! | `set_attributes` | chmod, chown, utimes, truncate |
//! | `accessed` | times of access |
//! | `extended` | extended attributes |
//! | `set_acl` | changing access control lists |
//! | `content` | extents over slices over objects |
//! | [`session`] | sessions, mounts, allocations |
//! | `quota` | what realms and users have, and may have |
//! | `epoch` | new epochs of a realm's keys, and who is a member |
//! | [`succession`] | one principal in the place of another |
//! | `reap` | what was too large for one operation |
//! | `answer` | queries |
//!
//! # What it is not
//!
//! It sees no plain name, target or content and holds no key. It touches no clock, network, disk,
//! thread, random source or unordered map.

mod accessed;
pub mod acl;
mod answer;
pub mod attributes;
mod change;
mod codec;
mod content;
mod epoch;
pub mod error;
mod extended;
pub mod genesis;
pub mod identity;
mod install;
pub mod limits;
mod namespace;
pub mod operation;
mod permission;
pub mod placement;
pub mod query;
mod quota;
mod reap;
pub mod reply;
pub mod row;
mod rows;
mod service;
pub mod session;
mod set_acl;
mod set_attributes;
pub mod simulation;
pub mod succession;

#[cfg(test)]
mod tests;

pub use codec::{DecodeError, VERSION};
pub use service::Metadata;
