//! `reconcile`: what was removed is freed on the clouds, what crashed writers left behind too, and
//! what is there is read afterwards.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, noise};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const FILES: usize = 60;
/// Of every four files one stays, one is removed, one is overwritten and one is renamed over.
const KINDS: usize = 4;

fn length(number: usize) -> usize {
    [700, 5_000, 60_000, 300_000, 1_200_000][number % 5]
}

/// A cluster whose volume frees at once what is removed.
fn prepare() -> Cluster {
    Cluster::prepare_with(|cluster| {
        let clouds = cluster.directory().join("clouds");
        let create = cluster.create(&cluster.volume(), &clouds);
        create.args(["--trash", "off"])
    })
}

/// Stored bytes on all clouds.
fn stored(cluster: &Cluster) -> u64 {
    let mut bytes = 0;
    for number in 0..4 {
        for group in fs::read_dir(cluster.cloud(number)).unwrap() {
            let group = group.unwrap().path();
            if !group.is_dir() || group.file_name().unwrap().len() != 2 {
                continue;
            }
            for object in fs::read_dir(group).unwrap() {
                bytes += object.unwrap().metadata().unwrap().len();
            }
        }
    }
    bytes
}

fn put(cluster: &Cluster, from: &Path, to: &str) {
    let put = cluster.quorumfs().args(["put"]).args([from]).args([to]);
    put.run().ok();
}

/// What `reconcile` says of its collection.
fn collection(cluster: &Cluster, arguments: &[&str]) -> Value {
    let reconcile = cluster.quorumfs().args(["reconcile"]).args(arguments);
    reconcile.run().ok().records("collection").remove(0)
}

/// The content of each file that is there in the end.
fn expected(number: usize) -> Option<Vec<u8>> {
    let seed = number as u64;
    match number % KINDS {
        0 => Some(noise(seed + 1, length(number))),
        1 => None,
        2 => Some(noise(seed + 1000, length(number) / 2)),
        _ => Some(noise(seed + 2000, length(number))),
    }
}

/// Puts files, then removes, overwrites and replaces some.
fn churn(cluster: &Cluster) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..FILES {
        let content = noise(number as u64 + 1, length(number));
        fs::write(tree.join(number.to_string()), content).unwrap();
    }
    put(cluster, &tree, "/");
    let mut live = 0;
    for number in 0..FILES {
        let path = tree.join(number.to_string());
        match expected(number) {
            Some(content) => {
                live += content.len() as u64;
                fs::write(path, content).unwrap();
            }
            None => fs::remove_file(path).unwrap(),
        }
    }
    let mut remove = cluster.quorumfs().args(["rm"]);
    for number in (0..FILES).filter(|number| expected(*number).is_none()) {
        remove = remove.args([format!("/tree/{number}")]);
    }
    remove.run().ok();
    put(cluster, &tree, "/");
    live
}

fn assert_whole(cluster: &Cluster) {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("tree");
    let get = cluster.quorumfs().args(["get", "/tree"]).args([&into]);
    get.run().ok();
    for number in 0..FILES {
        let found = fs::read(into.join(number.to_string())).ok();
        assert!(found == expected(number), "/tree/{number}");
    }
}

#[test]
fn what_was_removed_and_overwritten_is_freed_and_the_rest_is_read() {
    let mut cluster = prepare();
    cluster.start();
    let live = churn(&cluster);
    let before = stored(&cluster);
    let plan = collection(&cluster, &["--dry-run"]);
    assert_eq!(plan["objects"], 0, "{plan}");
    assert!(plan["kept_young"].as_u64().unwrap() > 0, "{plan}");
    let plan = collection(&cluster, &["--dry-run", "--grace", "0s"]);
    assert!(plan["objects"].as_u64().unwrap() > 0, "{plan}");
    assert_eq!(stored(&cluster), before, "a plan deletes nothing");

    // The new packs of compaction are of a session that has ended by the second time.
    for _ in 0..2 {
        println!("{}", collection(&cluster, &["--once", "--grace", "0s"]));
    }
    let after = stored(&cluster);
    let bound = live * 2 * 11 / 10;
    assert!(
        after <= bound,
        "{after} bytes stored, {bound} allowed, {before} before"
    );
    assert_whole(&cluster);
    cluster.quorumfs().args(["scrub", "--full"]).run().ok();
    println!("{before} bytes before, {after} after, {live} live");
}

#[test]
fn what_a_killed_writer_left_behind_stays_while_its_session_may_commit_it() {
    let mut cluster = prepare();
    cluster.start();
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    fs::write(&small, noise(1, 100_000)).unwrap();
    put(&cluster, &small, "/kept");
    let before = stored(&cluster);
    let large = directory.path().join("large");
    fs::write(&large, noise(2, 60_000_000)).unwrap();
    let command = cluster.quorumfs().args(["put"]).args([&large]);
    let mut command = command.args(["/never"]).command();
    let mut killed = command.stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while stored(&cluster) < before + 4_000_000 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is put");
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = stored(&cluster);
    assert!(left > before);
    // Its session protects what it wrote until it ends: then nothing is deleted.
    let sweep = ["reconcile", "--once", "--only", "sweep", "--grace", "0s"];
    cluster.quorumfs().args(sweep).run().ok();
    assert_eq!(stored(&cluster), left, "its session may commit it");
    let kept = cluster.quorumfs().args(["cat", "/kept"]).run().ok();
    assert!(kept.stdout == noise(1, 100_000));
}

#[test]
fn a_service_frees_what_is_removed_while_it_runs_and_ends_when_asked() {
    let mut cluster = prepare();
    cluster.start();
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large");
    fs::write(&large, noise(3, 5_000_000)).unwrap();
    put(&cluster, &large, "/removed");
    put(&cluster, &large, "/kept");
    let before = stored(&cluster);
    let serve = cluster.quorumfs().args(["reconcile", "--grace", "1s"]);
    let mut service = serve.command().stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(service.stdout.take().unwrap());
    let mut line = String::new();
    // Its first line shows that it runs and handles signals by now.
    said.read_line(&mut line).unwrap();
    cluster.quorumfs().args(["rm", "/removed"]).run().ok();
    let begun = Instant::now();
    while stored(&cluster) > before * 11 / 20 {
        assert_eq!(service.try_wait().unwrap(), None, "it ended by itself");
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nothing is freed"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = Pid::from_raw(service.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(service.wait().unwrap().success());
    said.read_to_string(&mut line).unwrap();
    println!("{line}");
    let kept = cluster.quorumfs().args(["cat", "/kept"]).run().ok();
    assert!(kept.stdout == noise(3, 5_000_000));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let cluster = Cluster::prepare();
    for arguments in [
        &["reconcile", "--only", "sweep"][..],
        &["reconcile", "--once", "--dry-run"],
        &["reconcile", "--once", "--only", "everything"],
        &["reconcile", "--once", "--grace", "soon"],
    ] {
        let refused = cluster.quorumfs().args(arguments).run();
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.stderr);
    }
}
