//! A machine of its own: a state directory that the recovery kit made, and a mount from there.
//!
//! What always holds: the volume's first state directory is not touched, so that commands of its
//! own go on from there; the process behind the mount is killed and the mount is removed when the
//! machine is dropped, whether it ran, was stopped, or was dead already.

use super::Cluster;
use super::clock::SteppedClock;
use super::command::{Quorumfs, binary};
use super::mounted::{kill_mount, mount_from};
use super::network::{Cable, OwnNetwork};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};

/// A state directory of its own, with a mount point.
#[derive(Debug)]
pub struct RecoveredMachine {
    state: PathBuf,
    point: PathBuf,
    process: Option<Pid>,
    own: Option<Own>,
}

/// A network and a clock of its own.
#[derive(Debug)]
struct Own {
    network: OwnNetwork,
    clock: SteppedClock,
}

impl RecoveredMachine {
    /// Opens the cluster's volume from a new state directory, with the kit, and appends to its
    /// configuration. Nothing is mounted yet.
    ///
    /// # Panics
    /// If the command fails.
    #[must_use]
    #[track_caller]
    pub fn recover(cluster: &Cluster, number: usize, configuration: &str) -> Self {
        let state = cluster.directory().join(format!("machine-{number}"));
        let kit = cluster.volume().join("recovery-kit.txt");
        let recover = ["volume", "recover", "--kit"];
        Quorumfs::on(&state).args(recover).args([kit]).run().ok();
        let path = state.join("quorumfs.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n{configuration}")).unwrap();
        let point = cluster.directory().join(format!("mnt-{number}"));
        fs::create_dir(&point).unwrap();
        Self {
            state,
            point,
            process: None,
            own: None,
        }
    }

    /// The same with a network that can be cut and a clock that can be stepped, for its mount.
    ///
    /// # Panics
    /// If that cannot be made.
    #[must_use]
    #[track_caller]
    pub fn recover_apart(cluster: &Cluster, number: usize, configuration: &str) -> Self {
        let mut machine = Self::recover(cluster, number, configuration);
        machine.own = Some(Own {
            network: OwnNetwork::reaching(&cluster.addresses),
            clock: SteppedClock::new(cluster.directory(), &format!("machine-{number}")),
        });
        machine
    }

    /// Cuts the cable between its mount and the replicas, or makes it whole.
    ///
    /// # Panics
    /// If it has no network of its own.
    pub fn set_cable(&self, cable: Cable) {
        self.own.as_ref().unwrap().network.set(cable);
    }

    /// Sets the clock that its mount sees so many seconds ahead.
    ///
    /// # Panics
    /// If it has no clock of its own.
    pub fn set_ahead(&self, seconds: i64) {
        self.own.as_ref().unwrap().clock.set_ahead(seconds);
    }

    /// `quorumfs --json --state …` on this machine.
    #[must_use]
    pub fn quorumfs(&self) -> Quorumfs {
        Quorumfs::on(&self.state)
    }

    /// The mount point.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The process behind the mount.
    #[must_use]
    pub fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Mounts in the background.
    ///
    /// # Panics
    /// If it cannot be mounted.
    #[track_caller]
    pub fn mount(&mut self) {
        let run = match &self.own {
            Some(own) => own.network.holds(own.clock.shown_to(self.quorumfs())),
            None => self.quorumfs(),
        };
        self.process = Some(mount_from(run, &self.point, &[]));
    }

    /// Sends a signal to the process behind the mount.
    ///
    /// # Panics
    /// If it does not run.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(self.process.expect("it is mounted"), signal).unwrap();
    }

    /// Kills the process behind the mount, which stays mounted and dead.
    ///
    /// # Panics
    /// If it does not run.
    #[track_caller]
    pub fn kill(&mut self) {
        kill_mount(self.process.take().expect("it is mounted"), &self.point);
    }

    /// Whether the process behind the mount runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.is_some_and(is_ours)
    }

    /// Unmounts.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn unmount(&mut self) {
        if self.process.is_some() {
            self.quorumfs().args(["umount"]).run().ok();
            self.process = None;
        }
    }
}

/// Whether a process is the program under test.
fn is_ours(process: Pid) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.as_raw_pid()));
    program.ok().as_deref() == Some(binary())
}

impl Drop for RecoveredMachine {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            if is_ours(process) {
                let _ = kill_process(process, Signal::KILL);
            }
            let _ = unmount(&self.point, UnmountFlags::DETACH);
        }
    }
}
