//! A recording of one replica's inputs from its start on, so that they can be replayed.
//!
//! When a core poisons itself, stalls or answers wrongly in a real process, a debugger comes too
//! late: the cause is gone. But the core is a function of its inputs. So the inputs are recorded,
//! and `quorumfs-bft-simulator` feeds them to the same core again, with the same clock, any number
//! of times (`replay`).
//!
//! ```text
//!   Start ─► Found … ─► Read … ─► Did ─► Told ─► Read … ─► Did ─► Told ─► …  ─► Over
//!   config,  the        store     effects an     store     effects
//!   clock    journal    rows      of the  event  rows      of the
//!                                 start                    event
//! ```
//!
//! # Why it is exact
//!
//! Every input that determines the core's next step is recorded where it enters:
//!
//! * its configuration, the clock and the journal that it started with;
//! * every event with its time. Frames were verified before the core received them, and are not
//!   verified again: bodies that verification left out (of sessions that were not known here yet)
//!   are left out of the recording, and bodies that it passed on as strays are marked as such;
//! * every row that it read from its store, as the store returned it, and every failed read. So the
//!   recording needs no copy of the state, however large that is, and a page that was damaged once
//!   is as damaged in the replay.
//!
//! The core's effects are recorded as [`Mark`]s, eight bytes an effect: enough to detect where a
//! replay departs from the recording, and of what kind the effect was there.
//!
//! # Why it begins at a process start
//!
//! A ring of the last events alone would be shorter, but their meaning depends on the core's memory
//! before them: votes, waiting requests, timers, cached nodes. None of that is on disk; journal and
//! state together restore what may be relied on, not that memory. So a recording covers a process's
//! life from its start on. It ends at a bound. The ring is one of lives, of which the oldest
//! recording is deleted.
//!
//! # Contents
//!
//! Recordings contain requests and rows unchanged: keep them from people who must not see the
//! state. They contain no signing keys.
//!
//! * `layout`: entries as bytes.  * `blocks`: the file, its checks, its end.  * `mark`: effects.

mod blocks;
mod layout;
mod mark;

#[cfg(test)]
mod tests;

pub use blocks::{Recording, RecordingWriter, Unreadable};
pub use mark::{Mark, Marker};

use crate::identity::Now;
use crate::journal::Condition;
use crate::replica::Config;
use crate::step::{Event, Token};
use bytes::Bytes;

/// The start of a replica.
#[derive(Clone, Debug)]
pub struct Start {
    /// The service's name, so that a replay uses the right one.
    pub service: String,
    /// The release that recorded.
    pub release: String,
    /// The core's configuration.
    pub config: Config,
    /// The verdict on the journal; its records follow as [`Entry::JournalRecord`].
    pub condition: Condition,
    /// Tokens from this one on were never used.
    pub next: Token,
    /// When it started.
    pub now: Now,
}

/// An entry of the recording, in order.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A record of the journal that it started with.
    JournalRecord {
        /// Its token.
        token: Token,
        /// Its bytes.
        record: Bytes,
    },
    /// The core received an event.
    Event {
        /// When.
        now: Now,
        /// The event.
        event: Event,
    },
    /// The core read from its store.
    Read {
        /// The key.
        key: Bytes,
        /// The value, or why it could not be read.
        found: Result<Option<Bytes>, String>,
    },
    /// The effects of the last event, or of the start.
    Effects {
        /// Each effect, in order.
        effects: Vec<Mark>,
    },
    /// The end of the recording.
    End {
        /// Why.
        why: String,
    },
}
