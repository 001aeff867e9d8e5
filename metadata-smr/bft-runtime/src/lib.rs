//! The only input and output of the ordering library: keys, sockets, disk, timers, threads.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`server`] | a replica as a process runs it |
//! | [`client`] | the asynchronous client |
//! | [`keys`] | Ed25519 node keys, their file, and the ZIP-215 verdict |
//! | [`tls`] | mutual TLS 1.3, pinned by key |
//! | [`link`] | framed connections: greeting, bounded queues, keepalives, dialing, listening |
//! | [`replica_links`] | a replica's connections: to its peers, and from whoever dials |
//! | `roster` | who is connected, who may be, and where frames to them go |
//! | `verification` | from bytes to verified messages, on the right thread |
//! | `inbox` | everything that waits for the event loop, bounded and taken fairly |
//! | [`event_loop`] | the thread that owns the core: events in, effects out |
//! | [`disk`] | the journal with group commit, and the state |
//! | [`store`] | the database that the state is kept in |
//! | [`limits`] | every bound and deadline, with its reason |

pub mod client;
pub mod disk;
pub mod event_loop;
mod inbox;
pub mod keys;
pub mod limits;
pub mod link;
pub mod replica_links;
mod roster;
pub mod server;
pub mod store;
pub mod tls;
mod verification;
