//! All metadata servers are lost, and the backup on the clouds brings the volume back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, Quorumfs, noise};
use quorumfs_tests::lost_servers::{backup, make_lie, objects, recover};
use std::fs;
use std::path::Path;

const FILES: usize = 40;

fn content(number: usize) -> Vec<u8> {
    let length = [10, 900, 5_000, 60_000, 700_000][number % 5];
    noise(number as u64 + 1, length)
}

/// A tree of files of all sizes, in directories.
fn write_tree(tree: &Path, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let directory = tree.join(format!("d{}", number % 3));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(number.to_string()), content(number)).unwrap();
    }
}

fn put(cluster: &Cluster, from: &Path) {
    let put = cluster.quorumfs().args(["put"]).args([from]).args(["/"]);
    put.run().ok();
}

fn assert_tree(on: Quorumfs, numbers: std::ops::Range<usize>) {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("tree");
    on.args(["get", "/tree"]).args([&into]).run().ok();
    let mut found = 0;
    for group in fs::read_dir(&into).unwrap() {
        found += fs::read_dir(group.unwrap().path()).unwrap().count();
    }
    assert_eq!(found, numbers.len());
    for number in numbers {
        let path = into
            .join(format!("d{}", number % 3))
            .join(number.to_string());
        assert!(fs::read(path).unwrap() == content(number), "file {number}");
    }
}

#[test]
fn a_volume_whose_servers_are_all_lost_comes_back_from_its_clouds() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let tree = cluster.directory().join("tree");
    write_tree(&tree, 0..FILES / 2);
    put(&cluster, &tree);
    let shown = cluster.quorumfs().run_with(["status"]);
    assert_eq!(shown.records("recovery_point")[0]["exists"], false);
    let first = backup(&cluster);
    assert_eq!(
        (&first["outcome"], &first["whole"]),
        (&"taken".into(), &true.into())
    );
    assert_eq!(backup(&cluster)["outcome"], "unchanged");
    write_tree(&tree, FILES / 2..FILES);
    cluster.quorumfs().args(["rm", "/tree/d0/0"]).run().ok();
    put(&cluster, &tree);
    let second = backup(&cluster);
    assert_eq!(second["whole"], false, "{second}");
    assert!(second["rows"].as_u64() < first["rows"].as_u64().map(|rows| 2 * rows));
    let shown = cluster.quorumfs().run_with(["status"]).ok();
    let point = shown.records("recovery_point").remove(0);
    assert_eq!(point["sequence"], second["sequence"]);
    // What is written after the last backup is lost; what is removed after it comes back.
    let late = cluster.directory().join("late");
    fs::write(&late, noise(99, 50_000)).unwrap();
    put(&cluster, &late);
    cluster.quorumfs().args(["rm", "/tree/d1/4"]).run().ok();
    let freed = cluster
        .quorumfs()
        .args(["reconcile", "--once", "--grace", "0s"]);
    let freed = freed.args(["--only", "collection"]).run().ok();
    let freed = freed.records("collection").remove(0);
    assert!(freed["kept_retained"].as_u64().unwrap() > 0, "{freed}");

    // The fire: servers and laptop. A copy of both is elsewhere, without anyone's knowledge.
    let kit = cluster.directory().join("kit");
    fs::rename(cluster.volume().join("recovery-kit.txt"), &kit).unwrap();
    cluster.stop();
    let old = cluster.directory().join("old");
    fs::rename(cluster.volume(), &old).unwrap();
    make_lie(&cluster, 0);
    let away = cluster.directory().join("away");
    fs::rename(cluster.cloud(1), &away).unwrap();
    let recovered = recover(&mut cluster, &kit);
    assert_eq!(recovered["type"], "recovered", "{recovered}");
    assert_eq!(recovered["incarnation"], 1);
    assert_tree(cluster.quorumfs(), 0..FILES);
    let late = cluster.quorumfs().args(["cat", "/late"]).run();
    late.fails(9, "late", "");
    // The owner's key counts as before, and the volume is written and backed up.
    fs::rename(&away, cluster.cloud(1)).unwrap();
    let tree = cluster.directory().join("more").join("tree");
    write_tree(&tree, FILES..FILES + 5);
    put(&cluster, &tree);
    assert_tree(cluster.quorumfs(), 0..FILES + 5);
    let scrubbed = cluster.quorumfs().run_with(["scrub", "--full"]);
    assert!(matches!(scrubbed.code, Some(0 | 16)), "{scrubbed:?}");
    let third = backup(&cluster);
    assert_eq!(
        (&third["outcome"], &third["whole"]),
        (&"taken".into(), &true.into())
    );

    // The servers of the first incarnation were not dead after all: what their collector takes for
    // garbage is needed now, and it deletes nothing.
    let before: Vec<_> = (0..4).map(|cloud| objects(&cluster, cloud)).collect();
    for number in 0..4 {
        let run = Quorumfs::on(&cluster.replica(number)).args(["replica", "run", "--genesis"]);
        let command = run.args([old.join("volume.genesis")]).command();
        cluster.start_as(number, command);
    }
    let on_old = || Quorumfs::on(&old);
    on_old().args(["rm", "-r", "/tree"]).run().ok();
    for only in ["collection", "sweep", "backup"] {
        let reconcile = on_old().args(["reconcile", "--once", "--grace", "0s", "--only", only]);
        reconcile
            .run()
            .fails(15, "incarnation 1 has begun", "volume.genesis");
    }
    let after: Vec<_> = (0..4).map(|cloud| objects(&cluster, cloud)).collect();
    assert_eq!(before, after);
    assert_tree(cluster.quorumfs(), 0..FILES + 5);
}

#[test]
fn a_recovery_without_a_backup_or_with_too_few_clouds_says_so_and_changes_nothing() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let kit = cluster.directory().join("kit");
    fs::rename(cluster.volume().join("recovery-kit.txt"), &kit).unwrap();
    let recover = |cluster: &Cluster, state: &str| {
        let state = cluster.directory().join(state);
        let recover = Quorumfs::on(&state)
            .args(["volume", "recover", "--kit"])
            .args([&kit]);
        let mut recover = recover.args(["--wait", "1s"]);
        for replica in &cluster.replicas {
            recover = recover.args(["--new-replica", replica]);
        }
        recover.run()
    };
    recover(&cluster, "none").fails(1, "no backup of the metadata", "--cloud");
    let _ = backup(&cluster);
    for cloud in [0, 1] {
        fs::rename(
            cluster.cloud(cloud),
            cluster.directory().join(cloud.to_string()),
        )
        .unwrap();
    }
    recover(&cluster, "few").fails(6, "only 2 clouds could be listed", "bring one");
    for cloud in [0, 1] {
        fs::rename(
            cluster.directory().join(cloud.to_string()),
            cluster.cloud(cloud),
        )
        .unwrap();
    }
    assert_eq!(backup(&cluster)["outcome"], "unchanged");
}

#[test]
fn a_renewed_kit_recovers_a_volume_most_of_whose_clouds_were_replaced() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let old = cluster.directory().join("old-kit");
    fs::rename(cluster.volume().join("recovery-kit.txt"), &old).unwrap();
    let tree = cluster.directory().join("tree");
    write_tree(&tree, 0..FILES / 2);
    put(&cluster, &tree);
    let clouds = cluster.quorumfs().run_with(["cloud", "ls"]).ok();
    let clouds = clouds.records("cloud");
    for (number, new) in [(0, "new-0"), (1, "new-1")] {
        let place = cluster.directory().join("clouds").join(new);
        let place = place.to_str().unwrap();
        let add = cluster.quorumfs().args(["cloud", "add", new, place]);
        add.run().ok();
        let old = clouds[number]["name"].as_str().unwrap();
        let replace = cluster.quorumfs().args(["cloud", "replace", old, new]);
        replace.args(["--wait"]).run().ok();
        fs::remove_dir_all(cluster.cloud(number)).unwrap();
    }
    let _ = backup(&cluster);
    let kit = cluster.directory().join("kit");
    let renew = |to: &Path| {
        let renew = cluster.quorumfs().args(["volume", "renew-kit", "--kit"]);
        renew.args([&old]).args(["--to"]).args([to]).run()
    };
    let line = renew(&kit).ok().records("renewed").remove(0);
    assert_eq!(line["clouds"].as_array().unwrap().len(), 6, "{line}");
    let renewed = fs::read(&kit).unwrap();
    renew(&kit).fails(2, "exists, and is not the present kit", "--to");
    assert!(fs::read(&kit).unwrap() == renewed, "it is not replaced");
    // In its own place it is.
    let again = cluster.quorumfs().args(["volume", "renew-kit", "--kit"]);
    again.args([&kit]).args(["--to"]).args([&kit]).run().ok();
    // While the replicas run, it opens the volume on another machine.
    let other = cluster.directory().join("other");
    let opened = Quorumfs::on(&other).args(["volume", "recover", "--kit"]);
    opened.args([&kit]).run().ok();
    assert_tree(Quorumfs::on(&other), 0..FILES / 2);

    cluster.stop();
    fs::remove_dir_all(cluster.volume()).unwrap();
    let with_old = cluster.quorumfs().args(["volume", "recover", "--kit"]);
    let with_old = with_old
        .args([&old])
        .args(["--new-replica", &cluster.replicas[0]]);
    let with_old = with_old.args(["--failures", "0", "--liars", "0"]).run();
    with_old.fails(6, "only 2 clouds could be listed", "renew-kit");
    let recovered = recover(&mut cluster, &kit);
    assert_eq!(recovered["type"], "recovered", "{recovered}");
    assert_tree(cluster.quorumfs(), 0..FILES / 2);
    let more = cluster.directory().join("more").join("tree");
    write_tree(&more, FILES / 2..FILES);
    put(&cluster, &more);
    assert_tree(cluster.quorumfs(), 0..FILES);
}
