//! Observers: reports of replicas, and changes of watched rows.
//!
//! ```text
//!   Observe ──────► replica ──► Observed        its standing, or why it refuses
//!                     │    └──► Report          the replica's state, whenever that changes
//!                     └───────► WatchEvent      a batch changed rows that the session watches
//!
//!   statements of replicas ──► Tally (event), Chain (watch) ──► what counts
//! ```
//!
//! * [`event`]: a replica's report about itself, and what a quorum of such reports proves.
//! * [`watch`]: changes of rows that a session registered for by an ordered operation.
//!
//! The replica's side is `replica::observers` (the observers it serves) and `execution::watch` (the
//! changes); the client's is `client::observing`.
//!
//! # Invariants
//!
//! * **Correctness never depends on a push.** Reports and events are not sent again, not waited
//!   for, and the first to be dropped when a connection cannot keep up. An observer learns that it
//!   missed something, and then looks for itself by an ordinary query. A push only indicates when
//!   it is worth asking.
//! * **An observer costs the order next to nothing.** A replica without observers does no work for
//!   them; a replica with observers compares a small record at the end of a step and encodes one
//!   frame for all. Frames that do not fit into an observer's outbox are dropped.
//! * **One replica's statement is never more than that.** Single reports are passed on as such.
//!   Values that only rise (epoch, view, executed batches, stable checkpoint) count up to the
//!   (r+1)-th highest report, since one of these replicas is correct. Other values count when n − u
//!   replicas report the same. An event counts with r + 1 equal copies.
//!
//! # What one liar can do
//!
//! *Withhold*: others send the same, and the next event or standing shows that something is
//! missing. *Delay*: an event that was taken already, or that a revalidation covers, has no effect.
//! *Invent*: no other replica sends the same; its events waiting for a second copy count against
//! its own bound. *Exaggerate*: the r highest claims are ignored.
//!
//! Source: N. Neto, "FeBFT" (2023), §4.7, for observers that run separately from the core and
//! receive both the statements of a quorum and those of single replicas; the rest follows from
//! where an observer may sit between a liar and a laggard.

pub mod event;
pub mod watch;

pub use event::{Activity, Fact, NumberedReport, Observation, Report, Tally};
pub use watch::{
    Chain, Observe, Observed, WatchAnswer, WatchEvent, WatchId, WatchRefusal, Watched,
};
