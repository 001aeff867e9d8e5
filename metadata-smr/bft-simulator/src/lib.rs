//! A whole replicated cluster in virtual time, from one seed.
//!
//! `quorumfs-bft-simulator` runs the real replica and client cores of `quorumfs-bft`, with a
//! service of yours or the built-in key-value service, on simulated machines: networks that delay,
//! reorder, lose, duplicate, corrupt and partition; disks with group commit that tear records and
//! forget; clocks that skew, drift and jump; processes that crash and restart; replicas and
//! clients that lie with their real keys. Everything follows from a seed: the same seed gives the
//! same run, so a failed run is a regression test for ever.
//!
//! It judges from outside. The clients' observations must be linearizable; honest replicas must
//! execute the same at every sequence, and exactly the submitted requests, once; and after the last
//! fault has healed all work must be done within 20 s of virtual time, not counting the time
//! between two bursts of clients. It also counts: every path and every accepted lie has a counter,
//! so that a test that tests nothing is noticed.
//!
//! # Modules
//!
//! | Module | What it contains |
//! |---|---|
//! | [`simulation`] | the run, with a diagram |
//! | [`workload`] | what a service has to provide; [`key_value`] is an example |
//! | [`plan`], [`profile`] | which faults happen when, within the fault model |
//! | [`network`], [`ways`], [`disk`], [`clock`], [`authentication`] | the simulated world |
//! | [`liar`], [`lie`] | Byzantine replicas: the real core behind a rewriting proxy |
//! | [`history`], [`linearizability`], [`observed`] | what was seen, and whether it can be right |
//! | [`counters`], [`report`] | the results |
//! | [`replay`] | the replay of a real replica's recording |
//! | [`agenda`], [`random`] | virtual time and random numbers |
//!
//! # Simulating a service of your own
//!
//! A [`workload::Workload`] supplies the requests for a service and judges the answers. The counter
//! of `quorumfs-bft`'s front page adds the byte that it is sent and answers with the sum; its
//! workload is complete as follows:
//!
//! ```
//! use bytes::Bytes;
//! use quorumfs_bft::identity::PublicKey;
//! use quorumfs_bft_simulator::history::{Call, History, OperationKind};
//! use quorumfs_bft_simulator::linearizability::{self, Model};
//! use quorumfs_bft_simulator::profile::Profile;
//! use quorumfs_bft_simulator::random::Random;
//! use quorumfs_bft_simulator::simulation::{Options, Simulation};
//! use quorumfs_bft_simulator::workload::Workload;
//! # use quorumfs_bft::service::{Caller, Context, Credit, Service};
//! # use quorumfs_bft::state::{StateError, Txn, View};
//! # /// Counts: an operation is a byte to add, and each answer is the sum.
//! # struct Counter;
//! #
//! # fn sum(view: &View<'_>) -> Result<u64, StateError> {
//! #     let row = view.get(b"sum")?.unwrap_or_default();
//! #     Ok(row.as_ref().try_into().map_or(0, u64::from_be_bytes))
//! # }
//! #
//! # impl Service for Counter {
//! #     fn genesis(&self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), StateError> {
//! #         txn.put(b"sum", vec![0; 8])
//! #     }
//! #     fn open_session(
//! #         &self, _: &mut Txn<'_>, _: &Context, _: &Caller,
//! #     ) -> Result<Option<Credit>, StateError> {
//! #         Ok(Some(Credit { lanes: 8, bytes: 1 << 20 })) // any principal may connect
//! #     }
//! #     fn execute(
//! #         &self, txn: &mut Txn<'_>, _: &Context, _: &Caller, operation: &[u8],
//! #     ) -> Result<Bytes, StateError> {
//! #         let &[add] = operation else { return Ok(Bytes::new()) }; // no effect
//! #         let sum = sum(&txn.view())?.wrapping_add(add.into()).to_be_bytes().to_vec();
//! #         txn.put(b"sum", sum.clone())?;
//! #         Ok(Bytes::from(sum))
//! #     }
//! #     fn read(&self, view: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
//! #         Ok(Bytes::from(sum(view)?.to_be_bytes().to_vec()))
//! #     }
//! # }
//!
//! /// A counter on a single machine: a state, and the state after a call.
//! struct OneCounter;
//!
//! impl Model for OneCounter {
//!     type State = u64;
//!
//!     fn initial(&self) -> u64 {
//!         0
//!     }
//!     fn apply(&self, sum: &u64, call: &Call) -> Vec<u64> {
//!         let add = match call.kind {
//!             OperationKind::Execute => call.operation[0],
//!             _ => 0, // queries: there are no watches and no membership changes
//!         };
//!         let next = sum + u64::from(add);
//!         match &call.answer {
//!             Some((_, answer)) if answer[..] != next.to_be_bytes() => Vec::new(), // impossible
//!             _ => vec![next], // as it was answered, or unanswered
//!         }
//!     }
//! }
//!
//! struct Counting;
//!
//! impl Workload for Counting {
//!     type Service = Counter;
//!
//!     fn service(&self) -> Counter {
//!         Counter
//!     }
//!     fn genesis(&self, _: &[PublicKey]) -> Bytes {
//!         Bytes::new()
//!     }
//!     fn next(&mut self, _: usize, random: &mut Random) -> (OperationKind, Bytes) {
//!         match random.below(3) {
//!             0 => (OperationKind::Query, Bytes::new()),
//!             add => (OperationKind::Execute, Bytes::from(vec![add as u8])),
//!         }
//!     }
//!     fn judge(&self, history: &History) -> Result<(), String> {
//!         linearizability::check(&OneCounter, history).map_err(|failure| failure.to_string())
//!     }
//! }
//!
//! for seed in 1..=5 {
//!     let report = Simulation::run(Options::new(seed, Profile::Mixed), Counting, None)?;
//!     assert!(report.passed(), "{:?} {:?}", report.violations, report.stalls);
//!     assert!(report.operations >= 200 && report.faults >= 3);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Some of the clients lie and send nonsense; their requests are not in the history, so the service
//! must not let them take effect, or the model has to allow for them. Here the counter ignores
//! everything but single bytes.
//!
//! A failing seed fails every time: pass a trace to `Simulation::run`, and keep the seed as a test
//! once the cause is fixed. [`key_value`] is a service with many objects, lent values and its own
//! model; the simulation of quorumfs's metadata is another one.
//!
//! # Limits
//!
//! It measures no performance, and it has no threads, clocks or files: its caller measures.

pub mod agenda;
pub mod authentication;
mod byzantine_client;
pub mod clock;
pub mod counters;
pub mod disk;
mod execution_order;
pub mod history;
mod honest_client;
mod judge;
pub mod key_value;
pub mod liar;
pub mod lie;
pub mod linearizability;
pub mod network;
mod node;
pub mod observed;
pub mod plan;
pub mod profile;
pub mod random;
pub mod replay;
pub mod report;
pub mod simulation;
pub mod ways;
pub mod workload;
