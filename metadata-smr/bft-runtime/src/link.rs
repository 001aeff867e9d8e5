//! Connections between nodes: frames over mutual TLS, greeted, kept alive, bounded.
//!
//! ```text
//!   replica i ── dials, sends its messages ──►  listener of replica j
//!   client    ── dials, sends requests ──────►  listener of replica j, which answers on it
//! ```
//!
//! Between two replicas there are two connections, one dialed by each; a replica sends its
//! messages on the one that it dialed, and keepalives flow both ways on both. So there is no
//! contest about which connection counts, and a link that works in one direction only is noticed.
//!
//! | Module | What it holds |
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
//! * Nothing waits for a peer but that peer's own tasks.
//! * Every wait has a deadline from [`crate::limits`], every queue a bound.
//! * Nothing but greetings is read before both key and cluster are known to be right.

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
    /// Nobody listens there, or no route leads there.
    #[error(
        "cannot connect to {address}: {source}; \
         check that the replica runs and the address is right"
    )]
    Connect {
        /// Where.
        address: Address,
        /// What the system said.
        source: std::io::Error,
    },
    /// The peer did not answer in time.
    #[error("no answer within {deadline:?} while {doing}; check the network and the peer's load")]
    Timeout {
        /// Which step.
        doing: &'static str,
        /// How long was waited.
        deadline: Duration,
    },
    /// The connection could not be secured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer belongs to another cluster.
    #[error(
        "the peer belongs to cluster {theirs}, this program is configured for cluster {ours}: \
         compare the configurations"
    )]
    WrongCluster {
        /// The configured cluster.
        ours: ClusterId,
        /// The peer's.
        theirs: ClusterId,
    },
    /// The peer turned us away.
    #[error("the peer refuses the connection: {0}")]
    Refused(Refusal),
    /// A dialer was turned away.
    #[error("turned away the holder of key {key}: {refusal}")]
    TurnedAway {
        /// Who dialed.
        key: PublicKey,
        /// Why it was turned away, in the words that it was told.
        refusal: Refusal,
    },
    /// A frame is larger than is allowed on this connection.
    #[error("a frame of {bytes} bytes came, where at most {limit} are allowed")]
    Oversized {
        /// What its header says.
        bytes: u32,
        /// What is allowed.
        limit: usize,
    },
    /// What came is not this protocol.
    #[error("what came is not this protocol: {0}")]
    Malformed(&'static str),
    /// Nothing came, not even keepalives.
    #[error("nothing came for {0:?}, not even a sign of life")]
    Silent(Duration),
    /// The peer takes nothing off the connection.
    #[error("the peer took nothing off the connection for {0:?}")]
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
