//! `quorumfs bench smr`: how fast a cluster on this machine orders operations.
//!
//! Replicas are processes, connected by mutual TLS over loopback, each with a disk of its own in a
//! temporary directory; clients are in this process, each with its own session and connections.
//! The service does nothing, so what is measured is the library. Latency is from the submission
//! until r + 1 equal replies, or a medium quorum of them if there are reads out of order. The
//! longest gap is the longest time in which no client at all was answered: it is where a view
//! change shows.

use super::load::{Latencies, Load};
use super::replica::CLUSTER;
use super::talk::{Hello, Sample, Setting};
use super::{failed, line, processor_seconds};
use crate::arguments::BenchSmrArguments;
use crate::commands::volume::public_key;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use bytes::Bytes;
use hdrhistogram::Histogram;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::ReplicaId;
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::disk::Durability;
use quorumfs_bft_runtime::keys::NodeKey;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How long a replica may take to answer a line.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// What was seen while it counted.
struct Seen {
    seconds: f64,
    latencies: Latencies,
    reads_fallen_back: u64,
    longest_gap: Duration,
    /// What the replicas had done, and the processor time that this process had used.
    before: (Sample, f64),
    after: (Sample, f64),
}

/// The result: the setting first, then what came of it.
#[derive(Serialize)]
struct Record {
    replicas: u16,
    u: u16,
    r: u16,
    clients: u16,
    in_flight: u16,
    lanes: u16,
    request_bytes: u32,
    reply_bytes: u32,
    authentication: &'static str,
    durability: String,
    bundling: bool,
    seconds: f64,
    processors: usize,
    operations: u64,
    ops_per_second: f64,
    /// Of replicas and clients together.
    ops_per_core_second: f64,
    replica_core_seconds: f64,
    client_core_seconds: f64,
    latency_ms: Latency,
    reads: Option<Reads>,
    operations_per_batch: f64,
    requests_per_batch: f64,
    batches_per_second: f64,
    view_changes: u64,
    longest_gap_ms: f64,
}

/// What was read out of order.
#[derive(Serialize)]
struct Reads {
    percent: u8,
    operations: u64,
    ops_per_second: f64,
    latency_ms: Latency,
    /// Since the clients connected.
    fallen_back: u64,
}

/// A replica's process; killed when dropped.
struct Replica {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Replica {
    fn spawn() -> Outcome<Self> {
        let describe = |error: std::io::Error| failed("start a replica's process", &error);
        let program = std::env::current_exe().map_err(describe)?;
        let mut process = Command::new(program)
            .args(["bench", "smr-replica"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(describe)?;
        let (input, output) = process
            .stdin
            .take()
            .zip(process.stdout.take())
            .ok_or_else(|| failed("start a replica's process", &"no pipes"))?;
        Ok(Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    async fn say(&mut self, text: &str) -> Outcome<()> {
        let written = self.input.write_all(text.as_bytes()).await;
        written.map_err(|error| failed("speak to a replica", &error))
    }

    async fn hear<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        let silent = || {
            Failure::new(Exit::Error, "a replica of the bench ended or hangs")
                .hint("its messages are above")
        };
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let line = line.map_err(|_| silent())?;
        let line = line.map_err(|error| failed("hear a replica", &error))?;
        let line = line.ok_or_else(silent)?;
        serde_json::from_str(&line).map_err(|error| failed("understand a replica", &error))
    }

    async fn stop(mut self) -> Outcome<()> {
        drop(self.input);
        match tokio::time::timeout(PATIENCE, self.process.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(failed("wait for a replica", &error)),
            Err(_) => Err(failed("stop a replica", &"it did not end in time")),
        }
    }
}

/// The replicas, running, and how to reach them.
async fn start(
    arguments: &BenchSmrArguments,
    place: &Path,
) -> Outcome<(Vec<Replica>, Vec<Member>)> {
    let count = 2 * arguments.up + arguments.right + 1;
    let mut replicas = Vec::new();
    for _ in 0..count {
        replicas.push(Replica::spawn()?);
    }
    let (mut hellos, mut members) = (Vec::new(), Vec::new());
    for (number, replica) in (0..).zip(&mut replicas) {
        let hello: Hello = replica.hear().await?;
        members.push(Member {
            id: ReplicaId(number),
            key: public_key(&hello.key)?,
            address: hello.address,
        });
        hellos.push(hello);
    }
    for (number, replica) in (0..).zip(&mut replicas) {
        let members = hellos.iter().map(|hello| Hello {
            address: hello.address,
            key: hello.key.clone(),
        });
        let setting = Setting {
            replica: number,
            up: arguments.up,
            right: arguments.right,
            members: members.collect(),
            durability: arguments.durability.clone(),
            reply_bytes: arguments.reply_bytes,
            directory: place.join(number.to_string()),
        };
        replica.say(&line(&setting)?).await?;
    }
    for replica in &mut replicas {
        let _ready: Sample = replica.hear().await?;
    }
    Ok((replicas, members))
}

/// Without bundles every operation in flight needs a lane, of which a session has 64 at the most.
fn lanes(arguments: &BenchSmrArguments) -> u16 {
    if arguments.bundling {
        arguments.lanes
    } else {
        arguments.in_flight.min(64)
    }
}

/// Connects the clients, on the thread that they live on.
async fn connect(
    arguments: &BenchSmrArguments,
    model: FaultModel,
    members: &[Member],
    thread: &ClientThread,
) -> Outcome<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..arguments.clients {
        let key = NodeKey::generate().map_err(|error| failed("make a key", &error))?;
        let mut config = ClientConfig::new(CLUSTER, model, members.to_vec(), Arc::new(key));
        config.lanes = lanes(arguments);
        if !arguments.bundling {
            config.bundle_max = 1;
        }
        config.unordered_reads = arguments.reads > 0;
        let client = thread.handle.spawn(Client::connect(config)).await;
        let client = client.map_err(|error| failed("connect a client", &error))?;
        clients.push(client.map_err(|error| failed("connect a client", &error))?);
    }
    Ok(clients)
}

/// The one thread of all clients: what is measured is not how fast threads wake each other.
struct ClientThread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl ClientThread {
    fn start() -> Outcome<Self> {
        let describe = |error: std::io::Error| failed("start the clients' thread", &error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(describe)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("clients".to_owned())
            .spawn(move || runtime.block_on(stopped))
            .map_err(describe)?;
        Ok(Self {
            handle,
            _stop: stop,
        })
    }
}

/// What the replicas have done so far: their processor time in sum, the rest of the one that is
/// furthest.
async fn sample(replicas: &mut [Replica]) -> Outcome<Sample> {
    let mut all = Sample::default();
    for replica in &mut *replicas {
        replica.say("\n").await?;
        let one: Sample = replica.hear().await?;
        let seconds = all.processor_seconds + one.processor_seconds;
        if one.batches >= all.batches {
            all = one;
        }
        all.processor_seconds = seconds;
    }
    Ok(all)
}

/// Measures.
pub(crate) async fn run(arguments: &BenchSmrArguments, output: Output) -> Outcome {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let durability: Durability = arguments.durability.parse().map_err(usage)?;
    let (up, right) = (arguments.up, arguments.right);
    if up > 16 || right > 16 {
        return Err(usage(format!("u = {up} and r = {right}: at most 16 each")));
    }
    let model =
        FaultModel::new(up, right, 2 * up + right + 1).map_err(|error| usage(error.to_string()))?;
    let place = match &arguments.directory {
        Some(directory) => tempfile::tempdir_in(directory),
        None => tempfile::tempdir(),
    }
    .map_err(|error| failed("make a directory for the replicas' disks", &error))?;
    let (mut replicas, members) = start(arguments, place.path()).await?;
    let thread = ClientThread::start()?;
    let clients = connect(arguments, model, &members, &thread).await?;
    let operation = Bytes::from(vec![7; arguments.request_bytes as usize]);
    let (in_flight, reads) = (arguments.in_flight, arguments.reads);
    let load = Load::start(&clients, in_flight, reads, &operation, &thread.handle)?;
    tokio::time::sleep(Duration::from_secs(arguments.warm_up)).await;
    let before = (sample(&mut replicas).await?, processor_seconds());
    let (counted, longest_gap) = load.count(Duration::from_secs(arguments.seconds)).await;
    let after = (sample(&mut replicas).await?, processor_seconds());
    let seen = Seen {
        seconds: counted.as_secs_f64(),
        latencies: load.finish().await?,
        reads_fallen_back: clients.iter().map(|client| client.reads().1).sum(),
        longest_gap,
        before,
        after,
    };
    for client in clients {
        let closed = client.close().await;
        closed.map_err(|error| failed("close a session", &error))?;
    }
    for replica in replicas {
        replica.stop().await?;
    }
    let record = record(arguments, durability, &seen);
    output.record("bench_smr", &record, describe)?;
    Ok(Exit::Success)
}

fn record(arguments: &BenchSmrArguments, durability: Durability, seen: &Seen) -> Record {
    let ((before, own_before), (after, own_after)) = (seen.before, seen.after);
    let (ordered, read) = (&seen.latencies.ordered, &seen.latencies.reads);
    let operations = ordered.len() + read.len();
    let replica_core_seconds = after.processor_seconds - before.processor_seconds;
    let client_core_seconds = own_after - own_before;
    let batches = after.batches.saturating_sub(before.batches);
    let per_batch = |from: u64, to: u64| to.saturating_sub(from) as f64 / batches.max(1) as f64;
    Record {
        replicas: 2 * arguments.up + arguments.right + 1,
        u: arguments.up,
        r: arguments.right,
        clients: arguments.clients,
        in_flight: arguments.in_flight,
        lanes: lanes(arguments),
        request_bytes: arguments.request_bytes,
        reply_bytes: arguments.reply_bytes,
        authentication: arguments.authentication,
        durability: durability.to_string(),
        bundling: arguments.bundling,
        seconds: seen.seconds,
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        operations,
        ops_per_second: operations as f64 / seen.seconds,
        ops_per_core_second: operations as f64 / (replica_core_seconds + client_core_seconds),
        replica_core_seconds,
        client_core_seconds,
        latency_ms: latency(ordered),
        reads: (arguments.reads > 0).then(|| Reads {
            percent: arguments.reads,
            operations: read.len(),
            ops_per_second: read.len() as f64 / seen.seconds,
            latency_ms: latency(read),
            fallen_back: seen.reads_fallen_back,
        }),
        operations_per_batch: per_batch(before.operations, after.operations),
        requests_per_batch: per_batch(before.requests, after.requests),
        batches_per_second: batches as f64 / seen.seconds,
        view_changes: after.view.saturating_sub(before.view),
        longest_gap_ms: seen.longest_gap.as_secs_f64() * 1e3,
    }
}

fn latency(of: &Histogram<u64>) -> Latency {
    let millis = |quantile| of.value_at_quantile(quantile) as f64 / 1e6;
    Latency {
        p50: millis(0.5),
        p90: millis(0.9),
        p99: millis(0.99),
        p999: millis(0.999),
        max: of.max() as f64 / 1e6,
    }
}

fn describe(record: &Record) -> String {
    let reads = record.reads.as_ref().map_or_else(String::new, |reads| {
        format!(
            "\n{:>12.0} reads out of order/s: {:.3} ms median, p99 {:.3}; {} put into the order",
            reads.ops_per_second, reads.latency_ms.p50, reads.latency_ms.p99, reads.fallen_back,
        )
    });
    let ordered = format!(
        "{} replicas (u = {}, r = {}), {} clients with {} in flight, {}/{} bytes, {} durability\n\
         {:>12.0} operations/s, {:.0} per core-second\n\
         {:>12.3} ms median; p90 {:.3}, p99 {:.3}, p99.9 {:.3}\n\
         {:>12.1} operations a batch, {:.0} batches/s, {} view changes, longest gap {:.0} ms",
        record.replicas,
        record.u,
        record.r,
        record.clients,
        record.in_flight,
        record.request_bytes,
        record.reply_bytes,
        record.durability,
        record.ops_per_second,
        record.ops_per_core_second,
        record.latency_ms.p50,
        record.latency_ms.p90,
        record.latency_ms.p99,
        record.latency_ms.p999,
        record.operations_per_batch,
        record.batches_per_second,
        record.view_changes,
        record.longest_gap_ms,
    );
    ordered + &reads
}
