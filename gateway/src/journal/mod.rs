//! The journal on this host: what was written and is not yet in the clouds, kept over a crash.
//!
//! ```text
//!  vfs ──push──► writer (one thread) ── log ──┬── ledger     what waits, which files may go
//!       ◄─synced──┘                           ├── framing    sealed, chained, bound to their place
//!                                             └── disk       append, sync, remove
//!  at a start:  disk ──recovery──► records ──ledger──► what waits ──verdict──► in place or rescue
//! ```
//!
//! Files of bounded length in one directory, only ever appended to, removed from the front. A
//! record is sealed under a key of its file's own; without the journal's secret nothing of it can
//! be read, and nothing in it can be changed, swapped or taken from the middle without that being
//! noticed. That the newest files are missing altogether cannot be noticed here: but bytes are put
//! in place only where the servers' version of the file fits.
//!
//! What always holds:
//! * **Synced is kept**: what [`Journal::synced`] has promised is replayed after any crash, in
//!   order, unless it was said durably that it is void. Nothing is replayed that was not written.
//! * **A disk that failed is not asked again**: the first error ends the journal for this mount.
//! * **Bounded**: the queue in memory and the files on the disk.
//!
//! What can go wrong: a disk that loses what it said was durable. That is noticed unless it was the
//! very last group (`recovery`), what stands before it is replayed, and the rest is put aside.
//!
//! Where it comes from: the chain and the cut at the first record that does not hold are those of
//! every write-ahead log since ARIES (Mohan et al., 1992); that a failed fsync must not be tried
//! again is what PostgreSQL learnt in 2018 (Rebello et al., "Can Applications Recover from fsync
//! Failures?", 2020).

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
