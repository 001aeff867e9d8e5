//! Closed terminals, and signals that were ignored from the start.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use quorumfs_tests::harness::{
    Cluster, Quorumfs, eventually, is_mounted, mount_in_background, require_fuse,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

#[test]
fn replicas_and_a_mount_go_on_when_a_terminal_is_closed() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let point = cluster.mount_point();
    let mount = mount_in_background(&cluster, &point, &[]);
    for process in cluster.processes().map(pid).chain([mount]) {
        kill_process(process, Signal::HUP).unwrap();
    }
    fs::write(point.join("file"), "content").unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    let cat = cluster.quorumfs().run_with(["cat", "/file"]).ok();
    assert_eq!(cat.stdout, b"content");
    cluster.stop();
}

#[test]
fn signals_that_were_ignored_when_a_command_began_stay_ignored() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let observe = cluster.quorumfs().args(["observe"]).command();
    // As `nohup` and shells start a background command.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\""]);
    command.arg(observe.get_program()).args(observe.get_args());
    for (name, value) in observe.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // Its first record shows that it handles signals by now.
    let mut first = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(pid(child.id()), signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(child.try_wait().unwrap(), None, "it stopped");
    kill_process(pid(child.id()), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_demo_whose_terminal_is_closed_unmounts_and_stops() {
    require_fuse();
    let directory = tempfile::Builder::new().prefix("qfs").tempdir().unwrap();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let open = || {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
    };
    let mut command = Quorumfs::on(directory.path()).args(["demo"]).command();
    command.stdin(open()).stdout(open()).stderr(open());
    let mut child = command.spawn().unwrap();
    let mut master = File::from(master);
    let mut seen = String::new();
    while !seen.contains("\"ready\"") {
        let mut buffer = [0; 4096];
        let count = master.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(buffer.get(..count).unwrap()));
    }
    let point = directory.path().join("mnt");
    assert!(is_mounted(&point));
    drop((master, command));
    kill_process(pid(child.id()), Signal::HUP).unwrap();
    eventually("the demo has ended", SOON, || {
        child.try_wait().unwrap().is_some()
    });
    assert!(!is_mounted(&point), "it left its mount behind");
}
