//! Errors of the metadata servers' answers.

use rustix::io::Errno;

/// An operation without an answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MetadataError {
    /// It was not executed.
    #[error("{reason}")]
    NotExecuted {
        /// The reason.
        reason: String,
    },
    /// It may or may not have been executed.
    #[error("{reason}")]
    OutcomeUnknown {
        /// The reason.
        reason: String,
    },
    /// The session has ended.
    #[error("the session has ended: {reason}")]
    SessionEnded {
        /// The reason.
        reason: String,
    },
    /// The servers are at an earlier state than one that they showed before.
    #[error("the metadata servers have gone back in time: {reason}")]
    WentBack {
        /// The evidence.
        reason: String,
    },
    /// The answer is invalid: an older or newer server, or a defect.
    #[error("the servers' answer to {question} cannot be understood: {reason}")]
    Answer {
        /// The query.
        question: &'static str,
        /// The problem with the answer.
        reason: String,
    },
}

impl MetadataError {
    /// The errno of the system call.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            // Like a request that times out itself: of neither does the caller know whether it was
            // executed.
            Self::NotExecuted { .. } | Self::OutcomeUnknown { .. } => Errno::TIMEDOUT,
            Self::SessionEnded { .. } => Errno::STALE,
            Self::WentBack { .. } | Self::Answer { .. } => Errno::IO,
        }
    }
}
