//! A volume with two locks gets new keys while it is used: content written before and after is
//! readable, an emptied cloud gets its share back, and without f + 1 clouds nothing opens.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, Finished};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The length of a stored share.
const SHARE_BYTES: u64 = 115;

/// The number of key shares on a cloud.
fn shares(cloud: &Path) -> usize {
    let groups = fs::read_dir(cloud).unwrap().map(|it| it.unwrap().path());
    groups
        .filter(|group| group.is_dir())
        .flat_map(|group| fs::read_dir(group).unwrap().map(|it| it.unwrap()))
        .filter(|file| file.metadata().unwrap().len() == SHARE_BYTES)
        .count()
}

fn put(cluster: &Cluster, name: &str, content: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&path]);
    put.args(["/"]).run().ok();
}

#[track_caller]
fn assert_holds(cluster: &Cluster, name: &str, content: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join(name);
    let get = cluster.quorumfs().args(["get", &format!("/{name}")]);
    get.args([&into]).run().ok();
    assert!(
        fs::read(&into).unwrap() == content,
        "/{name} came back changed"
    );
}

fn epochs(cluster: &Cluster) -> Vec<Value> {
    let listed = cluster.quorumfs().run_with(["volume", "epochs"]).ok();
    listed.records("epoch")
}

fn rekey(cluster: &Cluster, options: &[&str]) -> Finished {
    let rekey = cluster.quorumfs().args(["volume", "rekey"]);
    rekey.run_with(options)
}

#[test]
fn a_volume_gets_new_keys_and_all_content_stays_readable() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    for index in 0..4 {
        assert_eq!(shares(&cluster.cloud(index)), 1, "cloud {index}");
    }
    let (old, new) = (vec![1; 900_000], vec![2; 700_000]);
    put(&cluster, "old", &old);
    let planned = rekey(&cluster, &["--dry-run"]).ok();
    assert_eq!(planned.records("rekey")[0]["dry_run"], true);
    assert_eq!(epochs(&cluster).len(), 1);
    let finished = rekey(&cluster, &[]).ok();
    let done = finished.records("rekey").remove(0);
    assert_eq!(
        (&done["number"], &done["lock"]),
        (&1.into(), &"clouds".into())
    );
    assert_eq!(finished.records("resealed")[0]["names"], 1);
    let again = cluster.quorumfs().run_with(["volume", "reseal"]).ok();
    assert_eq!(again.records("resealed")[0]["names"], 0);
    assert_eq!(done["shares_confirmed"].as_array().unwrap().len(), 4);
    put(&cluster, "new", &new);
    assert_holds(&cluster, "old", &old);
    assert_holds(&cluster, "new", &new);
    let listed = epochs(&cluster);
    let bytes: Vec<_> = listed.iter().map(|epoch| &epoch["bytes"]).collect();
    assert_eq!(bytes, [&Value::from(900_000), &Value::from(700_000)]);
    let current: Vec<_> = listed.iter().map(|epoch| &epoch["current"]).collect();
    assert_eq!(current, [false, true]);
    let reseal = cluster
        .quorumfs()
        .run_with(["volume", "reseal", "--content"]);
    let resealed = reseal.ok().records("resealed_content").remove(0);
    assert_eq!(resealed["bytes"], 900_000);
    let listed = epochs(&cluster);
    let bytes: Vec<_> = listed.iter().map(|epoch| &epoch["bytes"]).collect();
    assert_eq!(bytes, [&Value::from(0), &Value::from(1_600_000)]);
    assert_holds(&cluster, "old", &old);

    // An emptied cloud gets its share of the newest key back, and suffices for the lock with one
    // other.
    let cloud = cluster.cloud(2);
    fs::remove_dir_all(&cloud).unwrap();
    fs::create_dir(&cloud).unwrap();
    cluster.quorumfs().run_with(["cloud", "adopt", "c"]).ok();
    let filled = cluster.quorumfs().run_with(["scrub", "--cloud", "c"]);
    assert_eq!(filled.code, Some(16), "{filled:?}");
    assert_eq!(shares(&cloud), 1);
    for index in [0, 1] {
        fs::rename(
            cluster.cloud(index),
            cluster.directory().join(index.to_string()),
        )
        .unwrap();
    }
    assert_holds(&cluster, "old", &old);
    assert_holds(&cluster, "new", &new);

    // One cloud alone opens nothing, and the error says what is missing.
    fs::rename(&cloud, cluster.directory().join("2")).unwrap();
    let refused = cluster.quorumfs().run_with(["ls", "/"]);
    refused.fails(6, "only 1 of the 2 clouds", "quorumfs status");
    for index in [0, 1, 2] {
        fs::rename(
            cluster.directory().join(index.to_string()),
            cluster.cloud(index),
        )
        .unwrap();
    }

    // Back to one lock: the clouds' shares are no longer needed.
    let done = rekey(&cluster, &["--lock", "members"]).ok();
    assert_eq!(done.records("rekey")[0]["lock"], "members");
    for index in [0, 1, 2] {
        fs::rename(
            cluster.cloud(index),
            cluster.directory().join(index.to_string()),
        )
        .unwrap();
    }
    cluster.quorumfs().run_with(["ls", "/"]).ok();
}

#[test]
fn a_volume_that_could_not_be_created_leaves_nothing_behind() {
    use quorumfs_tests::harness::Quorumfs;
    let cluster = Cluster::prepare_with(|cluster| {
        // A cloud whose place is not empty makes the first attempt fail, after others were founded.
        let clouds = cluster.directory().join("clouds");
        let (state, last) = (cluster.volume(), clouds.join("d"));
        fs::create_dir_all(&last).unwrap();
        fs::write(last.join("photograph"), b"of the sea").unwrap();
        let refused: Quorumfs = cluster.create(&state, &clouds);
        assert_ne!(refused.run().code, Some(0));
        fs::remove_file(last.join("photograph")).unwrap();
        cluster.create(&state, &clouds)
    });
    assert_eq!(shares(&cluster.cloud(3)), 1);
}
