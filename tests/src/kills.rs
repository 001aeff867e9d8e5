//! Repeatedly kills a mount of tier `local` while it is written to, sometimes together with
//! replicas, sometimes while no cloud accepts writes, and checks each time what is left.
//!
//! ```text
//! mount ─► write, sync, rename, remove ─► kill −9 ─► mount again ─► compare ─┐
//!   ▲                                                                        │
//!   └─────────────────────────── for each kill ────────────────────────────┘
//! then: sync, kill, delete the state on this machine, mount, compare with what the clouds have
//! ```
//!
//! What has to hold, by the [`manifest`] that each writer keeps:
//! * Synced data is there, whatever happened later; data written after that is there or not, but
//!   every byte was once written at its place.
//! * After a rename, synced or not, the name has the whole content.
//! * A removed file stays removed.
//! * The mount becomes ready again by itself, and nothing has to be repaired.
//!
//! The test fails if nothing was synced, or nothing while only the journal could store it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod manifest;
mod writer;

use crate::harness::{Cluster, drop_caches, kill_mount, mount_in_background, require_fuse};
use quorumfs_bft_simulator::random::Random;
use rustix::process::Pid;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use writer::Writer;

/// The number of replicas and the number of clouds.
const FOUR: usize = 4;
/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct KillPlan {
    /// How often the mount is killed.
    pub kills: u32,
    /// How many concurrent writers.
    pub writers: usize,
    /// Decides what is written, and what is killed when.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KillReport {
    /// How often the mount was killed.
    pub kills: u32,
    /// In how many of the kills one replica was killed as well.
    pub with_a_replica: u32,
    /// In how many of the kills all replicas were killed as well.
    pub with_all_replicas: u32,
    /// In how many of the kills no cloud accepted writes.
    pub without_clouds: u32,
    /// Syncs that were acknowledged.
    pub synced: u64,
    /// Of these, while no cloud accepted writes.
    pub synced_without_clouds: u64,
    /// Renames and removals that were acknowledged.
    pub renamed: u64,
    /// How many files were compared, over all comparisons.
    pub compared: u64,
    /// Bytes of these files.
    pub compared_bytes: u64,
    /// The longest time until a mount was ready again, in seconds.
    pub longest_mount_seconds: f64,
}

struct KillRun {
    cluster: Cluster,
    point: PathBuf,
    mounted: Option<Pid>,
    writers: Vec<Writer>,
    random: Random,
    report: KillReport,
}

/// Runs the whole test.
///
/// # Panics
/// If a check fails.
#[must_use]
pub fn run(plan: KillPlan) -> KillReport {
    require_fuse();
    let mut cluster = Cluster::prepare();
    cluster.set_tier("local");
    cluster.start();
    let point = cluster.mount_point();
    let mut random = Random::new(plan.seed);
    let writers = (0..plan.writers)
        .map(|number| Writer::new(number, random.fork(number as u64)))
        .collect();
    let mut run = KillRun {
        mounted: Some(mount_in_background(&cluster, &point, &[])),
        cluster,
        point,
        writers,
        random,
        report: KillReport::default(),
    };
    for _ in 0..plan.kills {
        run.round();
    }
    run.compare_the_clouds();
    assert!(
        run.report.synced > 0,
        "nothing was synced: {:?}",
        run.report
    );
    assert!(
        run.report.without_clouds == 0 || run.report.synced_without_clouds > 0,
        "nothing was synced into the journal alone: {:?}",
        run.report
    );
    run.report
}

impl KillRun {
    /// Writes, kills, mounts, compares.
    fn round(&mut self) {
        let without_clouds = self.random.chance(1, 3);
        // Sometimes at once, while the mount still replays its journal.
        let patience = match self.random.chance(1, 8) {
            true => Duration::ZERO,
            false => Duration::from_millis(self.random.between(20, 1500)),
        };
        if without_clouds {
            self.move_clouds(true);
            self.report.without_clouds += 1;
        }
        // Of ten kills one takes all replicas along and three take one, however few kills there
        // are.
        let mut victims: Vec<usize> = match (self.report.kills + 7) % 10 {
            0 => (0..FOUR).collect(),
            1..=3 => vec![self.random.index(FOUR)],
            _ => Vec::new(),
        };
        match victims.len() {
            0 => {}
            1 => self.report.with_a_replica += 1,
            _ => self.report.with_all_replicas += 1,
        }
        let replicas_first = self.random.chance(1, 2);
        let synced = self.synced();
        let ending = AtomicBool::new(false);
        let (point, writers) = (self.point.clone(), &mut self.writers);
        let (cluster, mounted) = (&mut self.cluster, &mut self.mounted);
        std::thread::scope(|scope| {
            for writer in writers {
                let (point, ending) = (&point, &ending);
                scope.spawn(move || writer.run(point, ending, !without_clouds));
            }
            std::thread::sleep(patience);
            ending.store(true, Ordering::Release);
            let process = mounted.take().expect("it is mounted");
            if replicas_first {
                victims.iter().for_each(|number| cluster.kill_one(*number));
            }
            kill_mount(process, &point);
            if !replicas_first {
                victims.iter().for_each(|number| cluster.kill_one(*number));
            }
        });
        self.report.kills += 1;
        if without_clouds {
            self.report.synced_without_clouds += self.synced() - synced;
        }
        for number in victims.drain(..) {
            self.cluster.start_some(number..number + 1);
        }
        self.mount();
        if without_clouds {
            self.move_clouds(false);
        }
        self.compare();
    }

    fn synced(&self) -> u64 {
        self.writers.iter().map(|writer| writer.synced).sum()
    }

    fn mount(&mut self) {
        let began = Instant::now();
        self.mounted = Some(mount_in_background(&self.cluster, &self.point, &[]));
        let took = began.elapsed().as_secs_f64();
        self.report.longest_mount_seconds = self.report.longest_mount_seconds.max(took);
    }

    /// Takes away so many clouds that writes cannot be durable, or brings them back.
    fn move_clouds(&self, away: bool) {
        for index in 0..FOUR / 2 {
            let here = self.cluster.cloud(index);
            let there = here.with_extension("away");
            let (from, to) = if away { (here, there) } else { (there, here) };
            fs::rename(from, to).unwrap();
        }
    }

    fn compare(&mut self) {
        for writer in &mut self.writers {
            let (files, bytes) = writer.compare(&self.point);
            self.report.compared += files;
            self.report.compared_bytes += bytes;
        }
        self.report.synced = self.synced();
        self.report.renamed = self.writers.iter().map(|writer| writer.renamed).sum();
    }

    /// The last comparison, with nothing left on this machine.
    fn compare_the_clouds(&mut self) {
        let sync = self.cluster.quorumfs().args(["sync"]).run();
        assert_eq!(sync.ok().records("synced").len(), 1);
        kill_mount(self.mounted.take().expect("it is mounted"), &self.point);
        self.report.kills += 1;
        for gone in ["journal", "cache"] {
            let gone = self.cluster.volume().join(gone);
            if gone.exists() {
                fs::remove_dir_all(gone).unwrap();
            }
        }
        drop_caches();
        self.mount();
        self.compare();
        self.cluster.quorumfs().args(["umount"]).run().ok();
        assert!(!self.cluster.volume().join(CONTROL).exists());
        self.cluster.stop();
    }
}

/// The control socket of a running mount.
const CONTROL: &str = "control.sock";

/// The directory of a writer's files.
fn directory(point: &Path, number: usize) -> PathBuf {
    point.join(format!("writer-{number}"))
}
