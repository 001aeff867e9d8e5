//! What one replica was told from its start on, on record, so that it can be told the same again.
//!
//! A core that poisons itself, stalls or answers wrongly in a real process is looked for in a
//! debugger too late: what led there is gone. But the core is a function of what it is told. So
//! that is recorded, and `quorumfs-bft-simulator` tells it to the same core again, with the same
//! clock, as often as one likes (`replay`).
//!
//! ```text
//!   Start ─► Found … ─► Read … ─► Did ─► Told ─► Read … ─► Did ─► Told ─► …  ─► Over
//!   config,  the        what the  the     an      what it   what
//!   clock    journal    store     core    event   read      came
//!                       gave      starts                    of it
//! ```
//!
//! # Why it is exact
//!
//! Whatever decides what a core does next is recorded where it comes in:
//!
//! * its configuration, the clock and the journal that it started on;
//! * every event with its time. Frames were checked before the core saw them, and are not checked
//!   again: what the check left out (bodies of sessions that were not known here yet) is left out
//!   of the record, and what it passed on as a stray is marked as one;
//! * every row that it read from its store, as the store gave it, and every failure to. So the
//!   record needs no copy of the state, however large that is, and a page that was damaged once is
//!   as damaged in the replay.
//!
//! What the core did is recorded as [`Mark`]s, eight bytes an effect: enough to tell where a replay
//! leaves the record, and of what kind the effect was there.
//!
//! # Why it begins at a process start
//!
//! A ring of the last events alone would be shorter, but what they meant depends on what the core
//! had in memory before them: votes, waiting requests, timers, cached nodes. None of that is on
//! disk, and journal and state together give back what may be relied on, not what was there. So a
//! record is of a process's life from its start on. It ends at a bound; the ring is one of lives,
//! of which whoever keeps them forgets the oldest.
//!
//! # What a record holds
//!
//! The requests and rows that came by, as they were: whoever must not see the state must not see a
//! record of it. No keys that sign are in it.
//!
//! * `layout`: entries as bytes.  * `blocks`: the file, its checks, its end.  * `mark`: effects.

mod blocks;
mod layout;
mod mark;

#[cfg(test)]
mod tests;

pub use blocks::{Recording, Unreadable, Writer};
pub use mark::{Mark, Marker};

use crate::identity::Now;
use crate::journal::Condition;
use crate::replica::Config;
use crate::step::{Event, Token};
use bytes::Bytes;

/// What a replica started with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The service's name, so that the right one is taken for a replay.
    pub service: String,
    /// The release that recorded.
    pub release: String,
    /// What the core was told once.
    pub config: Config,
    /// The verdict on the journal; its records follow as [`Entry::Found`].
    pub condition: Condition,
    /// Tokens from this one on were never used.
    pub next: Token,
    /// When.
    pub now: Now,
}

/// What is recorded, in the order in which it happened.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A record of the journal that it started on.
    Found {
        /// Its name.
        token: Token,
        /// Its bytes.
        record: Bytes,
    },
    /// The core was told of an event.
    Told {
        /// When.
        now: Now,
        /// Of what.
        event: Event,
    },
    /// The core read from its store.
    Read {
        /// Where.
        key: Bytes,
        /// What stood there, or why that cannot be said.
        found: Result<Option<Bytes>, String>,
    },
    /// What came of the last event, or of the start.
    Did {
        /// Each effect, in order.
        effects: Vec<Mark>,
    },
    /// Nothing more is recorded.
    Over {
        /// Why.
        why: String,
    },
}
