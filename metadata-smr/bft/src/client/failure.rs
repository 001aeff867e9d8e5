//! Why an operation has no result.

/// An operation that failed before the service could answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It was never sent, so it had no effect.
    #[error(
        "the operation was not sent before its deadline and had no effect: too much is waiting, or \
         the cluster does not answer"
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
    #[error("too much is waiting already ({operations} operations): try again later")]
    Full {
        /// How many operations wait or are under way.
        operations: usize,
    },
    /// No request can carry it.
    #[error("the operation has {bytes} bytes and a request carries at most {bytes_max}")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// The most that is carried.
        bytes_max: usize,
    },
    /// The results of operations before it in the same bundle left no room for its own.
    #[error(
        "the operation had no effect, for the results of a bundle have a bound: submit it again"
    )]
    NoRoom,
}
