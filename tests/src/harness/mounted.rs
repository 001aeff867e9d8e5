//! A mount in the background, and killing it.

use super::command::{Quorumfs, binary};
use super::{Cluster, eventually};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::Duration;

const DEAD_WITHIN: Duration = Duration::from_secs(20);

/// Mounts in the background and returns the process behind the mount.
///
/// # Panics
/// If it cannot be mounted.
#[must_use]
#[track_caller]
pub fn mount_in_background(cluster: &Cluster, point: &Path, how: &[&str]) -> Pid {
    mount_from(cluster.quorumfs(), point, how)
}

/// The same from another state directory.
#[track_caller]
pub(super) fn mount_from(quorumfs: Quorumfs, point: &Path, how: &[&str]) -> Pid {
    let mount = ["mount", "--background"];
    let mount = quorumfs.args(mount).args(how).args([point]);
    let ready = mount.run().ok().records("ready").remove(0);
    let pid = i32::try_from(ready["pid"].as_i64().unwrap()).unwrap();
    Pid::from_raw(pid).unwrap()
}

/// Kills the process behind a mount, and waits until the mount no longer answers.
///
/// # Panics
/// If it does not run any more, or the mount still answers.
#[track_caller]
pub fn kill_mount(process: Pid, point: &Path) {
    let program = fs::read_link(format!("/proc/{}/exe", process.as_raw_pid()));
    assert_eq!(program.ok().as_deref(), Some(binary()), "it does not run");
    kill_process(process, Signal::KILL).unwrap();
    eventually("its mount is dead", DEAD_WITHIN, || {
        let dead = fs::metadata(point).map_err(|error| error.raw_os_error());
        dead.is_err_and(|code| code == Some(Errno::NOTCONN.raw_os_error()))
    });
}
