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

use super::replica::CLUSTER;
use crate::commands::volume::public_key;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Incarnation, ReplicaId};
use quorumfs_bft_runtime::client::Member;
use quorumfs_bft_runtime::unsigned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// A replica's first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Whether anything is signed.
    pub(super) signed: bool,
    /// Whether votes are authenticated by the channels.
    pub(super) channels: bool,
    pub(super) durability: String,
    pub(super) reply_bytes: u32,
    pub(super) directory: PathBuf,
    /// Writes a second that are made durable for nobody.
    pub(super) flushes: u32,
    pub(super) part: Part,
}

impl Setting {
    pub(super) fn cluster(&self) -> ClusterId {
        if self.signed {
            CLUSTER
        } else {
            unsigned::CLUSTER
        }
    }

    pub(super) fn fault_model(&self) -> Outcome<FaultModel> {
        let count = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let model = FaultModel::new(self.up, self.right, count);
        model.map_err(|error| Failure::new(Exit::Usage, error.to_string()))
    }

    pub(super) fn replicas(&self) -> Outcome<Vec<Member>> {
        let member = |(number, member): (u16, &Hello)| {
            Ok(Member {
                id: ReplicaId(number),
                key: public_key(&member.key)?,
                incarnation: Incarnation::default(),
                address: member.address.into(),
            })
        };
        (0..).zip(&self.members).map(member).collect()
    }
}

/// What a process is in the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    /// A correct replica.
    Correct,
    /// The messages of a replica without what is behind them: see [`super::bare`].
    Bare,
    /// A replica that says what it proposes so many milliseconds late.
    SlowLeader(u64),
    /// A replica that passes over what this session asks for while it leads.
    UnfairLeader(u64),
    /// No replica at all: see [`super::attackers`].
    Attacker(Attack),
}

/// What an attacker does, as fast as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Attack {
    /// A client that repeats one request.
    Requests,
    /// A client that repeats one request as large as may be.
    Huge,
    /// A client that asks for the status.
    Questions,
    /// Clients under ever new keys whose signatures do not hold.
    BadSignatures,
    /// A replica that repeats a vote.
    Votes,
    /// A replica that asks for committed batches.
    Fetches,
}

/// What a replica, or an attacker, has done so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) processor_seconds: f64,
    pub(super) view: u64,
    pub(super) batches: u64,
    pub(super) requests: u64,
    pub(super) operations: u64,
    /// What was made durable for nobody.
    pub(super) flushes: u64,
}
