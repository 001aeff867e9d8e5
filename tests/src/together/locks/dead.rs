//! Processes that are killed while they wait for a lock or hold one, and a mount that is killed.

use super::super::players::SceneRun;
use super::{DONE, Holder, KINDS, attempt, order};
use anyhow::{Error, Result, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How long a killed process may take to end, and its lock to be free.
const DIES_WITHIN: Duration = Duration::from_secs(2);
/// How long the locks of a dead mount may be held once its successor is there.
const FENCED_WITHIN: Duration = Duration::from_secs(10);

/// What was measured when processes were killed.
#[derive(Debug, Default, Serialize)]
pub(super) struct DeathReport {
    /// The longest time from the kill of a holder until another process had the lock.
    pub(super) process_ms: f64,
    /// The longest time that a killed waiter took to end.
    waiter_ms: f64,
}

/// What was measured when a mount was killed.
#[derive(Debug, Serialize)]
pub(super) struct MountDeathReport {
    /// Until the lock was there, from the kill.
    after_kill_ms: f64,
    /// The same, from the begin of the next mount of the same state directory.
    pub(super) after_mount_began_ms: f64,
    /// How long that mount took.
    mount_took_ms: f64,
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

/// Kills processes that wait for each kind of lock, and that hold it; returns what was wrong too.
pub(super) fn kill_processes(run: &SceneRun) -> (DeathReport, Vec<Error>) {
    let (mut report, mut broken) = (DeathReport::default(), Vec::new());
    for kind in KINDS {
        match kill_waiter(run, kind) {
            Ok(took) => report.waiter_ms = report.waiter_ms.max(milliseconds(took)),
            Err(error) => broken.push(error.context(format!("`{kind}`, and a waiter is killed"))),
        }
        match kill_holder(run, kind) {
            Ok(took) => report.process_ms = report.process_ms.max(milliseconds(took)),
            Err(error) => broken.push(error.context(format!("`{kind}`, and a holder is killed"))),
        }
    }
    (report, broken)
}

/// Two wait; the one that asked first is killed, and the other gets the lock.
fn kill_waiter(run: &SceneRun, kind: &str) -> Result<Duration> {
    let mut first = Holder::start(run, 0, "the holder")?;
    let mut killed = Holder::start(run, 1, "the waiter")?;
    let mut third = Holder::start(run, 2, "the other waiter")?;
    let wait = order(kind, "exclusive");
    first.must(&wait, DONE)?;
    killed.waits(&wait)?;
    third.waits(&wait)?;
    let took = killed.0.kill()?;
    ensure!(took <= DIES_WITHIN, "a killed waiter ended after {took:?}");
    third.still_waits(&wait)?;
    // The file is served meanwhile, on the mount of the killed one too.
    ensure!(
        std::fs::read(run.path(1, "file"))? == b"content",
        "the file has other content"
    );
    first.must(&order(kind, "none"), DONE)?;
    third.comes(DONE, DIES_WITHIN)?;
    third.must(&order(kind, "none"), DONE)?;
    first.must(&attempt(kind, "exclusive"), DONE)?;
    first.0.finish()?;
    third.0.finish()?;
    Ok(took)
}

/// The holder is killed, and the waiter gets the lock.
fn kill_holder(run: &SceneRun, kind: &str) -> Result<Duration> {
    let mut killed = Holder::start(run, 0, "the holder")?;
    let mut second = Holder::start(run, 1, "the waiter")?;
    killed.must(&order(kind, "exclusive"), DONE)?;
    second.waits(&order(kind, "exclusive"))?;
    let began = Instant::now();
    killed.0.kill()?;
    second.comes(DONE, DIES_WITHIN)?;
    let took = began.elapsed();
    second.0.finish()?;
    Ok(took)
}

/// The process behind a mount is killed while a process on it holds locks. The next mount from its
/// state directory fences it, and its locks are free.
pub(super) fn kill_mount(run: &SceneRun) -> Result<MountDeathReport> {
    const MOUNT: usize = 2;
    let mut on_it = Holder::start(run, MOUNT, "the holder")?;
    let mut waiters = Vec::new();
    for (kind, mount) in KINDS.iter().zip([0, 1, 0]) {
        // Locks of processes and of open files would meet.
        let range = if *kind == "ofd" { "100, 10" } else { "0, 10" };
        let take = format!("lock('{kind}', 'exclusive', a, True, {range})");
        on_it.must(&take, DONE)?;
        let mut waiter = Holder::start(run, mount, &format!("the `{kind}` waiter"))?;
        waiter.waits(&take)?;
        waiters.push((take, waiter));
    }
    let killed = Instant::now();
    run.mounts.kill(MOUNT);
    let began = Instant::now();
    run.mounts.mount_again(MOUNT);
    let mounted = began.elapsed();
    for (_, waiter) in &mut waiters {
        let left = FENCED_WITHIN.saturating_sub(began.elapsed() - mounted);
        waiter.comes(DONE, left)?;
    }
    let report = MountDeathReport {
        after_kill_ms: milliseconds(killed.elapsed()),
        after_mount_began_ms: milliseconds(began.elapsed()),
        mount_took_ms: milliseconds(mounted),
    };
    on_it.0.kill()?;
    // The new mount of that directory meets the locks, and gets them.
    let mut again = Holder::start(run, MOUNT, "the successor")?;
    for (take, waiter) in waiters {
        again.waits(&take)?;
        waiter.0.finish()?;
        again.comes(DONE, DIES_WITHIN)?;
    }
    again.0.finish()?;
    Ok(report)
}
