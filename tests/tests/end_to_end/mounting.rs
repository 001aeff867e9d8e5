//! Mounting by `mount(8)`, by systemd and on the command line.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{
    Cluster, Private, Quorumfs, Running, binary, eventually, is_mounted, mount_in_background,
    require_fuse, require_private_mounts,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn signal(process: &Running, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn helper(program: &Path, cluster: &Cluster, more: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.arg(cluster.volume()).arg(cluster.mount_point());
    command.args(more).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn as_the_helper_of_mount_it_accepts_options_of_fstab_and_returns_when_ready() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let programs = ["mount.quorumfs", "mount.fuse.quorumfs"].map(|name| {
        let link = cluster.directory().join(name);
        std::os::unix::fs::symlink(binary(), &link).unwrap();
        link
    });
    let code = |output: &Output| output.status.code();
    let errors = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let umount = || cluster.quorumfs().run_with(["umount"]).ok();
    let status = || {
        cluster
            .quorumfs()
            .run_with(["status"])
            .records("mount")
            .remove(0)
    };

    let unknown = helper(&programs[0], &cluster, &["-o", "rw,sync"]);
    assert_eq!(code(&unknown), Some(1), "{unknown:?}");
    assert!(
        errors(&unknown).contains("`sync` is no option"),
        "{unknown:?}"
    );
    let fake = helper(&programs[0], &cluster, &["-fn", "-o", "rw"]);
    assert_eq!((code(&fake), is_mounted(&point)), (Some(0), false));

    let options = "rw,tier=local,_netdev,noauto,nofail,x-systemd.automount";
    let mounted = helper(&programs[0], &cluster, &["-n", "-o", options]);
    assert_eq!(code(&mounted), Some(0), "{mounted:?}");
    assert!(is_mounted(&point));
    fs::write(point.join("file"), "content").unwrap();
    assert_eq!(status()["waiting"]["tier"], "local", "{}", status());
    let again = helper(&programs[1], &cluster, &[]);
    assert_eq!(code(&again), Some(32), "{again:?}");
    umount();

    let sloppy = ["-s", "-o", "ro,noexec,sync", "-t", "fuse.quorumfs"];
    let mounted = helper(&programs[1], &cluster, &sloppy);
    assert_eq!(code(&mounted), Some(0), "{mounted:?}");
    assert_eq!(fs::read(point.join("file")).unwrap(), b"content");
    let refused = fs::write(point.join("file"), "other").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = |line: &&str| line.split(' ').nth(1) == point.to_str();
    let flags = table.lines().find(ours).unwrap();
    assert!(flags.contains("noexec") && flags.contains("ro,"), "{flags}");
    umount();
    assert_eq!(status_or_none(&cluster), None);
    // On the command line it accepts the same options.
    let by_hand = mount_in_background(&cluster, &point, &["-o", "ro,tier=memory"]);
    assert_eq!(status()["waiting"]["tier"], "memory");
    assert!(
        fs::write(point.join("file"), "other").is_err(),
        "{by_hand:?}"
    );
    umount();
    cluster.stop();
}

fn status_or_none(cluster: &Cluster) -> Option<serde_json::Value> {
    cluster
        .quorumfs()
        .run_with(["status"])
        .records("mount")
        .pop()
}

/// Waits for a datagram with this beginning.
fn receive(socket: &UnixDatagram, beginning: &str) -> String {
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut buffer = [0; 1000];
    let length = socket.recv(&mut buffer).expect(beginning);
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(text.starts_with(beginning), "{text}");
    text
}

#[test]
fn systemd_is_notified_when_a_mount_and_a_replica_are_ready_and_when_they_stop() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    let path = cluster.directory().join("notify");
    let of_mount = UnixDatagram::bind(&path).unwrap();
    let abstracted = format!("quorumfs-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&abstracted).unwrap();
    let of_replica = UnixDatagram::bind_addr(&address).unwrap();

    cluster.start_some(0..3);
    let genesis = cluster.volume().join("volume.genesis");
    let replica = Quorumfs::on(&cluster.replica(3)).args(["replica", "run", "--genesis"]);
    let replica = replica
        .args([genesis])
        .env("NOTIFY_SOCKET", format!("@{abstracted}"));
    let replica = replica.start();
    let listens = receive(&of_replica, "READY=1\n");
    let address = cluster.addresses[3].to_string();
    assert!(
        listens.contains("STATUS=") && listens.contains(&address),
        "{listens}"
    );

    let point = cluster.mount_point();
    let mount = cluster.quorumfs().args(["mount"]).args([&point]);
    let mount = mount.env("NOTIFY_SOCKET", &path).start();
    let ready = receive(&of_mount, "READY=1\n");
    assert!(is_mounted(&point), "it is ready when it is mounted");
    assert!(ready.contains(&format!("STATUS=Mounted on {}", point.display())));
    for process in [mount.id(), replica.id()] {
        let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let words: Vec<&str> = core.unwrap().split_whitespace().collect();
        assert_eq!(
            words[4..6],
            ["0", "0"],
            "keys must not get into a core file"
        );
    }
    fs::write(point.join("file"), "content").unwrap();
    signal(&mount, Signal::TERM);
    receive(&of_mount, "STOPPING=1\nSTATUS=");
    mount.wait().ok();
    assert!(!is_mounted(&point));

    signal(&replica, Signal::TERM);
    receive(&of_replica, "STOPPING=1\nSTATUS=");
    replica.wait().ok();
    cluster.stop();
}

#[test]
fn a_background_mount_whose_command_was_killed_does_not_stay() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    let point = cluster.mount_point();
    let mount = || {
        cluster
            .quorumfs()
            .args(["mount", "--background"])
            .args([&point])
    };
    // Without replicas the mount is not ready yet when the waiting command is killed.
    let waiting = mount().start();
    let lock = cluster.volume().join("lock");
    eventually("a process is mounting", Duration::from_secs(30), || {
        let file = fs::File::options().write(true).open(&lock);
        file.is_ok_and(|file| {
            let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(&file, operation).is_err()
        })
    });
    signal(&waiting, Signal::KILL);
    assert_eq!(waiting.wait().code, None);
    cluster.start();
    let mount = || {
        cluster
            .quorumfs()
            .args(["mount", "--background"])
            .args([&point])
    };
    eventually(
        "the state directory is free",
        Duration::from_secs(60),
        || {
            let tried = mount().run();
            assert!(matches!(tried.code, Some(0 | 11)), "{tried:?}");
            tried.code == Some(0)
        },
    );
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.stop();
}

#[test]
fn a_mount_reports_its_memory_setting_and_where_it_comes_from() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let reported = || {
        let mount = status_or_none(&cluster).unwrap();
        let from = mount["memory_from"].as_str().unwrap().to_string();
        (mount["memory_bytes"].as_u64().unwrap() >> 20, from)
    };
    let _ = mount_in_background(&cluster, &point, &[]);
    let (mib, from) = reported();
    let usable = quorumfs_gateway::memory::usable().unwrap().bytes >> 20;
    assert_eq!(mib, (usable / 4).clamp(128, 768), "{from}");
    assert!(
        from.contains("default") || from.contains("quarter"),
        "{from}"
    );
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.configure("[data]\nmemory_mib = 200\n");
    let _ = mount_in_background(&cluster, &point, &[]);
    assert_eq!(reported(), (200, "`memory_mib` of [data]".to_string()));
    let doctor = cluster.quorumfs().run_with(["doctor", "--dry-run"]);
    let findings = doctor.records("finding");
    let memory = findings
        .iter()
        .find(|it| it.to_string().contains("200 MiB"));
    assert!(memory.is_some(), "{findings:#?}");
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.stop();
}

#[test]
fn without_space_for_its_journal_it_reports_a_full_disk() {
    require_fuse();
    require_private_mounts();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let journal = cluster.volume().join("journal");
    fs::create_dir_all(&journal).unwrap();
    let full = Private {
        script: format!(
            "mount -t tmpfs -o size=64k none '{0}'; head -c 1M /dev/zero >'{0}/hog' || true",
            journal.display()
        ),
    };
    let mount = Quorumfs::on(&cluster.volume()).args(["mount", "-o", "tier=local"]);
    let refused = mount.args([&point]).in_private(&full).run();
    refused.fails(8, "No space left", "free some space there");
    cluster.stop();
}

#[test]
fn mount_recognises_its_mount_by_fstab_and_does_not_change_it() {
    require_fuse();
    require_private_mounts();
    let mut cluster = Cluster::prepare();
    cluster.start();
    // A symbolic link on the way, and a blank in a name, as fstab has it.
    let (state, point) = (cluster.directory().join("my volume"), cluster.mount_point());
    std::os::unix::fs::symlink(cluster.volume(), &state).unwrap();
    let table = cluster.directory().join("fstab");
    let named = state.to_str().unwrap().replace(' ', "\\040");
    let line = format!(
        "{named} {} quorumfs tier=local,_netdev 0 0\n",
        point.display()
    );
    fs::write(&table, line).unwrap();
    // The directory of mount(8)'s helpers has only those that it needs.
    let script = format!(
        "helpers=$(realpath /sbin); mount -t tmpfs none \"$helpers\"
         for name in mount.quorumfs mount.fuse.quorumfs; do ln -s '{program}' /sbin/$name; done
         mount -a -T '{table}'; echo \"first $?\"
         findmnt -n -t fuse.quorumfs -o SOURCE,TARGET '{point}'
         mount -a -T '{table}'; echo \"second $?\"
         mount -o remount,ro '{point}'; echo \"remount $?\"
         echo content >'{point}/file'; echo \"write $?\"
         umount '{point}'; echo \"umount $?\"",
        program = binary().display(),
        table = table.display(),
        point = point.display(),
    );
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    // Other users' mounts would be held in this namespace after they were unmounted.
    let others = "grep ' fuse' /proc/self/mounts | cut -d' ' -f2 | xargs -r -n 1 umount -l";
    let script = format!("{others}; {script}");
    let command = command.args(["--mount", "--", "/bin/sh", "-c", &script]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (output, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let ours = |line: &&str| !line.starts_with("Mounted on ");
    let lines: Vec<&str> = output.lines().map(str::trim).filter(ours).collect();
    let shown = format!("{} {}", cluster.volume().display(), point.display());
    let spaces = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(lines[0], "first 0", "{output}{errors}");
    assert_eq!(spaces(lines[1]), shown, "{output}{errors}");
    assert_eq!(
        lines[2..],
        ["second 0", "remount 1", "write 0", "umount 0"],
        "{output}{errors}"
    );
    assert!(
        errors.contains("cannot be changed while it exists"),
        "{errors}"
    );
    cluster.stop();
}

#[test]
fn a_mount_with_wait_succeeds_once_the_servers_run() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    let point = cluster.mount_point();
    let mount = |options: &[&str]| {
        let command = cluster.quorumfs().args(["mount", "--background"]);
        command.args(options).args([&point])
    };
    let waiting = mount(&["--wait", "120"]).start();
    std::thread::sleep(Duration::from_secs(20));
    cluster.start();
    waiting.wait().ok();
    fs::write(point.join("file"), "content").unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    cluster.stop();
}

#[test]
fn a_mount_point_and_a_name_may_be_any_bytes() {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.directory().join(OsStr::from_bytes(b"point \xff"));
    fs::create_dir(&point).unwrap();
    let _process = mount_in_background(&cluster, &point, &[]);
    let file = point.join(OsStr::from_bytes(b"name\\\xfe"));
    fs::write(&file, "content").unwrap();
    let status = cluster.quorumfs().run_with(["status"]).ok();
    let shown = &status.records("mount")[0]["point"];
    let escaped = shown["escaped"].as_str().unwrap();
    assert!(escaped.ends_with("/point \\xff"), "{shown}");
    let listed = cluster.quorumfs().run_with(["ls", "/"]).ok();
    let entry = listed.records("entry").remove(0);
    assert_eq!(entry["name_escaped"], "name\\\\\\xfe");
    cluster
        .quorumfs()
        .args(["umount"])
        .args([&point])
        .run()
        .ok();
    assert!(!is_mounted(&point));
    cluster.stop();
}
