//! A mount in the background; killing and stopping its process.

use super::command::{Quorumfs, binary};
use super::{Cluster, eventually};
use quorumfs_backends::emulators::is_stopped;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
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

/// Kills the processes of the program that work below a directory, and removes the mounts there. A
/// mount in the background is no child of the test, which may end before it unmounts.
pub(super) fn end_mounts_below(directory: &Path) {
    let mentions = |process: &str| {
        let program = fs::read_link(format!("/proc/{process}/exe")).ok();
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let below = |word: &[u8]| Path::new(OsStr::from_bytes(word)).starts_with(directory);
        program.as_deref() == Some(binary()) && words.any(below)
    };
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(name) = name.to_str().filter(|name| mentions(name)) else {
            continue;
        };
        if let Some(process) = name.parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(directory)) {
        let _ = unmount(point, UnmountFlags::DETACH);
    }
}

/// A process that is stopped, and goes on when this is dropped. A test that fails meanwhile could
/// not end otherwise: its threads would wait for answers of the mount.
#[derive(Debug)]
pub struct StoppedProcess(Pid);

impl StoppedProcess {
    /// Stops a process; returns when the last of its threads has stopped.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    #[track_caller]
    pub fn stop(process: Pid) -> Self {
        kill_process(process, Signal::STOP).unwrap();
        let stopped = Self(process);
        eventually("all of its threads have stopped", DEAD_WITHIN, || {
            is_stopped(process)
        });
        stopped
    }

    /// Lets it go on.
    pub fn resume(self) {
        drop(self);
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
