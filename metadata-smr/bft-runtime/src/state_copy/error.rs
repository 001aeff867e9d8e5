//! The errors of a copy, with what to do about them.

use crate::client::ClientError;
use crate::disk::DiskError;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft::state::StateError;
use quorumfs_bft::state_copy::OpenError;

/// A copy that could not be opened, refreshed or read.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The principal may not copy the state.
    #[error(
        "this principal may not copy the replicated state: it needs a right that the service's \
         administrator grants"
    )]
    NoRight,
    /// Too few replicas answer, or the session cannot be opened.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The replicas answered, but nothing of use came for long.
    #[error(
        "the copy of the replicated state made no progress for {seconds} s: the replicas' newest \
         checkpoint is at operation {newest}, and {at_least} was asked for; check the replicas' \
         status"
    )]
    Stuck {
        /// How long.
        seconds: u64,
        /// The newest checkpoint that was proved.
        newest: Sequence,
        /// What was asked for.
        at_least: Sequence,
    },
    /// The cluster has not come so far.
    #[error(
        "a state at operation {at_least} or later was asked for, and the replicas have executed \
         {executed}"
    )]
    TooNew {
        /// What was asked for.
        at_least: Sequence,
        /// How far the replicas are.
        executed: Sequence,
    },
    /// The directory holds something else.
    #[error(transparent)]
    Open(OpenError),
    /// The disk is full, or fails.
    #[error("the copy of the replicated state cannot be written: {0}")]
    Disk(#[from] DiskError),
    /// The copy is damaged or cannot be read.
    #[error("the copy of the replicated state cannot be read: {0}; remove it, and copy again")]
    State(StateError),
    /// The copy failed earlier, or the thread that refreshed it did.
    #[error("the copy of the replicated state failed earlier: open it again")]
    Failed,
}

impl From<StateError> for CopyError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<OpenError> for CopyError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::State(error) => Self::State(error),
            error => Self::Open(error),
        }
    }
}
