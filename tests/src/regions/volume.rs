//! A volume whose replicas and mounts are far apart: real processes, each at an endpoint of the
//! network.
//!
//! The plan of the network says what there is: an endpoint `replica-N` is a replica, and
//! `mount-PLACE` a mount. The clouds are directories of this machine, and all mounts share the
//! volume.
//!
//! Invariants: when this is dropped nothing of it is left, however bad its links are then: they are
//! made good first, so that the mounts end in order, and each replica is stopped by its own process
//! id. If this process is killed, their inputs end, and they stop by themselves.

use super::Regions;
use super::links::PlaceLink;
use super::measure::Measuring;
use super::plan::RegionsPlan;
use crate::harness::{Cluster, Quorumfs, Reaped, require_fuse};
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Every replica has an address of its own.
const PORT: u16 = 7000;
/// How the endpoints of replicas and mounts begin.
const REPLICA: &str = "replica-";
const MOUNT: &str = "mount-";
/// Where a mount logs, in its state directory.
const LOG: &str = "mount.log";

/// The name of a replica's endpoint.
#[must_use]
pub fn replica_name(number: usize) -> String {
    format!("{REPLICA}{number}")
}

/// The name of a mount's endpoint.
#[must_use]
pub fn mount_name(place: &str) -> String {
    format!("{MOUNT}{place}")
}

/// A volume whose replicas and mounts are far apart.
#[derive(Debug)]
pub struct FarVolume {
    regions: Regions,
    cluster: Cluster,
    mounts: Vec<FarMount>,
}

#[derive(Debug)]
struct FarMount {
    place: String,
    state: PathBuf,
    point: PathBuf,
    _process: Reaped,
}

impl FarVolume {
    /// Starts what a measurement needs.
    ///
    /// # Errors
    /// If the network cannot be made.
    ///
    /// # Panics
    /// If a command fails.
    pub fn start(measuring: &Measuring) -> io::Result<Self> {
        Self::start_in(measuring.plan(), &measuring.authentication)
    }

    /// Starts the network, the replicas and the mounts of a plan. Votes are authenticated in this
    /// mode.
    ///
    /// # Errors
    /// If the network cannot be made.
    ///
    /// # Panics
    /// If a command fails.
    pub fn start_in(plan: RegionsPlan, authentication: &str) -> io::Result<Self> {
        require_fuse();
        let regions = Regions::start(plan)?;
        let endpoints = || regions.plan().endpoints.iter();
        let names = endpoints().filter(|it| it.name.starts_with(REPLICA));
        let at = names.map(|it| {
            let address = SocketAddr::new(regions.address(&it.name), PORT);
            (address, regions.process(&it.name))
        });
        let mode = ["--authentication", authentication];
        let mut cluster = Cluster::prepare_at(at.collect(), &mode);
        cluster.start();
        let places = endpoints().filter_map(|it| it.name.strip_prefix(MOUNT));
        let places: Vec<String> = places.map(str::to_owned).collect();
        let mut volume = Self {
            regions,
            cluster,
            mounts: Vec::new(),
        };
        for place in &places {
            volume.mount(place)?;
        }
        Ok(volume)
    }

    fn mount(&mut self, place: &str) -> io::Result<()> {
        let directory = self.cluster.directory();
        let below = |kind: &str| directory.join(format!("{kind}-{place}"));
        let (state, point) = (below("state"), below("mnt"));
        let kit = self.cluster.volume().join("recovery-kit.txt");
        let recover = self.at(place, &state);
        let recover = recover.args(["volume", "recover", "--kit"]);
        recover.args([kit]).run().ok();
        let _ = fs::create_dir(&point);
        let run = self.at(place, &state).args(["mount", "--supervised"]);
        let mut command = run.args([&point]).command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(state.join(LOG))?);
        let mut process = Reaped(command.spawn()?);
        let stdout = process.0.stdout.take().map(BufReader::new);
        // Even if it was not ready in time: it is unmounted in the end.
        self.mounts.push(FarMount {
            place: place.to_owned(),
            state,
            point,
            _process: process,
        });
        let mut line = String::new();
        if let Some(mut stdout) = stdout {
            stdout.read_line(&mut line)?;
        }
        match line.contains("\"type\":\"ready\"") {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "the mount in {place} is not ready: {line}"
            ))),
        }
    }

    /// A run of the program on a state directory, at a mount's place.
    #[must_use]
    pub fn at(&self, place: &str, state: &Path) -> Quorumfs {
        self.regions.holds(&mount_name(place), Quorumfs::on(state))
    }

    /// The network.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The replicas.
    #[must_use]
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The bytes that the volume begins with.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn genesis(&self) -> io::Result<Vec<u8>> {
        fs::read(self.cluster.volume().join("volume.genesis"))
    }

    /// The places of the mounts, and their mount points.
    pub fn mounts(&self) -> impl Iterator<Item = (&str, &Path)> {
        let mounts = self.mounts.iter();
        mounts.map(|it| (it.place.as_str(), it.point.as_path()))
    }

    /// The same on the state directory of the mount there.
    ///
    /// # Panics
    /// If there is no mount.
    #[must_use]
    #[track_caller]
    pub fn run_at(&self, place: &str) -> Quorumfs {
        let mount = self.mounts.iter().find(|it| it.place == place);
        let state = mount.map(|mount| mount.state.clone());
        let state = state.unwrap_or_else(|| panic!("there is no mount in {place}"));
        self.at(place, &state)
    }

    /// The mount point of a place's mount.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    #[track_caller]
    pub fn point(&self, place: &str) -> &Path {
        let mount = self.mounts.iter().find(|it| it.place == place);
        mount.map_or_else(
            || panic!("there is no mount in {place}"),
            |mount| mount.point.as_path(),
        )
    }

    /// How many queries each mount had answered unordered, and how many had to be ordered.
    ///
    /// # Errors
    /// If a mount does not say.
    pub fn queries(&self) -> anyhow::Result<BTreeMap<String, (u64, u64)>> {
        let mut counted = BTreeMap::new();
        for (place, _) in self.mounts() {
            let status = self.run_at(place).run_with(["status"]);
            let mount = status.records("mount").into_iter().next();
            let mount = mount.with_context(|| format!("the mount in {place} does not answer"))?;
            let count = |key: &str| {
                let count = mount.get(key).and_then(serde_json::Value::as_u64);
                count.with_context(|| format!("the status of the mount in {place} has no {key}"))
            };
            let both = (count("queries_unordered")?, count("queries_ordered")?);
            counted.insert(place.to_owned(), both);
        }
        Ok(counted)
    }

    /// Copies the logs of the replicas and mounts to a directory, which is made.
    ///
    /// # Errors
    /// If that fails.
    pub fn copy_logs(&self, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        for number in 0..self.cluster.addresses.len() {
            let name = format!("{}.log", replica_name(number));
            fs::copy(self.cluster.log(number), to.join(name))?;
        }
        for mount in &self.mounts {
            let name = format!("{}.log", mount_name(&mount.place));
            fs::copy(mount.state.join(LOG), to.join(name))?;
        }
        Ok(())
    }
}

impl Drop for FarVolume {
    fn drop(&mut self) {
        self.regions.change_every(|it| *it = PlaceLink::of(0.0));
        for mount in &self.mounts {
            let umount = self.at(&mount.place, &mount.state).args(["umount"]);
            // It panics if the command does not end, and this may be a panic already.
            let _ = std::thread::spawn(move || umount.run()).join();
        }
    }
}
