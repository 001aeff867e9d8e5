//! What a replica is told, and what is wrong with it.

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
pub struct Who(pub Option<ReplicaId>);

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "replica {id}"),
            None => f.write_str("the new replica"),
        }
    }
}

/// What a replica is told.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Which of `replicas` it is. None of them, if it is to join later: an administrator admits it.
    pub id: Option<ReplicaId>,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Who may fail, of those that the cluster began with.
    pub fault_model: FaultModel,
    /// The replicas that the cluster began with, numbered from 0, with their incarnations: the same
    /// on every replica, for good. Only where they are found may change and differ.
    pub replicas: Vec<Member>,
    /// Who may change the membership to begin with: the same on every replica.
    pub administrators: Vec<PublicKey>,
    /// Its own key.
    pub key: Arc<NodeKey>,
    /// Where it listens; at its address in `replicas` if nothing else is said and it is there.
    pub listen: Option<SocketAddr>,
    /// Its disk, made by [`initialise`](super::ReplicaServer::initialise).
    pub directory: PathBuf,
    /// Bytes that are to stay free where its disk lies: with less it says so in the order, and if
    /// enough replicas do, the service refuses what grows. 0: it says nothing.
    pub free_bytes_min: u64,
    /// When a record counts as durable.
    pub durability: Durability,
    /// What the service begins with: the same bytes on every replica.
    pub genesis: Bytes,
    /// Whether votes are signed: the same on every replica, for good.
    pub authentication: Authentication,
    /// Whether and where what it is told is recorded, for whoever has to find out what it did.
    pub recording: Option<RecordingConfig>,
}

/// A replica that did not start or did not stop well.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration makes no sense.
    #[error("{replica} cannot work as configured: {reason}")]
    Configuration {
        /// Which replica.
        replica: Who,
        /// What is wrong.
        reason: String,
    },
    /// The configured key is another one than the replica has.
    #[error(
        "{replica} has the key {own}, its configuration lists {listed} for it: \
         use the key file and the cluster configuration that belong together"
    )]
    WrongKey {
        /// Which replica.
        replica: Who,
        /// The key that it has.
        own: PublicKey,
        /// The key that is listed.
        listed: PublicKey,
    },
    /// It cannot listen there.
    #[error("{replica} cannot listen on {address}: {source}; is another process there?")]
    Listen {
        /// Which replica.
        replica: Who,
        /// Where.
        address: SocketAddr,
        /// What the system said.
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
        /// Which replica.
        replica: Who,
        /// What is wrong.
        source: StateError,
    },
    /// There is no randomness.
    #[error("the operating system gave no randomness: {reason}")]
    Randomness {
        /// What it said.
        reason: String,
    },
    /// A thread could not be started, or died.
    #[error("the thread of {replica} {reason}")]
    Thread {
        /// Which replica.
        replica: Who,
        /// What happened to it.
        reason: String,
    },
}

/// What the first journal of the replica with this key may be known by, if its disk is made
/// together with the key ([`ReplicaServer::initialise_as`](super::ReplicaServer::initialise_as)),
/// so that whoever knows the key need not be told. A disk that is made later must have another one
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
    pub(super) const fn who(&self) -> Who {
        Who(self.id)
    }

    fn wrong(&self, reason: String) -> ServerError {
        let replica = self.who();
        ServerError::Configuration { replica, reason }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> Result<SocketAddr, ServerError> {
        let own = || self.replicas.iter().find(|it| Some(it.id) == self.id);
        // A name may be one that only others resolve to this machine.
        let listed = || own().and_then(|it| it.address.as_str().parse().ok());
        let address = self.listen.or_else(listed);
        address.ok_or_else(|| self.wrong("nobody says where it listens".to_owned()))
    }

    /// Where the replicas that it was told of are found.
    pub(super) fn addresses(&self) -> Addresses {
        let all = self.replicas.iter();
        all.map(|it| (it.key, it.address.clone())).collect()
    }

    /// What the cluster began with. Addresses are not among it: what is told to one replica need
    /// not be what is told to another.
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

    /// Checks that the list makes sense, and that the key is the right one.
    pub(super) fn check(&self) -> Result<(), ServerError> {
        let expected = usize::from(self.fault_model.replicas());
        let numbered = (0_u16..)
            .zip(&self.replicas)
            .all(|(number, member)| member.id == ReplicaId(number));
        if self.replicas.len() != expected || !numbered {
            return Err(self.wrong(format!(
                "{} replicas are listed, the fault model speaks of {expected}; \
                 list each once, by rising number from 0",
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
