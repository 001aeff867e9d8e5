//! From an ordered batch to new state and replies.
//!
//! # What it is for
//!
//! Everything between "this batch is committed" and "these replies go out": sessions, exactly-once
//! execution, the agreed clock, and the calls into the [`Service`](crate::service::Service). All
//! that it remembers lies in rows of the key space ([`Area::Library`](crate::state::Area)), so it
//! is part of the state's digest, survives restarts, and is equal on all replicas.
//!
//! ```text
//!   batch + bodies ─► clock ─► idle sessions, tick ─► each request: session ─► lane ─► service
//!                                                                        └─► reply cache ─► Reply
//! ```
//!
//! # What always holds
//!
//! * A request runs at most once: in its lane only the number after the last one runs; the last two
//!   are answered from the cache; what is further behind is [`Outcome::Superseded`]; what skips a
//!   number is passed over, and its client sends it again.
//! * Duplicates are resolved here, at execution, and never when a proposal is accepted: a leader
//!   that orders a request twice changes nothing.
//! * An opening opens one session, and not another one after that has ended.
//! * The credit of all sessions together is what a replica can hold.
//! * An operation's writes and its result are kept or dropped together.
//! * What a session watches is told in the batch that changes it.
//! * A batch does a bounded amount of work besides what its requests ask for.
//!
//! # What can go wrong
//!
//! Only the store: [`StateError`](crate::state::StateError), and the replica stops. Whatever
//! clients send ends in an [`Outcome`].
//!
//! Source: M. Castro and B. Liskov, "Practical Byzantine Fault Tolerance" (1999), §4.2 for the
//! reply cache; A. Clement, "UpRight Fault Tolerance" (2010), §5.5 for exactly once by number.
//!
//! [`Outcome`]: crate::wire::message::Outcome
//! [`Outcome::Superseded`]: crate::wire::message::Outcome::Superseded

mod answer;
pub mod clock;
mod credit;
pub mod delivery;
mod heads;
mod lingering;
mod members;
mod operations;
mod read;
mod replay;
pub mod reply_cache;
pub mod session;

mod rows;
mod watch;

pub use delivery::{Executed, Executor, Opened, Standing};
pub use lingering::Lingering;

#[cfg(test)]
mod tests;
