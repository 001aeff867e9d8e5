//! Several mounts of one volume, and who is let in.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{
    Cluster, RecoveredMachine, StoppedProcess, eventually, mount_in_background, require_fuse,
};
use rustix::io::Errno;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

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

/// The modes of all mounts.
fn modes(cluster: &Cluster) -> Vec<String> {
    let listed = mounts(cluster).into_iter();
    listed
        .map(|mount| mount["mode"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn mounts_that_share_let_each_other_in_and_an_exclusive_one_keeps_all_out() {
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

    let _ = mount_in_background(&cluster, &point, &["--exclusive"]);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let refused = try_other(&[]);
    let named = format!("mounted already, on {}", host.trim());
    refused.fails(11, &named, "--exclusive");
    assert_eq!(modes(&cluster), ["exclusive"]);
    assert_eq!(mounts(&cluster)[0]["here"], true);
    cluster.quorumfs().run_with(["umount"]).ok();

    let _ = mount_in_background(&cluster, &point, &[]);
    try_other(&["-o", "exclusive"]).fails(11, "mounted already", "--exclusive");
    assert_eq!(modes(&cluster), ["alone"]);
    let stands_as = || {
        let status = cluster.quorumfs().run_with(["status"]).ok();
        let mode = status.records("mount").remove(0)["mode"].clone();
        mode.as_str().unwrap().to_owned()
    };
    assert_eq!(stands_as(), "alone");
    other.mount();
    assert_eq!(modes(&cluster), ["shared", "shared"]);
    assert_eq!(stands_as(), "shared");
    let listed = mounts(&cluster);
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
    // One that shares can be taken over from by name, for instance if its machine is gone for good.
    let listed = mounts(&cluster).into_iter();
    let session = listed.filter(|mount| mount["here"] == true);
    let session: Vec<_> = session.map(|mount| mount["session"].to_string()).collect();
    let named = format!("--takeover={}", session[0]);
    let unnamed = other.quorumfs().args(["mount", "--takeover=third"]);
    let refused = unnamed.args([other.point()]).run();
    refused.fails(2, "the number of a session", "");
    other.quorumfs().run_with(["umount"]).ok();
    let ready = other.quorumfs().args(["mount", "--background", &named]);
    ready.args([other.point()]).run().ok();
    assert_eq!(modes(&cluster), ["alone"]);
    assert!(fs::read(point.join("file")).is_err(), "it was taken over");
    // An exclusive one has to take over from all others.
    cluster.quorumfs().run_with(["umount"]).ok();
    let exclusive = ["--takeover", "--exclusive"];
    let _ = mount_in_background(&cluster, &point, &exclusive);
    assert_eq!(modes(&cluster), ["exclusive"]);
    assert!(fs::read(other.point().join("file")).is_err());
    cluster.quorumfs().run_with(["umount"]).ok();
}

#[test]
fn a_stopped_mount_that_is_alone_is_fenced_by_one_that_shares() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let mut other = RecoveredMachine::recover(&cluster, 0, "");
    let process = mount_in_background(&cluster, &point, &[]);
    fs::write(point.join("file"), "first").unwrap();
    assert_eq!(modes(&cluster), ["alone"]);

    let stopped = StoppedProcess::stop(process);
    let began = Instant::now();
    other.mount();
    assert!(began.elapsed() >= Duration::from_secs(9), "it had its time");
    assert_eq!(modes(&cluster), ["alone"]);
    assert_eq!(fs::read(other.point().join("file")).unwrap(), b"first");
    fs::write(other.point().join("file"), "second").unwrap();

    // It acts on nothing that it knew.
    stopped.resume();
    let read = fs::read(point.join("file")).unwrap_err();
    assert_eq!(read.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    assert!(fs::write(point.join("file"), "third").is_err());
    let _ = cluster.quorumfs().run_with(["umount"]);
    let _ = mount_in_background(&cluster, &point, &[]);
    assert_eq!(modes(&cluster), ["shared", "shared"]);
    for point in [point.as_path(), other.point()] {
        assert_eq!(fs::read(point.join("file")).unwrap(), b"second");
    }
    cluster.quorumfs().run_with(["umount"]).ok();
}

#[test]
fn the_lock_of_a_program_that_hangs_is_listed_and_ended() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let _ = mount_in_background(&cluster, &point, &[]);
    let mut other = RecoveredMachine::recover(&cluster, 0, "");
    other.mount();
    let lease = |arguments: &[&str]| cluster.quorumfs().args(["lease"]).args(arguments).run();
    let listed = lease(&["ls"]).ok();
    assert_eq!(listed.records("locks")[0]["count"], 0);

    fs::write(point.join("file"), "first").unwrap();
    let mut held = fs::File::options();
    let held = held.read(true).write(true);
    let mut held = held.open(point.join("file")).unwrap();
    held.lock().unwrap();
    let waiting = fs::File::options()
        .append(true)
        .open(other.point().join("file"));
    let waiting = waiting.unwrap();
    assert!(waiting.try_lock().is_err());
    let waits = std::thread::spawn(move || {
        waiting.lock().unwrap();
        waiting
    });
    eventually("the other mount's program waits", SEEN_WITHIN, || {
        let listed = lease(&["ls", "/file"]).ok().records("lock");
        assert_eq!(listed.len(), 1);
        listed[0]["waiting"] == 1
    });
    let lock = lease(&["ls", "/file"]).ok().records("lock").remove(0);
    assert_eq!(lock["file"], "/file");
    assert_eq!(
        (&lock["kind"], &lock["exclusive"]),
        (&"flock".into(), &true.into())
    );
    assert_eq!(lock["pid"], std::process::id());
    let id = lock["id"].as_str().unwrap();

    lease(&["revoke", "/none"]).fails(9, "/none", "");
    lease(&["revoke", "here"]).fails(9, "/here", "");
    let revoked = lease(&["revoke", id]).ok().records("revoked").remove(0);
    assert_eq!(revoked["locks"], 1);
    let granted = waits.join().unwrap();
    let lost = || held.read_at(&mut [0; 5], 0);
    eventually("its program is told", Duration::from_secs(5), || {
        lost().is_err_and(|error| error.raw_os_error() == Some(Errno::IO.raw_os_error()))
    });
    assert!(held.write_all(b"stale").is_err());
    drop(held);
    drop(granted);
    assert_eq!(fs::read(point.join("file")).unwrap(), b"first");
    eventually("no lock is left", SEEN_WITHIN, || {
        lease(&["ls"]).ok().records("locks")[0]["count"] == 0
    });
}
