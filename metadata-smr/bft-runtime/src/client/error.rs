//! The errors of a client, with what to do about them.

use crate::address::Address;
use quorumfs_bft::client::Failure;
use quorumfs_bft::client::event::End;
use quorumfs_bft::identity::ReplicaId;
use std::fmt;
use std::time::Duration;

/// A replica that is not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Its number.
    pub replica: ReplicaId,
    /// Where it should listen.
    pub address: Address,
    /// Why there is no connection.
    pub reason: String,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replica {} at {}: {}",
            self.replica, self.address, self.reason
        )
    }
}

struct List<'a>(&'a [Unreachable]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("every replica is connected");
        }
        f.write_str("not reachable are ")?;
        for (place, unreachable) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{unreachable}")?;
        }
        Ok(())
    }
}

/// An operation, or a session, that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The configuration is invalid.
    #[error("the client's configuration cannot work: {0}")]
    Configuration(String),
    /// The service does not let this session watch that.
    #[error("the service does not let this session watch that")]
    WatchRefused,
    /// There are as many watches as there may be.
    #[error("there are as many watches as there may be: end some first")]
    TooManyWatches,
    /// Not enough replicas answered.
    #[error(
        "too few replicas answered while {doing}: {needed} must work together; {}",
        List(unreachable)
    )]
    TooFew {
        /// What was being done.
        doing: &'static str,
        /// How many replicas it takes.
        needed: u16,
        /// The replicas that are not connected, with the reasons.
        unreachable: Vec<Unreachable>,
    },
    /// The operation was never sent and had no effect.
    #[error(
        "the operation was not sent within {deadline:?} and had no effect; {}",
        List(unreachable)
    )]
    Expired {
        /// How long it was tried.
        deadline: Duration,
        /// The replicas that are not connected, with the reasons.
        unreachable: Vec<Unreachable>,
    },
    /// The operation was sent and may or may not have been executed.
    #[error(
        "no quorum answered the operation within {deadline:?}; it may have been executed, \
         check before trying again; {}",
        List(unreachable)
    )]
    OutcomeUnknown {
        /// How long it was tried.
        deadline: Duration,
        /// The replicas that are not connected, with the reasons.
        unreachable: Vec<Unreachable>,
    },
    /// There is no session, so the operation was not sent.
    #[error("the operation was not sent: {0}")]
    SessionEnded(End),
    /// Too many operations are waiting in this client.
    #[error(
        "too many operations ({operations}) are waiting in this client already; try again later"
    )]
    Busy {
        /// How many operations wait.
        operations: usize,
    },
    /// The results of earlier operations in the same bundle left no space for its own.
    #[error("the operation had no effect: its result did not fit into its bundle; try again")]
    NoRoom,
    /// The operation is too large for a request.
    #[error("the operation has {bytes} bytes, but a request carries at most {bytes_max}; split it")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is carried.
        bytes_max: usize,
    },
    /// The membership was not changed.
    #[error("the membership was not changed: {reason}")]
    CommandRefused {
        /// Whether the same command may be accepted later without further action.
        passes: bool,
        /// Why it was refused.
        reason: String,
    },
    /// The replicas run a release with answers that this release does not know.
    #[error(
        "the replicas gave an answer that this release does not know; check whether the command \
         took effect"
    )]
    UnknownAnswer,
    /// The client was closed.
    #[error("the client was closed; connect again")]
    Closed,
}

impl ClientError {
    pub(crate) fn from_failure(
        failure: Failure,
        deadline: Duration,
        unreachable: Vec<Unreachable>,
        end: Option<End>,
    ) -> Self {
        match failure {
            Failure::Expired => Self::Expired {
                deadline,
                unreachable,
            },
            Failure::OutcomeUnknown => Self::OutcomeUnknown {
                deadline,
                unreachable,
            },
            Failure::NoSession => end.map_or(Self::Closed, Self::SessionEnded),
            Failure::Full { operations } => Self::Busy { operations },
            Failure::NoRoom => Self::NoRoom,
            Failure::TooLarge { bytes, bytes_max } => Self::TooLarge { bytes, bytes_max },
        }
    }
}

/// A replica did not answer a status query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// There is no connection to it.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It is connected but does not answer.
    #[error("connected, but no answer within {0:?}: is it stuck, or has its store failed?")]
    Silent(Duration),
}
