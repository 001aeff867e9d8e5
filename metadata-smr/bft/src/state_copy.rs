//! A state copy: the rows of a recent stable checkpoint, verified, in a client's own store.
//!
//! # Purpose
//!
//! A client with the right ([`Service::may_copy`](crate::service::Service::may_copy)) keeps a copy
//! of the whole state, for a backup that any process can check later. A refresh brings the copy to
//! a newer stable checkpoint: only nodes that changed are fetched. Then the client reads the rows,
//! or those that changed since the root before, and a proof that they are all.
//!
//! ```text
//!  copy                                                                     replicas
//!   ├── FETCH-COPY {session, root: zeros} ─► all ───────────────────────────►│ the right?
//!   │◄──────────────── COPY {the newest stable certificate} ─────────────────┤
//!   │ is it proved? (epochs: FETCH-EPOCHS)   none new enough: NeedCheckpoint │
//!   ├── FETCH-COPY {session, root, paths} ─► some questions a peer at a time►│ paced
//!   │◄──────────────── COPY {nodes, or: gone and the newest one} ────────────┤
//!   ▼ each against the digest that its parent names; all durable: the new root, atomically
//! ```
//!
//! * [`copier`]: the machine.  * [`copied`]: what a copy is, and how it is proved from genesis.
//! * `stored`: the rows next to the tree.  * The transfer itself is that of a replica:
//!   [`crate::state_transfer::sink`], over [`crate::state::import`].
//!
//! # Invariants
//!
//! * Nothing is accepted that does not follow from a certificate of a quorum: CHECKPOINTs are
//!   signed in every mode of [`crate::authentication`]. The certificate is verified under the
//!   membership of its epoch, and that under the records from the membership that the cluster
//!   began with. So a replica that lies delays a copy and does not change it.
//! * The store holds the last two roots of the copy, and a refresh that was interrupted goes on
//!   where it was. A root, its certificate and the records that prove it become durable together.
//! * A copy never goes back to an earlier checkpoint.
//! * Memory is bounded by the depth of the tree, by what waits to be written, and by the records.
//!
//! # Failures
//!
//! The client has no right: r + 1 replicas say so, several times, since a replica that is behind
//! may not know of the right yet. No checkpoint is new enough: the driver orders one. No replica
//! has the root any more: the refresh moves to the newest, and keeps equal nodes. The own store
//! fails: [`StateError`](crate::state::StateError), and the copy has to be opened again.
//!
//! Source: the verified transfer is M. Castro and B. Liskov, "Proactive Recovery in a
//! Byzantine-Fault-Tolerant System" (2000), §5.3.2; that a client may use it, is of this project.

pub mod copied;
pub mod copier;

mod stored;

pub use copied::{Copied, Unproved};
pub use copier::{CopyOutcome, Effect, Effects, Event, StateCopy};
pub use stored::OpenError;
