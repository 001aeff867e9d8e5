//! Byzantine-fault-tolerant state machine replication as a pure state machine.
//!
//! `quorumfs-bft` orders operations over n ≥ 2u + r + 1 replicas: it stays right while at most r of
//! them lie and live while at most u of them fail. Verified messages, timers and completions of
//! durable writes go in; unsigned messages, timer settings and durable writes come out. Nothing in
//! here touches a clock, a network, a disk, a thread, a random source or an unordered map, so the
//! same core runs under `quorumfs-bft-runtime` and, a whole cluster at a time, under the seeded
//! `quorumfs-bft-simulator`.
//!
//! # Modules
//!
//! | Module | Content |
//! |---|---|
//! | [`fault_model`] | u, r, n and every quorum, computed nowhere else |
//! | [`identity`] | the newtypes of the protocol |
//! | [`authentication`] | signing and verifying as traits, so that the simulator can fake them |
//! | [`durability`] | how durable what a replica has promised is |
//! | [`step`] | events in, effects out: the border to the driver of the core |
//! | [`service`] | what an application implements |
//! | [`wire`] | messages as bytes, and every constant |
//! | [`certificate`] | what a quorum of signatures proves |
//! | [`checkpoint`] | agreement on the state, so that older data can be forgotten |
//! | [`membership`] | who votes, in which membership epoch, and how that changes |
//! | [`journal`] | what must not be forgotten, as bytes |
//! | [`ordering`] | proposals, votes, views, suspicion, STATUS |
//! | [`admission`] | waiting requests, and blacklisted peers |
//! | [`execution`] | from a committed batch to new state and replies |
//! | [`replica`] | the composition: one replica |
//! | [`metrics`] | its counters and status |
//! | [`recording`] | the events of a replica on record, so that they can be replayed |
//! | [`observer`] | observing replicas, and watching rows |
//! | [`client`] | the client: sessions, lanes, bundles, reply quorums |
//! | [`state`] | the Merkle key space that holds the service's rows |
//! | [`state_transfer`] | a checkpoint's rows from several peers |
//! | [`state_copy`] | the same for a client, with what proves it |
//!
//! # A replicated counter
//!
//! An application is a [`service::Service`]: a deterministic function over rows. This is one.
//!
//! ```
//! use bytes::Bytes;
//! use quorumfs_bft::identity::{PublicKey, Sequence, SessionId, Time};
//! use quorumfs_bft::service::{Caller, Context, Credit, Service};
//! use quorumfs_bft::state::{Area, KeySpace, MemoryStore, StateError, Txn, View};
//!
//! /// Counts: an operation is a byte to add, and every client gets the sum.
//! struct Counter;
//!
//! fn sum(view: &View<'_>) -> Result<u64, StateError> {
//!     let row = view.get(b"sum")?.unwrap_or_default();
//!     Ok(row.as_ref().try_into().map_or(0, u64::from_be_bytes))
//! }
//!
//! impl Service for Counter {
//!     fn genesis(&self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), StateError> {
//!         txn.put(b"sum", vec![0; 8])
//!     }
//!     fn open_session(
//!         &self, _: &mut Txn<'_>, _: &Context, _: &Caller,
//!     ) -> Result<Option<Credit>, StateError> {
//!         Ok(Some(Credit { lanes: 8, bytes: 1 << 20 })) // every client may
//!     }
//!     fn execute(
//!         &self, txn: &mut Txn<'_>, _: &Context, _: &Caller, operation: &[u8],
//!     ) -> Result<Bytes, StateError> {
//!         let &[add] = operation else { return Ok(Bytes::new()) }; // no effect
//!         let sum = sum(&txn.view())?.wrapping_add(add.into()).to_be_bytes().to_vec();
//!         txn.put(b"sum", sum.clone())?;
//!         Ok(Bytes::from(sum))
//!     }
//!     fn read(&self, view: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
//!         Ok(Bytes::from(sum(view)?.to_be_bytes().to_vec()))
//!     }
//! }
//!
//! // Alone, without any replicas: one operation in a batch of its own, and a query.
//! let mut space = KeySpace::open(MemoryStore::new())?;
//! let mut txn = space.begin(Area::Service, Sequence(0));
//! Counter.genesis(&mut txn, b"")?;
//! txn.commit();
//! let caller = Caller { session: SessionId(1), principal: PublicKey([0; 32]) };
//! let context = Context {
//!     sequence: Sequence(1), time: Time(1), lease_clock: Time(1), behaviour_version: 1,
//!     short_of_space: false,
//! };
//! let mut txn = space.begin(Area::Service, context.sequence);
//! assert_eq!(Counter.execute(&mut txn, &context, &caller, &[42])?[7], 42);
//! txn.commit();
//! assert_eq!(Counter.read(&space.view(Area::Service), &caller, b"")?[7], 42);
//! # Ok::<(), StateError>(())
//! ```
//!
//! Next: the front page of `quorumfs-bft-runtime` runs this counter on a replica with a
//! client, that of `quorumfs-bft-simulator` tests a service under simulated faults, and
//! [`service`] has a store with transactions.
//!
//! # Scope
//!
//! It contains no file system, opens no socket and keeps no file.

pub mod admission;
pub mod authentication;
pub mod certificate;
pub mod checkpoint;
pub mod client;
mod digest_map;
pub mod durability;
pub mod execution;
pub mod fault_model;
pub mod identity;
pub mod journal;
pub mod membership;
pub mod metrics;
pub mod observer;
pub mod ordering;
pub mod recording;
pub mod replica;
mod round_trip;
pub mod sabotage;
pub mod service;
pub mod state;
pub mod state_copy;
pub mod state_transfer;
pub mod step;
pub mod wire;
