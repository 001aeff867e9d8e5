//! The replicated metadata of quorumfs: a file system's inodes, names and maps of content, as a
//! deterministic [`Service`](quorumfs_bft::service::Service) over an ordered key space.
//!
//! # Modules
//!
//! | Module | Content |
//! |---|---|
//! | [`identity`] | identifiers |
//! | [`attributes`] | modes, times, owners, as `stat` shows them; callers |
//! | [`acl`] | access control lists |
//! | [`placement`] | how an object is spread over clouds |
//! | [`row`] | the servers' rows and their keys |
//! | [`operation`] | changes: compounds of steps, mounts, allocations |
//! | [`query`] | questions |
//! | [`reply`], [`error`] | answers |
//! | [`genesis`] | the initial state of a volume |
//! | [`limits`] | every bound, with its reason |
//! | `service` | [`Metadata`]: decodes, admits, executes, answers |
//! | `permission` | permissions by uid, gid and mode |
//! | `namespace` | create, link, unlink, rename |
//! | `set_attributes` | chmod, chown, utimes, truncate |
//! | `accessed` | times of access |
//! | `extended` | extended attributes |
//! | `set_acl` | changing access control lists |
//! | `content` | extents over slices over objects |
//! | [`session`] | sessions, allocations |
//! | `mount` | which sessions have a realm mounted, alone or together |
//! | [`locks`] | `fcntl` and `flock` locks across mounts |
//! | `log` | what mounts are told that others have changed |
//! | `quota` | usage and quotas of realms and users |
//! | `epoch` | new key epochs of a realm, and its members |
//! | [`statement`] | what a principal is |
//! | [`fleet`] | the clouds, which of them take new shards, and signed changes of both |
//! | [`succession`] | replacement of a principal by another |
//! | [`people`] | principals that administrators admit and dismiss, and signed changes of them |
//! | `invitations` | how a further machine of a member hands its key over |
//! | `share` | what users share with people, and by links |
//! | `roles` | which principals may order and ask what |
//! | `reap` | work that is too large for one operation |
//! | `grave` | what lost its last name and some mount may have open |
//! | `trash` | what was removed and can be restored |
//! | `job` | background work that one process does at a time |
//! | `load` | recovery from a copy of the metadata |
//! | `answer` | queries |
//!
//! # Restrictions
//!
//! It sees no plain name, target or content and holds no key. It uses no clock, network, disk,
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
pub mod fleet;
pub mod genesis;
mod grave;
pub mod identity;
mod install;
mod invitations;
mod job;
pub mod limits;
mod load;
pub mod locks;
mod log;
mod mount;
mod namespace;
pub mod operation;
pub mod people;
mod permission;
pub mod placement;
pub mod query;
mod quota;
mod reap;
pub mod reply;
mod roles;
pub mod row;
mod rows;
mod service;
pub mod session;
mod set_acl;
mod set_attributes;
mod share;
pub mod simulation;
pub mod statement;
pub mod succession;
mod trash;

#[cfg(test)]
mod tests;

pub use codec::{DecodeError, VERSION};
pub use service::Metadata;
