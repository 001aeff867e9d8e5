//! Several mounts of one volume, and who is let in.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{
    Cluster, RecoveredMachine, eventually, mount_in_background, require_fuse,
};
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// The longest time until a mount sees what another one has renamed.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

fn mounts(cluster: &Cluster) -> Vec<Value> {
    let listed = cluster.quorumfs().run_with(["mounts"]).ok();
    assert_eq!(
        listed.records("mounts")[0]["count"],
        listed.records("mount").len()
    );
    listed.records("mount")
}

#[test]
fn mounts_that_share_let_each_other_in_and_one_that_is_alone_keeps_all_out() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let mut other = RecoveredMachine::recover(&cluster, 0, "");
    assert_eq!(mounts(&cluster), Vec::<Value>::new());
    let try_other = |how: &[&str]| {
        let mount = other.quorumfs().args(["mount"]).args(how);
        mount.args([other.point()]).run()
    };

    let _ = mount_in_background(&cluster, &point, &[]);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let refused = try_other(&["--share"]);
    let named = format!("mounted already, on {}", host.trim());
    refused.fails(11, &named, "--share");
    let listed = mounts(&cluster);
    assert_eq!(
        (&listed[0]["shared"], &listed[0]["here"]),
        (&false.into(), &true.into())
    );
    cluster.quorumfs().run_with(["umount"]).ok();

    let _ = mount_in_background(&cluster, &point, &["-o", "share"]);
    try_other(&[]).fails(11, "mounted already", "--share");
    other.mount();
    let listed = mounts(&cluster);
    let shared = listed.iter().filter(|mount| mount["shared"] == true);
    assert_eq!((listed.len(), shared.count()), (2, 2));
    assert_eq!(listed.iter().filter(|it| it["here"] == true).count(), 1);
    // What is closed on one is what the other one opens, in both directions.
    for round in 0..50 {
        let (here, there) = (point.join("file"), other.point().join("file"));
        fs::write(&here, vec![1; round + 1]).unwrap();
        assert_eq!(fs::read(&there).unwrap(), vec![1; round + 1]);
        fs::write(&there, vec![2; 2 * round]).unwrap();
        assert_eq!(fs::read(&here).unwrap(), vec![2; 2 * round]);
    }

    // A name that was renamed here and then replaced there leads to the new file, here too.
    for name in ["first", "second"] {
        fs::write(point.join(name), name).unwrap();
        assert!(other.point().join(name).exists());
    }
    fs::rename(point.join("first"), point.join("name")).unwrap();
    let there = |name: &str| other.point().join(name);
    fs::rename(there("second"), there("name")).unwrap();
    eventually("the other mount's rename is seen", SEEN_WITHIN, || {
        fs::read_to_string(point.join("name")).is_ok_and(|content| content == "second")
    });

    // A mount that was killed is replaced by the next one of its directory.
    other.kill();
    other.mount();
    assert_eq!(mounts(&cluster).len(), 2);
    assert_eq!(fs::read(other.point().join("file")).unwrap(), vec![2; 98]);
    // One that is to be alone has to take over from all others.
    cluster.quorumfs().run_with(["umount"]).ok();
    let alone = ["--takeover"];
    let _ = mount_in_background(&cluster, &point, &alone);
    let listed = mounts(&cluster);
    assert_eq!((listed.len(), &listed[0]["shared"]), (1, &false.into()));
    assert!(fs::read(other.point().join("file")).is_err());
    cluster.quorumfs().run_with(["umount"]).ok();
}
