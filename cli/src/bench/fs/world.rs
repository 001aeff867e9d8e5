//! The measured cluster, and the mounts to compare it with.

use super::{WorkloadPlaces, blocking};
use crate::arguments::DemoClouds;
use crate::bench::failed;
use crate::configuration::files::{CONFIGURATION, HEADING};
use crate::configuration::{self, TierSetting, VolumeConfiguration};
use crate::demo::{cluster::DemoCluster, layout::Demo, supervisor::State};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_fuse::{MountConfig, MountError, null::NullMounted};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the mount is left idle, to measure its cost.
const IDLE_FOR: Duration = Duration::from_secs(5);
/// Before that: completion and heartbeats of the workloads end.
const SETTLE_FOR: Duration = Duration::from_secs(5);

/// A cluster with its mount, and a null file system.
pub(super) struct MountedCluster {
    /// Removed when this is dropped.
    directory: tempfile::TempDir,
    demo: Demo,
    cluster: DemoCluster,
    null: Option<NullMounted>,
}

fn refused(error: &MountError) -> Failure {
    Failure::new(Exit::Error, error.to_string())
}

impl MountedCluster {
    /// Makes everything in a new directory, in the given one or where temporary files go. Its disk
    /// cache has space for a large file of `size_mib` MiB in all rounds.
    pub(super) async fn start(base: Option<&Path>, size_mib: u64) -> CommandResult<Self> {
        let base = base.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let directory = tempfile::Builder::new()
            .prefix("quorumfs-bench-")
            .tempdir_in(&base)
            .map_err(|error| Failure::file("create a directory in", &base, &error))?;
        let state = StateDirectory::find(Some(&directory.path().join("demo")), "demo")?;
        let demo = Demo::open(&state, None, Some(DemoClouds::Directories)).await?;
        let path = state.join(CONFIGURATION);
        let mut configuration: VolumeConfiguration = configuration::read(&path, "volume")?;
        configuration.cache.size_mib = u32::try_from(size_mib * 8).unwrap_or(u32::MAX).max(1024);
        configuration.cache.free_space_floor_mib = 0;
        configuration.mount.tier = TierSetting::Local;
        configuration::write(&path, &configuration, HEADING)?;
        let cluster = DemoCluster::new(&demo)?;
        if let Err(failure) = cluster.start().await {
            let _ = cluster.stop().await;
            demo.end().await;
            return Err(failure);
        }
        let mut world = Self {
            directory,
            demo,
            cluster,
            null: None,
        };
        match world.mount_null() {
            Ok(null) => {
                world.null = Some(null);
                Ok(world)
            }
            Err(failure) => {
                let _ = world.stop().await;
                Err(failure)
            }
        }
    }

    fn null_place(&self) -> PathBuf {
        self.directory.path().join("null")
    }

    fn mount_null(&self) -> CommandResult<NullMounted> {
        let place = self.null_place();
        directory::create_private(&place)?;
        directory::create_private(&self.directory.path().join("local"))?;
        NullMounted::mount(&MountConfig::new(place)).map_err(|error| refused(&error))
    }

    /// The directories of the workloads.
    pub(super) fn places(&self) -> WorkloadPlaces {
        WorkloadPlaces {
            ours: self.demo.mount.clone(),
            null: self.null_place(),
            local: self.directory.path().join("local"),
            state: self.demo.state.clone(),
        }
    }

    /// Stops and unmounts everything, and removes the directory.
    pub(super) async fn stop(mut self) -> CommandResult<()> {
        let place = self.null_place();
        let null = match self.null.take() {
            Some(null) => {
                let unmounted = move || null.unmount(&place).map_err(|error| refused(&error));
                blocking(unmounted).await
            }
            None => Ok(()),
        };
        let stopped = self.cluster.stop().await;
        self.demo.end().await;
        stopped.and(null)
    }

    /// The part of a core that the idle gateway uses, in percent.
    pub(super) async fn idle_percent(&self) -> CommandResult<f64> {
        tokio::time::sleep(SETTLE_FOR).await;
        let State::Running { pid } = *self.cluster.gateway().watch().borrow() else {
            return Err(Failure::new(Exit::Error, "the gateway does not run"));
        };
        let before = processor_seconds(pid)?;
        tokio::time::sleep(IDLE_FOR).await;
        let used = processor_seconds(pid)? - before;
        Ok(100.0 * used / IDLE_FOR.as_secs_f64())
    }
}

/// Processor time of a process in seconds, threads that ended included, to a hundredth.
fn processor_seconds(pid: u32) -> CommandResult<f64> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text = fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
    // The name, which may hold any bytes, ends at the last bracket; the processor time is eleven
    // fields on.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Option<u64> = ticks.map(|it| it.parse::<u64>().ok()).sum();
    let ticks = ticks.ok_or_else(|| failed("read the gateway's statistics", &"bad format"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
