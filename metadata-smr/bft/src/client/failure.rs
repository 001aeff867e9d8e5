//! Why an operation has no result.

/// An operation that failed before the service could answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It was never sent, so it had no effect.
    #[error(
        "the operation was not sent before its deadline and had no effect: too many operations \
         were waiting, or the cluster does not answer"
    )]
    Expired,
    /// It was sent, and may or may not have been executed.
    #[error(
        "the operation's outcome is unknown: it was sent and no quorum answered before its \
         deadline or before the session ended; look before trying again"
    )]
    OutcomeUnknown,
    /// There is no session, so it was not sent.
    #[error("there is no open session: open one first")]
    NoSession,
    /// The queue is at its bound.
    #[error("too many operations are waiting ({operations}): try again later")]
    Full {
        /// The number of operations that wait or are pending.
        operations: usize,
    },
    /// It is longer than a request can carry.
    #[error("the operation has {bytes} bytes and a request carries at most {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The greatest length that a request carries.
        bytes_max: usize,
    },
    /// The results of operations before it in the same bundle used up the space for its own.
    #[error(
        "the operation had no effect, since the results of its bundle reached their limit: \
         submit it again"
    )]
    NoRoom,
}
