//! A counter that several replicas keep: the ordering library as a project uses it.
//!
//! The service is [`ReplicatedCounter`]. The rest joins it to processes: `init` makes a replica's
//! key and disk, `run` runs it, `add` and `show` are clients. All of them read one file of members,
//! with a line `KEY INCARNATION HOST:PORT` for each replica.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, ReplicaId};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaHandle, ReplicaServer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Keeps one cluster's messages apart from those of every other one.
const CLUSTER: ClusterId = ClusterId(*b"replicated-count");

/// The service: one row, to which operations add.
struct ReplicatedCounter;

const SUM: &[u8] = b"sum";

fn sum(view: &View<'_>) -> Result<u64, StateError> {
    let row = view.get(SUM)?.unwrap_or_default();
    Ok(row.as_ref().try_into().map_or(0, u64::from_be_bytes))
}

impl Service for ReplicatedCounter {
    fn genesis(&self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), StateError> {
        txn.put(SUM, vec![0; 8])
    }

    /// Every key may open a session; a real service knows its principals.
    fn open_session(
        &self,
        _: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Ok(Some(Credit {
            lanes: 8,
            bytes: 1 << 20,
        }))
    }

    /// An operation is eight bytes to add. Anything else has no effect: input is never trusted.
    fn execute(
        &self,
        txn: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let Ok(add) = operation.try_into().map(u64::from_be_bytes) else {
            return Ok(Bytes::new());
        };
        let sum = sum(&txn.view())?.wrapping_add(add).to_be_bytes().to_vec();
        txn.put(SUM, sum.clone())?;
        Ok(sum.into())
    }

    fn read(&self, view: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
        Ok(sum(view)?.to_be_bytes().to_vec().into())
    }
}

/// A counter that several replicas keep.
#[derive(Parser)]
struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a replica's key and disk, and print its line for the file of members
    Init { directory: PathBuf, address: String },
    /// Run a replica until it is interrupted
    Run {
        directory: PathBuf,
        members: PathBuf,
    },
    /// Add to the counter, and print what it is then
    Add { members: PathBuf, number: u64 },
    /// Print what the counter is
    Show { members: PathBuf },
}

/// Makes a replica's key and disk; returns its line for the file of members.
fn init(directory: &Path, address: &str) -> Result<String> {
    std::fs::create_dir(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let key = NodeKey::generate()?;
    key.store(&directory.join("key"))?;
    let incarnation = ReplicaServer::initialise(&directory.join("data"))?;
    Ok(format!("{} {incarnation} {address}", key.public()))
}

/// Reads the file of members. The order of its lines numbers the replicas.
fn members(path: &Path) -> Result<Vec<Member>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().enumerate().map(|(number, line)| {
        let mut words = line.split_whitespace();
        let (Some(key), Some(incarnation), Some(address)) =
            (words.next(), words.next(), words.next())
        else {
            bail!("line {} is not KEY INCARNATION HOST:PORT", number + 1);
        };
        Ok(Member {
            id: ReplicaId(u16::try_from(number)?),
            key: key.parse().ok().context("this is no key")?,
            incarnation: incarnation.parse().ok().context("this is no incarnation")?,
            address: address.parse()?,
        })
    });
    lines.collect()
}

/// As many faults as these replicas tolerate: of four, one that may lie.
fn fault_model(members: &[Member]) -> Result<FaultModel> {
    let replicas = u16::try_from(members.len())?;
    let tolerated = replicas.saturating_sub(1) / 3;
    Ok(FaultModel::new(tolerated, tolerated, replicas)?)
}

async fn run(directory: &Path, members: Vec<Member>) -> Result<ReplicaHandle> {
    let key = NodeKey::load(&directory.join("key"))?;
    let own = members.iter().find(|member| member.key == key.public());
    let own = own.context("the file of members does not have this replica's key")?;
    let listen = own.address.resolve().await?;
    let config = ReplicaConfig {
        id: Some(own.id),
        cluster: CLUSTER,
        fault_model: fault_model(&members)?,
        replicas: members.clone(),
        administrators: Vec::new(),
        key: Arc::new(key),
        listen: listen.first().copied(),
        directory: directory.join("data"),
        free_bytes_min: 0,
        durability: Durability::Strict,
        genesis: Bytes::new(),
        authentication: Default::default(),
        recording: None,
    };
    Ok(ReplicaServer::start(config, ReplicatedCounter).await?)
}

/// Opens a session with the cluster, under a key of its own.
async fn connect(members: Vec<Member>) -> Result<Client> {
    let fault_model = fault_model(&members)?;
    let key = Arc::new(NodeKey::generate()?);
    let config = ClientConfig::new(CLUSTER, fault_model, members, key);
    Ok(Client::connect(config).await?)
}

fn number(answer: &[u8]) -> Result<u64> {
    let bytes = answer.try_into().context("the answer is no number")?;
    Ok(u64::from_be_bytes(bytes))
}

#[tokio::main]
async fn main() -> Result<()> {
    match CommandLine::parse().action {
        Action::Init { directory, address } => println!("{}", init(&directory, &address)?),
        Action::Run {
            directory,
            members: file,
        } => {
            let replica = run(&directory, members(&file)?).await?;
            tokio::signal::ctrl_c().await?;
            replica.shutdown().await;
        }
        Action::Add {
            members: file,
            number: add,
        } => {
            let client = connect(members(&file)?).await?;
            let operation = add.to_be_bytes().to_vec().into();
            println!("{}", number(&client.execute(operation).await?)?);
            client.close().await?;
        }
        Action::Show { members: file } => {
            let client = connect(members(&file)?).await?;
            println!("{}", number(&client.read(Bytes::new()).await?)?);
            client.close().await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn four_replicas_count_with_one_of_them_gone() {
        let directory = tempfile::tempdir().unwrap();
        let free = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets: Vec<_> = (0..4).map(free).collect();
        let places = sockets.iter().map(|it| it.local_addr().unwrap());
        let lines: Vec<_> = places
            .enumerate()
            .map(|(n, place)| {
                let replica = directory.path().join(n.to_string());
                init(&replica, &place.to_string()).unwrap()
            })
            .collect();
        drop(sockets);
        let file = directory.path().join("members");
        std::fs::write(&file, lines.join("\n")).unwrap();

        let mut replicas = Vec::new();
        for n in 0..4 {
            let place = directory.path().join(n.to_string());
            replicas.push(run(&place, members(&file).unwrap()).await.unwrap());
        }
        let client = connect(members(&file).unwrap()).await.unwrap();
        let add = |n: u64| Bytes::from(n.to_be_bytes().to_vec());
        let answer = client.execute(add(40)).await.unwrap();
        assert_eq!(number(&answer).unwrap(), 40);
        replicas.pop().unwrap().kill().await;
        let answer = client.execute(add(2)).await.unwrap();
        assert_eq!(number(&answer).unwrap(), 42);
        let answer = client.execute(Bytes::from_static(b"no number")).await;
        assert!(answer.unwrap().is_empty(), "it has no effect");
        let answer = client.read(Bytes::new()).await.unwrap();
        assert_eq!(number(&answer).unwrap(), 42);
        client.close().await.unwrap();
        for replica in replicas {
            replica.shutdown().await;
        }
    }
}
