//! Three mounts of one volume, each a process with a state directory of its own.
//!
//! What always holds: every mount is removed and every process has ended when this is dropped,
//! whatever happened before. A local directory can take the place of the three.

use crate::harness::{Cluster, RecoveredMachine, require_fuse};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many mounts there are.
pub(super) const MOUNTS: usize = 3;

/// Nothing is read from a disk cache: the mounts have to learn from one another.
const CONFIGURATION: &str = "[cache]\nsize_mib = 0\n";

/// Three mounts, or one directory three times.
#[derive(Debug)]
pub(super) struct ThreeMounts {
    points: Vec<PathBuf>,
    // Before the cluster: mounts end while its replicas run.
    machines: Vec<Mutex<RecoveredMachine>>,
    cluster: Option<Mutex<Cluster>>,
}

impl ThreeMounts {
    /// Creates a volume over four replicas and four clouds, and mounts it three times.
    pub(super) fn of_volume() -> Self {
        require_fuse();
        let mut cluster = Cluster::prepare();
        cluster.start();
        let mut machines: Vec<_> = (0..MOUNTS)
            .map(|number| RecoveredMachine::recover(&cluster, number, CONFIGURATION))
            .collect();
        machines.iter_mut().for_each(RecoveredMachine::mount);
        Self {
            points: machines.iter().map(|it| it.point().to_owned()).collect(),
            machines: machines.into_iter().map(Mutex::new).collect(),
            cluster: Some(Mutex::new(cluster)),
        }
    }

    /// Uses a local directory.
    pub(super) fn of_directory(directory: &Path) -> Self {
        Self {
            points: vec![directory.to_owned(); MOUNTS],
            machines: Vec::new(),
            cluster: None,
        }
    }

    /// Whether these are mounts.
    pub(super) fn are_real(&self) -> bool {
        self.cluster.is_some()
    }

    pub(super) fn point(&self, mount: usize) -> &Path {
        &self.points[mount]
    }

    fn machine(&self, mount: usize) -> MutexGuard<'_, RecoveredMachine> {
        // A panic of another thread changes nothing about the process.
        let machine = self.machines[mount].lock();
        machine.unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the process behind a mount, which stays mounted and dead.
    pub(super) fn kill(&self, mount: usize) {
        self.machine(mount).kill();
    }

    /// Mounts again from the same state directory, which fences what was there before.
    pub(super) fn mount_again(&self, mount: usize) {
        self.machine(mount).mount();
    }

    /// Ends the processes behind all mounts, so that calls that wait for them return.
    pub(super) fn kill_all(&self) {
        for machine in &self.machines {
            // A machine that is mounting at this moment has a deadline of its own.
            if let Ok(machine) = machine.try_lock()
                && machine.runs()
            {
                machine.signal(Signal::KILL);
            }
        }
    }

    /// Unmounts those that still run, and stops the replicas.
    pub(super) fn unmount(&self) {
        for mount in 0..self.machines.len() {
            let mut machine = self.machine(mount);
            if machine.runs() {
                machine.unmount();
            }
        }
        if let Some(cluster) = &self.cluster {
            let cluster = cluster.lock();
            cluster.unwrap_or_else(PoisonError::into_inner).stop();
        }
    }
}
