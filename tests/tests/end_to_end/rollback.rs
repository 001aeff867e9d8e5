//! All replicas are rolled back to copies: clients that saw more refuse them, other clients use no
//! key twice, and an operator can accept the rollback.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, Finished};
use std::fs;
use std::path::{Path, PathBuf};

const LENGTH: usize = 65_536;

fn put(cluster: &Cluster, name: &str, content: &[u8]) -> Finished {
    let path = cluster.directory().join(name);
    fs::write(&path, content).unwrap();
    let put = cluster.quorumfs().args(["put"]).args([&path]);
    put.args(["/"]).run()
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), &target).unwrap()),
        }
    }
}

/// All objects of a cloud.
fn objects(cloud: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let groups = fs::read_dir(cloud).unwrap().map(|it| it.unwrap().path());
    groups
        .filter(|group| group.is_dir())
        .flat_map(|group| fs::read_dir(group).unwrap().map(|it| it.unwrap().path()))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// Rolls every replica back to its state in `copies`.
fn put_back(cluster: &mut Cluster, copies: &Path) {
    cluster.stop();
    for number in 0..4 {
        let replica = cluster.replica(number);
        fs::remove_dir_all(&replica).unwrap();
        copy_tree(&copies.join(number.to_string()), &replica);
    }
    cluster.start();
}

#[test]
fn replicas_that_are_rolled_back_are_refused_until_an_operator_accepts_it() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    put(&cluster, "before", &[1; LENGTH]).ok();
    cluster.stop();
    let copies = cluster.directory().join("copies");
    for number in 0..4 {
        copy_tree(&cluster.replica(number), &copies.join(number.to_string()));
    }
    cluster.start();
    for name in ["lost", "lost too", "a third", "a fourth"] {
        put(&cluster, name, &[0; LENGTH]).ok();
    }
    let known = cluster.volume().join("shown");
    let shown = fs::read(&known).unwrap();
    put_back(&mut cluster, &copies);

    for command in [
        &["ls", "/"][..],
        &["get", "/before", "-"],
        &["volume", "rekey"],
    ] {
        let refused = cluster.quorumfs().run_with(command);
        refused.fails(18, "gone back in time", "docs/TROUBLESHOOTING.md");
    }
    let point = cluster.mount_point();
    let refused = cluster.quorumfs().args(["mount"]).args([&point]).run();
    refused.fails(18, "gone back in time", "docs/TROUBLESHOOTING.md");
    assert_eq!(
        fs::read(&known).unwrap(),
        shown,
        "the record of what was shown stays"
    );
    // An operator accepts it explicitly.
    let accept = || cluster.quorumfs().args(["volume", "accept-rollback"]);
    accept()
        .run()
        .fails(2, "loses everything written since", "--yes");
    cluster
        .quorumfs()
        .run_with(["ls", "/"])
        .fails(18, "gone back in time", "");
    let journal = cluster.volume().join("journal");
    fs::create_dir_all(&journal).unwrap();
    fs::write(journal.join("0000000000000001.journal"), "bytes").unwrap();
    let accepted = accept()
        .args(["--yes"])
        .run()
        .ok()
        .records("rollback")
        .remove(0);
    assert!(
        accepted["found"].as_u64() < accepted["shown"].as_u64(),
        "{accepted}"
    );
    let aside = PathBuf::from(accepted["journal"].as_str().unwrap());
    assert!(aside.join("0000000000000001.journal").exists() && !journal.exists());
    put(&cluster, "after", &[2; LENGTH]).ok();
    let listed = cluster.quorumfs().run_with(["ls", "/"]).ok();
    let names: Vec<_> = listed
        .records("entry")
        .iter()
        .map(|it| it["name"].clone())
        .collect();
    assert_eq!(names, ["after", "before"]);

    // A second time there is nothing to accept, and the journal stays.
    fs::create_dir_all(&journal).unwrap();
    fs::write(journal.join("0000000000000001.journal"), "bytes").unwrap();
    let again = accept().args(["--yes"]).run();
    again.fails(2, "not behind the state", "nothing was changed");
    assert!(journal.join("0000000000000001.journal").exists());
    fs::remove_dir_all(&journal).unwrap();

    // Once the sequence has grown beyond the record, the granted ids reveal the rollback.
    let mut only_allocations = shown.clone();
    only_allocations[16..24].fill(0);
    fs::write(&known, &only_allocations).unwrap();
    put(&cluster, "new", &[3; LENGTH]).fails(18, "was granted before", "docs/TROUBLESHOOTING.md");
    cluster.quorumfs().run_with(["ls", "/before"]).ok();
}

/// A machine that saw nothing of the lost operations cannot notice. It gets the same ids as the
/// writers of that time, and seals under other keys.
#[test]
fn replicas_that_are_rolled_back_grant_ids_twice_and_no_key_is_used_twice() {
    const PLAIN: [u8; 2] = [0x00, 0x55];
    let mut cluster = Cluster::prepare();
    cluster.start();
    cluster.stop();
    let copies = cluster.directory().join("copies");
    for number in 0..4 {
        copy_tree(&cluster.replica(number), &copies.join(number.to_string()));
    }
    cluster.start();
    put(&cluster, "first", &[PLAIN[0]; LENGTH]).ok();
    let first = objects(&cluster.cloud(0));
    fs::remove_file(cluster.volume().join("shown")).unwrap();
    put_back(&mut cluster, &copies);
    // As on a cloud that was rolled back, too: the names are free again.
    for index in 0..4 {
        for (path, bytes) in objects(&cluster.cloud(index)) {
            if bytes.len() >= LENGTH / 2 {
                fs::remove_file(path).unwrap();
            }
        }
    }
    put(&cluster, "second", &[PLAIN[1]; LENGTH]).ok();
    let second = objects(&cluster.cloud(0));
    let mut same_names = 0;
    for (path, one) in first.iter().filter(|(_, bytes)| bytes.len() >= LENGTH / 2) {
        let Some((_, other)) = second.iter().find(|(name, _)| name == path) else {
            continue;
        };
        same_names += 1;
        let both = one.iter().zip(other).map(|(one, other)| one ^ other);
        let plain = both.filter(|byte| *byte == PLAIN[0] ^ PLAIN[1]).count();
        assert!(
            plain < LENGTH / 16,
            "{plain} bytes are the difference of the plaintexts"
        );
    }
    assert_eq!(same_names, 1, "the same ids were granted twice");
}
