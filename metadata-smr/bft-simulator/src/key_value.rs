//! The example: a key-value service, its operations and its judge.
//!
//! It is small, but has one of everything that replication can get wrong: overwriting, conditional
//! and accumulating writes, reads, agreed time in every answer, and values with a
//! lifetime, which a tick removes.

pub mod command;
pub mod model;
pub mod service;
mod workload;

pub use command::{Command, KeyValueAnswer};
pub use service::KeyValue;
pub use workload::KeyValueWorkload;
