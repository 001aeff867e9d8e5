//! Connections between nodes: frames over mutual TLS, greeted, kept alive, bounded.
//!
//! ```text
//!   replica i ── dials, sends its messages ──►  listener of replica j
//!   client    ── dials, sends requests ──────►  listener of replica j, which answers on it
//! ```
//!
//! Two replicas have two connections, one dialed by each; a replica sends its messages on the one
//! that it dialed, and keepalives flow both ways on both. So the two never compete to be the
//! connection in use, and a link that works in one direction only is noticed.
//!
//! | Module | What it contains |
//! |---|---|
//! | [`frame`] | length, kind, payload, and the reader that enforces the limit |
//! | [`hello`] | the greeting: cluster, version, role, verdict |
//! | [`outbox`] | the bounded queue to one connection |
//! | [`socket`] | TCP that can move to the thread that serves it |
//! | [`connection`] | the task that writes, with keepalives and deadline |
//! | [`dial`] | the dialer's half: connect, TLS, greeting, again after a pause |
//! | [`listen`] | the acceptor's half: half-open connections bounded, roles decided |
//!
//! # Invariants
//!
//! * Only a peer's own tasks wait for that peer.
//! * Every wait has a deadline from [`crate::limits`], every queue a bound.
//! * Only greetings are read before both key and cluster are verified.

pub mod connection;
pub mod dial;
pub mod frame;
pub mod hello;
pub mod listen;
pub mod outbox;
pub mod socket;

#[cfg(test)]
mod tests;

use crate::address::Address;
use crate::tls::TlsError;
use hello::Refusal;
use quorumfs_bft::identity::{ClusterId, PublicKey};
use std::time::Duration;

/// Why a connection could not be made or has ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No process listens there, or no route leads there.
    #[error(
        "cannot connect to {address}: {source}; \
         check that the replica runs and that the address is right"
    )]
    Connect {
        /// The address.
        address: Address,
        /// The system's error.
        source: std::io::Error,
    },
    /// The peer did not answer in time.
    #[error("no answer within {deadline:?} while {doing}; check the network and the peer's load")]
    Timeout {
        /// The step.
        doing: &'static str,
        /// The deadline.
        deadline: Duration,
    },
    /// The connection could not be secured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer belongs to another cluster.
    #[error(
        "the peer belongs to cluster {theirs}, this program belongs to cluster {ours}: \
         compare the configurations"
    )]
    WrongCluster {
        /// The configured cluster.
        ours: ClusterId,
        /// The peer's.
        theirs: ClusterId,
    },
    /// The peer refused the connection.
    #[error("the peer refuses the connection: {0}")]
    Refused(Refusal),
    /// A dialer was refused.
    #[error("refused the connection of the holder of key {key}: {refusal}")]
    TurnedAway {
        /// The dialer's key.
        key: PublicKey,
        /// The reason, in the words that the dialer receives.
        refusal: Refusal,
    },
    /// A frame is larger than this connection allows.
    #[error("received a frame of {bytes} bytes, but at most {limit} are allowed")]
    Oversized {
        /// The length in its header.
        bytes: u32,
        /// The limit.
        limit: usize,
    },
    /// The bytes received are not this protocol.
    #[error("received data that is not this protocol: {0}")]
    Malformed(&'static str),
    /// Nothing was received, not even keepalives.
    #[error("received nothing for {0:?}, not even a keepalive")]
    Silent(Duration),
    /// The peer reads nothing.
    #[error("the peer read nothing from the connection for {0:?}")]
    Stuck(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(std::io::Error),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// This side closed the connection.
    #[error("this side closed the connection")]
    Ended,
}
