//! `quorumfs-bench smr`: how fast a cluster on this machine orders operations.
//!
//! Replicas are processes, connected by mutual TLS over loopback, each with a disk of its own in a
//! temporary directory; clients are in this process, each with its own session and connections. The
//! service does nothing, so the library is measured. Latency is from the submission until r + 1
//! equal replies, or a medium quorum of them if there are unordered reads. The longest gap is the
//! longest time without an answer to any client: view changes show there. With `--bursts`, clients
//! rest in between, which is no gap.
//!
//! With `--rtt-ms`, frames take their time between all of them ([`super::distance`]). Then a change
//! takes 2.5 round trips at least if all are equal, and an unordered read one.
//!
//! With a fault, the same without it is measured first, in the same run: goodput is the fraction of
//! that. With `--with-bare`, the messages alone ([`super::baseline`]) are measured last.

use super::cluster::ClusterPlan;
use super::observers::Count;
use super::protocol::BenchRole;
use super::trial::{Faults, Latency, TrialResult, lanes, measure};
use crate::arguments::SmrArguments;
use crate::failure::{BenchFailure, BenchResult};
use crate::output::Printer;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft_runtime::disk::Durability;
use serde::Serialize;
use std::time::Duration;

/// The setting, then the results.
#[derive(Serialize)]
struct SmrRecord {
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
    /// The round trip to each replica, if frames take their time.
    rtt_ms: Option<Vec<u64>>,
    seconds: f64,
    /// Milliseconds of work and of rest, on average.
    bursts_ms: Option<(u128, u128)>,
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
    #[serde(flatten)]
    fault: Option<FaultRecord>,
    #[serde(flatten)]
    bare: Option<BaselineRecord>,
}

/// Results of unordered reads.
#[derive(Serialize)]
struct Reads {
    percent: u8,
    operations: u64,
    ops_per_second: f64,
    latency_ms: Latency,
    /// Since the clients connected.
    fallen_back: u64,
}

/// The faults, and the results without them.
#[derive(Serialize)]
struct FaultRecord {
    down: u16,
    hang: u16,
    kill_leader_after_s: Option<u64>,
    slow_leader_ms: Option<u64>,
    /// Additional durable writes of each replica, on average.
    flushes_per_second: f64,
    observers: u16,
    slow_observers: u16,
    /// Events that quick observers received, since they connected.
    observers_told: u64,
    fault_free_ops_per_second: f64,
    fault_free_ops_per_core_second: f64,
    fault_free_p99_ms: f64,
    goodput_percent: f64,
    goodput_per_core_percent: f64,
}

/// The messages alone.
#[derive(Serialize)]
struct BaselineRecord {
    bare_p50_ms: f64,
    bare_p99_ms: f64,
    bare_ops_per_second: f64,
    bare_ops_per_core_second: f64,
}

/// Correct replicas.
fn correct(arguments: &SmrArguments, model: FaultModel, round_trips_ms: Vec<u64>) -> ClusterPlan {
    ClusterPlan {
        model,
        round_trips_ms,
        durability: arguments.load.durability.clone(),
        reply_bytes: arguments.reply_bytes,
        signed: arguments.authentication != "none",
        channels: arguments.authentication == "mac",
        down: 0,
        parts: Vec::new(),
        others: BenchRole::Correct,
        additional: Vec::new(),
        flushes: 0,
    }
}

/// The round trip to each replica; none, if there are none.
fn round_trips(given: &[u64], replicas: u16) -> BenchResult<Vec<u64>> {
    match given {
        [] => Ok(Vec::new()),
        [all] => Ok(vec![*all; replicas.into()]),
        each if each.len() == usize::from(replicas) => Ok(each.to_vec()),
        some => {
            let count = some.len();
            let message = format!("--rtt-ms has {count} values, and there are {replicas} replicas");
            Err(BenchFailure::usage(message)
                .hint("give one for each replica, in the order of their numbers, or one for all"))
        }
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: &SmrArguments, output: Printer) -> BenchResult {
    let usage = |text: String| BenchFailure::usage(text);
    let durability: Durability = arguments.load.durability.parse().map_err(usage)?;
    let (up, right) = (arguments.up, arguments.right);
    if up > 16 || right > 16 {
        return Err(usage(format!("u = {up} and r = {right}: at most 16 each")));
    }
    let model =
        FaultModel::new(up, right, 2 * up + right + 1).map_err(|error| usage(error.to_string()))?;
    let killed = u16::from(arguments.kill_leader_after.is_some());
    if arguments.down + arguments.hang + killed > up {
        return Err(usage(format!(
            "more faults than u = {up}: the cluster would stop"
        )));
    }
    let far = round_trips(&arguments.rtt_ms, model.replicas())?;
    let faultless = correct(arguments, model, far);
    let mut plan = faultless.clone();
    plan.down = arguments.down;
    plan.flushes = arguments.flushes;
    plan.parts = arguments
        .slow_leader
        .map(BenchRole::SlowLeader)
        .into_iter()
        .collect();
    let faults = Faults {
        hang: arguments.hang,
        kill_leader_after: arguments.kill_leader_after.map(Duration::from_secs),
        observers: Count {
            quick: arguments.observers,
            slow: arguments.slow_observers,
        },
    };
    let is_faulty = arguments.down + arguments.hang + killed > 0
        || !plan.parts.is_empty()
        || plan.flushes > 0
        || faults.observers.any();
    let before = match is_faulty {
        true => Some(measure(arguments, &faultless, Faults::default()).await?),
        false => None,
    };
    let seen = measure(arguments, &plan, faults).await?;
    let far = plan.round_trips_ms;
    let bare = match arguments.with_bare {
        true => {
            let mut plan = faultless;
            plan.others = BenchRole::Baseline;
            Some(measure(arguments, &plan, Faults::default()).await?)
        }
        false => None,
    };
    let mut record = record(arguments, durability, &seen);
    record.rtt_ms = Some(far).filter(|far| !far.is_empty());
    record.fault = before.map(|before| fault(arguments, &before, &seen));
    record.bare = bare.map(|bare| baseline_record(&bare));
    output.record("bench_smr", &record, describe)?;
    Ok(())
}

fn fault(arguments: &SmrArguments, before: &TrialResult, seen: &TrialResult) -> FaultRecord {
    let idle = arguments.down + arguments.hang;
    let replicas = f64::from(2 * arguments.up + arguments.right + 1 - idle);
    let flushes = seen.after.0.flushes.saturating_sub(seen.before.0.flushes);
    let per_core = seen.ops_per_core_second() / before.ops_per_core_second();
    FaultRecord {
        down: arguments.down,
        hang: arguments.hang,
        kill_leader_after_s: arguments.kill_leader_after,
        slow_leader_ms: arguments.slow_leader,
        flushes_per_second: flushes as f64 / seen.seconds / replicas,
        observers: arguments.observers,
        slow_observers: arguments.slow_observers,
        observers_told: seen.events_received,
        fault_free_ops_per_second: before.ops_per_second(),
        fault_free_ops_per_core_second: before.ops_per_core_second(),
        fault_free_p99_ms: Latency::of(&before.latencies.ordered).p99,
        goodput_percent: seen.ops_per_second() / before.ops_per_second() * 100.0,
        goodput_per_core_percent: per_core * 100.0,
    }
}

fn baseline_record(seen: &TrialResult) -> BaselineRecord {
    let latency = Latency::of(&seen.latencies.ordered);
    BaselineRecord {
        bare_p50_ms: latency.p50,
        bare_p99_ms: latency.p99,
        bare_ops_per_second: seen.ops_per_second(),
        bare_ops_per_core_second: seen.ops_per_core_second(),
    }
}

fn record(arguments: &SmrArguments, durability: Durability, seen: &TrialResult) -> SmrRecord {
    let (before, after) = (seen.before.0, seen.after.0);
    let (ordered, read) = (&seen.latencies.ordered, &seen.latencies.reads);
    let (replica_core_seconds, client_core_seconds) = seen.core_seconds();
    let batches = after.batches.saturating_sub(before.batches);
    let per_batch = |from: u64, to: u64| to.saturating_sub(from) as f64 / batches.max(1) as f64;
    SmrRecord {
        replicas: 2 * arguments.up + arguments.right + 1,
        u: arguments.up,
        r: arguments.right,
        clients: arguments.load.clients,
        in_flight: arguments.load.in_flight,
        lanes: lanes(arguments),
        request_bytes: arguments.request_bytes,
        reply_bytes: arguments.reply_bytes,
        authentication: arguments.authentication,
        durability: durability.to_string(),
        bundling: arguments.bundling,
        rtt_ms: None,
        seconds: seen.seconds,
        bursts_ms: arguments
            .bursts
            .map(|bursts| (bursts.work.as_millis(), bursts.rest.as_millis())),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        operations: seen.operations(),
        ops_per_second: seen.ops_per_second(),
        ops_per_core_second: seen.ops_per_core_second(),
        replica_core_seconds,
        client_core_seconds,
        latency_ms: Latency::of(ordered),
        reads: (arguments.reads > 0).then(|| Reads {
            percent: arguments.reads,
            operations: read.len(),
            ops_per_second: read.len() as f64 / seen.seconds,
            latency_ms: Latency::of(read),
            fallen_back: seen.reads_fallen_back,
        }),
        operations_per_batch: per_batch(before.operations, after.operations),
        requests_per_batch: per_batch(before.requests, after.requests),
        batches_per_second: batches as f64 / seen.seconds,
        view_changes: seen.view_changes(),
        longest_gap_ms: seen.longest_gap.as_secs_f64() * 1e3,
        fault: None,
        bare: None,
    }
}

fn describe(record: &SmrRecord) -> String {
    let reads = record.reads.as_ref().map_or_else(String::new, |reads| {
        format!(
            "\n{:>12.0} unordered reads/s: {:.3} ms median, p99 {:.3}; {} repeated as ordered",
            reads.ops_per_second, reads.latency_ms.p50, reads.latency_ms.p99, reads.fallen_back,
        )
    });
    let fault = record.fault.as_ref().map_or_else(String::new, |fault| {
        format!(
            "\n{:>12.0} % of the {:.0} operations/s without the fault, whose p99 was {:.3} ms",
            fault.goodput_percent, fault.fault_free_ops_per_second, fault.fault_free_p99_ms,
        )
    });
    let bare = record.bare.as_ref().map_or_else(String::new, |bare| {
        format!(
            "\n{:>12.0} operations/s of the messages alone, {:.3} ms median",
            bare.bare_ops_per_second, bare.bare_p50_ms,
        )
    });
    let far = record.rtt_ms.as_ref().map_or_else(String::new, |each| {
        let each: Vec<_> = each.iter().map(u64::to_string).collect();
        format!("\nround trips of {} ms to the replicas", each.join(", "))
    });
    let ordered = format!(
        "{} replicas (u = {}, r = {}), {} clients with {} in flight, {}/{} bytes, {} durability\
         {far}\n\
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
    ordered + &reads + &fault + &bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_one_for_each_replica_or_one_for_all() {
        assert_eq!(round_trips(&[], 4), Ok(Vec::new()));
        assert_eq!(round_trips(&[40], 4), Ok(vec![40; 4]));
        assert_eq!(round_trips(&[1, 2, 3, 4], 4), Ok(vec![1, 2, 3, 4]));
        let failure = round_trips(&[1, 2, 3], 4).unwrap_err();
        assert_eq!(failure.code, 2);
        assert!(failure.message.contains("3 values"), "{failure}");
        assert!(failure.hint.unwrap().contains("one for all"));
    }
}
