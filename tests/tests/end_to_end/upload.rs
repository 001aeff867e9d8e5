//! `upload`: what was stored before a kill is not sent again, and links lead to what is whole.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, eventually, noise};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

const MIB: usize = 1 << 20;
const BYTES: usize = 160 * MIB;

/// An upload in progress, which prints how far it is.
fn begin(cluster: &Cluster, to: &str, file: &Path, printed: &Path) -> Child {
    Command::new(quorumfs_tests::harness::binary())
        .args(["--json", "upload", "--to", to, "--state"])
        .arg(cluster.volume())
        .arg(file)
        .stdout(File::create(printed).unwrap())
        .spawn()
        .unwrap()
}

/// Up to where the clouds have what is being uploaded, as its record says.
fn recorded(cluster: &Cluster) -> Option<u64> {
    let entries = fs::read_dir(cluster.volume().join("uploads")).ok()?;
    let texts = entries.filter_map(|it| fs::read_to_string(it.ok()?.path()).ok());
    let offsets = texts.filter_map(|text| text.lines().last()?.parse().ok());
    offsets.max()
}

/// A file in a directory with the tier `memory` has that tier, and an fsync of it is confirmed at
/// once. An upload cannot go on from there: what was written is lost with the process.
#[test]
fn an_upload_does_not_take_memory_for_the_clouds() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let mount = cluster.quorumfs().args(["mount", "--background"]);
    mount.args([&point]).run().ok();
    let fast = point.join("fast");
    fs::create_dir(&fast).unwrap();
    let (name, tier) = ("user.quorumfs.tier", b"memory");
    rustix::fs::setxattr(&fast, name, tier, XattrFlags::empty()).unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    let (large, printed) = (
        cluster.directory().join("large.iso"),
        cluster.directory().join("printed"),
    );
    fs::write(&large, noise(7, BYTES)).unwrap();
    let away = |index| cluster.directory().join(format!("away-{index}"));
    for index in 0..2 {
        fs::rename(cluster.cloud(index), away(index)).unwrap();
    }
    let mut killed = begin(&cluster, "/fast", &large, &printed);
    let written = || {
        let text = fs::read_to_string(&printed).unwrap();
        let lines = text
            .lines()
            .filter_map(|it| serde_json::from_str::<Value>(it).ok());
        lines.filter_map(|line| line["written"].as_u64()).max()
    };
    eventually("enough is written", Duration::from_secs(60), || {
        assert_eq!(killed.try_wait().unwrap(), None, "it ended too early");
        written() >= Some(24 * MIB as u64)
    });
    // Time to record what was confirmed.
    std::thread::sleep(Duration::from_secs(2));
    let stored = recorded(&cluster);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(stored, None, "two clouds of four are gone");
    for index in 0..2 {
        fs::rename(away(index), cluster.cloud(index)).unwrap();
    }
    let again = cluster.quorumfs().args(["upload", "--to", "/fast"]);
    let again = again.args([&large]).run();
    let last = again.ok().records("progress").pop().unwrap();
    assert_eq!(last["resumed"], 0);
    let cat = cluster.quorumfs().args(["cat", "/fast/large.iso"]).run();
    assert!(
        cat.ok().stdout == fs::read(&large).unwrap(),
        "it is another"
    );
}

#[test]
fn an_upload_goes_on_after_a_kill_and_prints_links() {
    let mut cluster = Cluster::prepare();
    cluster.configure("[share]\nurl = \"http://files.example\"\n");
    cluster.start();
    let (large, small) = (
        cluster.directory().join("large.iso"),
        cluster.directory().join("notes.txt"),
    );
    fs::write(&large, noise(7, BYTES)).unwrap();
    fs::write(&small, "the notes").unwrap();

    // Killed once the clouds have a part of it.
    let records = cluster.volume().join("uploads");
    let mut killed = begin(
        &cluster,
        "/Shared",
        &large,
        &cluster.directory().join("printed"),
    );
    let patience = Duration::from_secs(60);
    eventually("a part is stored", patience, || {
        assert_eq!(killed.try_wait().unwrap(), None, "it ended too early");
        recorded(&cluster).is_some()
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    let stored = recorded(&cluster).expect("it was killed before its end");

    let upload = |options: &[&str]| {
        let command = cluster.quorumfs().args(["upload"]).args([&large, &small]);
        command.args(options).run()
    };
    let done = upload(&["--link", "--expires", "7d"]).ok();
    let last = done.records("progress").pop().unwrap();
    assert!(last["resumed"].as_u64().unwrap() >= stored, "{last}");
    assert!(
        last["written"].as_u64().unwrap() + stored <= (BYTES + 9) as u64,
        "{last}"
    );
    assert_eq!(done.records("link").len(), 2);
    let cat = cluster.quorumfs().args(["cat", "/Shared/large.iso"]).run();
    assert!(
        cat.ok().stdout == fs::read(&large).unwrap(),
        "it is another"
    );
    let listed = cluster.quorumfs().args(["ls", "/Shared"]).run().ok();
    assert_eq!(
        listed.records("entry").len(),
        2,
        "nothing else is left there"
    );
    assert!(fs::read_dir(&records).unwrap().next().is_none());

    // Once more: nothing is sent. And a source that is missing makes no link.
    let again = upload(&[]).ok();
    let last = again.records("progress").pop().unwrap();
    assert_eq!((&last["written"], &last["resumed"]), (&0.into(), &0.into()));
    let missing = cluster.directory().join("missing");
    let partial = cluster.quorumfs().args(["upload", "--link"]);
    let partial = partial.args([&small, &missing]).run();
    assert_ne!(partial.code, Some(0));
    assert_eq!(partial.records("link").len(), 0);
}
