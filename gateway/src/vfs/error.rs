//! Why a call of the file system failed: always with an errno, always with what happened.

use crate::blocks::BlockErrorKind;
use crate::keys::KeyError;
use crate::metadata::MetadataError;
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::row::Resource;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VfsError {
    /// The answer is no: one of the errors that POSIX knows.
    #[error("{what}: {errno}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The answer.
        errno: Errno,
    },
    /// A quota has no room for it.
    #[error("{what}: {reason}; remove something, or have the quota raised (`quorumfs quota`)")]
    Full {
        /// What was asked for.
        what: &'static str,
        /// The answer.
        errno: Errno,
        /// The quota's words.
        reason: String,
        /// Whose quota; nobody's: that of the realm.
        uid: Option<Uid>,
        /// Of what.
        of: Resource,
        /// How much there is room for.
        room: u64,
    },
    /// Another mount has taken over, or this one's session has ended.
    #[error(
        "this mount was taken over or its session has ended: nothing more can be read or written \
         through it; unmount it and mount again"
    )]
    Fenced,
    /// The metadata servers gave no answer.
    #[error("the metadata servers gave no answer: {0}")]
    Metadata(Arc<MetadataError>),
    /// The clouds could not give or take data.
    #[error("{doing} failed: {reason}")]
    Data {
        /// What was being done.
        doing: &'static str,
        /// Which kind of failure it is, for those who branch on it.
        kind: BlockErrorKind,
        /// What went wrong.
        reason: String,
    },
    /// Something does not decrypt, or no key could be made.
    #[error("{0}")]
    Key(Arc<KeyError>),
    /// Too much is waiting to be committed.
    #[error(
        "a write waited {waited:?} for room while {dirty_bytes} bytes wait to be committed: the \
         clouds are slower than the writer, or unreachable; see `quorumfs status`"
    )]
    NoRoom {
        /// For how long.
        waited: Duration,
        /// How much waits.
        dirty_bytes: u64,
    },
    /// Written data had to be given up.
    #[error("data written earlier to this file could not be committed and is lost: {reason}")]
    Lost {
        /// What the system call returns: that of the failure, so that a fenced mount answers the
        /// same whoever met the fence first.
        errno: Errno,
        /// Why.
        reason: String,
    },
    /// Written data could not be committed through this mount, and is in the journal.
    #[error(
        "data written earlier to this file could not be committed through this mount: {reason}; it \
         is in this host's journal, and the next mount from here puts it in place or rescues it"
    )]
    LeftInJournal {
        /// As of [`VfsError::Lost`].
        errno: Errno,
        /// Why.
        reason: String,
    },
    /// Something of ours broke.
    #[error("an internal task failed: {reason}")]
    Internal {
        /// How.
        reason: String,
    },
}

impl VfsError {
    /// Shorthand for an answer that POSIX knows.
    pub(crate) const fn refused(what: &'static str, errno: Errno) -> Self {
        Self::Refused { what, errno }
    }

    /// What the system call returns.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused { errno, .. }
            | Self::Full { errno, .. }
            | Self::Lost { errno, .. }
            | Self::LeftInJournal { errno, .. } => *errno,
            Self::Fenced => Errno::STALE,
            Self::Metadata(error) => error.errno(),
            Self::Key(error) => match **error {
                KeyError::TooLong { .. } => Errno::NAMETOOLONG,
                _ => Errno::IO,
            },
            Self::Data { .. } | Self::Internal { .. } => Errno::IO,
            Self::NoRoom { .. } => Errno::TIMEDOUT,
        }
    }

    /// Whether an operator should hear of it: anything but a plain no.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Full { .. })
    }

    /// Whether clouds that cannot be reached now are the reason, so that it may work in a moment.
    pub(crate) const fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::Data {
                kind: BlockErrorKind::Unreachable,
                ..
            }
        )
    }

    /// Whether it was refused because something is not as we thought: look again.
    pub(crate) fn is_out_of_date(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                errno: Errno::AGAIN,
                ..
            }
        )
    }

    /// Whether it was refused as too much for one operation: split it.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                errno: Errno::TOOBIG,
                ..
            }
        )
    }

    /// Whether trying again later makes no sense.
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
