//! Clouds that were emptied, damaged or replaced by empty ones: `scrub` detects and repairs it,
//! `cloud adopt` accepts only an empty place.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, Finished, noise};
use std::fs;
use std::path::{Path, PathBuf};

/// A header and 32 bytes: the length of a stored share of the second lock.
const SHARE_BYTES: u64 = 115;
const LENGTHS: [usize; 6] = [1, 1_000, 70_000, 400_000, 1_500_000, 5_000_000];

/// A cluster with files of these lengths in it, each on all clouds.
fn filled(lengths: &[usize]) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for (number, length) in lengths.iter().enumerate() {
        let content = noise(number as u64 + 1, *length);
        fs::write(tree.join(number.to_string()), content).unwrap();
    }
    cluster
        .quorumfs()
        .args(["put"])
        .args([&tree])
        .args(["/"])
        .run()
        .ok();
    cluster
}

#[track_caller]
fn assert_holds(cluster: &Cluster, lengths: &[usize]) {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("tree");
    let get = cluster.quorumfs().args(["get", "/tree"]).args([&into]);
    get.run().ok();
    for (number, length) in lengths.iter().enumerate() {
        let content = noise(number as u64 + 1, *length);
        let found = fs::read(into.join(number.to_string())).unwrap();
        assert!(found == content, "/tree/{number} came back changed");
    }
}

fn objects(cloud: &Path) -> Vec<PathBuf> {
    let groups = fs::read_dir(cloud).unwrap().map(|it| it.unwrap().path());
    groups
        .filter(|group| group.is_dir() && group.file_name().unwrap().len() == 2)
        .flat_map(|group| fs::read_dir(group).unwrap().map(|it| it.unwrap().path()))
        .collect()
}

/// Changes the last byte of a cloud's objects, and returns their names.
fn spoil(cloud: &Path, is_meant: impl Fn(u64) -> bool) -> Vec<String> {
    let length = |it: &PathBuf| fs::metadata(it).unwrap().len();
    let meant = objects(cloud).into_iter().filter(|it| is_meant(length(it)));
    meant
        .map(|object| {
            let mut bytes = fs::read(&object).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::remove_file(&object).unwrap();
            fs::write(&object, bytes).unwrap();
            object.file_name().unwrap().to_str().unwrap().to_owned()
        })
        .collect()
}

fn empty(cloud: &Path) {
    for entry in fs::read_dir(cloud).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
}

fn scrub(cluster: &Cluster, options: &[&str]) -> Finished {
    cluster.quorumfs().args(["scrub"]).run_with(options)
}

#[track_caller]
fn summary(finished: &Finished, code: i32, outcome: &str) -> serde_json::Value {
    assert_eq!(finished.code, Some(code), "{finished:?}");
    let summary = finished.records("scrub").remove(0);
    assert_eq!(summary["outcome"], outcome, "{finished:?}");
    summary
}

#[test]
fn an_emptied_cloud_is_adopted_and_filled_again_so_that_another_may_go() {
    let cluster = filled(&LENGTHS);
    let (cloud, kept) = (cluster.cloud(1), objects(&cluster.cloud(0)).len());
    assert!(kept >= 5 && objects(&cloud).len() == kept);
    summary(&scrub(&cluster, &["--full"]), 0, "whole");

    empty(&cloud);
    // Without its marker it is not accepted as a cloud, so that nothing counts as missing from it.
    let unseen = summary(&scrub(&cluster, &[]), 4, "lacking");
    assert_eq!(
        (&unseen["found"], &unseen["restored"]),
        (&0.into(), &0.into())
    );
    assert_eq!(unseen["unreachable"], kept);
    let adopt = |name: &str| cluster.quorumfs().run_with(["cloud", "adopt", name]);
    fs::write(cloud.join("photograph"), b"of the sea").unwrap();
    adopt("b").fails(15, "not empty", "only an empty place");
    assert_eq!(
        fs::read_dir(&cloud).unwrap().count(),
        1,
        "nothing was written"
    );
    fs::remove_file(cloud.join("photograph")).unwrap();
    adopt("nowhere").fails(2, "no cloud `nowhere`", "a, b, c, d");
    let adopted = adopt("b").ok();
    assert_eq!(adopted.records("adopted")[0]["written"], true);
    let again = adopt("b").ok();
    assert_eq!(again.records("adopted")[0]["written"], false);

    // First only reported, and nothing repaired.
    let reported = scrub(&cluster, &["--cloud", "b", "--repair=false"]);
    assert_eq!(summary(&reported, 4, "lacking")["found"], kept);
    assert!(objects(&cloud).is_empty());
    let filled = scrub(&cluster, &["--cloud", "b", "--rate", "64"]);
    let done = summary(&filled, 16, "restored");
    assert_eq!(
        (&done["found"], &done["restored"]),
        (&kept.into(), &kept.into())
    );
    assert_eq!(filled.records("cloud")[1]["missing"], kept);
    assert_eq!(objects(&cloud).len(), kept);
    summary(&scrub(&cluster, &["--full"]), 0, "whole");

    // Now two others are lost for good: the restored shards have to suffice.
    for index in [0, 3] {
        fs::remove_dir_all(cluster.cloud(index)).unwrap();
    }
    assert_holds(&cluster, &LENGTHS);
    // A missing place is not created.
    adopt("a").fails(6, "does not exist", "check that");
    assert!(!cluster.cloud(0).exists());
}

#[test]
fn a_damaged_cloud_is_found_by_a_full_scrub_and_restored() {
    let cluster = filled(&LENGTHS);
    let spoiled = spoil(&cluster.cloud(2), |length| length != SHARE_BYTES);
    summary(&scrub(&cluster, &["--sample", "0%"]), 0, "whole");
    let evidence = |cloud: &[&str]| {
        let shown = cluster.quorumfs().args(["cloud", "evidence"]);
        shown.run_with(cloud).ok()
    };
    assert!(evidence(&[]).records("evidence").is_empty());
    // A share of the second lock is tiny, and checked whole whatever the sample.
    assert_eq!(
        spoil(&cluster.cloud(2), |length| length == SHARE_BYTES).len(),
        1
    );
    let share = summary(&scrub(&cluster, &["--sample", "0%"]), 16, "restored");
    assert_eq!(
        (&share["found"], &share["restored"]),
        (&1.into(), &1.into())
    );
    let found = scrub(&cluster, &["--full"]);
    let done = summary(&found, 16, "restored");
    let count = spoiled.len();
    assert_eq!(count + 1, objects(&cluster.cloud(0)).len());
    assert_eq!(
        (&done["found"], &done["restored"]),
        (&count.into(), &count.into())
    );
    assert_eq!(found.records("cloud")[2]["damaged"], count);
    // There is evidence of each for the provider, and none against the others.
    let shown = evidence(&["c"]);
    let all = shown.records("evidence");
    assert_eq!(all.len(), count, "{shown:?}");
    for one in &all {
        assert_eq!(
            (&one["cloud"], &one["fault"]),
            (&"c".into(), &"wrong bytes".into())
        );
        assert_eq!(one["verdict"], "cloud", "{one}");
        let name = one["name"].as_str().unwrap();
        let known = |it: &String| name.ends_with(it.as_str());
        assert!(spoiled.iter().any(known), "{name} {spoiled:?}");
        assert!(
            one["receipt"].as_str().unwrap().starts_with("crc32c "),
            "{one}"
        );
        assert_ne!(one["receipt"], one["found"]);
        assert!(
            one["committed"].as_str().unwrap().starts_with("20"),
            "{one}"
        );
    }
    assert_eq!(shown.records("clouds_evidence").len(), 1);
    assert!(evidence(&["a"]).records("evidence").is_empty());
    let nowhere = cluster
        .quorumfs()
        .run_with(["cloud", "evidence", "nowhere"]);
    nowhere.fails(2, "no cloud `nowhere`", "a, b, c, d");
    summary(&scrub(&cluster, &["--full"]), 0, "whole");
    for index in [0, 1] {
        fs::remove_dir_all(cluster.cloud(index)).unwrap();
    }
    assert_holds(&cluster, &LENGTHS);
}
