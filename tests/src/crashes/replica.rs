//! One replica as a process. A file configures it; it runs until its standard input ends.

use super::ledger::{self, Ledger};
use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, PublicKey, ReplicaId};
use quorumfs_bft_runtime::client::Member;
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{
    RecordingConfig, ReplicaConfig, ReplicaServer, first_incarnation,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Far more than a short run records.
const RECORDINGS_BYTES_MAX: u64 = 4 << 30;

/// The configuration of a replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// Its number, if it is one of those that the cluster began with.
    pub id: Option<u16>,
    /// The cluster's id.
    pub cluster: [u8; 16],
    /// u: how many replicas may fail.
    pub up: u16,
    /// r: how many of those may lie.
    pub right: u16,
    /// Key and address of every replica that the cluster began with, by number.
    pub members: Vec<([u8; 32], SocketAddr)>,
    /// The principal that may change the membership.
    pub administrator: [u8; 32],
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// The file with its key.
    pub key: PathBuf,
    /// Its disk.
    pub disk: PathBuf,
    /// Where its events are recorded, if they are.
    pub recordings: Option<PathBuf>,
}

impl Setting {
    /// The cluster's fault model.
    ///
    /// # Errors
    /// If there is none for these numbers.
    pub fn fault_model(&self) -> anyhow::Result<FaultModel> {
        let count = u16::try_from(self.members.len())?;
        Ok(FaultModel::new(self.up, self.right, count)?)
    }

    /// All replicas.
    #[must_use]
    pub fn replicas(&self) -> Vec<Member> {
        let members = (0..).zip(&self.members);
        let member = |(number, (key, address)): (u16, &([u8; 32], SocketAddr))| Member {
            id: ReplicaId(number),
            key: PublicKey(*key),
            incarnation: first_incarnation(&PublicKey(*key)),
            address: (*address).into(),
        };
        members.map(member).collect()
    }
}

/// Runs the replica that the file describes. Prints `ready` once it has recovered and listens.
///
/// # Errors
/// If it cannot start, or ends by itself.
pub async fn run(file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let setting: Setting = serde_json::from_slice(&text)?;
    let config = ReplicaConfig {
        id: setting.id.map(ReplicaId),
        cluster: ClusterId(setting.cluster),
        fault_model: setting.fault_model()?,
        replicas: setting.replicas(),
        administrators: vec![PublicKey(setting.administrator)],
        key: Arc::new(NodeKey::load(&setting.key)?),
        listen: Some(setting.listen),
        directory: setting.disk.clone(),
        free_bytes_min: 0,
        durability: Durability::Strict,
        genesis: Bytes::new(),
        authentication: Authentication::Sig,
        recording: setting.recordings.map(|directory| RecordingConfig {
            directory,
            bytes_max: RECORDINGS_BYTES_MAX,
            service: ledger::NAME.to_owned(),
        }),
    };
    let handle = ReplicaServer::start(config, Ledger).await?;
    println!("ready");
    let (stop, stopped) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let end = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = stop.send(end.is_ok());
    });
    tokio::select! {
        _ = stopped => {
            handle.shutdown().await;
            Ok(())
        }
        ending = handle.ended() => Err(anyhow!("replica {:?} ended: {ending:?}", setting.id)),
    }
}
