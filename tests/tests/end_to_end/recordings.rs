//! Recordings of real replicas are replayed event by event: those of a cluster whose leader is
//! killed under load, and those of a volume as an operator runs it. A replay with another core is
//! detected.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_bft::recording::Unreadable;
use quorumfs_bft_simulator::replay::End;
use quorumfs_tests::crashes::cluster::Cluster;
use quorumfs_tests::crashes::load::Load;
use quorumfs_tests::harness::{self, Quorumfs};
use quorumfs_tests::simulate::{replay, replay_flawed};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Acknowledged operations in each part of the run: with eight in flight that is at least 250
/// batches, each with several events at every replica, however fast the machine is.
const OPERATIONS: u64 = 2_000;

/// Waits until this many more operations are acknowledged.
async fn wait_for_progress(load: &mut Load) {
    let before = load.acknowledged();
    while load.acknowledged() < before + OPERATIONS {
        load.check().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The files in a directory, oldest first.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// `simulate --replay`: its exit code and its output.
fn simulate(path: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
    let output = command.arg("--replay").arg(path).output().unwrap();
    let output_text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), output_text)
}

/// Four replicas count; the leader is killed and restarted. Returns the recordings of all
/// processes.
async fn lives(directory: &Path) -> Vec<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_crashes"));
    let mut cluster = Cluster::prepare(program, directory, 1, 1).unwrap();
    let recordings = directory.join("recordings");
    cluster.record(&recordings).unwrap();
    cluster.start_all().await.unwrap();
    let mut load = Load::start(&cluster, 2, 4).await.unwrap();
    wait_for_progress(&mut load).await;
    let status = cluster.wait_until_recovered(0).await.unwrap();
    let leader = usize::from(status.leader.0);
    cluster.kill(leader).await.unwrap();
    wait_for_progress(&mut load).await;
    cluster.start(leader).await.unwrap();
    cluster.wait_until_votes(leader).await.unwrap();
    wait_for_progress(&mut load).await;
    load.finish().await.unwrap();
    cluster.kill_all().await.unwrap();
    files(&recordings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recording_of_a_killed_cluster_is_replayed_and_other_cores_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    let lives = lives(directory.path()).await;
    assert_eq!(lives.len(), 5, "four replicas, one of them twice");
    let mut views = 0;
    for path in &lives {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let replayed = replay(path, None, None).unwrap();
        println!("{}: {replayed:?}", path.display());
        assert_eq!(replayed.end, End::Same { over: None });
        assert!(replayed.events > 1_000 && replayed.effects > 1_000);
        let mut note = |line: &str| views += u32::from(line.contains("Sign ViewChange"));
        replay(path, None, Some(&mut note)).unwrap();
    }
    assert!(views > 0, "no replica left the killed leader's view");

    // Cores other than the one that recorded.
    let flawed = replay_flawed(&lives[0]).unwrap();
    for name in [
        "forgotten-fsync",
        "vote-without-prepared-certificate",
        "missing-status",
    ] {
        let (_, replayed) = flawed.iter().find(|(it, _)| it == name).unwrap();
        assert!(
            matches!(replayed.end, End::Different { .. }),
            "{name}: {replayed:?}"
        );
    }

    // From the command line, whole and damaged.
    let simulate = |path: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
        let output = command.arg("--replay").arg(path).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, text) = simulate(&lives[0]);
    assert!(text.contains("the same as then"), "{text}");
    assert_eq!(code, Some(0));
    let mut bytes = std::fs::read(&lives[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    let damaged = directory.path().join("damaged");
    std::fs::write(&damaged, &bytes).unwrap();
    match replay(&damaged, None, None).unwrap().end {
        End::Unreadable(Unreadable::Damaged { at, .. }) => assert!(at <= middle as u64),
        other => panic!("{other:?}"),
    }
    let (code, text) = simulate(&damaged);
    assert!(text.contains("damaged at byte"), "{text}");
    assert_eq!(code, Some(1));
    assert_eq!(simulate(&directory.path().join("nothing")).0, Some(2));
}

#[test]
fn an_operators_replica_records_two_lives_and_an_unusable_directory_does_not_stop_it() {
    let mut cluster = harness::Cluster::prepare();
    let recordings = cluster.directory().join("recordings");
    let nowhere = cluster.directory().join("no-directory");
    std::fs::write(&nowhere, "a file").unwrap();
    let record = |directory: &Path| ["--record".to_owned(), directory.display().to_string()];
    let (good, bad) = (record(&recordings), record(&nowhere));
    cluster.start_with(0, &[]);
    cluster.start_with(1, &good.each_ref().map(String::as_str));
    cluster.start_with(2, &bad.each_ref().map(String::as_str));
    cluster.start_with(3, &[]);
    let volume = cluster.volume();
    let file = cluster.directory().join("file");
    std::fs::write(&file, vec![7; 10_000]).unwrap();
    let put = |number: u32| {
        let put = Quorumfs::on(&volume).args(["put"]).args([&file]);
        put.args([format!("/file-{number}")]).run().ok();
    };
    (0..5).for_each(put);
    let log = std::fs::read_to_string(cluster.log(2)).unwrap();
    assert!(log.contains("the replica is not recorded"), "{log}");
    cluster.stop_one(1);
    cluster.start_with(1, &good.each_ref().map(String::as_str));
    (5..10).for_each(put);
    cluster.stop();
    let lives = files(&recordings);
    assert_eq!(lives.len(), 2);
    let mut committed = 10;
    for path in &lives {
        let replayed = replay(path, None, None).unwrap();
        println!("{replayed:?}");
        let over = Some("the replica ended".to_owned());
        assert_eq!(replayed.end, End::Same { over });
        // The second recording continues where the first one ended.
        assert!(replayed.committed.0 > committed && replayed.reads > 0);
        committed = replayed.committed.0;
        assert_eq!(simulate(path).0, Some(0));
    }
}
