//! The scene `load`: four replicas and two mounts, every two of them 300 ms apart and back, with
//! links that lose one packet of a hundred.
//!
//! On each mount workers change files in directories of their own. One mount publishes files, and
//! the other one reads them and looks at what the first one's workers do. At the end each mount has
//! to show what the other one's workers have made.
//!
//! The first batches are slower than a new replica expects, so that a view may end before the
//! mounts are there. What counts is the time after that.

use super::reports::statuses;
use super::work::{Calls, Publisher, Worker, read_others};
use super::{EnduranceSizes, Findings, seconds, with_logs};
use crate::regions::plan::{Endpoint, RegionsPlan};
use crate::regions::volume::{FarVolume, mount_name, replica_name};
use anyhow::{Context, anyhow};
use quorumfs_bft::metrics::ReplicaStatus;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

const REPLICAS: usize = 4;
const ROUND_TRIP_MS: f64 = 300.0;
/// Where more is lost, views may fail and queries be ordered; nothing may be lost or wrong.
const LOST_USUALLY_PERCENT: f64 = 1.0;
/// The mounts, by the names of their places.
const MOUNTS: [&str; 2] = ["east", "west"];
/// Workers of each mount.
const WORKERS: u64 = 2;
/// Of how many queries one may be ordered.
const ORDERED_OF: u64 = 100;

/// Everything as far from everything else.
fn plan(loss_percent: f64) -> RegionsPlan {
    let mut endpoints: Vec<_> = (0..REPLICAS)
        .map(|number| Endpoint {
            name: replica_name(number),
            place: format!("site-{number}"),
        })
        .collect();
    endpoints.extend(MOUNTS.map(|place| Endpoint {
        name: mount_name(place),
        place: place.to_owned(),
    }));
    let places: Vec<_> = endpoints.iter().map(|it| it.place.clone()).collect();
    let row = |here: usize| {
        let each = (0..places.len()).map(|there| match there == here {
            true => 0.5,
            false => ROUND_TRIP_MS,
        });
        each.collect()
    };
    RegionsPlan {
        round_trips_ms: (0..places.len()).map(row).collect(),
        places,
        jitter_ms: 0.2,
        loss_percent,
        rate_mbit: None,
        endpoints,
        seed: 1,
    }
}

pub(super) fn play(sizes: &EnduranceSizes, findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let mut volume = FarVolume::start_in(plan(sizes.loss_percent), "sig")?;
    with_logs(sizes, &mut volume, |volume| use_it(sizes, volume, findings))
}

fn use_it(
    sizes: &EnduranceSizes,
    volume: &FarVolume,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    let at = mount_name(MOUNTS[0]);
    let points: Vec<&Path> = volume.mounts().map(|(_, point)| point).collect();
    let (Some(east), Some(west)) = (points.first(), points.get(1)) else {
        return Err(anyhow!("there are not two mounts"));
    };
    let mut workers = Vec::new();
    for (number, point) in (0..).zip([east, west]) {
        for worker in 0..WORKERS {
            let directory = point.join(format!("worker-{number}-{worker}"));
            workers.push(Worker::new(directory, 10 * number + worker)?);
        }
    }
    let mut publisher = Publisher::new(east.join("published"))?;
    let looked_at: Vec<PathBuf> = (0..WORKERS)
        .map(|worker| west.join(format!("worker-0-{worker}")))
        .collect();

    let before = statuses(volume, &at)?;
    let queries_before = volume.queries()?;
    let long = sizes.seconds;
    findings.say(&format!(
        "four replicas and two mounts, {ROUND_TRIP_MS} ms from each to each and back, \
         {} % lost; until both were used, the replicas came to view {}",
        sizes.loss_percent,
        views(&before)
    ));
    let (end, began) = (&AtomicBool::new(false), Instant::now());
    let mut calls = std::thread::scope(|scope| {
        let each = workers.iter_mut();
        let each: Vec<_> = each
            .map(|worker| scope.spawn(move || worker.work(end)))
            .collect();
        let publishing = scope.spawn(|| publisher.work(end));
        let reading = scope.spawn(|| read_others(&west.join("published"), &looked_at, end));
        while began.elapsed() < Duration::from_secs(long)
            && !(publishing.is_finished() || reading.is_finished())
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        end.store(true, Ordering::Relaxed);
        for worker in each {
            joined(worker)?;
        }
        joined(publishing)?.context("to publish")?;
        joined(reading)?.context("to read what the other mount publishes")
    })?;
    let took = began.elapsed();
    for worker in &mut workers {
        calls.add(std::mem::take(&mut worker.calls));
    }
    calls.add(std::mem::take(&mut publisher.calls));
    let after = statuses(volume, &at)?;
    let queries_after = volume.queries()?;

    tell_calls(&calls, took, findings);
    let usual = sizes.loss_percent <= LOST_USUALLY_PERCENT;
    tell_views(&before, &after, usual, findings);
    for (place, after) in &queries_after {
        let before = queries_before.get(place).copied().unwrap_or_default();
        let unordered = after.0.saturating_sub(before.0);
        let ordered = after.1.saturating_sub(before.1);
        let all = unordered.saturating_add(ordered);
        let percent = 100.0 * ordered as f64 / (all as f64).max(1.0);
        findings.require(
            all > 0 && (ordered.saturating_mul(ORDERED_OF) < all || !usual),
            format!(
                "{ordered} of {all} queries of the mount in {place} had to be ordered: \
                 {percent:.2} % (less than 1 % may, where up to 1 % is lost)"
            ),
        );
    }
    compare(volume, &workers, &publisher, findings)
}

/// The result of a thread.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> anyhow::Result<T> {
    let result = thread.join();
    result.map_err(|_| anyhow!("a thread that used a mount has panicked"))
}

/// The highest view.
fn views(statuses: &BTreeMap<u16, ReplicaStatus>) -> u64 {
    statuses.values().map(|it| it.view.0).max().unwrap_or(0)
}

fn tell_calls(calls: &Calls, took: Duration, findings: &mut Findings<'_>) {
    findings.say(&format!(
        "{} calls in {}: {}",
        calls.count(),
        seconds(took),
        calls.described()
    ));
    let first = calls.failures().next();
    let first = first.map_or_else(String::new, |(_, how)| format!("; the first: {how}"));
    let failed = calls.failures().count();
    findings.require(failed == 0, format!("{failed} calls failed{first}"));
}

fn tell_views(
    before: &BTreeMap<u16, ReplicaStatus>,
    after: &BTreeMap<u16, ReplicaStatus>,
    usual: bool,
    findings: &mut Findings<'_>,
) {
    findings.require(
        before.len() == REPLICAS && after.len() == REPLICAS,
        format!(
            "{} replicas answered before and {} after",
            before.len(),
            after.len()
        ),
    );
    // A leader may hand over to the first replica, if that lost a view at the beginning.
    let counted = |number: &u16, count: fn(&ReplicaStatus) -> u64| {
        let before = before.get(number).map_or(0, count);
        let after = after.get(number).map_or(0, count);
        after.saturating_sub(before)
    };
    let handovers = after
        .keys()
        .map(|it| counted(it, |it| it.counters.handovers));
    let handovers: u64 = handovers.sum();
    let ended = after
        .keys()
        .map(|it| counted(it, |it| it.counters.view_changes));
    let ended = ended.max().unwrap_or(0).saturating_sub(handovers);
    let view = views(after);
    findings.require(
        !usual || (ended == 0 && after.values().all(|it| it.view.0 == view && it.active)),
        format!("{ended} views failed, and {handovers} were handed over; the last is view {view}"),
    );
    for (number, after) in after {
        let Some(before) = before.get(number) else {
            continue;
        };
        // What the load itself explains is left out.
        let telling = |name: &str| {
            ["suspicions", "view", "new_view", "resends", "fetched"]
                .iter()
                .any(|part| name.contains(part))
        };
        let (old, new) = (before.counters.named(), after.counters.named());
        let risen = new.iter().zip(&old).filter_map(|((name, new), (_, old))| {
            let by = new.saturating_sub(*old);
            (by > 0 && telling(name)).then(|| format!("{name} {by}"))
        });
        let risen: Vec<_> = risen.collect();
        let batches = after.sequence.0.saturating_sub(before.sequence.0);
        findings.say(&format!(
            "replica {number} executed {batches} batches; {}",
            match risen.is_empty() {
                true => "it suspected no leader and repeated nothing".to_owned(),
                false => risen.join(", "),
            }
        ));
    }
}

/// Compares what each mount shows with what the workers of the other one have made.
fn compare(
    volume: &FarVolume,
    workers: &[Worker],
    publisher: &Publisher,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    let points: Vec<&Path> = volume.mounts().map(|(_, point)| point).collect();
    let half = workers.len() / 2;
    let outcome = std::thread::scope(|scope| {
        let mut comparing = Vec::new();
        for (index, worker) in workers.iter().enumerate() {
            let other = points.get(usize::from(index < half)).copied();
            let other = other.context("there are not two mounts")?;
            comparing.push(scope.spawn(move || worker.compare(other)));
        }
        let other = points.last().context("there is no mount")?;
        comparing.push(scope.spawn(|| publisher.compare(other)));
        for compared in comparing {
            joined(compared)??;
        }
        anyhow::Ok(())
    });
    let files: usize = workers.iter().map(Worker::files).sum();
    let right =
        format!("each mount shows all of the other one's {files} files, as they were written");
    findings.check(&right, outcome);
    Ok(())
}
