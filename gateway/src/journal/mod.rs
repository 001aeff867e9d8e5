//! The mount's journal: written data that is not yet in the clouds, kept over a crash.
//!
//! ```text
//!  vfs ──push──► writer (one thread) ── log ──┬── ledger     waiting records, removable files
//!       ◄─synced──┘                           ├── framing    sealed, chained, bound to their place
//!                                             └── disk       append, sync, remove
//!  at a start:  disk ──recovery──► records ──ledger──► waiting ──verdict──► in place or rescue
//! ```
//!
//! Files of bounded length in one directory, only ever appended to, removed from the front. A
//! record is sealed under a key of its file's own. Without the journal's secret nothing can be
//! read, and no record can be changed, swapped or taken from the middle undetected. The loss of the
//! newest files cannot be detected here; but bytes are put in place only where the servers' version
//! of the file fits.
//!
//! Invariants:
//! * **Synced records are kept**: records that [`Journal::synced`] has promised are replayed after
//!   any crash, in order, unless a durable record voids them. No other bytes are replayed.
//! * **A failed disk is not used again**: the first error ends the journal for this mount.
//! * **Bounded**: the queue in memory and the files on the disk.
//!
//! Possible failure: a disk that loses data that it reported as durable. That is detected unless it
//! was the very last group (`recovery`). The records before the loss are replayed, and the rest is
//! put aside.
//!
//! Sources: the chain and the cut at the first invalid record are those of every write-ahead log
//! since ARIES (Mohan et al., 1992). That a failed fsync must not be retried is what PostgreSQL
//! learnt in 2018 (Rebello et al., "Can Applications Recover from fsync Failures?", 2020).

#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod disk;
mod error;
mod framing;
mod ledger;
mod log;
mod record;
mod recovery;
#[cfg(test)]
mod simulated_disk;
#[cfg(test)]
mod tests;
mod verdict;
mod writer;

pub use disk::{Directory, Disk};
pub use error::JournalError;
pub use framing::Generation;
pub use log::{Recovered, Tail};
pub(crate) use record::WRITE_BYTES_MAX;
pub use record::{Entry, Ground, Record, Sequence};
pub use verdict::{Reason, Verdict};
pub use writer::{
    JOURNAL_BYTES_DEFAULT, JOURNAL_BYTES_MIN, Journal, JournalOptions, JournalStatus,
};
