//! A whole replicated cluster in virtual time, from one seed.
//!
//! `quorumfs-bft-simulator` runs the real replica and client cores of `quorumfs-bft`, with a
//! service of yours or the built-in key-value service, on simulated machines: networks that delay,
//! reorder, lose, duplicate, corrupt and partition; disks with group commit that tear records and
//! forget; clocks that skew, drift and jump; processes that crash and restart; replicas and
//! clients that lie with their real keys. Everything follows from a seed: the same seed is the
//! same run, so a run that failed is a regression test for ever.
//!
//! It judges from outside. What the clients saw must be linearizable; what honest replicas
//! executed must be the same at every sequence, and exactly what was asked for, once; and after
//! the last fault has healed everybody must be done within 20 s of virtual time. It also counts:
//! every path and every accepted lie has a counter, so that a test that tests nothing is seen.
//!
//! # The way through
//!
//! | Module | What it holds |
//! |---|---|
//! | [`simulation`] | the run: opens with the picture |
//! | [`workload`] | what a service brings along; [`key_value`] is an example |
//! | [`plan`], [`profile`] | what goes wrong when, within the fault model |
//! | [`network`], [`disk`], [`clock`], [`authentication`] | the simulated world |
//! | [`liar`], [`lie`] | Byzantine replicas: the real core behind a rewriting proxy |
//! | [`history`], [`linearizability`], [`observed`] | what was seen, and whether it can be right |
//! | [`counters`], [`report`] | what came of it |
//! | [`agenda`], [`random`] | virtual time and chance |
//!
//! # Simulating a service of your own
//!
//! ```no_run
//! use quorumfs_bft_simulator::key_value::KeyValueWorkload;
//! use quorumfs_bft_simulator::profile::Profile;
//! use quorumfs_bft_simulator::simulation::{Options, Simulation};
//!
//! let options = Options::new(1, Profile::Mixed);
//! let report = Simulation::run(options, KeyValueWorkload::default(), None).unwrap();
//! assert!(report.passed(), "{:?} {:?}", report.violations, report.stalls);
//! ```
//!
//! # What it is not
//!
//! It measures no performance, and it has no threads, clocks or files: whoever calls it measures.

pub mod agenda;
pub mod authentication;
pub mod clock;
pub mod counters;
mod customer;
pub mod disk;
mod execution_order;
pub mod history;
mod judge;
pub mod key_value;
pub mod liar;
pub mod lie;
pub mod linearizability;
pub mod network;
mod node;
pub mod observed;
mod outlaw;
pub mod plan;
pub mod profile;
pub mod random;
pub mod report;
pub mod simulation;
pub mod workload;
