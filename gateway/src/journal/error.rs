//! Errors of the journal.

use std::io;

/// The journal cannot be used, or cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The disk reported an error.
    #[error("{doing} the journal failed: {reason}")]
    Disk {
        /// The attempted operation.
        doing: &'static str,
        /// The disk's error.
        reason: String,
        /// The kind of that error.
        kind: io::ErrorKind,
    },
    /// It was written by a later release.
    #[error(
        "the journal on this machine has format {found}; this quorumfs reads up to format {known}: \
         mount with the release that wrote it, which commits its content"
    )]
    Newer {
        /// Its format.
        found: u16,
        /// The newest known format.
        known: u16,
    },
    /// No key or no identity could be made.
    #[error("no key could be made for the journal")]
    Key,
    /// It failed before, and is not written to any more.
    #[error("the journal is not written to any more: {reason}")]
    Broken {
        /// The failure.
        reason: String,
    },
    /// Its thread could not be started, or it ended.
    #[error("the journal's thread is not running: {reason}")]
    Thread {
        /// The reason.
        reason: String,
    },
}

impl JournalError {
    /// A disk's error, with the attempted operation.
    pub(super) fn disk(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Disk {
            doing,
            reason: error.to_string(),
            kind: error.kind(),
        }
    }
}
