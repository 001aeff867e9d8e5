//! `quorumfs-bench smr-attacks`: the throughput that a cluster retains under attack.
//!
//! Each attack is measured on a fresh cluster with the same load; the first measurement is without
//! an attack. The result is goodput: operations of correct clients, in percent of those without an
//! attack. Attackers are processes on the same machine and take resources from the others, so
//! goodput is also given per second of processor time of replicas and clients.

use super::cluster::ClusterPlan;
use super::protocol::{Attack, BenchRole};
use super::trial::{Faults, Latency, TrialResult, measure};
use crate::arguments::{AttacksArguments, SmrArguments};
use crate::failure::{BenchFailure, BenchResult};
use crate::output::Printer;
use quorumfs_bft::fault_model::FaultModel;
use serde::Serialize;

/// The session of the first client, which an unfair leader ignores.
const FIRST_SESSION: u64 = 1;

/// The attacks by name: the replicas that take part, and additional attackers.
fn attacks() -> Vec<(&'static str, Vec<BenchRole>, Vec<BenchRole>)> {
    let last = |attack| {
        let part = BenchRole::Attacker(attack);
        vec![
            BenchRole::Correct,
            BenchRole::Correct,
            BenchRole::Correct,
            part,
        ]
    };
    let additional = |attack| vec![BenchRole::Attacker(attack)];
    vec![
        ("client-requests", vec![], additional(Attack::Requests)),
        ("client-questions", vec![], additional(Attack::Questions)),
        ("client-huge", vec![], additional(Attack::Huge)),
        ("bad-signatures", vec![], additional(Attack::BadSignatures)),
        ("replica-votes", last(Attack::Votes), vec![]),
        ("replica-fetches", last(Attack::Fetches), vec![]),
        ("slow-leader-1ms", vec![BenchRole::SlowLeader(1)], vec![]),
        ("slow-leader-10ms", vec![BenchRole::SlowLeader(10)], vec![]),
        (
            "slow-leader-100ms",
            vec![BenchRole::SlowLeader(100)],
            vec![],
        ),
        (
            "unfair-leader",
            vec![BenchRole::UnfairLeader(FIRST_SESSION)],
            vec![],
        ),
    ]
}

#[derive(Serialize)]
struct AttacksRecord {
    clients: u16,
    in_flight: u16,
    durability: String,
    seconds: u64,
    processors: usize,
    fault_free: AttackRow,
    attacks: Vec<AttackRow>,
}

#[derive(Serialize)]
struct AttackRow {
    attack: &'static str,
    ops_per_second: f64,
    ops_per_core_second: f64,
    goodput_percent: f64,
    goodput_per_core_percent: f64,
    p99_ms: f64,
    longest_gap_ms: f64,
    view_changes: u64,
    /// All frames that it has sent since it began: a flood that is left unread may send none at all
    /// during the measured seconds.
    attacker_frames: u64,
    attacker_frames_per_second: f64,
    attacker_core_seconds: f64,
    /// Of the first client, the victim of an unfair leader.
    victim_ops_per_second: f64,
    victim_latency_ms_max: f64,
}

fn row(attack: &'static str, seen: &TrialResult, unharmed: &TrialResult) -> AttackRow {
    let share = seen.ops_per_second() / unharmed.ops_per_second();
    let per_core = seen.ops_per_core_second() / unharmed.ops_per_core_second();
    AttackRow {
        attack,
        ops_per_second: seen.ops_per_second(),
        ops_per_core_second: seen.ops_per_core_second(),
        goodput_percent: share * 100.0,
        goodput_per_core_percent: per_core * 100.0,
        p99_ms: Latency::of(&seen.latencies.ordered).p99,
        longest_gap_ms: seen.longest_gap.as_secs_f64() * 1e3,
        view_changes: seen.view_changes(),
        attacker_frames: seen.attacker_frames,
        attacker_frames_per_second: seen.attackers.operations as f64 / seen.seconds,
        attacker_core_seconds: seen.attackers.processor_seconds,
        victim_ops_per_second: seen.first.len() as f64 / seen.seconds,
        victim_latency_ms_max: Latency::of(&seen.first.ordered).max,
    }
}

/// The load, in terms of `bench smr`.
fn load(arguments: &AttacksArguments) -> SmrArguments {
    SmrArguments {
        up: 1,
        right: 1,
        load: arguments.load.clone(),
        lanes: 1,
        request_bytes: 0,
        reply_bytes: 0,
        authentication: "sig",
        bundling: true,
        reads: 0,
        bursts: None,
        with_bare: false,
        down: 0,
        hang: 0,
        kill_leader_after: None,
        slow_leader: None,
        flushes: 0,
        observers: 0,
        slow_observers: 0,
        rtt_ms: Vec::new(),
    }
}

/// Measures all attacks, or the given ones.
pub(crate) async fn run(arguments: &AttacksArguments, output: Printer) -> BenchResult {
    let usage = |text: String| BenchFailure::usage(text);
    let known = attacks();
    if let Some(unknown) = arguments
        .only
        .iter()
        .find(|name| known.iter().all(|(known, ..)| known != *name))
    {
        let names: Vec<&str> = known.iter().map(|(name, ..)| *name).collect();
        let hint = format!("there are {}", names.join(", "));
        return Err(usage(format!("there is no attack `{unknown}`")).hint(hint));
    }
    let model = FaultModel::new(1, 1, 4).map_err(|error| usage(error.to_string()))?;
    let load = load(arguments);
    let faultless = ClusterPlan {
        model,
        durability: arguments.load.durability.clone(),
        reply_bytes: 0,
        signed: true,
        channels: false,
        down: 0,
        parts: Vec::new(),
        others: BenchRole::Correct,
        additional: Vec::new(),
        flushes: 0,
        round_trips_ms: Vec::new(),
    };
    let unharmed = measure(&load, &faultless, Faults::default()).await?;
    let mut rows = Vec::new();
    for (name, parts, additional) in known {
        if !arguments.only.is_empty() && arguments.only.iter().all(|only| only != name) {
            continue;
        }
        let plan = ClusterPlan {
            parts,
            additional,
            ..faultless.clone()
        };
        let seen = measure(&load, &plan, Faults::default()).await?;
        rows.push(row(name, &seen, &unharmed));
    }
    let record = AttacksRecord {
        clients: arguments.load.clients,
        in_flight: arguments.load.in_flight,
        durability: arguments.load.durability.clone(),
        seconds: arguments.load.seconds,
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        fault_free: row("none", &unharmed, &unharmed),
        attacks: rows,
    };
    output.record("bench_smr_attacks", &record, describe)?;
    Ok(())
}

fn describe(record: &AttacksRecord) -> String {
    let mut text = format!(
        "{:<20} {:>9} {:>8} {:>9} {:>9} {:>8} {:>6} {:>11}",
        "attack", "ops/s", "goodput", "per core", "p99 ms", "gap ms", "views", "frames/s",
    );
    for row in std::iter::once(&record.fault_free).chain(&record.attacks) {
        text += &format!(
            "\n{:<20} {:>9.0} {:>6.0} % {:>7.0} % {:>9.1} {:>8.0} {:>6} {:>11.0}",
            row.attack,
            row.ops_per_second,
            row.goodput_percent,
            row.goodput_per_core_percent,
            row.p99_ms,
            row.longest_gap_ms,
            row.view_changes,
            row.attacker_frames_per_second,
        );
    }
    text
}
