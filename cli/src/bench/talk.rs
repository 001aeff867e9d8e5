//! What the bench and its replicas say to each other: one JSON object a line.
//!
//! ```text
//!   replica ──Hello──► bench      where it listens, under which key
//!   bench ───Setting──► replica   everything else
//!   replica ──Sample──► bench     once it runs, and after every further line of the bench
//!   end of input                  the replica stops
//! ```
//!
//! A replica makes its own key and takes a free port before it says either, so no secret crosses
//! and no port can be lost to somebody else in between.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// A replica's first line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) address: SocketAddr,
    pub(super) key: String,
}

/// What a replica is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setting {
    pub(super) replica: u16,
    pub(super) up: u16,
    pub(super) right: u16,
    pub(super) members: Vec<Hello>,
    pub(super) durability: String,
    pub(super) reply_bytes: u32,
    pub(super) directory: PathBuf,
}

/// What a replica has done so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) processor_seconds: f64,
    pub(super) view: u64,
    pub(super) batches: u64,
    pub(super) requests: u64,
    pub(super) operations: u64,
}
