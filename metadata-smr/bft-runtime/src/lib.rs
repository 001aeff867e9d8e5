//! The only input and output of the ordering library: keys, sockets, disk, timers, threads.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`keys`] | Ed25519 node keys, their file, and the ZIP-215 verdict |
//! | [`tls`] | mutual TLS 1.3, pinned by key |
//! | [`link`] | framed connections: greeting, bounded queues, keepalives, dialing, listening |
//! | [`disk`] | the journal with group commit, and the state |
//! | [`store`] | the database that the state is kept in |
//! | [`limits`] | every bound and deadline, with its reason |

pub mod disk;
pub mod keys;
pub mod limits;
pub mod link;
pub mod store;
pub mod tls;
