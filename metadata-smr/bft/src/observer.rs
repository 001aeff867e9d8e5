//! Those who watch: what replicas are, and which rows have changed.
//!
//! ```text
//!   Observe ──────► replica ──► Observed        it will, with where it stands; or why it will not
//!                     │    └──► Report          what it is, whenever that changes
//!                     └───────► WatchEvent      a batch changed what the session watches
//!
//!   one replica's word ──► Tally (event), Chain (watch) ──► what counts
//! ```
//!
//! * [`event`]: what a replica is, said by itself; what a quorum of such reports proves.
//! * [`watch`]: changes of rows that a session registered for by an ordered operation.
//!
//! The replica's side is `replica::observers` (who is told) and `execution::watch` (what has
//! changed); the client's is `client::observing`.
//!
//! # What always holds
//!
//! * **Correctness never rests on a push.** Reports and events are not sent again, not waited for,
//!   and the first to be thrown away when a connection cannot keep up. Whoever watches learns that
//!   it missed something, and then looks for itself by an ordinary query. A push only says when it
//!   is worth asking.
//! * **An observer costs the order next to nothing.** A replica that nobody observes does nothing;
//!   one that is observed compares a small record at the end of a step and lays out one frame for
//!   all. What does not fit into an observer's outbox is dropped.
//! * **One replica's word is never more than that.** Single reports are handed on as what they are.
//!   What goes up only (epoch, view, executed batches, stable checkpoint) counts up to the
//!   (r+1)-th highest report, for one of these replicas is correct. What can be so or otherwise
//!   counts when n − u say the same. An event counts with r + 1 equal copies.
//!
//! # What one liar can do
//!
//! *Withhold*: others send the same, and the next event or standing shows what is missing.
//! *Delay*: an event that was taken already, or that a revalidation covers, says nothing.
//! *Invent*: nobody else says the same; what it keeps waiting for a second copy counts against its
//! own bound. *Exaggerate*: the r highest claims are not looked at.
//!
//! Source: N. Neto, "FeBFT" (2023), §4.7, for observers that run beside the core and are told both
//! what a quorum says and what single replicas say; the rest follows from where an observer may sit
//! between a liar and a laggard.

pub mod event;
pub mod watch;

pub use event::{Activity, Fact, NumberedReport, Observation, Report, Tally};
pub use watch::{Chain, Observe, Observed, Refusal, WatchAnswer, WatchEvent, WatchId, Watched};
