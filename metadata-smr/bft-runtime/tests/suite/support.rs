//! A whole cluster in one process, on loopback ports, with a small key-value service.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use super::distance::Distance;
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Incarnation, PublicKey, ReplicaId};
use quorumfs_bft::metrics::Voting;
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaHandle, ReplicaServer, ServerStatus};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// `put KEY VALUE` answers with the old value, `add KEY` counts up and answers with the new count,
/// the query `KEY` with the value; `fill FROM COUNT` puts rows with these numbers. The principal
/// whose key was given as genesis is refused.
pub struct KeyValue;

fn words(operation: &[u8]) -> Vec<&[u8]> {
    operation.splitn(3, |byte| *byte == b' ').collect()
}

impl Service for KeyValue {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        txn.put(b"unwanted", genesis.to_vec())
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        _context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        let unwanted = txn.get(b"unwanted")?.unwrap_or_default();
        let credit = Credit {
            lanes: 64,
            bytes: 8 << 20,
        };
        Ok((unwanted != caller.principal.0[..]).then_some(credit))
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        _context: &Context,
        _caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        match words(operation)[..] {
            [b"put", key, value] => {
                let old = txn.get(key)?.unwrap_or_default();
                txn.put(key, value.to_vec())?;
                Ok(old)
            }
            [b"add", key] => {
                let old = txn.get(key)?.unwrap_or_default();
                let old: u64 = std::str::from_utf8(&old)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
                let new = Bytes::from((old + 1).to_string());
                txn.put(key, new.clone())?;
                Ok(new)
            }
            [b"fill", from, count] => {
                let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
                let (from, count) = (number(from).unwrap_or(0), number(count).unwrap_or(0));
                for row in from..from + count {
                    let key = row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    txn.put(format!("row {key:016x}").as_bytes(), vec![b'v'; 100])?;
                }
                Ok(Bytes::new())
            }
            _ => Ok(Bytes::from_static(b"what?")),
        }
    }

    fn read(&self, view: &View<'_>, _caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        Ok(view.get(query)?.unwrap_or_default())
    }

    /// The principal whose key is the value of `copier`.
    fn may_copy(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        Ok(view
            .get(b"copier")?
            .is_some_and(|key| key == principal.0[..]))
    }

    /// Any key but the unwanted one.
    fn watch(
        &self,
        _view: &View<'_>,
        _caller: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        Ok((watch != b"unwanted").then(|| vec![Bytes::copy_from_slice(watch)]))
    }
}

/// Replicas that can be stopped and started again.
pub struct TestCluster {
    pub directory: tempfile::TempDir,
    pub id: ClusterId,
    pub model: FaultModel,
    pub members: Vec<Member>,
    pub keys: Vec<Arc<NodeKey>>,
    pub handles: Vec<Option<ReplicaHandle>>,
    pub genesis: Bytes,
    pub authentication: Authentication,
    pub administrators: Vec<PublicKey>,
    pub administrator: Arc<NodeKey>,
    /// Where replicas listen, if they are reached through relays.
    pub behind: Vec<SocketAddr>,
}

/// The incarnation of a replica's first journal.
fn incarnation(number: u16) -> Incarnation {
    Incarnation([u8::try_from(number + 1).expect("few"); 16])
}

pub fn key() -> Arc<NodeKey> {
    Arc::new(NodeKey::generate().expect("randomness"))
}

impl TestCluster {
    /// Creates a cluster and starts all of it.
    pub async fn start(up: u16, right: u16) -> Self {
        Self::start_with(up, right, Bytes::new()).await
    }

    pub async fn start_with(up: u16, right: u16, genesis: Bytes) -> Self {
        Self::start_as(Authentication::Sig, up, right, genesis).await
    }

    /// A cluster with this authentication of votes.
    pub async fn start_as(
        authentication: Authentication,
        up: u16,
        right: u16,
        genesis: Bytes,
    ) -> Self {
        Self::create(authentication, up, right, genesis, None).await
    }

    /// A cluster whose replicas are reached over links with this delay.
    pub async fn start_apart(up: u16, right: u16, distance: &Distance) -> Self {
        let genesis = Bytes::new();
        Self::create(Authentication::Sig, up, right, genesis, Some(distance)).await
    }

    async fn create(
        authentication: Authentication,
        up: u16,
        right: u16,
        genesis: Bytes,
        distance: Option<&Distance>,
    ) -> Self {
        let replicas = 2 * up + right + 1;
        let model = FaultModel::new(up, right, replicas).expect("model");
        let directory = tempfile::tempdir().expect("directory");
        let (mut members, mut keys, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
        let mut behind = Vec::new();
        for number in 0..replicas {
            let socket = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let key = key();
            let mut address = socket.local_addr().expect("address");
            if let Some(distance) = distance {
                behind.push(address);
                address = distance.relay_to(address).await;
            }
            members.push(Member {
                id: ReplicaId(number),
                key: key.public(),
                incarnation: incarnation(number),
                address: address.into(),
            });
            keys.push(key);
            sockets.push(socket);
        }
        let administrator = key();
        let mut cluster = Self {
            directory,
            id: ClusterId([42; 16]),
            model,
            members,
            keys,
            handles: Vec::new(),
            genesis,
            authentication,
            administrators: vec![administrator.public()],
            administrator,
            behind,
        };
        for (number, socket) in sockets.into_iter().enumerate() {
            let first = cluster.members[number].incarnation;
            ReplicaServer::initialise_as(&cluster.disk_of(number), first).expect("initialise");
            let config = cluster.config_of(number);
            let handle = ReplicaServer::start_on(config, KeyValue, socket).await;
            cluster.handles.push(Some(handle.expect("start")));
        }
        cluster
    }

    pub fn disk_of(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("replica-{number}"))
    }

    pub fn config_of(&self, number: usize) -> ReplicaConfig {
        ReplicaConfig {
            id: Some(self.members[number].id),
            cluster: self.id,
            fault_model: self.model,
            replicas: self.members.clone(),
            administrators: self.administrators.clone(),
            key: self.keys[number].clone(),
            listen: self.behind.get(number).copied(),
            directory: self.disk_of(number),
            free_bytes_min: 0,
            durability: Durability::Strict,
            genesis: self.genesis.clone(),
            authentication: self.authentication,
            recording: None,
        }
    }

    /// Adds a machine that is to join: returns its number here, and its disk's incarnation.
    pub async fn add_machine(&mut self) -> (usize, Incarnation) {
        let (number, key) = (self.keys.len(), key());
        self.keys.push(key);
        let first = ReplicaServer::initialise(&self.disk_of(number)).expect("initialise");
        self.handles.push(None);
        let mut config = self.config_of(0);
        config.id = None;
        config.key = self.keys[number].clone();
        config.directory = self.disk_of(number);
        config.listen = Some(free_address().await);
        let handle = ReplicaServer::start(config, KeyValue).await;
        self.handles[number] = Some(handle.expect("start"));
        (number, first)
    }

    /// A client that may change the membership.
    pub async fn administrator(&self) -> Client {
        let config = self.client_config(self.administrator.clone());
        Client::connect(config).await.expect("connect")
    }

    pub fn client_config(&self, principal: Arc<NodeKey>) -> ClientConfig {
        ClientConfig::new(self.id, self.model, self.members.clone(), principal)
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.client_config(key()))
            .await
            .expect("connect")
    }

    pub async fn kill(&mut self, number: usize) {
        self.handles[number].take().expect("running").kill().await;
    }

    pub async fn shutdown(&mut self, number: usize) {
        self.handles[number]
            .take()
            .expect("running")
            .shutdown()
            .await;
    }

    pub async fn restart(&mut self, number: usize) {
        let handle = ReplicaServer::start(self.config_of(number), KeyValue).await;
        self.handles[number] = Some(handle.expect("restart"));
    }

    pub fn status(&self, number: usize) -> Option<ServerStatus> {
        self.handles[number].as_ref()?.status()
    }

    /// Waits until every running replica has executed at least `sequence`.
    pub async fn all_at(&self, sequence: u64) {
        let start = Instant::now();
        loop {
            let behind = (0..self.handles.len())
                .filter(|number| self.handles[*number].is_some())
                .filter(|number| {
                    self.status(*number)
                        .is_none_or(|status| status.replica.sequence.0 < sequence)
                })
                .count();
            if behind == 0 {
                return;
            }
            let statuses: Vec<_> = (0..self.handles.len())
                .map(|number| self.status(number))
                .collect();
            assert!(start.elapsed() < Duration::from_secs(20), "{statuses:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a replica votes.
    pub async fn votes(&self, number: usize) {
        let start = Instant::now();
        loop {
            let status = self.status(number).map(|status| status.replica);
            if status
                .as_ref()
                .is_some_and(|it| it.voting == Voting::Voting)
            {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{status:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The view's leader, as a running replica sees it.
    pub fn leader(&self) -> usize {
        let status = (0..self.handles.len()).find_map(|number| self.status(number));
        usize::from(status.expect("a replica runs").replica.leader.0)
    }

    pub fn sequence(&self) -> u64 {
        (0..self.handles.len())
            .filter_map(|number| self.status(number))
            .map(|status| status.replica.sequence.0)
            .max()
            .unwrap_or(0)
    }
}

/// A listener's address without the listener.
pub async fn free_address() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    socket.local_addr().expect("address")
}

/// The answer to `add KEY`.
pub async fn add(client: &Client, key: &str) -> u64 {
    let answer = client.execute(Bytes::from(format!("add {key}"))).await;
    let answer = answer.expect("answered");
    std::str::from_utf8(&answer)
        .expect("text")
        .parse()
        .expect("number")
}
