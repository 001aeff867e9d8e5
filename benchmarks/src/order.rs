//! `quorumfs-bench order`: what it costs to order one small operation, compared with the disk.
//!
//! Four replicas with (u, r) = (1, 1) run in this process, over loopback TLS and with strict
//! durability on the file system that `--directory` names. First a lone client executes one
//! operation after the other; then several submit concurrently. The disk's `fdatasync` is measured
//! in the same run, on the same file system, before and after. The budget of a lone operation is 1
//! ms + 3 × the median `fdatasync`: the operation crosses the network five times and waits for two
//! durable writes in a row.
//!
//! Prints one JSON line. Exits with 1 if `--check` is given and the budget is not met.

use crate::arguments::OrderArguments;
use anyhow::bail;
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Incarnation, ReplicaId};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaHandle, ReplicaServer};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const REPLICAS: u16 = 4;
const OPERATION_BYTES: usize = 128;

/// Stores each operation's bytes under its first eight bytes.
struct Keep;

impl Service for Keep {
    fn open_session(
        &self,
        _: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Ok(Some(Credit {
            lanes: 64,
            bytes: 8 << 20,
        }))
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let key = operation.get(..8).unwrap_or(operation);
        txn.put(key, operation.to_vec())?;
        Ok(Bytes::from_static(b"kept"))
    }

    fn read(&self, _: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
        Ok(Bytes::new())
    }
}

async fn start(
    directory: &Path,
    cluster: ClusterId,
    model: FaultModel,
) -> anyhow::Result<(Vec<ReplicaHandle>, Vec<Member>)> {
    let (mut members, mut keys, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..REPLICAS {
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let key = Arc::new(NodeKey::generate()?);
        members.push(Member {
            id: ReplicaId(number),
            key: key.public(),
            incarnation: Incarnation::default(),
            address: socket.local_addr()?.into(),
        });
        keys.push(key);
        sockets.push(socket);
    }
    let mut handles = Vec::new();
    for ((member, key), socket) in members.iter().zip(keys).zip(sockets) {
        let disk = directory.join(member.id.to_string());
        ReplicaServer::initialise_as(&disk, Incarnation::default())?;
        let config = ReplicaConfig {
            id: Some(member.id),
            cluster,
            fault_model: model,
            replicas: members.clone(),
            administrators: Vec::new(),
            key,
            listen: None,
            directory: disk,
            free_bytes_min: 0,
            durability: Durability::Strict,
            genesis: Bytes::new(),
            authentication: Authentication::Sig,
            recording: None,
        };
        handles.push(ReplicaServer::start_on(config, Keep, socket).await?);
    }
    Ok((handles, members))
}

fn operation(number: u64) -> Bytes {
    let mut bytes = vec![7_u8; OPERATION_BYTES];
    for (to, from) in bytes.iter_mut().zip(number.to_be_bytes()) {
        *to = from;
    }
    bytes.into()
}

/// The value below which `share` of the sorted values lie.
fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let place = (sorted.len() as f64 * share) as usize;
    let place = place.min(sorted.len().saturating_sub(1));
    sorted.get(place).copied().unwrap_or_default()
}

/// How long the file system takes to make an appended record durable.
fn fdatasync(directory: &Path, times: usize) -> anyhow::Result<Vec<Duration>> {
    let path = directory.join("fdatasync");
    let mut file = std::fs::File::create(&path)?;
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        file.write_all(&[7; 512])?;
        let start = Instant::now();
        file.sync_data()?;
        took.push(start.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok(took)
}

async fn alone(client: &Client, operations: usize) -> anyhow::Result<Vec<Duration>> {
    let mut took = Vec::with_capacity(operations);
    // The first tenth warms up caches and connections and is not counted.
    for number in 0..operations + operations / 10 {
        let start = Instant::now();
        client.execute(operation(number as u64)).await?;
        if number >= operations / 10 {
            took.push(start.elapsed());
        }
    }
    took.sort_unstable();
    Ok(took)
}

async fn together(client: &Client, submitters: usize, time: Duration) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for submitter in 0..submitters {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut done = 0_u64;
            while start.elapsed() < time {
                let number = (submitter as u64) << 32 | done;
                client.execute(operation(number)).await?;
                done += 1;
            }
            anyhow::Ok(done)
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How many threads run the replicas and the clients.
pub(crate) const THREADS: usize = 2;

/// Runs the command.
pub(crate) async fn run(arguments: &OrderArguments) -> anyhow::Result<()> {
    let directory = arguments.place.make()?;
    let cluster = ClusterId([1; 16]);
    let model = FaultModel::new(1, 1, REPLICAS)?;
    let mut synced = fdatasync(directory.path(), 200)?;
    let (handles, members) = start(directory.path(), cluster, model).await?;
    let principal = Arc::new(NodeKey::generate()?);
    let client = Client::connect(ClientConfig::new(cluster, model, members, principal)).await?;
    let lone = alone(&client, arguments.operations).await?;
    let counted = |handle: &ReplicaHandle| {
        let counters = handle.status().map(|it| it.replica.counters);
        counters.map_or((0, 0), |it| (it.operations, it.batches))
    };
    let before = handles.first().map_or((0, 0), counted);
    let time = Duration::from_secs(arguments.seconds);
    let throughput = together(&client, arguments.submitters, time).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let after = handles.first().map_or((0, 0), counted);
    client.close().await?;
    for handle in handles {
        handle.shutdown().await;
    }
    synced.extend(fdatasync(directory.path(), 200)?);
    synced.sort_unstable();
    let fdatasync = quantile(&synced, 0.5);
    let median = quantile(&lone, 0.5);
    let budget = Duration::from_millis(1) + fdatasync * 3;
    let line = serde_json::json!({
        "bench": "order",
        "replicas": REPLICAS,
        "operation_bytes": OPERATION_BYTES,
        "lone_operations": lone.len(),
        "lone_latency_median_us": micros(median),
        "lone_latency_p99_us": micros(quantile(&lone, 0.99)),
        "fdatasync_median_us": micros(fdatasync),
        "fdatasync_p99_us": micros(quantile(&synced, 0.99)),
        "lone_latency_budget_us": micros(budget),
        "within_budget": median <= budget,
        "submitters": arguments.submitters,
        "operations_per_second": throughput.round() as u64,
        "operations_per_batch":
            (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
    });
    println!("{line}");
    if arguments.check && median > budget {
        bail!("a lone operation took {median:?} in the median, the budget is {budget:?}");
    }
    Ok(())
}
