//! The messages between the bench and its replicas: one JSON object a line.
//!
//! ```text
//!   replica ──Hello──────────► bench      its address and key
//!   bench ───ReplicaSetting──► replica    everything else
//!   replica ──Sample─────────► bench      once it runs, and after every further line of the bench
//!   end of input                          the replica stops
//! ```
//!
//! A replica makes its own key and takes a free port before it sends either, so no secret is
//! transmitted and no other process can take the port in between.

use super::distance::OneWays;
use super::replica::CLUSTER;
use crate::failure::{BenchFailure, BenchResult, failed};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Incarnation, PublicKey, ReplicaId};
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

impl Hello {
    pub(super) fn key(&self) -> BenchResult<PublicKey> {
        let key = self.key.parse();
        key.map_err(|error| failed("understand a replica's key", &error))
    }
}

/// One line.
pub(super) fn line<T: Serialize>(value: &T) -> BenchResult<String> {
    let mut line = serde_json::to_string(value).map_err(|error| failed("encode", &error))?;
    line.push('\n');
    Ok(line)
}

/// A replica's setting.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReplicaSetting {
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
    /// Additional durable writes a second.
    pub(super) flushes: u32,
    /// The round trip to each replica, in milliseconds; none: there is no delay.
    pub(super) round_trips_ms: Vec<u64>,
    pub(super) part: BenchRole,
}

impl ReplicaSetting {
    pub(super) fn cluster(&self) -> ClusterId {
        if self.signed {
            CLUSTER
        } else {
            unsigned::CLUSTER
        }
    }

    /// How far it is from the others, if that is to be felt.
    pub(super) fn ways(&self) -> Option<OneWays> {
        OneWays::of(self.replica, &self.round_trips_ms)
    }

    pub(super) fn fault_model(&self) -> BenchResult<FaultModel> {
        let count = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let model = FaultModel::new(self.up, self.right, count);
        model.map_err(|error| BenchFailure::usage(error.to_string()))
    }

    pub(super) fn replicas(&self) -> BenchResult<Vec<Member>> {
        let member = |(number, member): (u16, &Hello)| {
            Ok(Member {
                id: ReplicaId(number),
                key: member.key()?,
                incarnation: Incarnation::default(),
                address: member.address.into(),
            })
        };
        (0..).zip(&self.members).map(member).collect()
    }
}

/// The role of a process in the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BenchRole {
    /// A correct replica.
    Correct,
    /// The messages of a replica alone: see [`super::baseline`].
    Baseline,
    /// A replica that sends its proposals so many milliseconds late.
    SlowLeader(u64),
    /// A replica that ignores this session's requests while it leads.
    UnfairLeader(u64),
    /// Not a replica: see [`super::attackers`].
    Attacker(Attack),
}

/// The behaviour of an attacker, as fast as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Attack {
    /// A client that repeats one request.
    Requests,
    /// A client that repeats one request of the largest size.
    Huge,
    /// A client that asks for the status.
    Questions,
    /// Clients under ever new keys whose signatures are invalid.
    BadSignatures,
    /// A replica that repeats a vote.
    Votes,
    /// A replica that asks for committed batches.
    Fetches,
}

/// Counters of a replica or an attacker.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) processor_seconds: f64,
    pub(super) view: u64,
    pub(super) batches: u64,
    pub(super) requests: u64,
    pub(super) operations: u64,
    /// Additional durable writes.
    pub(super) flushes: u64,
}
