//! State transfer: the rows of a stable checkpoint, from several peers, for a replica that is too
//! far behind to be served batches, or whose own state was found to be wrong.
//!
//! ```text
//!  sink                                                              sources
//!   │ a stable certificate, and batches below it are gone elsewhere     │
//!   ├── FETCH-NODES {root, paths} ─► some questions a peer at a time ──►│ paced, two durable roots
//!   │◄───────────────── NODES {root, nodes, or: gone} ──────────────────┤
//!   │ each against the digest that its parent names; written as it comes│
//!   ├── FETCH-COMMITTED {checkpoint} ──────────────────────────────────►│
//!   │◄─────────── COMMITTED: the batch with its certificate ────────────┤
//!   ▼ all nodes durable: new root durable ─► sessions announced ─► batches as always
//! ```
//!
//! * [`source`]: the answers of a replica.  * [`sink`]: the requests of a replica.
//! * `peer`: the known facts about each peer.
//! * The tree itself, and the reuse of the own one: [`crate::state::import`].
//!
//! # Invariants
//!
//! * Nothing is accepted that does not follow from the checkpoint's certificate.
//! * A near peer has one open request at a time, a distant one several. Nodes that a peer does not
//!   send in time, measured by its usual response time, are requested from another, and so are
//!   those that it answered wrongly; in that case it is bypassed for a while. A late answer counts
//!   as far as its nodes are still wanted.
//! * During the transfer the replica executes nothing and gives no vote. After a crash it continues
//!   where it was.
//! * Ordering comes first at the source: the nodes that a peer is served are limited by an
//!   allowance that refills with time.
//! * The replica ends at the checkpoint with the commit certificate of its batch, so it can take
//!   part in a view change like all others.
//!
//! # Failures
//!
//! No source has the root any more: their newer stable certificate comes with the answer, and the
//! transfer moves to it, keeping equal nodes. A replica that goes back to an earlier state (its
//! state was wrong) may have voted for batches that it has not executed any more: it abstains until
//! it has.
//!
//! Source: M. Castro and B. Liskov, "Proactive Recovery in a Byzantine-Fault-Tolerant System"
//! (2000), §5.3.2, for partitions verified from the root down.

mod peer;
pub mod sink;
pub mod source;

pub use sink::Sink;
