//! Modes of a cluster and of its replicas: votes that the channels authenticate, and promises that
//! a loss of power may undo. Both are chosen, both are shown.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, Quorumfs};
use serde_json::Value;
use std::fs;

fn sections(cluster: &Cluster, number: usize, line: &str) {
    let path = cluster.replica(number).join("replica.toml");
    let text = fs::read_to_string(&path).unwrap();
    // Before the tables.
    fs::write(&path, format!("{line}\n{text}")).unwrap();
}

fn findings(cluster: &Cluster) -> Vec<Value> {
    let doctor = cluster.quorumfs().run_with(["doctor", "--no-list"]);
    let mut found = doctor.records("finding");
    found.retain(|it| it["about"] == "replicas");
    found
}

#[test]
fn a_cluster_whose_channels_authenticate_votes_works_as_the_other_and_says_so() {
    let mut cluster = Cluster::prepare_with(|cluster| {
        let clouds = cluster.directory().join("clouds");
        let create = cluster.create(&cluster.volume(), &clouds);
        create.args(["--authentication", "mac"])
    });
    sections(&cluster, 3, "durability = \"os\"");
    cluster.start();
    let file = cluster.directory().join("file");
    let content: Vec<u8> = (0..200_000_u32).map(|it| (it % 251) as u8).collect();
    fs::write(&file, &content).unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&file]);
    put.args(["/file"]).run().ok();

    let replicas = cluster.quorumfs().run_with(["status"]).records("replica");
    let shown = |key: &str| -> Vec<&str> {
        let all = replicas.iter().map(|it| it[key].as_str().unwrap());
        all.collect()
    };
    assert_eq!(shown("authentication"), ["mac"; 4]);
    assert_eq!(shown("durability"), ["strict", "strict", "strict", "os"]);
    let found = findings(&cluster);
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains("no proof of them for others"), "{text}");
    assert!(text.contains("1 may forget"), "{text}");

    // The leader is killed, and the one that does not wait for its disk: nothing is lost.
    for number in [0, 3] {
        cluster.kill_one(number);
        let read = cluster.quorumfs().run_with(["cat", "/file"]).ok();
        assert!(read.stdout == content);
        cluster.start_with(number, &[]);
    }
    let put = cluster.quorumfs().args(["put"]).args([&file]);
    put.args(["/later"]).run().ok();
    // A copy of the metadata is proved by checkpoints, which are signed in both modes.
    cluster.quorumfs().run_with(["volume", "backup"]).ok();
    cluster.quorumfs().run_with(["ls", "/later"]).ok();
}

#[test]
fn replicas_that_may_forget_together_are_a_warning_and_another_word_is_refused() {
    let mut cluster = Cluster::prepare();
    for number in 1..4 {
        sections(&cluster, number, "durability = \"os\"");
    }
    cluster.start();
    let found = serde_json::to_string(&findings(&cluster)).unwrap();
    assert!(found.contains("3 replicas may forget"), "{found}");
    assert!(found.contains("votes are signed"), "{found}");
    cluster.stop();
    sections(&cluster, 0, "durability = \"sometimes\"");
    let run = Quorumfs::on(&cluster.replica(0)).args(["replica", "run", "--genesis"]);
    let run = run.args([cluster.volume().join("volume.genesis")]).run();
    assert_eq!(run.code, Some(2), "{run:?}");
    let error = &run.records("error")[0];
    let text = format!("{error}");
    assert!(text.contains("strict") && text.contains("os"), "{text}");
}
