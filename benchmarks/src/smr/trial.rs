//! One measurement: a cluster, clients that load it, timed faults, and the result.

use super::cluster::{BenchCluster, ClusterPlan};
use super::load::{Latencies, Load};
use super::observers::{Count, Observers};
use super::protocol::Sample;
use crate::arguments::SmrArguments;
use crate::failure::{BenchFailure, BenchResult, failed};
use crate::open_files;
use crate::processor::process_seconds;
use hdrhistogram::Histogram;
use quorumfs_bft_runtime::client::{Client, ClientConfig};
use quorumfs_bft_runtime::keys::NodeKey;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

#[derive(Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Latency {
    pub(super) fn of(of: &Histogram<u64>) -> Self {
        let millis = |quantile| of.value_at_quantile(quantile) as f64 / 1e6;
        Self {
            p50: millis(0.5),
            p90: millis(0.9),
            p99: millis(0.99),
            p999: millis(0.999),
            max: of.max() as f64 / 1e6,
        }
    }
}

/// Faults of the replicas, and observers, during a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// How many hang, with their sockets open, before counting begins.
    pub(super) hang: u16,
    /// When to kill the leader, after counting began.
    pub(super) kill_leader_after: Option<Duration>,
    /// The observers of the replicas.
    pub(super) observers: Count,
}

/// The result of a measurement.
pub(super) struct TrialResult {
    pub(super) seconds: f64,
    pub(super) latencies: Latencies,
    /// Those of the first client alone.
    pub(super) first: Latencies,
    pub(super) reads_fallen_back: u64,
    pub(super) longest_gap: Duration,
    /// The replicas' counters, and the processor time of this process.
    pub(super) before: (Sample, f64),
    pub(super) after: (Sample, f64),
    /// The attackers' counters meanwhile.
    pub(super) attackers: Sample,
    /// Frames that they have sent since they began.
    pub(super) attacker_frames: u64,
    /// Events that observers received since they connected.
    pub(super) events_received: u64,
}

impl TrialResult {
    pub(super) fn operations(&self) -> u64 {
        self.latencies.len()
    }

    pub(super) fn ops_per_second(&self) -> f64 {
        self.operations() as f64 / self.seconds
    }

    /// Of the replicas, and of the clients.
    pub(super) fn core_seconds(&self) -> (f64, f64) {
        let ((before, own_before), (after, own_after)) = (self.before, self.after);
        let replicas = after.processor_seconds - before.processor_seconds;
        (replicas, own_after - own_before)
    }

    pub(super) fn ops_per_core_second(&self) -> f64 {
        let (replicas, clients) = self.core_seconds();
        self.operations() as f64 / (replicas + clients)
    }

    pub(super) fn view_changes(&self) -> u64 {
        let (before, after) = (self.before.0.view, self.after.0.view);
        after.saturating_sub(before)
    }
}

/// Without bundles every operation in flight needs a lane, of which a session has at most 64.
pub(super) fn lanes(arguments: &SmrArguments) -> u16 {
    if arguments.bundling {
        arguments.lanes
    } else {
        arguments.load.in_flight.min(64)
    }
}

/// Open files in addition to the connections: disks, observers, the program itself.
const OTHER_FILES: u64 = 256;

/// Whether this process, and each replica, may have a connection for each client and replica.
fn may_connect(clients: u16, replicas: usize, open_files_max: Option<u64>) -> BenchResult {
    let connections = u64::from(clients).saturating_mul(replicas as u64);
    let wanted = connections.saturating_add(OTHER_FILES);
    let Some(most) = open_files_max.filter(|most| *most < wanted) else {
        return Ok(());
    };
    let message = format!(
        "{clients} clients of {replicas} replicas need {wanted} open files, and this process may \
         have {most}"
    );
    Err(BenchFailure::usage(message)
        .hint("raise the hard limit (`ulimit -Hn`, `LimitNOFILE=`), or take fewer --clients"))
}

/// Connects the clients, on their thread.
async fn connect(
    arguments: &SmrArguments,
    plan: &ClusterPlan,
    cluster: &BenchCluster,
    thread: &ClientThread,
) -> BenchResult<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..arguments.load.clients {
        let key = NodeKey::generate().map_err(|error| failed("make a key", &error))?;
        let members = cluster.members.clone();
        let mut config = ClientConfig::new(plan.cluster(), plan.model, members, Arc::new(key));
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

/// The one thread of all clients, so that thread wake-ups are not measured.
struct ClientThread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl ClientThread {
    fn start() -> BenchResult<Self> {
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

/// Measures once. Every operation of every client has to be answered, whatever happens.
pub(super) async fn measure(
    arguments: &SmrArguments,
    plan: &ClusterPlan,
    faults: Faults,
) -> BenchResult<TrialResult> {
    let place = arguments.load.place.make()?;
    let replicas = usize::from(plan.model.replicas());
    may_connect(arguments.load.clients, replicas, open_files::most())?;
    let mut cluster = BenchCluster::start(plan, place.path()).await?;
    let thread = ClientThread::start()?;
    let clients = connect(arguments, plan, &cluster, &thread).await?;
    cluster.hang(faults.hang).await?;
    let observers = Observers::start(faults.observers, plan, &cluster)?;
    let load = Load::start(&clients, arguments, &thread.handle)?;
    tokio::time::sleep(Duration::from_secs(arguments.load.warm_up)).await;
    let attacked = cluster.sample_attackers().await?;
    let before = (cluster.sample().await?, process_seconds());
    let fault = async {
        if let Some(after) = faults.kill_leader_after {
            tokio::time::sleep(after).await;
            cluster.kill_leader().await?;
        }
        Ok(())
    };
    let counting = load.count(Duration::from_secs(arguments.load.seconds));
    let ((counted, longest_gap), fault) = tokio::join!(counting, fault);
    fault?;
    let after = (cluster.sample().await?, process_seconds());
    let mut attackers = cluster.sample_attackers().await?;
    let attacker_frames = attackers.operations;
    attackers.processor_seconds -= attacked.processor_seconds;
    attackers.operations -= attacked.operations;
    let events_received = observers.events_received();
    observers.stop()?;
    let (latencies, first) = load.finish().await?;
    let seen = TrialResult {
        seconds: counted.as_secs_f64(),
        latencies,
        first,
        reads_fallen_back: clients.iter().map(|client| client.reads().1).sum(),
        longest_gap,
        before,
        after,
        attackers,
        attacker_frames,
        events_received,
    };
    for client in clients {
        let closed = client.close().await;
        closed.map_err(|error| failed("close a session", &error))?;
    }
    cluster.stop().await?;
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_named_before_anything_is_measured() {
        assert_eq!(may_connect(2000, 4, Some(8256)), Ok(()));
        assert_eq!(may_connect(2000, 4, None), Ok(()));
        let failure = may_connect(2000, 4, Some(8255)).unwrap_err();
        assert!(failure.message.contains("8256 open files"), "{failure}");
        assert!(failure.hint.unwrap().contains("ulimit"));
    }
}
