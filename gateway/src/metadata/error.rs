//! Why the metadata servers gave no usable answer.

use rustix::io::Errno;

/// An operation without an answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MetadataError {
    /// It was not executed and had no effect.
    #[error("{reason}")]
    NotExecuted {
        /// Why.
        reason: String,
    },
    /// It may or may not have been executed.
    #[error("{reason}")]
    OutcomeUnknown {
        /// Why.
        reason: String,
    },
    /// The session is gone.
    #[error("the session has ended: {reason}")]
    SessionEnded {
        /// Why.
        reason: String,
    },
    /// The servers are at an earlier state than one that was shown before.
    #[error("the metadata servers have gone back in time: {reason}")]
    WentBack {
        /// What shows it.
        reason: String,
    },
    /// The answer makes no sense: an older or newer server, or a defect.
    #[error("the servers' answer to {question} cannot be understood: {reason}")]
    Answer {
        /// What was asked.
        question: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
}

impl MetadataError {
    /// What a system call returns.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            // As of a request that is late itself: of neither is it known to the caller whether it
            // was executed.
            Self::NotExecuted { .. } | Self::OutcomeUnknown { .. } => Errno::TIMEDOUT,
            Self::SessionEnded { .. } => Errno::STALE,
            Self::WentBack { .. } | Self::Answer { .. } => Errno::IO,
        }
    }
}
