//! Byzantine-fault-tolerant state machine replication as a pure state machine.
//!
//! `quorumfs-bft` orders operations over n ≥ 2u + r + 1 replicas: it stays right while at most r of
//! them lie and live while at most u of them fail. Verified messages, timers and completions of
//! durable writes go in; unsigned messages, timer settings and durable writes come out. Nothing in
//! here touches a clock, a network, a disk, a thread, a random source or an unordered map, so the
//! same core runs under `quorumfs-bft-runtime` and, a whole cluster at a time, under the seeded
//! `quorumfs-bft-simulator`.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`fault_model`] | u, r, n and every quorum, computed nowhere else |
//! | [`identity`] | the newtypes that the rest speaks in |
//! | [`authentication`] | signing and verifying as traits, so that the simulator can fake them |
//! | [`step`] | events in, effects out: the border to whoever drives the core |
//! | [`service`] | what an application implements |
//! | [`wire`] | messages as bytes, and every constant |
//! | [`certificate`] | what a quorum of signatures proves |
//! | [`checkpoint`] | agreement on the state, so that what is below can be forgotten |
//! | [`journal`] | what must not be forgotten, as bytes |
//! | [`ordering`] | proposals, votes, views, suspicion, STATUS |
//! | [`admission`] | requests that wait, and who is not listened to |
//! | [`execution`] | from a committed batch to new state and replies |
//! | [`replica`] | the composition: one replica |
//! | [`metrics`] | what it counts and says about itself |
//! | [`client`] | the client: sessions, lanes, bundles, reply quorums |
//! | [`state`] | the Merkle key space that the service's rows live in |
//! | [`state_transfer`] | a checkpoint's rows from several peers |
//!
//! # What it is not
//!
//! It knows no file system, opens no socket and keeps no file.

pub mod admission;
pub mod authentication;
pub mod certificate;
pub mod checkpoint;
pub mod client;
pub mod execution;
pub mod fault_model;
pub mod identity;
pub mod journal;
pub mod metrics;
pub mod ordering;
pub mod replica;
pub mod service;
pub mod state;
pub mod state_transfer;
pub mod step;
pub mod wire;
