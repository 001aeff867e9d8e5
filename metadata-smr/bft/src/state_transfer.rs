//! State transfer: the rows of a stable checkpoint, from several peers, for whoever is too far
//! behind to be served batches, or whose own state was found to be wrong.
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
//! * [`source`]: what a replica answers.  * [`sink`]: whom a replica asks for what.
//! * `peer`: what it knows of each.
//! * The tree itself, and what is kept of the own one: [`crate::state::import`].
//!
//! # What always holds
//!
//! * Nothing is believed that does not follow from the checkpoint's certificate.
//! * Of a near peer one question is open at a time, of a distant one some more. What it does not
//!   answer in time, measured by how long it usually takes, is asked of another, and so is what it
//!   answered wrongly, and then it is passed over for a while. An answer that is late counts as far
//!   as what it brings is still wanted.
//! * While it lasts nothing is executed and no vote is given. After a crash it goes on where it
//!   was.
//! * Ordering comes first on the other side: what a peer is served of nodes has an allowance that
//!   time refills.
//! * The replica ends at the checkpoint with the commit certificate of its batch in hand, so it can
//!   take part in a view change like everybody else.
//!
//! # What can go wrong
//!
//! No source has the root any more: their newer stable certificate comes with the answer, and the
//! transfer goes over to it, keeping what is equal. A replica that goes back in time (its state was
//! wrong) may have voted for batches that it has not executed any more: it abstains until it has.
//!
//! Source: M. Castro and B. Liskov, "Proactive Recovery in a Byzantine-Fault-Tolerant System"
//! (2000), §5.3.2, for partitions verified from the root down.

mod peer;
pub mod sink;
pub mod source;

pub use sink::Sink;
