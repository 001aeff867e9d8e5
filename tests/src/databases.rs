//! SQLite in a mount of tier `local`, in each of its journal modes, killed and shared.
//!
//! ```text
//!  this process                          client, a process of its own
//!  model ◄── acknowledged transactions ─ BEGIN, changes, COMMIT in the mount, one after the other
//!    │                                      ▲
//!    ├─ kill −9 of the client ──────────────┤
//!    ├─ kill −9 of the mount, mount again ──┘
//!    └─ open, integrity_check, foreign_key_check, compare every row with the model
//! ```
//!
//! What has to hold, with `synchronous = FULL`:
//! * In the modes that promise it (`delete`, `truncate`, `persist`, `wal`) every acknowledged
//!   transaction is there after either kill, plus at most the one after it, and nothing else.
//! * `memory` and `off` keep no journal on disk, so that SQLite itself promises nothing after a
//!   kill: they are compared with the model without a kill.
//! * Several processes exclude one another, and see what the others committed. `off` is not tested
//!   for this: it cannot take back a transaction that waits for a lock.
//! * The mount stays within its memory setting.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod client;
mod database;
mod model;
mod sharing;

pub use client::{Part, Task, work};

use crate::harness::{
    Cluster, OVERHEAD_MIB, drop_caches, kill_mount, mount_in_background, peak_mib, require_fuse,
};
use client::Client;
use database::Database;
use model::Model;
use quorumfs_bft_simulator::random::Random;
use rustix::process::Pid;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The memory setting of the mount.
const MEMORY_MIB: u64 = 256;

/// SQLite's journal modes: how it keeps what it may have to roll back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A file next to the database, removed by each commit.
    Delete,
    /// The same, truncated by each commit.
    Truncate,
    /// The same, with its header zeroed by each commit.
    Persist,
    /// In memory.
    Memory,
    /// A log of pages, with an index in a mapped file that processes share.
    Wal,
    /// No journal.
    Off,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Delete,
        Self::Truncate,
        Self::Persist,
        Self::Memory,
        Self::Wal,
        Self::Off,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Truncate => "truncate",
            Self::Persist => "persist",
            Self::Memory => "memory",
            Self::Wal => "wal",
            Self::Off => "off",
        }
    }

    /// Whether SQLite promises anything after a kill.
    const fn survives(self) -> bool {
        !matches!(self, Self::Memory | Self::Off)
    }
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct DatabasePlan {
    /// A program whose `client` does [`work`].
    pub program: PathBuf,
    /// The modes to run, one after the other.
    pub modes: Vec<Mode>,
    /// Transactions in each.
    pub transactions: u64,
    /// How often the client is killed in each, and how often the mount is.
    pub kills: (u32, u32),
    /// Transactions of each of two processes at one database, in each mode.
    pub shared: u64,
    /// Decides what the transactions are, and when a process is killed.
    pub seed: u64,
}

/// The result of one mode.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseReport {
    /// The mode.
    pub mode: Mode,
    /// Transactions that were acknowledged and are there.
    pub transactions: u64,
    /// How often the client was killed in the middle.
    pub clients_killed: u32,
    /// How often the mount was killed.
    pub mounts_killed: u32,
    /// How often a transaction was there that had not been acknowledged.
    pub unacknowledged: u32,
    /// How often a journal was left behind for the next process that opened the database.
    pub left_behind: u32,
    /// Transactions per second of a lone client, all kills included.
    pub per_second: f64,
    /// Transactions of two concurrent processes.
    pub shared: u64,
    /// How often a third one read meanwhile.
    pub looked: u64,
    /// Peak memory of a mount, in MiB.
    pub mount_mib: u64,
}

struct DatabaseRun {
    cluster: Cluster,
    point: PathBuf,
    mounted: Option<Pid>,
    plan: DatabasePlan,
    random: Random,
}

/// Runs the whole test; calls `report` for each mode.
///
/// # Panics
/// If a check fails.
pub fn run(plan: DatabasePlan, mut report: impl FnMut(&DatabaseReport)) {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.set_tier("local");
    cluster.configure(&format!("[data]\nmemory_mib = {MEMORY_MIB}\n"));
    cluster.start();
    let point = cluster.mount_point();
    let mut run = DatabaseRun {
        mounted: Some(mount_in_background(&cluster, &point, &[])),
        cluster,
        point,
        random: Random::new(plan.seed),
        plan,
    };
    for mode in run.plan.modes.clone() {
        report(&run.mode(mode));
    }
    run.compare_the_clouds();
}

impl DatabaseRun {
    fn path(&self, mode: Mode) -> PathBuf {
        self.point.join(format!("{}.sqlite", mode.name()))
    }

    fn task(&self, mode: Mode) -> Task {
        Task {
            part: Part::Alone,
            database: self.path(mode),
            mode,
            until: self.plan.transactions,
            seed: self.plan.seed,
        }
    }

    /// Runs one mode.
    fn mode(&mut self, mode: Mode) -> DatabaseReport {
        let mut report = DatabaseReport {
            mode,
            transactions: 0,
            clients_killed: 0,
            mounts_killed: 0,
            unacknowledged: 0,
            left_behind: 0,
            per_second: 0.0,
            shared: 0,
            looked: 0,
            mount_mib: 0,
        };
        let mut model = Model::new(self.plan.seed);
        let kills = match mode.survives() {
            true => self.plan.kills,
            false => (0, 0),
        };
        let began = Instant::now();
        for kill in 0..kills.0 + kills.1 {
            // Kills are spread evenly over the remaining transactions; the two kinds alternate
            // while there are both.
            let left = self.plan.transactions - model.done;
            let least = left / u64::from(kills.0 + kills.1 - kill + 1);
            let after = model.done + self.random.between(least / 2, least);
            let the_mount = report.mounts_killed < kills.1
                && (kill % 2 == 1 || report.clients_killed == kills.0);
            self.interrupt(&mut model, after, the_mount, &mut report);
        }
        let client = Client::start(&self.plan.program, &self.task(mode));
        assert_eq!(client.wait(), self.plan.transactions);
        report.per_second = self.plan.transactions as f64 / began.elapsed().as_secs_f64();
        self.compare(mode, &mut model, self.plan.transactions);
        report.transactions = model.done;
        if mode != Mode::Off && self.plan.shared > 0 {
            let shared = self.point.join(format!("{}-shared.sqlite", mode.name()));
            report.looked = sharing::run(&self.plan.program, &shared, mode, self.plan.shared);
            report.shared = 2 * self.plan.shared;
        }
        self.measure(&mut report);
        report
    }

    /// Checks that the mount's peak memory is within its setting.
    fn measure(&self, report: &mut DatabaseReport) {
        let mounted = self.mounted.expect("it is mounted");
        let mount = peak_mib(u32::try_from(mounted.as_raw_pid()).unwrap());
        report.mount_mib = report.mount_mib.max(mount.expect("it is there"));
        assert!(
            report.mount_mib <= MEMORY_MIB + OVERHEAD_MIB,
            "the mount took more memory than it was given: {report:?}"
        );
    }

    /// Lets a client work until `after` transactions, kills it or the mount, and compares.
    fn interrupt(
        &mut self,
        model: &mut Model,
        after: u64,
        the_mount: bool,
        report: &mut DatabaseReport,
    ) {
        let mut client = Client::start(&self.plan.program, &self.task(report.mode));
        while client.acknowledged() < after {
            assert!(!client.has_ended(), "the client gave up");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        if the_mount {
            self.measure(report);
            kill_mount(self.mounted.take().expect("it is mounted"), &self.point);
        }
        // Without its mount the client can do nothing more; acknowledgements that it prints before
        // it notices count.
        let acknowledged = client.kill().max(model.done);
        if the_mount {
            self.mount();
            report.mounts_killed += 1;
        } else {
            report.clients_killed += 1;
        }
        let journal = match report.mode {
            Mode::Wal => "wal",
            _ => "journal",
        };
        let journal = self
            .path(report.mode)
            .with_extension(format!("sqlite-{journal}"));
        report.left_behind += u32::from(journal.metadata().is_ok_and(|it| it.len() > 0));
        let done = self.compare(report.mode, model, acknowledged);
        report.unacknowledged += u32::from(done > acknowledged);
    }

    fn mount(&mut self) {
        self.mounted = Some(mount_in_background(&self.cluster, &self.point, &[]));
    }

    /// Opens the database, which rolls back what was left unfinished, and compares it with the
    /// model.
    fn compare(&self, mode: Mode, model: &mut Model, acknowledged: u64) -> u64 {
        let database = Database::open(&self.path(mode), mode).unwrap();
        let done = database.done().unwrap();
        assert!(
            (acknowledged..=acknowledged + 1).contains(&done),
            "{mode:?}: {acknowledged} transactions were acknowledged, and {done} are there"
        );
        model.advance(done);
        database.compare(model).unwrap();
        done
    }

    /// The last comparison, with nothing left on this machine.
    fn compare_the_clouds(&mut self) {
        self.cluster.quorumfs().args(["umount"]).run().ok();
        for gone in ["journal", "cache"] {
            let gone = self.cluster.volume().join(gone);
            if gone.exists() {
                std::fs::remove_dir_all(gone).unwrap();
            }
        }
        drop_caches();
        self.mount();
        let mut model = Model::new(self.plan.seed);
        for mode in self.plan.modes.clone() {
            self.compare(mode, &mut model, self.plan.transactions);
        }
        self.cluster.quorumfs().args(["umount"]).run().ok();
        self.cluster.stop();
    }
}
