//! Mounts whose process was killed or got stuck: their users do not hang, synced data stays, and
//! the next mount or unmount removes what is left.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_gateway::keys::Sealing;
use quorumfs_tests::harness::{
    Cluster, Gateway, Quorumfs, StoppedProcess, eventually, is_mounted, kill_mount,
    mount_in_background, require_fuse,
};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// These mounts keep others out.
const EXCLUSIVE: [&str; 1] = ["--exclusive"];

#[test]
fn a_mount_whose_process_was_killed_is_removed_by_the_next() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let process = mount_in_background(&cluster, &point, &EXCLUSIVE);
    let content = "kept".repeat(40_000);
    fs::write(point.join("kept"), &content).unwrap();
    fs::File::open(point.join("kept"))
        .unwrap()
        .sync_all()
        .unwrap();
    kill_mount(process, &point);

    // To the replicas that mount may still run somewhere. Its state directory shows that it does
    // not; a copy of the directory does not show it.
    let copy = cluster.volume().with_extension("copy");
    let mut cp = Command::new("cp");
    cp.arg("-a").arg(cluster.volume()).arg(&copy);
    assert!(cp.status().unwrap().success());
    let from_copy = Quorumfs::on(&copy)
        .args(["mount", "--exclusive"])
        .args([&point])
        .run();
    from_copy.fails(11, "mounted already", "--takeover");
    assert!(!is_mounted(&point), "the dead mount was not removed");
    let mut process = mount_in_background(&cluster, &point, &EXCLUSIVE);
    for number in 0..3 {
        assert_eq!(fs::read_to_string(point.join("kept")).unwrap(), content);
        fs::write(point.join("more"), [number]).unwrap();
        kill_mount(process, &point);
        process = mount_in_background(&cluster, &point, &EXCLUSIVE);
        assert_eq!(fs::read(point.join("more")).unwrap(), [number]);
    }

    // After a takeover elsewhere the volume belongs to that mount, whatever is mounted here.
    kill_mount(process, &point);
    let elsewhere =
        Quorumfs::on(&copy).args(["mount", "--background", "--exclusive", "--takeover"]);
    elsewhere.args([&point]).run().ok();
    let other = point.with_extension("other");
    fs::create_dir(&other).unwrap();
    let again = cluster
        .quorumfs()
        .args(["mount", "--exclusive"])
        .args([&other])
        .run();
    again.fails(11, "mounted already", "--takeover");
    assert_eq!(fs::read_to_string(point.join("kept")).unwrap(), content);
    let umount = Quorumfs::on(&copy).args(["umount"]).args([&point]).run();
    assert_eq!(umount.ok().records("unmounted").len(), 1);

    let process = mount_in_background(&cluster, &point, &EXCLUSIVE);
    kill_mount(process, &point);
    // With the slash that shell completion appends.
    let named = format!("{}/", point.display());
    let cleared = cluster.quorumfs().args(["umount", &named]).run();
    assert_eq!(cleared.ok().records("unmounted").len(), 1);
    assert!(!is_mounted(&point), "the dead mount was not removed");
    let umount = cluster.quorumfs().args(["umount"]).args([&point]).run();
    umount.fails(10, "is not mounted", "--state");
    cluster.stop();
}

#[test]
fn data_that_was_synced_at_tier_local_survives_a_kill_and_reaches_the_clouds() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    let configuration = cluster.volume().join("quorumfs.toml");
    cluster.set_tier("local");
    cluster.start();
    let point = cluster.mount_point();
    let process = mount_in_background(&cluster, &point, &[]);
    fs::write(point.join("before"), "before").unwrap();
    let sync = |path: &Path| cluster.quorumfs().args(["sync"]).args([path]).run();
    assert_eq!(sync(&point.join("before")).ok().records("synced").len(), 1);
    sync(&configuration).fails(9, "is not in the mount", "name a path in there");

    // Two clouds of four are gone: nothing can be committed.
    let gone = |index| cluster.cloud(index).with_extension("gone");
    for index in [0, 1] {
        fs::rename(cluster.cloud(index), gone(index)).unwrap();
    }
    let content = "kept on this host".repeat(40_000);
    fs::write(point.join("kept"), &content).unwrap();
    let kept = fs::File::open(point.join("kept")).unwrap();
    kept.sync_all().unwrap();
    let status = || cluster.quorumfs().args(["status", "--queue"]).run();
    let queued = status().records("queued");
    assert_eq!(queued.len(), 1);
    assert!(queued[0]["bytes"].as_u64().unwrap() >= content.len() as u64);
    sync(&point.join("kept")).fails(6, "", "status --queue");
    drop(kept);
    kill_mount(process, &point);

    let process = mount_in_background(&cluster, &point, &[]);
    assert_eq!(fs::read_to_string(point.join("kept")).unwrap(), content);
    for index in [0, 1] {
        fs::rename(gone(index), cluster.cloud(index)).unwrap();
    }
    eventually("everything is committed", Duration::from_secs(60), || {
        sync(&point).records("synced").len() == 1
    });
    assert_eq!(status().records("queued").len(), 0);
    kill_mount(process, &point);
    assert!(is_mounted(&point));
    // The files on this host are no longer needed.
    fs::remove_dir_all(cluster.volume().join("journal")).unwrap();
    let cat = cluster.quorumfs().args(["cat", "/before", "/kept"]).run();
    assert!(cat.ok().stdout == format!("before{content}").as_bytes());
    let umount = cluster.quorumfs().args(["umount"]).args([&point]).run();
    umount.ok();
    cluster.stop();
}

#[test]
fn a_forced_unmount_frees_the_users_and_the_point_of_a_stopped_process() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let process = mount_in_background(&cluster, &point, &[]);
    fs::write(point.join("kept"), "kept").unwrap();
    let stopped = StoppedProcess::stop(process);

    let (sender, answers) = std::sync::mpsc::channel();
    // No open files: a new program closes those that it inherits, and would hang on that as well.
    for name in ["unknown", "unknown as well"] {
        let (unknown, sender) = (point.join(name), sender.clone());
        std::thread::spawn(move || sender.send(fs::metadata(unknown).map(drop)));
    }
    let hangs = answers.recv_timeout(Duration::from_secs(2));
    assert!(hangs.is_err(), "it does not hang: {hangs:?}");
    let status = cluster.quorumfs().run_with(["status"]);
    assert_eq!(status.code, Some(1), "{status:?}");
    assert_eq!(status.records("summary")[0]["health"], "mount silent");
    let force = || cluster.quorumfs().args(["umount", "--force"]);
    force()
        .run()
        .fails(2, "mount point is not known", "name the directory");
    let nothing = force().args([cluster.directory()]).run();
    nothing.fails(10, "no quorumfs is mounted on", "findmnt");
    let forced = force().args([&point]).run().ok().records("unmounted");
    assert_eq!(
        (&forced[0]["forced"], &forced[0]["still_running"]),
        (&true.into(), &true.into())
    );
    for _ in 0..2 {
        let answer = answers.recv_timeout(Duration::from_secs(10));
        let error = answer
            .expect("a user of the mount still hangs")
            .unwrap_err();
        let aborted = [Errno::CONNABORTED, Errno::NOTCONN, Errno::IO];
        let aborted = aborted.map(|errno| Some(errno.raw_os_error()));
        assert!(aborted.contains(&error.raw_os_error()), "{error}");
    }
    assert!(!is_mounted(&point));
    assert_eq!(
        fs::read_dir(&point).unwrap().count(),
        0,
        "the mount point is not free"
    );

    // Once it goes on, it ends successfully, and the next mount needs no force.
    let held = cluster.quorumfs().args(["mount"]).args([&point]).run();
    held.fails(11, "another mount is running", "stop that one first");
    stopped.resume();
    let mount = cluster.quorumfs().args(["mount", "--background"]);
    let mount = mount.args([&point]);
    eventually("its process has ended", Duration::from_secs(60), || {
        mount.run().code == Some(0)
    });
    assert_eq!(fs::read_to_string(point.join("kept")).unwrap(), "kept");
    let forced = force().args([&point]).run().ok().records("unmounted");
    assert_eq!(
        forced[0]["forced"], false,
        "a mount that answers needs no force"
    );
    cluster.stop();
}

#[test]
fn a_mount_that_got_stuck_is_aborted_before_its_users_hang_for_good() {
    const DEADLINE: Duration = Duration::from_millis(500);
    let mut cluster = Cluster::prepare();
    cluster.start();
    let gateway = Gateway::mount(&cluster, Sealing::On, DEADLINE);
    fs::write(gateway.point().join("before"), "before").unwrap();

    // Every thread that serves requests is blocked, as by a defect.
    let released = Arc::new(AtomicBool::new(false));
    let workers = gateway.runtime.metrics().num_workers();
    let held = Arc::new(std::sync::Barrier::new(workers + 1));
    for _ in 0..workers {
        let (released, held) = (Arc::clone(&released), Arc::clone(&held));
        gateway.runtime.spawn(async move {
            held.wait();
            while !released.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
    held.wait();

    let (sender, answer) = std::sync::mpsc::channel();
    let unknown = gateway.point().join("unknown");
    let began = Instant::now();
    std::thread::spawn(move || sender.send(fs::metadata(unknown).unwrap_err()));
    let error = answer.recv_timeout(DEADLINE * 40);
    released.store(true, Ordering::Relaxed);
    let error = error.expect("a user of the mount hangs");
    let aborted = [Errno::CONNABORTED, Errno::NOTCONN, Errno::IO];
    let aborted = aborted.map(|errno| Some(errno.raw_os_error()));
    assert!(aborted.contains(&error.raw_os_error()), "{error}");
    assert!(
        began.elapsed() >= DEADLINE * 3,
        "it was aborted before a request was late"
    );
    drop(gateway);
    cluster.stop();
}

/// A process in a mount namespace of its own, which inherits all existing mounts.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn begin() -> Self {
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "300"])
            .spawn()
            .unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        eventually("it begins", Duration::from_secs(10), || {
            fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep")
        });
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_that_another_namespace_holds_is_unmounted_committed_and_free_within_seconds() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    for by_the_system in [false, true] {
        let process = mount_in_background(&cluster, &point, &[]);
        let holder = Elsewhere::begin();
        let (name, content) = (format!("of {by_the_system}"), "kept".repeat(40_000));
        fs::write(point.join(&name), &content).unwrap();
        let began = Instant::now();
        if by_the_system {
            let unmounted = Command::new("umount").arg(&point).status().unwrap();
            assert!(unmounted.success());
        } else {
            let unmounted = cluster.quorumfs().run_with(["umount"]).ok();
            let text = unmounted.records("unmounted")[0]["taken_from"][0].to_string();
            let named = format!("sleep (process {})", holder.0.id());
            assert!(text.contains(&named), "{text}");
        }
        // A process that was not reaped stays in the table, without a program.
        let program = format!("/proc/{}/exe", process.as_raw_pid());
        let ended = || fs::read_link(&program).is_err();
        eventually("its process ends", Duration::from_secs(20), ended);
        assert!(began.elapsed() < Duration::from_secs(25));
        let status = cluster.quorumfs().run_with(["status"]).ok();
        assert!(status.records("mount").is_empty(), "{status:?}");
        // The volume is free at once, although the other namespace still exists.
        let _ = mount_in_background(&cluster, &point, &[]);
        assert_eq!(fs::read_to_string(point.join(&name)).unwrap(), content);
        drop(holder);
        cluster.quorumfs().run_with(["umount"]).ok();
    }
    cluster.stop();
}
