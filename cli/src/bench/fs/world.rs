//! The cluster that is measured, and what is mounted beside it.

use super::{Places, blocking};
use crate::arguments::DemoClouds;
use crate::bench::failed;
use crate::commands::volume::{CONFIGURATION, HEADING};
use crate::configuration::{self, TierSetting, VolumeConfiguration};
use crate::demo::{cluster::Cluster, keeper::State, layout::Demo};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_fuse::{MountConfig, MountError, null::NullMounted};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long nothing is done, to see what that costs.
const IDLE_FOR: Duration = Duration::from_secs(5);
/// Before that: completion and heartbeats of what was measured die down.
const SETTLE_FOR: Duration = Duration::from_secs(5);

/// A cluster with its mount, and a null file system.
pub(super) struct World {
    /// Removed when this goes.
    directory: tempfile::TempDir,
    demo: Demo,
    cluster: Cluster,
    null: Option<NullMounted>,
}

fn refused(error: &MountError) -> Failure {
    Failure::new(Exit::Error, error.to_string())
}

impl World {
    /// Makes everything in a new directory, in the one that is named or where temporary files go.
    /// Its disk cache holds what is written of a large file of `size_mib` MiB in all rounds.
    pub(super) async fn start(base: Option<&Path>, size_mib: u64) -> Outcome<Self> {
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
        let cluster = Cluster::new(&demo)?;
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

    fn mount_null(&self) -> Outcome<NullMounted> {
        let place = self.null_place();
        directory::create_private(&place)?;
        directory::create_private(&self.directory.path().join("local"))?;
        NullMounted::mount(&MountConfig::new(place)).map_err(|error| refused(&error))
    }

    /// Where workloads run.
    pub(super) fn places(&self) -> Places {
        Places {
            ours: self.demo.mount.clone(),
            null: self.null_place(),
            local: self.directory.path().join("local"),
            state: self.demo.state.clone(),
        }
    }

    /// Stops and unmounts everything; the directory goes with the last of it.
    pub(super) async fn stop(mut self) -> Outcome<()> {
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

    /// What part of a core the gateway uses while nothing is asked of it, in percent.
    pub(super) async fn idle_percent(&self) -> Outcome<f64> {
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

/// Seconds of processor time that a process has used, threads that ended included, to a hundredth.
fn processor_seconds(pid: u32) -> Outcome<f64> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text = fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
    // The name, which may hold anything, ends at the last bracket; what was used is eleven fields
    // on.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Option<u64> = ticks.map(|it| it.parse::<u64>().ok()).sum();
    let ticks = ticks.ok_or_else(|| failed("look at the gateway", &"strange statistics"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
