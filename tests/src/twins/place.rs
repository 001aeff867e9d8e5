//! The homes of the twins: a tmpfs that is mounted for them, and a quorumfs mount with its cluster.

use crate::harness::{Cluster, kill_mount, mount_in_background, require_fuse};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Pid;
use std::path::{Path, PathBuf};

/// A tmpfs; unmounted when dropped.
#[derive(Debug)]
pub struct Tmpfs {
    directory: tempfile::TempDir,
}

impl Tmpfs {
    /// Mounts one with the flags of a quorumfs mount.
    ///
    /// # Panics
    /// If that fails; it needs the superuser.
    #[must_use]
    pub fn mount() -> Self {
        let directory = tempfile::Builder::new().prefix("twin").tempdir().unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let options = c"mode=0777,size=1g";
        mount("tmpfs", directory.path(), "tmpfs", flags, options)
            .expect("a tmpfs is mounted: run this as root");
        Self { directory }
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

/// The home of our twin.
#[derive(Debug)]
pub enum Place {
    /// A second tmpfs, which tests the comparison.
    Tmpfs(Tmpfs),
    /// A mount.
    Mount(Box<Mount>),
}

/// A mount over four replicas and four clouds.
#[derive(Debug)]
pub struct Mount {
    /// The cluster of its volume.
    pub cluster: Cluster,
    point: PathBuf,
    process: Option<Pid>,
    /// How often it was killed.
    pub kills: u32,
    /// How often it was mounted.
    pub mounts: u32,
}

impl Place {
    /// The directory that contains everything.
    #[must_use]
    pub fn root(&self) -> &Path {
        match self {
            Self::Tmpfs(tmpfs) => tmpfs.path(),
            Self::Mount(mount) => &mount.point,
        }
    }

    /// Unmounts and mounts again.
    ///
    /// # Panics
    /// If that fails.
    pub fn remount(&mut self) {
        if let Self::Mount(mount) = self {
            mount.unmount();
            mount.mount();
        }
    }

    /// Kills the process behind the mount.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self) {
        if let Self::Mount(mount) = self {
            kill_mount(mount.process.take().expect("it is mounted"), &mount.point);
            mount.kills += 1;
        }
    }

    /// Mounts after a kill.
    ///
    /// # Panics
    /// If that fails.
    pub fn mount_again(&mut self) {
        if let Self::Mount(mount) = self {
            mount.mount();
        }
    }
}

impl Mount {
    /// Mounts the volume of this cluster, whose replicas run.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        require_fuse();
        let point = cluster.mount_point();
        let mut mount = Self {
            cluster,
            point,
            process: None,
            kills: 0,
            mounts: 0,
        };
        mount.mount();
        mount
    }

    /// The mount point.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    fn mount(&mut self) {
        self.process = Some(mount_in_background(&self.cluster, &self.point, &[]));
        self.mounts += 1;
    }

    /// Unmounts; everything is on the clouds then.
    ///
    /// # Panics
    /// If that fails.
    pub fn unmount(&mut self) {
        if self.process.take().is_some() {
            self.cluster.quorumfs().args(["umount"]).run().ok();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A failed run leaves nothing mounted.
        if let Some(process) = self.process.take() {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            let _ = unmount(&self.point, UnmountFlags::DETACH);
        }
    }
}
