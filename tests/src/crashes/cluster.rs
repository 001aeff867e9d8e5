//! The replicas' processes: started, killed, damaged, queried for their status.

use super::replica::Setting;
use anyhow::{Context as _, anyhow, bail, ensure};
use quorumfs_bft::identity::{ClusterId, Incarnation, PublicKey, ReplicaId};
use quorumfs_bft::journal::framing::{FRAME_HEADER_BYTES, PAGE_BYTES};
use quorumfs_bft::membership::Command;
use quorumfs_bft::metrics::{ReplicaStatus, Voting};
use quorumfs_bft_runtime::client::{Client, ClientConfig, ClientError, status_of};
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaServer, first_incarnation};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

/// Ports are taken from this range. It is below the kernel's range for outgoing connections, which
/// could otherwise take a dead replica's port.
const PORTS: std::ops::Range<u16> = 12_000..31_000;
/// A replica starts, or has caught up, within this time; it takes a second or two.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A replica and, while it runs, its process, which is killed when this value is dropped.
struct Replica {
    setting: Setting,
    file: PathBuf,
    process: Option<Child>,
}

impl Replica {
    fn key(&self) -> anyhow::Result<PublicKey> {
        Ok(NodeKey::load(&self.setting.key)?.public())
    }
}

/// Replicas on real disks, by number; a new replica may take the place of another.
pub struct Cluster {
    /// The program that is a replica when it is called with `replica FILE`.
    program: PathBuf,
    replicas: Vec<Replica>,
    operator: ClientConfig,
    directory: PathBuf,
    /// How many have joined.
    joined: usize,
    administrator: Arc<NodeKey>,
}

impl Cluster {
    /// Prepares the disks and keys of a cluster of (u, r) below `directory`; nothing runs yet.
    ///
    /// # Errors
    /// If the directory cannot be written or there are no ports.
    pub fn prepare(program: &Path, directory: &Path, up: u16, right: u16) -> anyhow::Result<Self> {
        let count = 2 * up + right + 1;
        let cluster = *b"crashes\0\0\0\0\0\0\0\0\0";
        let administrator = Arc::new(NodeKey::generate()?);
        let (mut members, mut files) = (Vec::new(), Vec::new());
        for (number, address) in (0..count).zip(addresses(count.into())?) {
            let key = NodeKey::generate()?;
            let file = directory.join(format!("{number}.key"));
            key.store(&file)?;
            let disk = directory.join(format!("{number}"));
            ReplicaServer::initialise_as(&disk, first_incarnation(&key.public()))?;
            members.push((key.public().0, address));
            files.push((number, address, file, disk));
        }
        let mut replicas = Vec::new();
        for (id, listen, key, disk) in files {
            let setting = Setting {
                id: Some(id),
                cluster,
                up,
                right,
                members: members.clone(),
                administrator: administrator.public().0,
                listen,
                key,
                disk,
                recordings: None,
            };
            let file = directory.join(format!("{id}.json"));
            std::fs::write(&file, serde_json::to_vec(&setting)?)?;
            replicas.push(Replica {
                setting,
                file,
                process: None,
            });
        }
        let any = replicas.first().context("there are no replicas")?;
        let (model, all) = (any.setting.fault_model()?, any.setting.replicas());
        let key = Arc::new(NodeKey::generate()?);
        let mut operator = ClientConfig::new(ClusterId(cluster), model, all, key);
        operator.status_deadline = Duration::from_secs(1);
        operator.deadline = PATIENCE;
        operator.connect_deadline = PATIENCE;
        Ok(Self {
            program: program.to_owned(),
            replicas,
            operator,
            directory: directory.to_owned(),
            joined: 0,
            administrator,
        })
    }

    /// How many replicas there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.replicas.len()
    }

    /// Whether there are no replicas.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// A client's configuration; each has a principal of its own.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn client(&self) -> anyhow::Result<ClientConfig> {
        let mut config = self.operator.clone();
        config.principal = Arc::new(NodeKey::generate()?);
        Ok(config)
    }

    fn replica(&mut self, number: usize) -> anyhow::Result<&mut Replica> {
        let found = self.replicas.get_mut(number);
        found.with_context(|| format!("there is no replica {number}"))
    }

    /// Has every replica that is started from now on record its events in `directory`.
    ///
    /// # Errors
    /// If the directory with the replicas cannot be written.
    pub fn record(&mut self, directory: &Path) -> anyhow::Result<()> {
        for replica in &mut self.replicas {
            replica.setting.recordings = Some(directory.to_owned());
            std::fs::write(&replica.file, serde_json::to_vec(&replica.setting)?)?;
        }
        Ok(())
    }

    /// Starts a replica's process; returns when it has recovered and listens.
    ///
    /// # Errors
    /// If it does not start and listen in time.
    pub async fn start(&mut self, number: usize) -> anyhow::Result<()> {
        let program = self.program.clone();
        let replica = self.replica(number)?;
        ensure!(replica.process.is_none(), "replica {number} runs already");
        let mut process = tokio::process::Command::new(program)
            .arg("replica")
            .arg(&replica.file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().context("no pipe")?;
        let mut lines = BufReader::new(output).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await??;
        ensure!(line.as_deref() == Some("ready"), "replica {number} ended");
        replica.process = Some(process);
        Ok(())
    }

    /// Starts all replicas that do not run.
    ///
    /// # Errors
    /// If one does not start.
    pub async fn start_all(&mut self) -> anyhow::Result<()> {
        for number in 0..self.len() {
            if self.replica(number)?.process.is_none() {
                self.start(number).await?;
            }
        }
        Ok(())
    }

    /// Kills a replica's process, as `kill -9` does, and waits until it is gone.
    ///
    /// # Errors
    /// If it does not run.
    pub async fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let process = self.replica(number)?.process.take();
        let mut process = process.with_context(|| format!("replica {number} does not run"))?;
        Ok(process.kill().await?)
    }

    /// Kills all of them, one right after the other.
    ///
    /// # Errors
    /// If one does not run.
    pub async fn kill_all(&mut self) -> anyhow::Result<()> {
        for number in 0..self.len() {
            self.kill(number).await?;
        }
        Ok(())
    }

    /// Flips a bit of the first record in a stopped replica's journal.
    ///
    /// # Errors
    /// If the journal is empty.
    pub fn damage_journal(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.replica(number)?;
        ensure!(replica.process.is_none(), "replica {number} runs");
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(replica.setting.disk.join("journal"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "journal") {
                segments.push(path);
            }
        }
        segments.sort();
        for path in segments {
            let mut bytes = std::fs::read(&path)?;
            // After the page of the segment's header, and the record's own header.
            if let Some(byte) = bytes.get_mut(PAGE_BYTES + FRAME_HEADER_BYTES) {
                *byte ^= 4;
                return Ok(std::fs::write(path, bytes)?);
            }
        }
        bail!("replica {number} has nothing in its journal")
    }

    /// Removes a stopped replica's disk and initialises a new one.
    ///
    /// # Errors
    /// If that fails, or the replica runs.
    pub fn wipe(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.replica(number)?;
        ensure!(replica.process.is_none(), "replica {number} runs");
        std::fs::remove_dir_all(&replica.setting.disk)?;
        ReplicaServer::initialise(&replica.setting.disk)?;
        Ok(())
    }

    /// Copies a stopped replica's disk; [`Cluster::put_back`] restores the copy.
    ///
    /// # Errors
    /// If that fails, or the replica runs.
    pub fn copy(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.replica(number)?;
        ensure!(replica.process.is_none(), "replica {number} runs");
        let copy = replica.setting.disk.with_extension("copy");
        copy_directory(&replica.setting.disk, &copy)
    }

    /// Restores a stopped replica's disk from its copy.
    ///
    /// # Errors
    /// If that fails, there is no copy, or the replica runs.
    pub fn put_back(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.replica(number)?;
        ensure!(replica.process.is_none(), "replica {number} runs");
        let disk = &replica.setting.disk;
        std::fs::remove_dir_all(disk)?;
        Ok(std::fs::rename(disk.with_extension("copy"), disk)?)
    }

    /// Waits until a replica has noticed that its disk was rolled back, or has taken over a state
    /// in which everything had been decided that it might have forgotten. Returns whether it
    /// noticed.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn noticed_rollback(&self, number: usize) -> anyhow::Result<bool> {
        let id = ReplicaId(u16::try_from(number)?);
        let began = Instant::now();
        loop {
            let statuses = self.statuses().await?;
            let own = statuses.iter().find(|it| it.replica == id);
            if own.is_some_and(|it| it.counters.rollbacks_noticed > 0) {
                return Ok(true);
            }
            let overtaken = |it: &ReplicaStatus| {
                it.counters.transfers_finished > 0 && it.voting == Voting::Voting
            };
            if own.is_some_and(overtaken) {
                return Ok(false);
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "replica {number} accepts its old disk; the replicas report: {statuses:#?}"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Replaces a replica by a new one. The old one is switched off once the membership epoch that
    /// begins with the change has its first stable checkpoint. Returns the time until the new one
    /// held the state, and until it voted.
    ///
    /// # Errors
    /// If a step fails or takes too long.
    pub async fn swap(&mut self, number: usize) -> anyhow::Result<(Duration, Duration)> {
        let administrator = self.administrator_client().await?;
        let began = Instant::now();
        let (new, incarnation) = self.prepare_replica(number)?;
        let (into, address) = (new.key()?, new.setting.listen.to_string());
        let mut old = std::mem::replace(self.replica(number)?, new);
        let out = old.key()?;
        self.start(number).await?;
        let admit = Command::Admit {
            key: into,
            incarnation,
            address: address.into(),
        };
        administer_until_granted(&administrator, admit).await?;
        administer_until_granted(&administrator, Command::Replace { out, into }).await?;
        let ready = began.elapsed();
        self.operator.known = Some((*administrator.membership()).clone());
        self.wait_until_votes(number).await?;
        let voted = began.elapsed();
        while !self.has_stable_checkpoint(number).await? {
            ensure!(
                began.elapsed() < PATIENCE,
                "no checkpoint of the new membership epoch"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let process = old.process.take();
        process.context("the old one does not run")?.kill().await?;
        administer_until_granted(&administrator, Command::Dismiss { key: out }).await?;
        self.operator.known = Some((*administrator.membership()).clone());
        administrator.close().await?;
        Ok((ready, voted))
    }

    /// A session of the administrator.
    async fn administrator_client(&self) -> anyhow::Result<Client> {
        let mut config = self.operator.clone();
        config.principal = self.administrator.clone();
        Ok(Client::connect(config).await?)
    }

    /// Prepares the disk and key of a new replica, for this place.
    fn prepare_replica(&mut self, number: usize) -> anyhow::Result<(Replica, Incarnation)> {
        self.joined += 1;
        let name = format!("joined-{}", self.joined);
        let mut setting = self.replica(number)?.setting.clone();
        setting.id = None;
        let listen = addresses(1)?;
        setting.listen = *listen.first().context("no free port")?;
        setting.key = self.directory.join(format!("{name}.key"));
        NodeKey::generate()?.store(&setting.key)?;
        setting.disk = self.directory.join(&name);
        let incarnation = ReplicaServer::initialise(&setting.disk)?;
        let file = self.directory.join(format!("{name}.json"));
        std::fs::write(&file, serde_json::to_vec(&setting)?)?;
        let replica = Replica {
            setting,
            file,
            process: None,
        };
        Ok((replica, incarnation))
    }

    /// Whether a replica's current membership epoch has a stable checkpoint.
    async fn has_stable_checkpoint(&self, number: usize) -> anyhow::Result<bool> {
        let id = ReplicaId(u16::try_from(number)?);
        let statuses = self.statuses().await?;
        let own = statuses.iter().find(|it| it.replica == id);
        Ok(own.is_some_and(|it| it.stable > it.began))
    }

    /// Whether a replica has set a journal aside because it was damaged.
    #[must_use]
    pub fn noticed_damage(&self, number: usize) -> bool {
        let replica = self.replicas.get(number);
        replica.is_some_and(|it| it.setting.disk.join("journal.lost").exists())
    }

    /// The status of each replica that answers.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub async fn statuses(&self) -> anyhow::Result<Vec<ReplicaStatus>> {
        let all = status_of(&self.operator).await?;
        Ok(all
            .into_iter()
            .filter_map(|(_, status)| status.ok())
            .collect())
    }

    /// Waits until a replica has executed everything that any replica had executed at the time of
    /// the call, and is in an active view. Returns its status.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn wait_until_recovered(&self, number: usize) -> anyhow::Result<ReplicaStatus> {
        let id = ReplicaId(u16::try_from(number)?);
        let (began, mut goal) = (Instant::now(), None);
        while began.elapsed() < PATIENCE {
            let statuses = self.statuses().await?;
            let furthest = statuses.iter().map(|it| it.sequence).max();
            let goal = *goal.get_or_insert(furthest);
            let own = statuses.iter().find(|it| it.replica == id);
            if let Some(own) = own.filter(|it| it.active && Some(it.sequence) >= goal) {
                return Ok(own.clone());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(anyhow!(
            "replica {number} has not caught up in {PATIENCE:?}"
        ))
    }

    /// Like [`Cluster::wait_until_recovered`], and waits until the replica votes.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn wait_until_votes(&self, number: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.wait_until_recovered(number).await?.voting != Voting::Voting {
            ensure!(began.elapsed() < PATIENCE, "replica {number} does not vote");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// Repeats a command until it is granted: a learner reports by itself when it holds the state.
async fn administer_until_granted(administrator: &Client, command: Command) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match administrator.administer(command.clone()).await {
            Err(ClientError::CommandRefused { reason, .. }) => {
                ensure!(began.elapsed() < PATIENCE, "{command:?}: {reason}");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            answer => return Ok(answer.map(|_| ())?),
        }
    }
}

fn copy_directory(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type()?.is_dir() {
            true => copy_directory(&from, &to)?,
            false => std::fs::copy(&from, &to).map(|_| ())?,
        }
    }
    Ok(())
}

/// Free loopback addresses.
fn addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let width = usize::from(PORTS.end - PORTS.start);
    let start = std::process::id() as usize * 97 % width;
    let ports = PORTS.cycle().skip(start).take(width);
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
    // Held until all are found, so that none is found twice.
    let held: Vec<TcpListener> = ports.filter_map(bind).take(count).collect();
    ensure!(held.len() == count, "no free ports on loopback");
    let address = |listener: &TcpListener| Ok(listener.local_addr()?);
    held.iter().map(address).collect()
}
