//! SQLite in a mount of tier `local`, in each of its journal modes, killed and shared.
//!
//! ```text
//!  this process                          client, a process of its own
//!  model ◄── what is acknowledged ────── BEGIN, changes, COMMIT in the mount, one after the other
//!    │                                      ▲
//!    ├─ kill −9 of the client ──────────────┤
//!    ├─ kill −9 of the mount, mount again ──┘
//!    └─ open, integrity_check, foreign_key_check, every row against the model
//! ```
//!
//! What has to hold, with `synchronous = FULL`:
//! * In the modes that promise it (`delete`, `truncate`, `persist`, `wal`) every transaction that
//!   was acknowledged is there after either kill, at most the one after it besides, and nothing
//!   else.
//! * `memory` and `off` keep no journal on disk, so that SQLite itself promises nothing after a
//!   kill: they are held against the model without one.
//! * Several processes exclude one another, and see what the others committed. `off` is not asked
//!   to: it cannot take back what waits for a lock.
//! * The mount stays within the memory that it is given.

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
    BESIDE_MIB, Cluster, drop_caches, kill_mount, mount_in_background, peak_mib, require_fuse,
};
use client::Client;
use database::Database;
use model::Model;
use quorumfs_bft_simulator::random::Random;
use rustix::process::Pid;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Memory that a mount is given here.
const MEMORY_MIB: u64 = 256;

/// How SQLite keeps what it may have to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A file beside the database, removed by each commit.
    Delete,
    /// The same, cut off.
    Truncate,
    /// The same, whose head is zeroed.
    Persist,
    /// In memory.
    Memory,
    /// A log of pages, with an index that processes share in memory that is a mapped file.
    Wal,
    /// Not at all.
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

    /// Whether SQLite promises something after a kill.
    const fn survives(self) -> bool {
        !matches!(self, Self::Memory | Self::Off)
    }
}

/// What is to happen.
#[derive(Clone, Debug)]
pub struct DatabasePlan {
    /// A program whose `client` does [`work`].
    pub program: PathBuf,
    /// Which modes, one after the other.
    pub modes: Vec<Mode>,
    /// Transactions in each.
    pub transactions: u64,
    /// How often the client is killed in each, and how often the mount is.
    pub kills: (u32, u32),
    /// Transactions of each of two processes at one database, in each mode.
    pub shared: u64,
    /// Decides what they are, and when somebody is killed.
    pub seed: u64,
}

/// What came of one mode.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseReport {
    /// Which one.
    pub mode: Mode,
    /// Transactions that were acknowledged and are there.
    pub transactions: u64,
    /// How often the client was killed in the middle.
    pub clients_killed: u32,
    /// How often the mount was.
    pub mounts_killed: u32,
    /// How often a transaction was there that was not acknowledged.
    pub unacknowledged: u32,
    /// How often a journal was left behind for the next one who opened the database.
    pub left_behind: u32,
    /// Transactions a second, of one client with nobody beside it and all kills.
    pub per_second: f64,
    /// Transactions of two processes at a time.
    pub shared: u64,
    /// How often a third one looked meanwhile.
    pub looked: u64,
    /// Most memory that a mount had, in MiB.
    pub mount_mib: u64,
}

struct DatabaseRun {
    cluster: Cluster,
    point: PathBuf,
    mounted: Option<Pid>,
    plan: DatabasePlan,
    random: Random,
}

/// Does all of it; `report` is told of each mode.
///
/// # Panics
/// If anything is not as it has to be.
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

    /// All of one mode.
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
            // Evenly over what is still to be done, the kinds by turns as long as there are both.
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

    /// What memory the mount had until now, which has to be what it is given.
    fn measure(&self, report: &mut DatabaseReport) {
        let mounted = self.mounted.expect("it is mounted");
        let mount = peak_mib(u32::try_from(mounted.as_raw_pid()).unwrap());
        report.mount_mib = report.mount_mib.max(mount.expect("it is there"));
        assert!(
            report.mount_mib <= MEMORY_MIB + BESIDE_MIB,
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
        while client.said() < after {
            assert!(!client.has_ended(), "the client gave up");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        if the_mount {
            self.measure(report);
            kill_mount(self.mounted.take().expect("it is mounted"), &self.point);
        }
        // Without its mount it can do nothing more, and what it says before it sees that counts.
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

    /// Opens the database, which undoes what was left undone, and holds it against the model.
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

    /// The last comparison: with nothing left on this machine.
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
