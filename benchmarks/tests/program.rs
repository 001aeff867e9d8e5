//! Short runs of each measurement: it measures real processes and prints the result in one line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quorumfs-bench"))
        .args(["smr", "--json"])
        .args(arguments)
        .output()
        .unwrap()
}

/// Its last line.
fn measured(output: Output) -> serde_json::Value {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_short_run_orders_operations_in_bundles_and_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().to_str().unwrap();
    let setting = ["--clients", "2", "--in-flight", "8", "--warm-up", "0"];
    let line = measured(bench(
        &[&setting[..], &["--seconds", "1", "--directory", directory]].concat(),
    ));
    let number = |name: &str| {
        line[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {line}"))
    };
    assert!(number("operations") > 10.0, "{line}");
    assert!(number("ops_per_core_second") > 0.0, "{line}");
    assert!(number("operations_per_batch") >= 1.0, "{line}");
    assert!(line["latency_ms"]["p50"].as_f64().unwrap() > 0.0, "{line}");
    assert_eq!(number("view_changes"), 0.0, "{line}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn faults_and_the_messages_alone_are_compared_with_a_run_without() {
    let setting = ["--clients", "2", "--in-flight", "8", "--warm-up", "0"];
    let fault = ["--seconds", "2", "--kill-leader-after", "0", "--with-bare"];
    let line = measured(bench(&[&setting[..], &fault].concat()));
    for name in [
        "operations",
        "view_changes",
        "goodput_percent",
        "bare_ops_per_second",
    ] {
        assert!(line[name].as_f64().unwrap() > 0.0, "{name}: {line}");
    }
}

#[test]
fn the_messages_alone_are_measured_where_channels_vouch_for_votes() {
    let setting = ["--clients", "1", "--in-flight", "1", "--warm-up", "0"];
    let mac = ["--seconds", "1", "--authentication", "mac", "--with-bare"];
    let line = measured(bench(&[&setting[..], &mac].concat()));
    assert!(line["bare_p50_ms"].as_f64().unwrap() > 0.0, "{line}");
}

#[test]
fn what_is_left_under_an_attack_is_measured() {
    let output = Command::new(env!("CARGO_BIN_EXE_quorumfs-bench"))
        .args(["smr-attacks", "--json", "--seconds", "1", "--warm-up", "0"])
        .args(["client-questions", "replica-votes"])
        .output()
        .unwrap();
    let line = measured(output);
    let attacks = line["attacks"].as_array().unwrap();
    assert_eq!(attacks.len(), 2, "{line}");
    for attack in attacks {
        for name in ["ops_per_second", "attacker_frames"] {
            assert!(attack[name].as_f64().unwrap() > 0.0, "{name}: {line}");
        }
    }
}

#[test]
fn a_setting_that_makes_no_sense_is_refused() {
    for wrong in [
        ["--down", "2"],
        ["--durability", "maybe"],
        ["--bundling", "perhaps"],
        ["--clients", "0"],
        ["--rtt-ms", "1,2,3"],
        ["--rtt-ms", "1001"],
        ["--rtt-ms", "far"],
    ] {
        let output = bench(&wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}

/// Equal ways: a change takes 2.5 round trips, an unordered read one.
#[test]
fn replicas_that_are_far_away_answer_no_sooner_than_their_ways_allow() {
    for authentication in ["sig", "mac"] {
        let setting = ["--clients", "1", "--in-flight", "1", "--warm-up", "1"];
        let far = ["--seconds", "3", "--rtt-ms", "40", "--reads", "50"];
        let mode = ["--authentication", authentication];
        let line = measured(bench(&[&setting[..], &far, &mode].concat()));
        assert_eq!(
            line["rtt_ms"],
            serde_json::json!([40, 40, 40, 40]),
            "{line}"
        );
        let median = |place: &str| line.pointer(place).unwrap().as_f64().unwrap();
        let (change, read) = (median("/latency_ms/p50"), median("/reads/latency_ms/p50"));
        assert!(change >= 100.0 && read >= 40.0 && read < change, "{line}");
    }
    // One replica in four may be far: three decide.
    let setting = ["--clients", "1", "--in-flight", "1", "--warm-up", "1"];
    let far = ["--seconds", "2", "--rtt-ms", "20,20,20,900", "--with-bare"];
    let line = measured(bench(&[&setting[..], &far].concat()));
    let change = line["latency_ms"]["p50"].as_f64().unwrap();
    assert!((50.0..450.0).contains(&change), "{line}");
    assert!(line["bare_p50_ms"].as_f64().unwrap() >= 50.0, "{line}");
}

#[test]
fn the_cost_of_a_disk_is_measured_against_a_run_without() {
    let setting = ["--clients", "2", "--in-flight", "8", "--warm-up", "1"];
    let flushes = ["--seconds", "1", "--durability", "none", "--flushes", "500"];
    let line = measured(bench(&[&setting[..], &flushes].concat()));
    let flushes = line["flushes_per_second"].as_f64().unwrap();
    assert!(
        flushes > 0.0 && flushes < 600.0,
        "of each, not of all: {line}"
    );
    assert!(line["goodput_percent"].as_f64().unwrap() > 0.0, "{line}");
}

#[test]
fn observers_quick_and_slow_are_compared_with_a_run_without() {
    let setting = ["--clients", "2", "--in-flight", "8", "--warm-up", "1"];
    let observers = [
        "--seconds",
        "1",
        "--observers",
        "2",
        "--slow-observers",
        "2",
    ];
    let line = measured(bench(&[&setting[..], &observers].concat()));
    assert_eq!(line["slow_observers"], 2, "{line}");
    assert!(line["observers_told"].as_u64().unwrap() > 0, "{line}");
    assert!(line["goodput_percent"].as_f64().unwrap() > 0.0, "{line}");
}

#[test]
fn sealing_is_compared_with_its_primitives() {
    for policy in ["4,1,2", "3,1,1", "7,2,3"] {
        let line = measured(
            Command::new(env!("CARGO_BIN_EXE_quorumfs-bench"))
                .args(["seal", "--json", "--rounds", "3", "--policy", policy])
                .output()
                .unwrap(),
        );
        for name in [
            "gib_per_second",
            "ceiling_gib_per_second",
            "ratio_to_ceiling",
            "open_ratio_to_ceiling",
        ] {
            assert!(line[name].as_f64().unwrap() > 0.0, "{name}: {line}");
        }
    }
}

/// Only figures that do not depend on the machine's speed are asserted: requests, bytes and memory.
#[test]
fn the_way_of_data_to_clouds_and_back_is_measured() {
    let line = measured(
        Command::new(env!("CARGO_BIN_EXE_quorumfs-bench"))
            .args(["data", "--json", "--size-mib", "64"])
            .args([
                "--latency-ms",
                "5",
                "--mib-per-second",
                "400",
                "--hang",
                "0",
            ])
            .args(["--files", "1000", "--repair"])
            .args(["--writers", "64", "--memory-mib", "512"])
            .output()
            .unwrap(),
    );
    let number = |place: &str| {
        let found = line.pointer(place).and_then(serde_json::Value::as_f64);
        found.unwrap_or_else(|| panic!("{place}: {line}"))
    };
    for place in [
        "/block_write_ratio",
        "/write_ratio",
        "/read_ratio",
        "/hang/block_write_ratio",
        "/hang/write_ratio",
        "/hang/read_ratio",
        "/files/files_per_second",
        "/repair/mib_per_second",
    ] {
        assert!(number(place) > 0.0, "{place}: {line}");
    }
    assert!(number("/overwrite_bytes_per_cloud") < 65_536.0, "{line}");
    assert!(number("/files/puts_per_cloud") <= 40.0, "{line}");
    assert!(number("/repair/read_ratio") <= 1.05, "{line}");
    assert!(number("/writers/peak_memory_mib") <= 512.0, "{line}");
}

/// Every workload ran on both sides, and nothing is left mounted or on the disk.
#[test]
fn the_whole_file_system_is_measured_through_the_kernel() {
    let place = tempfile::tempdir().unwrap();
    let line = measured(
        Command::new(env!("CARGO_BIN_EXE_quorumfs-bench"))
            .args(["fs", "--json", "--size-mib", "8"])
            .args(["--files", "40", "--listed", "250", "--directory"])
            .arg(place.path())
            .output()
            .unwrap(),
    );
    let number = |place: &str| {
        let found = line.pointer(place).and_then(serde_json::Value::as_f64);
        found.unwrap_or_else(|| panic!("{place}: {line}"))
    };
    for workload in [
        "sequential_read",
        "sequential_read_disk",
        "random_read",
        "sequential_write",
    ] {
        assert!(
            number(&format!("/{workload}/mib_per_second")) > 0.0,
            "{line}"
        );
        assert!(number(&format!("/{workload}/ratio")) > 0.0, "{line}");
    }
    for workload in [
        "create",
        "read_small",
        "remove",
        "untar",
        "list",
        "open_directory",
        "git_status",
    ] {
        let rate = number(&format!("/{workload}/files_per_second"));
        assert!(rate > 0.0, "{line}");
        assert!(number(&format!("/{workload}/ratio")) > 0.0, "{line}");
    }
    assert!(number("/latency/mkdir_ms") > 0.0, "{line}");
    assert!(number("/idle_gateway_percent") >= 0.0, "{line}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(place.path().to_str().unwrap()), "{mounts}");
}
