//! Errors of file system calls: each has an errno and says what happened.

use crate::blocks::BlockErrorKind;
use crate::keys::KeyError;
use crate::metadata::MetadataError;
use quorumfs_metadata::identity::{RealmEpoch, Uid};
use quorumfs_metadata::row::Resource;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VfsError {
    /// The call is refused with an errno that POSIX knows.
    #[error("{what}: {errno}")]
    Refused {
        /// The call.
        what: &'static str,
        /// The errno.
        errno: Errno,
    },
    /// Something in it is sealed under another key epoch than the servers accept: to be sealed
    /// anew, and tried again.
    #[error("{what}: the volume's keys have changed: key epoch {epoch} is needed; try again")]
    OtherKeys {
        /// The call.
        what: &'static str,
        /// The key epoch.
        epoch: RealmEpoch,
    },
    /// A quota leaves no space for it.
    #[error("{what}: {reason}; remove files or raise the quota (`quorumfs quota`)")]
    Full {
        /// The call.
        what: &'static str,
        /// The errno.
        errno: Errno,
        /// The quota's message.
        reason: String,
        /// The user whose quota it is; `None` for the realm's.
        uid: Option<Uid>,
        /// The resource.
        of: Resource,
        /// How much was free.
        room: u64,
    },
    /// The month's budget is spent, and its owner wants writes to stop then.
    #[error(
        "write: the hard budget of this month is spent, and `past_hard` of `[budget]` stops \
         writes; \
         raise `hard` in quorumfs.toml, or wait for the next month (`quorumfs cost`)"
    )]
    OverBudget,
    /// Another mount has taken over, or this one's session has ended.
    #[error(
        "this mount was taken over or its session has ended: nothing more can be read or written \
         through it; unmount it and mount again"
    )]
    Fenced,
    /// The metadata servers did not answer.
    #[error("the metadata servers gave no answer: {0}")]
    Metadata(Arc<MetadataError>),
    /// The clouds could not give or take data.
    #[error("{doing} failed: {reason}")]
    Data {
        /// What was being done.
        doing: &'static str,
        /// The kind of failure, for callers that branch on it.
        kind: BlockErrorKind,
        /// What went wrong.
        reason: String,
    },
    /// Something does not decrypt, or no key could be made.
    #[error("{0}")]
    Key(Arc<KeyError>),
    /// Too much data is pending.
    #[error(
        "a write waited {waited:?} for memory while {dirty_bytes} bytes wait to be committed: the \
         clouds are slower than the writer, or unreachable; see `quorumfs status`"
    )]
    NoRoom {
        /// For how long.
        waited: Duration,
        /// How much waits.
        dirty_bytes: u64,
    },
    /// Written data was given up.
    #[error("data written earlier to this file could not be committed and is lost: {reason}")]
    Lost {
        /// The errno of the failure, so that a fenced mount always answers the same.
        errno: Errno,
        /// Why.
        reason: String,
    },
    /// Written data could not be committed through this mount, and is in the journal.
    #[error(
        "data written earlier to this file could not be committed through this mount: {reason}; it \
         is in this host's journal, and the next mount on this host restores it, or rescues it to \
         `.quorumfs-rescued`"
    )]
    LeftInJournal {
        /// As of [`VfsError::Lost`].
        errno: Errno,
        /// Why.
        reason: String,
    },
    /// A lock that was taken through an open file is lost.
    #[error(
        "a lock that was taken through this open file is lost: nothing more can be read or written \
         through it; close it, and look at the file before you lock it again"
    )]
    LockLost,
    /// An internal failure.
    #[error("an internal task failed: {reason}")]
    Internal {
        /// How.
        reason: String,
    },
}

impl VfsError {
    /// Shorthand for a refusal with an errno.
    pub(crate) const fn refused(what: &'static str, errno: Errno) -> Self {
        Self::Refused { what, errno }
    }

    /// The errno that the system call returns.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused { errno, .. }
            | Self::Full { errno, .. }
            | Self::Lost { errno, .. }
            | Self::LeftInJournal { errno, .. } => *errno,
            Self::OtherKeys { .. } => Errno::AGAIN,
            Self::Fenced => Errno::STALE,
            Self::Metadata(error) => error.errno(),
            Self::Key(error) => match **error {
                KeyError::TooLong { .. } => Errno::NAMETOOLONG,
                _ => Errno::IO,
            },
            Self::Data { .. } | Self::LockLost | Self::Internal { .. } => Errno::IO,
            Self::NoRoom { .. } => Errno::TIMEDOUT,
            Self::OverBudget => Errno::DQUOT,
        }
    }

    /// Whether an operator should see it: any error that is not a plain refusal.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        !matches!(
            self,
            Self::Refused { .. } | Self::OtherKeys { .. } | Self::Full { .. } | Self::OverBudget
        )
    }

    /// Whether the reason is that clouds are unreachable now, so that a retry may succeed.
    pub(crate) const fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::Data {
                kind: BlockErrorKind::Unreachable,
                ..
            }
        )
    }

    /// Whether it was refused because cached metadata is out of date: ask again.
    #[must_use]
    pub fn is_out_of_date(&self) -> bool {
        matches!(
            self,
            Self::OtherKeys { .. }
                | Self::Refused {
                    errno: Errno::AGAIN,
                    ..
                }
        )
    }

    /// Whether it was refused as too large for one operation: split it.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                errno: Errno::TOOBIG,
                ..
            }
        )
    }

    /// Whether a retry is pointless.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Fenced
                | Self::Refused {
                    errno: Errno::STALE | Errno::NOENT | Errno::ROFS,
                    ..
                }
        )
    }
}

impl From<KeyError> for VfsError {
    fn from(error: KeyError) -> Self {
        Self::Key(Arc::new(error))
    }
}
