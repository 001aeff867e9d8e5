//! From an ordered batch to new state and replies.
//!
//! # Purpose
//!
//! This module does everything between "this batch is committed" and "these replies are sent":
//! sessions, exactly-once execution, the agreed clock, and the calls into the
//! [`Service`](crate::service::Service). All its state is in rows of the key space
//! ([`Area::Library`](crate::state::Area)), so it is part of the state's digest, survives restarts,
//! and is equal on all replicas.
//!
//! ```text
//!   batch + bodies ─► clock ─► idle sessions, tick ─► each request: session ─► lane ─► service
//!                                                                        └─► reply cache ─► Reply
//! ```
//!
//! # Invariants
//!
//! * A request runs at most once. In its lane only the number after the last one runs; the last two
//!   are answered from the cache; an earlier one is [`Outcome::Superseded`]; a request that skips a
//!   number is passed over, and its client sends it again.
//! * Duplicates are resolved here, at execution, and never when a proposal is accepted: a leader
//!   that orders a request twice changes nothing.
//! * An opening opens one session, and no other one after that has ended.
//! * The credit of all sessions together is within a replica's capacity.
//! * An operation's writes and its result are kept or dropped together.
//! * A session is notified of a change in the batch that makes it.
//! * A batch does a bounded amount of work in addition to what its requests ask for.
//!
//! # Failures
//!
//! Only the store can fail: [`StateError`](crate::state::StateError), and the replica stops. Any
//! input from clients results in an [`Outcome`].
//!
//! Source: M. Castro and B. Liskov, "Practical Byzantine Fault Tolerance" (1999), §4.2 for the
//! reply cache; A. Clement, "UpRight Fault Tolerance" (2010), §5.5 for exactly once by number.
//!
//! [`Outcome`]: crate::wire::message::Outcome
//! [`Outcome::Superseded`]: crate::wire::message::Outcome::Superseded

mod answer;
pub mod clock;
mod closed_sessions;
mod credit;
pub mod delivery;
mod members;
mod operations;
mod read;
mod replay;
pub mod reply_cache;
pub mod session;
mod session_cache;
mod standing;

mod rows;
mod watch;

pub use closed_sessions::ClosedSession;
pub use delivery::{Executed, Executor, Opened};
pub use standing::Standing;

#[cfg(test)]
mod tests;
