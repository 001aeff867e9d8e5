//! The order of events: one replica after the other is killed, and now and then all; then disks are
//! wiped, replicas are replaced, journals are damaged, and disks are rolled back to copies.

use super::cluster::Cluster;
use super::load::Load;
use anyhow::ensure;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// How many kills.
    pub kills: u32,
    /// Every how many kills all replicas are killed at once.
    pub all_every: u32,
    /// How many disks are wiped after that, one after the other.
    pub wipes: u32,
    /// How many replicas are replaced by others after that.
    pub swaps: u32,
    /// How many journals are damaged after that.
    pub damages: u32,
    /// How many disks are rolled back to an older copy after that.
    pub rollbacks: u32,
    /// How many clients.
    pub clients: usize,
    /// Counting tasks of each client.
    pub hands: usize,
    /// Decides which replica is killed when.
    pub seed: u64,
}

/// Statistics of durations, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    count: usize,
    min: f64,
    median: f64,
    max: f64,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let millis = |time: &Duration| time.as_secs_f64() * 1e3;
        Some(Self {
            count: times.len(),
            min: millis(times.first()?),
            median: millis(times.get(times.len() / 2)?),
            max: millis(times.last()?),
        })
    }
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct CrashReport {
    /// Kills of one replica, and of all replicas.
    pub kills: (u32, u32),
    /// Operations that were acknowledged, none of which was lost or executed twice.
    pub acknowledged: u64,
    /// The longest time without an acknowledged operation.
    pub longest_gap_ms: f64,
    /// From the start of a process until it listens.
    pub started_ms: Option<Times>,
    /// From the start of a process until it has everything that the others had then, and votes.
    pub recovered_ms: Option<Times>,
    /// The same for all replicas, after all were killed.
    pub all_recovered_ms: Option<Times>,
    /// The same with a new disk: until the replica has rejoined, and votes.
    pub wiped_recovered_ms: Option<Times>,
    /// The same with a damaged journal.
    pub damaged_recovered_ms: Option<Times>,
    /// From the start of a process on an older copy of its disk until it has noticed the rollback.
    pub rollback_noticed_ms: Option<Times>,
    /// Disks that were rolled back when everything that the copy lacked had been decided, so that
    /// there was nothing left to notice; other disks were rolled back instead.
    pub rollbacks_overtaken: u32,
    /// From the start on an older copy until the replica has rejoined, and votes.
    pub rolled_back_recovered_ms: Option<Times>,
    /// From the start of a new replica until it holds the state and a membership epoch begins with
    /// it.
    pub joined_ms: Option<Times>,
    /// The same until it votes in the place of another.
    pub swapped_ms: Option<Times>,
}

/// A small generator: its numbers need not be good, only the same for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// Kills, restarts and checks. `program` is a replica when it is called with `replica FILE`.
///
/// # Errors
/// If an acknowledged operation was lost or doubled, or something did not recover in time.
pub async fn run(plan: CrashPlan, program: &Path, directory: &Path) -> anyhow::Result<CrashReport> {
    let mut cluster = Cluster::prepare(program, directory, 1, 1)?;
    cluster.start_all().await?;
    let mut load = Load::start(&cluster, plan.clients, plan.hands).await?;
    let mut draw = Draw(plan.seed.wrapping_mul(2).wrapping_add(1));
    let (mut one, mut all) = (0, 0);
    let (mut started, mut recovered, mut all_recovered) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=plan.kills {
        let before = load.acknowledged();
        tokio::time::sleep(Duration::from_millis(50 + draw.below(300))).await;
        if round.is_multiple_of(plan.all_every) {
            cluster.kill_all().await?;
            all += 1;
        } else {
            let number = usize::try_from(draw.below(cluster.len() as u64))?;
            cluster.kill(number).await?;
            one += 1;
        }
        // Some restart at once, some after the others have gone on without them.
        tokio::time::sleep(Duration::from_millis(draw.below(800))).await;
        let began = Instant::now();
        cluster.start_all().await?;
        started.push(began.elapsed());
        for number in 0..cluster.len() {
            cluster.wait_until_votes(number).await?;
        }
        if round.is_multiple_of(plan.all_every) {
            all_recovered.push(began.elapsed());
        } else {
            recovered.push(began.elapsed());
        }
        check_progress(&mut load, before).await?;
    }
    let mut wiped = Vec::new();
    for _ in 0..plan.wipes {
        let before = load.acknowledged();
        let number = usize::try_from(draw.below(cluster.len() as u64))?;
        cluster.kill(number).await?;
        cluster.wipe(number)?;
        tokio::time::sleep(Duration::from_millis(draw.below(800))).await;
        let began = Instant::now();
        cluster.start(number).await?;
        cluster.wait_until_votes(number).await?;
        wiped.push(began.elapsed());
        check_progress(&mut load, before).await?;
    }
    let (mut joined, mut swapped) = (Vec::new(), Vec::new());
    for _ in 0..plan.swaps {
        let before = load.acknowledged();
        let number = usize::try_from(draw.below(cluster.len() as u64))?;
        let (ready, voted) = cluster.swap(number).await?;
        joined.push(ready);
        swapped.push(voted);
        check_progress(&mut load, before).await?;
    }
    let mut damaged = Vec::new();
    for _ in 0..plan.damages {
        let before = load.acknowledged();
        let number = usize::try_from(draw.below(cluster.len() as u64))?;
        cluster.kill(number).await?;
        cluster.damage_journal(number)?;
        let began = Instant::now();
        cluster.start(number).await?;
        ensure!(
            cluster.noticed_damage(number),
            "a damaged journal was accepted"
        );
        cluster.wait_until_votes(number).await?;
        damaged.push(began.elapsed());
        check_progress(&mut load, before).await?;
    }
    let (mut noticed, mut rolled_back, mut overtaken) = (Vec::new(), Vec::new(), 0);
    while noticed.len() < usize::try_from(plan.rollbacks)? {
        let before = load.acknowledged();
        let number = usize::try_from(draw.below(cluster.len() as u64))?;
        cluster.kill(number).await?;
        cluster.copy(number)?;
        cluster.start(number).await?;
        cluster.wait_until_votes(number).await?;
        tokio::time::sleep(Duration::from_millis(200 + draw.below(2_000))).await;
        cluster.kill(number).await?;
        cluster.put_back(number)?;
        let began = Instant::now();
        cluster.start(number).await?;
        if cluster.noticed_rollback(number).await? {
            noticed.push(began.elapsed());
            cluster.wait_until_votes(number).await?;
            rolled_back.push(began.elapsed());
        } else {
            // The rollback came too late for a forgotten vote to matter. Try another one.
            overtaken += 1;
            ensure!(
                overtaken <= plan.rollbacks.max(3),
                "replicas hardly ever notice that their disks were rolled back"
            );
        }
        check_progress(&mut load, before).await?;
    }
    let counted = load.finish().await?;
    Ok(CrashReport {
        kills: (one, all),
        acknowledged: counted.acknowledged,
        longest_gap_ms: counted.longest_gap.as_secs_f64() * 1e3,
        started_ms: Times::of(started),
        recovered_ms: Times::of(recovered),
        all_recovered_ms: Times::of(all_recovered),
        wiped_recovered_ms: Times::of(wiped),
        damaged_recovered_ms: Times::of(damaged),
        rollback_noticed_ms: Times::of(noticed),
        rollbacks_overtaken: overtaken,
        rolled_back_recovered_ms: Times::of(rolled_back),
        joined_ms: Times::of(joined),
        swapped_ms: Times::of(swapped),
    })
}

/// Waits until another operation is acknowledged, and checks for errors.
async fn check_progress(load: &mut Load, before: u64) -> anyhow::Result<()> {
    let (mut waited, patience) = (Duration::ZERO, Duration::from_secs(60));
    while load.acknowledged() == before && waited < patience {
        let pause = Duration::from_millis(10);
        tokio::time::sleep(pause).await;
        waited += pause;
    }
    load.check()?;
    ensure!(
        load.acknowledged() > before,
        "no operation is acknowledged any more"
    );
    Ok(())
}
