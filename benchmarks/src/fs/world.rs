//! The measured cluster, and the mounts to compare it with.

use super::WorkloadPlaces;
use super::null::NullMounted;
use super::program::{Program, ServingProcess};
use crate::arguments::Place;
use crate::failure::{BenchFailure, BenchResult, failed};
use quorumfs_backends::loopback::free_addresses;
use quorumfs_fuse::MountConfig;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// How many replicas there are, and clouds.
const REPLICAS: usize = 4;
const CLOUDS: usize = 4;
/// How long the mount is left idle, to measure its cost.
const IDLE_FOR: Duration = Duration::from_secs(5);
/// Before that: completion and heartbeats of the workloads end.
const SETTLE_FOR: Duration = Duration::from_secs(5);

/// A cluster with its mount, and a null file system.
pub(super) struct MountedCluster {
    /// Removed when this is dropped.
    directory: tempfile::TempDir,
    program: Program,
    replicas: Vec<ServingProcess>,
    gateway: Option<ServingProcess>,
    null: Option<NullMounted>,
}

/// A command line, from words and paths.
fn words(words: &[&dyn AsRef<OsStr>]) -> Vec<OsString> {
    words.iter().map(|it| it.as_ref().to_os_string()).collect()
}

impl MountedCluster {
    /// Makes everything in a new directory. The disk cache has space for a large file of `size_mib`
    /// MiB in all rounds.
    pub(super) fn start(place: &Place, size_mib: u64) -> BenchResult<Self> {
        let mut world = Self {
            directory: place.make()?,
            program: Program::find()?,
            replicas: Vec::new(),
            gateway: None,
            null: None,
        };
        match world.fill(size_mib) {
            Ok(()) => Ok(world),
            Err(failure) => {
                let _ = world.stop();
                Err(failure)
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes four replicas and a volume over four directories, and starts and mounts them.
    fn fill(&mut self, size_mib: u64) -> BenchResult {
        let places = self.places();
        for path in [&places.ours, &places.null, &places.local] {
            fs::create_dir(path).map_err(|error| BenchFailure::file("create", path, &error))?;
        }
        let state = &places.state;
        let addresses = free_addresses(REPLICAS);
        let addresses = addresses.map_err(|error| failed("find free ports", &error))?;
        let replicas: Vec<PathBuf> = (0..REPLICAS)
            .map(|number| self.path(&format!("replica-{number}")))
            .collect();
        let mut create = words(&[&"volume", &"create", &"--state", state]);
        for (replica, address) in replicas.iter().zip(addresses) {
            let address = address.to_string();
            let init: [&dyn AsRef<OsStr>; 7] = [
                &"replica",
                &"init",
                &"--quiet",
                &"--state",
                replica,
                &"--listen",
                &address,
            ];
            let identity = self.program.run(&words(&init))?;
            create.extend(words(&[&"--replica", &identity.trim()]));
        }
        for number in 0..CLOUDS {
            let cloud = self.path(&format!("cloud-{number}"));
            fs::create_dir(&cloud).map_err(|error| BenchFailure::file("create", &cloud, &error))?;
            let cloud = format!("cloud-{number}={}", cloud.display());
            create.extend(words(&[&"--cloud", &cloud]));
        }
        self.program.run(&create)?;
        configure(&state.join("quorumfs.toml"), size_mib)?;
        let genesis = state.join("volume.genesis");
        for replica in &replicas {
            let log = replica.join("log");
            let run: [&dyn AsRef<OsStr>; 8] = [
                &"replica",
                &"run",
                &"--state",
                replica,
                &"--genesis",
                &genesis,
                &"--log-file",
                &log,
            ];
            self.replicas.push(self.program.serve(&words(&run))?);
        }
        let log = state.join("mount.log");
        let mount: [&dyn AsRef<OsStr>; 6] = [
            &"mount",
            &places.ours,
            &"--state",
            state,
            &"--log-file",
            &log,
        ];
        self.gateway = Some(self.program.serve(&words(&mount))?);
        self.null = Some(NullMounted::mount(&MountConfig::new(places.null.clone()))?);
        Ok(())
    }

    /// The directories of the workloads.
    pub(super) fn places(&self) -> WorkloadPlaces {
        WorkloadPlaces {
            ours: self.path("mnt"),
            null: self.path("null"),
            local: self.path("local"),
            state: self.path("volume"),
            program: self.program.clone(),
        }
    }

    /// Stops and unmounts everything, and removes the directory.
    pub(super) fn stop(mut self) -> BenchResult {
        let null = self.null.take().map_or(Ok(()), NullMounted::unmount);
        // The mount is first: it stores what waits.
        let services = self
            .gateway
            .take()
            .into_iter()
            .chain(self.replicas.drain(..));
        services.map(ServingProcess::stop).fold(null, Result::and)
    }

    /// The part of a core that the idle gateway uses, in percent.
    pub(super) async fn idle_percent(&self) -> BenchResult<f64> {
        let gateway = self.gateway.as_ref();
        let pid = gateway.map(ServingProcess::pid);
        let pid = pid.ok_or_else(|| BenchFailure::new("the gateway does not run"))?;
        tokio::time::sleep(SETTLE_FOR).await;
        let before = processor_seconds(pid)?;
        tokio::time::sleep(IDLE_FOR).await;
        let used = processor_seconds(pid)? - before;
        Ok(100.0 * used / IDLE_FOR.as_secs_f64())
    }
}

/// Sets the tier, and the size of the disk cache.
fn configure(path: &Path, size_mib: u64) -> BenchResult {
    let text =
        fs::read_to_string(path).map_err(|error| BenchFailure::file("read", path, &error))?;
    let cannot = |error: &dyn std::fmt::Display| failed("change the volume's configuration", error);
    let mut all: Table = text.parse().map_err(|error| cannot(&error))?;
    let size_mib = u32::try_from(size_mib * 8).unwrap_or(u32::MAX).max(1024);
    let cache = Table::from_iter([
        ("size_mib".to_owned(), Value::from(i64::from(size_mib))),
        ("free_space_floor_mib".to_owned(), Value::from(0)),
    ]);
    all.insert("cache".to_owned(), cache.into());
    let mount = Table::from_iter([("tier".to_owned(), Value::from("local"))]);
    all.insert("mount".to_owned(), mount.into());
    let text = toml::to_string(&all).map_err(|error| cannot(&error))?;
    fs::write(path, text).map_err(|error| BenchFailure::file("write", path, &error))
}

/// Processor time of a process in seconds, threads that ended included, to a hundredth.
fn processor_seconds(pid: u32) -> BenchResult<f64> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text =
        fs::read_to_string(&path).map_err(|error| BenchFailure::file("read", &path, &error))?;
    // The name, which may hold any bytes, ends at the last bracket; the processor time is eleven
    // fields on.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Option<u64> = ticks.map(|it| it.parse::<u64>().ok()).sum();
    let ticks = ticks.ok_or_else(|| failed("read the gateway's statistics", &"bad format"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
