//! The scene `cut`: replicas in Frankfurt, Dublin, Virginia and Oregon, and a mount in each of two
//! of these regions. The region of the leader is cut off, and returns, again and again.
//!
//! A worker uses each mount all the time. The moment the links are cut, each mount whose region is
//! left is asked for one more directory: how long that takes is how long the leader is missed. A
//! worker behind the cut may see errors. Once the region is back, its replica has to take part
//! again, at least as far as the others were by then.

use super::reports::{Reports, described, statuses, takes_part};
use super::work::{Calls, Worker};
use super::{EnduranceSizes, Findings, seconds, with_logs};
use crate::regions::plan::RegionsPlan;
use crate::regions::volume::{FarVolume, mount_name, replica_name};
use anyhow::{Context, anyhow, ensure};
use quorumfs_bft::observer::Report;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The regions of the replicas, by their numbers.
const REPLICAS: [&str; 4] = ["frankfurt", "dublin", "virginia", "oregon"];
/// The regions of the mounts.
const MOUNTS: [&str; 2] = ["dublin", "oregon"];
/// How long a region stays cut off: all connections over the cut are given up before that.
const CUT_FOR: Duration = Duration::from_secs(8);
/// How long the volume works in peace before a round.
const PEACE: Duration = Duration::from_secs(2);
/// How long a replica may take to be up to date again.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// Which way is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutWays {
    Both,
    /// The region hears the others, and they do not hear it.
    Outward,
    /// They hear it, and it does not hear them.
    Inward,
}

impl CutWays {
    const fn described(self) -> &'static str {
        match self {
            Self::Both => "cut off",
            Self::Outward => "cut off outward only",
            Self::Inward => "cut off inward only",
        }
    }
}

pub(super) fn play(sizes: &EnduranceSizes, findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let replicas = REPLICAS.iter().enumerate();
    let mut endpoints: Vec<(String, &str)> = replicas
        .map(|(number, place)| (replica_name(number), *place))
        .collect();
    endpoints.extend(MOUNTS.map(|place| (mount_name(place), place)));
    let named: Vec<_> = endpoints
        .iter()
        .map(|(name, place)| (name.as_str(), *place))
        .collect();
    let plan = RegionsPlan::of_regions(&named);
    let mut volume = FarVolume::start_in(plan, "sig")?;
    with_logs(sizes, &mut volume, |volume| use_it(sizes, volume, findings))
}

fn use_it(
    sizes: &EnduranceSizes,
    volume: &FarVolume,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    let mut workers = Vec::new();
    for (number, (place, point)) in (0..).zip(volume.mounts()) {
        workers.push(Worker::new(point.join(format!("worker-{place}")), number)?);
        let probes = probes(point, place);
        fs::create_dir(&probes)?;
        // A program that works in a directory knows it: a new name there is one change.
        fs::read_dir(&probes)?.count();
    }
    let begun = statuses(volume, &mount_name(MOUNTS[0]))?;
    let answered = begun.len();
    ensure!(
        answered == REPLICAS.len(),
        "only {answered} replicas answer"
    );
    let view = begun.values().map(|it| it.view.0).max().unwrap_or(0);
    findings.say(&format!(
        "replicas in {}; until the mounts were used, they came to view {view}",
        REPLICAS.join(", ")
    ));
    let mut cuts = vec![CutWays::Both; sizes.rounds];
    if sizes.rounds > 1 {
        cuts.extend([CutWays::Outward, CutWays::Inward]);
    }
    let end = &AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        for worker in &mut workers {
            scope.spawn(move || worker.work(end));
        }
        let played = cuts.iter().enumerate();
        let played = played.map(|(number, ways)| round(volume, number, *ways, findings));
        let rounds = played.collect::<anyhow::Result<Vec<_>>>();
        end.store(true, Ordering::Relaxed);
        rounds
    });
    // The links are as they were, unless a round has failed.
    let rounds = rounds?;
    summarise(sizes, volume, &rounds, findings);
    for (place, worker) in MOUNTS.iter().zip(&workers) {
        tell_calls(place, &worker.calls, &rounds, findings);
    }
    let files: usize = workers.iter().map(Worker::files).sum();
    let right = format!(
        "each mount shows all of the other one's {files} files, as they were written, and all {} \
         directories that were made behind a cut",
        rounds.iter().map(|it| it.waits.len()).sum::<usize>()
    );
    findings.check(&right, compare(volume, &workers, &rounds));
    Ok(())
}

/// What a round has shown.
struct CutRound {
    number: usize,
    /// The region that led.
    region: &'static str,
    ways: CutWays,
    /// How long each mount waited that was left, by its place.
    waits: Vec<(&'static str, Duration)>,
    /// How long after its return the replica was up to date again.
    back: Duration,
    /// From the cut until it was up to date again.
    away: (Instant, Instant),
}

/// The directory in which a mount makes one for each round.
fn probes(point: &Path, place: &str) -> PathBuf {
    point.join(format!("probes-{place}"))
}

fn probe_name(number: usize) -> String {
    format!("round-{number}")
}

fn change(volume: &FarVolume, region: &str, ways: CutWays, cut: bool) -> anyhow::Result<()> {
    let others = volume.regions().plan().places.iter();
    for other in others.filter(|it| *it != region) {
        let directions = [
            (region, other.as_str(), CutWays::Inward),
            (other.as_str(), region, CutWays::Outward),
        ];
        for (from, to, spared) in directions {
            if ways != spared {
                let changed = volume.regions().change(from, to, |link| link.cut = cut);
                changed.map_err(|error| anyhow!("{error}"))?;
            }
        }
    }
    Ok(())
}

fn round(
    volume: &FarVolume,
    number: usize,
    ways: CutWays,
    findings: &mut Findings<'_>,
) -> anyhow::Result<CutRound> {
    std::thread::sleep(PEACE);
    let settled = |at: &str| {
        let reports = Reports::follow(volume, &mount_name(at))?;
        let leader = reports.settled(REPLICAS.len(), BACK_WITHIN)?;
        anyhow::Ok((reports, leader))
    };
    let (mut reports, leader) = settled(MOUNTS[0])?;
    let region = REPLICAS.get(usize::from(leader));
    let region = *region.with_context(|| format!("there is no replica {leader}"))?;
    let left: Vec<_> = MOUNTS.into_iter().filter(|it| *it != region).collect();
    // Seen from a region that is left.
    if let Some(other) = left.first().filter(|it| **it != MOUNTS[0]) {
        (reports, _) = settled(other)?;
    }

    change(volume, region, ways, true)?;
    let cut_at = Instant::now();
    let waits = wait_for_changes(volume, &left, number, cut_at);
    let then = described(&reports.newest());
    std::thread::sleep(CUT_FOR.saturating_sub(cut_at.elapsed()));
    let reached = reached_by_others(&reports.newest(), leader);
    change(volume, region, ways, false)?;
    let waits = waits.with_context(|| {
        let ways = ways.described();
        format!(
            "round {}: {region} led and was {ways}; then {then}",
            number + 1
        )
    })?;
    let what = format!("replica {leader} in {region} is up to date again");
    let back = reports.wait(&what, BACK_WITHIN, |newest| {
        let returned = newest.get(&leader);
        returned.is_some_and(|it| takes_part(it) && (it.view.0, it.executed.0) >= reached)
    })?;
    let each = waits.iter();
    let each: Vec<_> = each
        .map(|(place, wait)| format!("{} in {place}", seconds(*wait)))
        .collect();
    findings.say(&format!(
        "round {}: {region}, which led, was {}; the next change took {}; {} after its return it \
         was up to date again",
        number + 1,
        ways.described(),
        each.join(" and "),
        seconds(back)
    ));
    Ok(CutRound {
        number,
        region,
        ways,
        waits,
        back,
        away: (cut_at, Instant::now()),
    })
}

/// The newest view of the other replicas, and the last batch that one of them has executed.
fn reached_by_others(newest: &BTreeMap<u16, Report>, leader: u16) -> (u64, u64) {
    let others = || newest.iter().filter(|(number, _)| **number != leader);
    let view = others().map(|(_, it)| it.view.0).max();
    let executed = others().map(|(_, it)| it.executed.0).max();
    (view.unwrap_or(0), executed.unwrap_or(0))
}

/// Makes a directory on each of these mounts at the same time, and returns how long after the cut
/// each was there.
fn wait_for_changes(
    volume: &FarVolume,
    left: &[&'static str],
    number: usize,
    cut_at: Instant,
) -> anyhow::Result<Vec<(&'static str, Duration)>> {
    std::thread::scope(|scope| {
        let asking = left.iter().map(|place| {
            let path = probes(volume.point(place), place).join(probe_name(number));
            scope.spawn(move || fs::create_dir(path).map(|()| cut_at.elapsed()))
        });
        let asking: Vec<_> = asking.collect();
        let mut waits = Vec::new();
        for (place, asked) in left.iter().zip(asking) {
            let asked = asked.join();
            let asked = asked.map_err(|_| anyhow!("a thread that used a mount has panicked"))?;
            let wait = asked.with_context(|| {
                let after = seconds(cut_at.elapsed());
                format!("a new directory on the mount in {place}, {after} after the cut")
            })?;
            waits.push((*place, wait));
        }
        Ok(waits)
    })
}

fn summarise(
    sizes: &EnduranceSizes,
    volume: &FarVolume,
    rounds: &[CutRound],
    findings: &mut Findings<'_>,
) {
    let plan = volume.regions().plan();
    let ways = REPLICAS
        .iter()
        .flat_map(|from| REPLICAS.map(|to| plan.round_trip(from, to)));
    let longest = ways.flatten().fold(0.0, f64::max) / 1e3;
    let limit = Duration::from_secs_f64(3.0 * longest) + Duration::from_secs(sizes.beyond);
    let both = |it: &&CutRound| it.ways == CutWays::Both;
    let in_part = |it: &&CutRound| it.ways != CutWays::Both;
    let kinds = [
        (
            "off in both directions",
            rounds.iter().filter(both).collect::<Vec<_>>(),
        ),
        (
            "off in one direction",
            rounds.iter().filter(in_part).collect(),
        ),
    ];
    for (kind, rounds) in kinds {
        let waits = rounds.iter().flat_map(|it| it.waits.iter());
        let mut waits: Vec<_> = waits.map(|(_, wait)| *wait).collect();
        waits.sort();
        let (Some(worst), Some(median)) = (waits.last(), waits.get(waits.len() / 2)) else {
            continue;
        };
        findings.require(
            *worst <= limit,
            format!(
                "{} times a leader's region was cut {kind}: until the next change {} in the \
                 median and {} at worst; {} is three round trips of {longest} s and {} s",
                rounds.len(),
                seconds(*median),
                seconds(*worst),
                seconds(limit),
                sizes.beyond
            ),
        );
    }
    let mut back: Vec<_> = rounds.iter().map(|it| it.back).collect();
    back.sort();
    let worst = back.last().copied().unwrap_or_default();
    let median = back.get(back.len() / 2).copied().unwrap_or_default();
    findings.say(&format!(
        "a region that returned was up to date again after {} in the median and {} at worst",
        seconds(median),
        seconds(worst)
    ));
}

/// Calls may fail on a mount whose region is away, and on no other one.
fn tell_calls(place: &str, calls: &Calls, rounds: &[CutRound], findings: &mut Findings<'_>) {
    let away: Vec<_> = rounds.iter().filter(|it| it.region == place).collect();
    let is_away = |at: Instant| away.iter().any(|it| (it.away.0..=it.away.1).contains(&at));
    let (failed, elsewhere) = (
        calls.failures().count(),
        calls.failures().find(|(at, _)| !is_away(*at)),
    );
    findings.say(&format!(
        "the mount in {place}, which was away {} times: {} calls, {failed} failed; {}",
        away.len(),
        calls.count(),
        calls.described()
    ));
    if let Some((_, failure)) = elsewhere {
        let message = format!("a call failed in {place} while that was not away: {failure}");
        findings.require(false, message);
    }
}

/// Compares what each mount shows with what was acknowledged on the other one.
fn compare(volume: &FarVolume, workers: &[Worker], rounds: &[CutRound]) -> anyhow::Result<()> {
    let others = || MOUNTS.iter().rev().map(|place| volume.point(place));
    for (worker, other) in workers.iter().zip(others()) {
        worker.compare(other)?;
    }
    for round in rounds {
        for (place, _) in &round.waits {
            for point in others() {
                let path = probes(point, place).join(probe_name(round.number));
                let found = fs::metadata(&path);
                found.with_context(|| format!("look at {}", path.display()))?;
            }
        }
    }
    Ok(())
}
