//! The configuration of a replica, and its errors.

use crate::client::Member;
use crate::disk::{DiskError, Durability};
use crate::keys::NodeKey;
use crate::recorder::RecordingConfig;
use crate::roster::peers::Addresses;
use crate::tls::TlsError;
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Incarnation, PublicKey, ReplicaId, Sequence};
use quorumfs_bft::membership::{self, Membership};
use quorumfs_bft::state::StateError;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// A replica, in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaLabel(pub Option<ReplicaId>);

impl fmt::Display for ReplicaLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "replica {id}"),
            None => f.write_str("the new replica"),
        }
    }
}

/// The configuration of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Which of `replicas` it is. None of them, if it joins later: an administrator admits it.
    pub id: Option<ReplicaId>,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The fault model that the cluster began with.
    pub fault_model: FaultModel,
    /// The replicas that the cluster began with, numbered from 0, with their incarnations: the same
    /// on every replica, for good. Only their addresses may change and differ.
    pub replicas: Vec<Member>,
    /// The administrators at the beginning: the same on every replica.
    pub administrators: Vec<PublicKey>,
    /// Its own key.
    pub key: Arc<NodeKey>,
    /// Where it listens; by default at its address in `replicas`.
    pub listen: Option<SocketAddr>,
    /// Its disk, made by [`initialise`](super::ReplicaServer::initialise).
    pub directory: PathBuf,
    /// The free bytes to preserve on its disk: with less, the replica reports a shortage in the
    /// order, and with enough reports the service refuses what grows. 0: it never reports.
    pub free_bytes_min: u64,
    /// When a record counts as durable.
    pub durability: Durability,
    /// The service's initial state: the same bytes on every replica.
    pub genesis: Bytes,
    /// Whether votes are signed: the same on every replica, for good.
    pub authentication: Authentication,
    /// Whether and where its events are recorded, to find out later what it did.
    pub recording: Option<RecordingConfig>,
}

/// A replica that failed to start or to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration is invalid.
    #[error("{replica} cannot work as configured: {reason}")]
    Configuration {
        /// The replica.
        replica: ReplicaLabel,
        /// The reason.
        reason: String,
    },
    /// The configured key is not the replica's own.
    #[error(
        "{replica} has the key {own}, but its configuration lists {listed} for it: \
         use the key file and the cluster configuration that belong together"
    )]
    WrongKey {
        /// The replica.
        replica: ReplicaLabel,
        /// Its own key.
        own: PublicKey,
        /// The listed key.
        listed: PublicKey,
    },
    /// It cannot listen there.
    #[error(
        "{replica} cannot listen on {address}: {source}; check whether another process uses the \
         address"
    )]
    Listen {
        /// The replica.
        replica: ReplicaLabel,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// Its TLS identity cannot be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its state cannot be read.
    #[error("{replica} cannot read its state: {source}")]
    State {
        /// The replica.
        replica: ReplicaLabel,
        /// The error.
        source: StateError,
    },
    /// There are no random numbers.
    #[error("the operating system provided no random numbers: {reason}")]
    Randomness {
        /// The system's error.
        reason: String,
    },
    /// A thread could not be started, or ended early.
    #[error("the thread of {replica} {reason}")]
    Thread {
        /// The replica.
        replica: ReplicaLabel,
        /// The event.
        reason: String,
    },
}

/// The incarnation for the first journal of the replica with this key, if its disk is made together
/// with the key ([`ReplicaServer::initialise_as`](super::ReplicaServer::initialise_as)), so that it
/// follows from the key. A disk that is made later must have another incarnation
/// ([`ReplicaServer::initialise`](super::ReplicaServer::initialise)): the replica has voted before.
#[must_use]
pub fn first_incarnation(key: &PublicKey) -> Incarnation {
    let mut incarnation = Incarnation::default();
    let mut hasher = blake3::Hasher::new_derive_key("quorumfs 2026 first incarnation of a replica");
    hasher
        .update(&key.0)
        .finalize_xof()
        .fill(&mut incarnation.0);
    incarnation
}

impl ReplicaConfig {
    pub(super) const fn who(&self) -> ReplicaLabel {
        ReplicaLabel(self.id)
    }

    fn wrong(&self, reason: String) -> ServerError {
        let replica = self.who();
        ServerError::Configuration { replica, reason }
    }

    /// The address to listen on.
    pub(super) fn address(&self) -> Result<SocketAddr, ServerError> {
        let own = || self.replicas.iter().find(|it| Some(it.id) == self.id);
        // Only other machines may resolve a name to this one.
        let listed = || own().and_then(|it| it.address.as_str().parse().ok());
        let address = self.listen.or_else(listed);
        address.ok_or_else(|| self.wrong("it has no address; configure one".to_owned()))
    }

    /// The addresses of the configured replicas.
    pub(super) fn addresses(&self) -> Addresses {
        let all = self.replicas.iter();
        all.map(|it| (it.key, it.address.clone())).collect()
    }

    /// The genesis membership. It has no addresses: they may be configured differently on each
    /// replica.
    pub(super) fn membership(&self) -> Membership {
        let voter = |it: &Member| membership::Member {
            key: it.key,
            incarnation: it.incarnation,
            address: Bytes::new(),
            since: Sequence(0),
        };
        let voters = self.replicas.iter().map(voter).collect();
        Membership::genesis(self.fault_model, voters, self.administrators.clone())
    }

    /// Checks that the list is consistent and that the key is the listed one.
    pub(super) fn check(&self) -> Result<(), ServerError> {
        let expected = usize::from(self.fault_model.replicas());
        let numbered = (0_u16..)
            .zip(&self.replicas)
            .all(|(number, member)| member.id == ReplicaId(number));
        if self.replicas.len() != expected || !numbered {
            return Err(self.wrong(format!(
                "{} replicas are listed, but the fault model needs {expected}; \
                 list each once, numbered from 0 upwards",
                self.replicas.len()
            )));
        }
        let own = self.key.public();
        let Some(id) = self.id else {
            return match self.replicas.iter().find(|it| it.key == own) {
                None => Ok(()),
                Some(it) => Err(self.wrong(format!("its key is that of replica {}", it.id))),
            };
        };
        let listed = self.replicas.get(usize::from(id.0)).map(|it| it.key);
        match listed {
            Some(listed) if listed == own => Ok(()),
            Some(listed) => Err(ServerError::WrongKey {
                replica: self.who(),
                own,
                listed,
            }),
            None => Err(self.wrong(format!(
                "there are only {expected} replicas, numbered from 0"
            ))),
        }
    }
}
