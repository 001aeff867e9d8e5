//! Why the journal cannot be used.

use std::io;

/// The journal cannot be used, or cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The disk refused.
    #[error("{doing} the journal failed: {reason}")]
    Disk {
        /// What was being done.
        doing: &'static str,
        /// What the disk said.
        reason: String,
        /// Of what kind that is.
        kind: io::ErrorKind,
    },
    /// It was written by a later release.
    #[error(
        "the journal of what was written here has format {found}; this quorumfs knows {known}: \
         mount with the release that wrote it, which commits what is in it"
    )]
    Newer {
        /// Its format.
        found: u16,
        /// The newest that is known.
        known: u16,
    },
    /// No key or no identity could be made.
    #[error("no key for the journal could be made")]
    Key,
    /// It failed before, and nothing is written to it any more.
    #[error("the journal is not written to any more: {reason}")]
    Broken {
        /// How it failed.
        reason: String,
    },
    /// Its thread could not be started, or it ended.
    #[error("the journal's thread is not there: {reason}")]
    Thread {
        /// Why.
        reason: String,
    },
}

impl JournalError {
    /// A disk's error, and what was being done.
    pub(super) fn disk(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Disk {
            doing,
            reason: error.to_string(),
            kind: error.kind(),
        }
    }
}
