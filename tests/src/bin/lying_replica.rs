//! `lying_replica`: a metadata replica that lies, with the disk and the key of a correct one.
//!
//! `twins --attack` starts it in the place of one of the four. It reports that it is ready as a
//! correct one does, ends on SIGTERM, and records how often it lied.

use anyhow::Context as _;
use clap::Parser;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::step::Effects;
use quorumfs_bft_runtime::client::Member;
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaServer, Start, first_incarnation};
use quorumfs_bft_simulator::random::Random;
use quorumfs_metadata::Metadata;
use quorumfs_metadata::genesis::SignedGenesis;
use quorumfs_tests::twins::liar::{Liar, Lies};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const STORED_EVERY: Duration = Duration::from_millis(300);

/// A replica that lies.
#[derive(Parser)]
struct LyingReplicaArguments {
    /// The directory of a replica, as `replica init` makes it.
    #[arg(long)]
    state: PathBuf,
    /// The volume's genesis.
    #[arg(long)]
    genesis: PathBuf,
    /// The address that it listens on.
    #[arg(long)]
    listen: SocketAddr,
    /// The file in which it records how often it lied.
    #[arg(long)]
    lies: PathBuf,
    /// Decides when it lies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = LyingReplicaArguments::parse();
    let mut stop = signal(SignalKind::terminate())?;
    let key = Arc::new(NodeKey::load(&arguments.state.join("replica.key"))?);
    let config = config(&arguments, key.clone())?;
    let lies = Arc::new(Lies::default());
    let (counts, random) = (lies.clone(), Random::new(arguments.seed));
    let core = move |start: Start, now, effects: &mut Effects| {
        let core = start.replica(Box::new(Metadata), now, effects)?;
        Ok(Liar::new(core, key, random, counts))
    };
    let socket = TcpListener::bind(arguments.listen).await?;
    let handle = ReplicaServer::start_core_on(config, core, socket).await?;
    println!("{{\"v\":1,\"type\":\"ready\"}}");
    loop {
        tokio::select! {
            ending = handle.ended() => anyhow::bail!("the liar ended by itself: {ending:?}"),
            _ = stop.recv() => break,
            () = tokio::time::sleep(STORED_EVERY) => lies.store(&arguments.lies)?,
        }
    }
    handle.shutdown().await;
    lies.store(&arguments.lies)?;
    Ok(())
}

fn config(arguments: &LyingReplicaArguments, key: Arc<NodeKey>) -> anyhow::Result<ReplicaConfig> {
    let bytes = std::fs::read(&arguments.genesis)?;
    let (_, genesis) = SignedGenesis::from_bytes(&bytes).context("the genesis")?;
    let mut replicas = Vec::new();
    for replica in &genesis.replicas {
        replicas.push(Member {
            id: replica.id,
            key: replica.key,
            incarnation: first_incarnation(&replica.key),
            address: replica.address.parse()?,
        });
    }
    let me = replicas.iter().find(|member| member.key == key.public());
    let owner = genesis.principals.iter().take(1);
    Ok(ReplicaConfig {
        id: me.map(|member| member.id),
        cluster: genesis.volume,
        fault_model: genesis.fault_model()?,
        administrators: owner.map(|it| it.key).collect(),
        replicas,
        key,
        listen: Some(arguments.listen),
        directory: arguments.state.join("data"),
        free_bytes_min: 0,
        durability: Durability::Strict,
        genesis: bytes.into(),
        authentication: Authentication::Sig,
        recording: None,
    })
}
