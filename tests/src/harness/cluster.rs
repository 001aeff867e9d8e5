//! A cluster that is set up by hand as an operator does: `replica init`, `volume create`, `replica
//! run`.

use super::clock::SteppedClock;
use super::command::Quorumfs;
use super::mounted::end_mounts_below;
use super::running::{Reaped, terminate};
use quorumfs_backends::loopback::{free_address, free_addresses};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The number of replicas and the number of clouds.
const FOUR: usize = 4;
const FLUSHED_WITHIN: Duration = Duration::from_secs(60);

/// Four replicas' directories and a volume over four clouds; the replicas run once started.
#[derive(Debug)]
pub struct Cluster {
    directory: tempfile::TempDir,
    /// The addresses that the replicas listen on, by number.
    pub addresses: Vec<SocketAddr>,
    /// The replicas' arguments of `volume create`, by number: `KEY@ADDRESS`.
    pub replicas: Vec<String>,
    running: BTreeMap<usize, Reaped>,
    /// The processes in whose network namespaces the replicas run, if they are not this one's.
    networks: Vec<u32>,
}

impl Cluster {
    /// Prepares the replicas and creates the volume; nothing runs yet.
    ///
    /// # Panics
    /// If a command fails.
    #[must_use]
    #[track_caller]
    pub fn prepare() -> Self {
        Self::prepare_with(|cluster| {
            let clouds = cluster.directory().join("clouds");
            cluster.create(&cluster.volume(), &clouds)
        })
    }

    /// The same, with a volume that `create` creates.
    ///
    /// # Panics
    /// If a command fails.
    #[must_use]
    #[track_caller]
    pub fn prepare_with(create: impl FnOnce(&Self) -> Quorumfs) -> Self {
        let addresses = free_addresses(FOUR).unwrap();
        Self::prepare_over(addresses, Vec::new(), create)
    }

    /// Prepares four replicas at these addresses, each in the network namespace of a process, and
    /// creates a volume over directories, with these options of `volume create`; nothing runs yet.
    ///
    /// # Panics
    /// If a command fails.
    #[must_use]
    #[track_caller]
    pub fn prepare_at(places: Vec<(SocketAddr, u32)>, options: &[&str]) -> Self {
        let (addresses, networks) = places.into_iter().unzip();
        Self::prepare_over(addresses, networks, |cluster| {
            let clouds = cluster.directory().join("clouds");
            let create = cluster.create(&cluster.volume(), &clouds);
            create.args(options)
        })
    }

    #[track_caller]
    fn prepare_over(
        addresses: Vec<SocketAddr>,
        networks: Vec<u32>,
        create: impl FnOnce(&Self) -> Quorumfs,
    ) -> Self {
        let directory = tempfile::Builder::new().prefix("qfs").tempdir().unwrap();
        let mut cluster = Self {
            directory,
            addresses,
            replicas: Vec::new(),
            running: BTreeMap::new(),
            networks,
        };
        for (number, address) in cluster.addresses.clone().into_iter().enumerate() {
            cluster.init(number, address);
        }
        create(&cluster).run().ok();
        // Reads have to come from the clouds, unless a test configures a disk cache.
        cluster.configure("[cache]\nsize_mib = 0\n");
        cluster
    }

    /// Appends to the volume's configuration, in TOML.
    ///
    /// # Panics
    /// If it cannot be written.
    #[track_caller]
    pub fn configure(&self, more: &str) {
        let path = self.volume().join("quorumfs.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}\n{more}")).unwrap();
    }

    /// Sets the tier of the volume's mounts, which is `clouds` by default.
    ///
    /// # Panics
    /// If the configuration is not as `volume create` writes it.
    #[track_caller]
    pub fn set_tier(&self, tier: &str) {
        let path = self.volume().join("quorumfs.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("[mount]\n"));
        let section = format!("[mount]\ntier = \"{tier}\"\n");
        std::fs::write(&path, text.replace("[mount]\n", &section)).unwrap();
    }

    /// `volume create` with these replicas and four clouds below `clouds`.
    #[must_use]
    pub fn create(&self, state: &Path, clouds: &Path) -> Quorumfs {
        let clouds = (0..FOUR).map(|index| {
            let name = name_of(index);
            format!("{name}={}", clouds.join(name).display())
        });
        self.create_over(state, &clouds.collect::<Vec<_>>())
    }

    /// `volume create` with these replicas and clouds, each `NAME=LOCATION`.
    #[must_use]
    pub fn create_over(&self, state: &Path, clouds: &[String]) -> Quorumfs {
        let mut create = Quorumfs::on(state).args(["volume", "create"]);
        for replica in &self.replicas {
            create = create.args(["--replica", replica]);
        }
        for cloud in clouds {
            create = create.args(["--cloud", cloud]);
        }
        create
    }

    /// Starts the replicas and waits until each reports that it is ready.
    ///
    /// # Panics
    /// If one does not start.
    #[track_caller]
    pub fn start(&mut self) {
        self.start_some(0..FOUR);
    }

    /// Starts some of the replicas.
    ///
    /// # Panics
    /// If one does not start.
    #[track_caller]
    pub fn start_some(&mut self, numbers: Range<usize>) {
        for number in numbers {
            self.start_with(number, &[]);
        }
    }

    /// Starts one replica with additional options.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn start_with(&mut self, number: usize, options: &[&str]) {
        self.start_as(number, self.run_replica(number).args(options).command());
    }

    /// Starts one replica with a clock of its own.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn start_with_clock(&mut self, number: usize, clock: &SteppedClock) {
        let run = clock.shown_to(self.run_replica(number));
        self.start_as(number, run.command());
    }

    fn run_replica(&self, number: usize) -> Quorumfs {
        let run = Quorumfs::on(&self.replica(number))
            .args(["replica", "run", "--supervised", "--genesis"])
            .args([self.volume().join("volume.genesis")]);
        match self.networks.get(number) {
            Some(network) => run.in_network_of(*network),
            None => run,
        }
    }

    /// Starts another program as a replica; it reports that it is ready as the usual one does.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn start_as(&mut self, number: usize, mut command: Command) {
        let log = std::fs::File::create(self.log(number)).unwrap();
        // Its input ends with this process, however that ends, and then it stops.
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = Reaped(command.spawn().unwrap());
        let mut line = String::new();
        let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let log = std::fs::read_to_string(self.log(number)).unwrap_or_default();
        assert!(line.contains("\"type\":\"ready\""), "{line}\n{log}");
        self.running.insert(number, child);
    }

    /// The last sequence that any replica has executed.
    ///
    /// # Panics
    /// If no replica reports its status.
    #[track_caller]
    pub fn committed(&self) -> u64 {
        let replicas = self.quorumfs().run_with(["status"]).records("replica");
        let committed = replicas.iter().map(|it| number(it, "committed")).max();
        committed.unwrap()
    }

    /// Waits until everything committed up to `sequence` is in every replica's database too, which
    /// trails by up to a checkpoint.
    ///
    /// # Panics
    /// If that takes more than a minute.
    #[track_caller]
    pub fn flush(&self, sequence: u64) {
        super::eventually("everything is flushed", FLUSHED_WITHIN, || {
            let replicas = self.quorumfs().run_with(["status"]).records("replica");
            let mut durable = replicas.iter().map(|it| number(it, "durable"));
            replicas.len() == FOUR && durable.all(|durable| durable >= sequence)
        });
    }

    /// Prepares a replica that joins later; returns its number, with which it is started.
    ///
    /// # Panics
    /// If the command fails.
    #[track_caller]
    pub fn prepare_another(&mut self) -> usize {
        let number = self.replicas.len();
        let address = free_address().unwrap();
        self.init(number, address);
        number
    }

    /// `KEY@ADDRESS:PORT` of a replica, as commands accept it.
    ///
    /// # Panics
    /// If there is no replica of this number.
    #[must_use]
    pub fn replica_argument(&self, number: usize) -> &str {
        &self.replicas[number]
    }

    #[track_caller]
    fn init(&mut self, number: usize, address: SocketAddr) {
        let listen = address.to_string();
        let init = ["replica", "init", "--listen", &listen];
        let made = Quorumfs::on(&self.replica(number)).run_with(init).ok();
        let key = made.records("replica")[0]["key"]
            .as_str()
            .unwrap()
            .to_string();
        self.replicas.push(format!("{key}@{listen}"));
    }

    /// Stops one replica as an operator does.
    ///
    /// # Panics
    /// If it does not run, or does not stop successfully.
    #[track_caller]
    pub fn stop_one(&mut self, number: usize) {
        let mut replica = self.running.remove(&number).expect("it runs");
        let status = terminate(&mut replica).expect("a replica does not stop");
        assert!(status.success(), "a replica stopped with {status}");
    }

    /// Kills one replica, which keeps only what it has synced.
    ///
    /// # Panics
    /// If it does not run.
    #[track_caller]
    pub fn kill_one(&mut self, number: usize) {
        let mut replica = self.running.remove(&number).expect("it runs");
        replica.0.kill().unwrap();
        replica.0.wait().unwrap();
    }

    /// Stops the replicas as an operator does, so that their whole state is on their disks.
    ///
    /// # Panics
    /// If one does not stop successfully.
    #[track_caller]
    pub fn stop(&mut self) {
        for mut replica in std::mem::take(&mut self.running).into_values() {
            let status = terminate(&mut replica).expect("a replica does not stop");
            assert!(status.success(), "a replica stopped with {status}");
        }
    }

    /// The process ids of the replicas that run.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.running.values().map(|replica| replica.0.id())
    }

    /// The directory of everything that belongs to the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The state directory of the volume.
    #[must_use]
    pub fn volume(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// A replica's directory.
    #[must_use]
    pub fn replica(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("replica-{number}"))
    }

    /// A cloud's directory.
    #[must_use]
    pub fn cloud(&self, index: usize) -> PathBuf {
        self.directory.path().join("clouds").join(name_of(index))
    }

    /// The path of a replica's log.
    #[must_use]
    pub fn log(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("replica-{number}.log"))
    }

    /// An empty directory to mount on.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn mount_point(&self) -> PathBuf {
        let point = self.directory.path().join("mnt");
        std::fs::create_dir_all(&point).unwrap();
        point
    }

    /// `quorumfs --json --state …` on the volume.
    #[must_use]
    pub fn quorumfs(&self) -> Quorumfs {
        Quorumfs::on(&self.volume())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Only what a test has left: it unmounts what it has mounted.
        end_mounts_below(self.directory.path());
    }
}

fn name_of(index: usize) -> &'static str {
    ["a", "b", "c", "d"][index]
}

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_default()
}
