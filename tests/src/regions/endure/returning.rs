//! The scene `return`: a replica that was stopped misses thousands of batches, and catches up over
//! a slow link with a round trip of 200 ms.
//!
//! Three replicas and the mount are at one site, and the replica that returns is at another one:
//! all that it fetches comes over one link, however many replicas it asks. The batches are made
//! while everything is near. Each sets an extended attribute of random bytes that stays, so the
//! replica needs these bytes, by whichever way it fetches them. They are what counts as fetched:
//! names, keys, proofs, digests and packets' headers come on top, and so does what is sent twice.
//! What the link carried in all is said too.

use super::reports::{Reports, described, statuses, takes_part};
use super::{EnduranceSizes, Findings, seconds, with_logs};
use crate::harness::noise;
use crate::regions::links::Carried;
use crate::regions::plan::{Endpoint, RegionsPlan};
use crate::regions::volume::{FarVolume, mount_name, replica_name};
use anyhow::{Context, anyhow, ensure};
use quorumfs_bft::metrics::{Counters, ReplicaStatus};
use quorumfs_bft::observer::Report;
use rustix::fs::{XattrFlags, setxattr};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

const SITE: &str = "site";
const AWAY: &str = "away";
/// The replica that returns.
const RETURNING: usize = 3;
/// One that stops afterwards, so that the others need the vote of the one that returned.
const STOPPED: usize = 2;
/// One way, in milliseconds.
const DELAY_MS: f64 = 100.0;
/// What an inode may have in extended attributes, with a margin for their names and seals.
const INODE_BYTES: usize = 120 << 10;
/// Making the batches may take so long.
const MADE_WITHIN: Duration = Duration::from_secs(300);
/// Catching up may take so long.
const BACK_WITHIN: Duration = Duration::from_secs(300);
/// How often the count of batches is looked at.
const LOOK_EVERY: u64 = 64;

fn plan() -> RegionsPlan {
    let replicas = (0..=RETURNING).map(|number| Endpoint {
        name: replica_name(number),
        place: if number == RETURNING { AWAY } else { SITE }.to_owned(),
    });
    let mount = Endpoint {
        name: mount_name(SITE),
        place: SITE.to_owned(),
    };
    RegionsPlan {
        places: [SITE, AWAY].map(str::to_owned).to_vec(),
        round_trips_ms: vec![vec![0.2; 2]; 2],
        jitter_ms: 0.0,
        loss_percent: 0.0,
        rate_mbit: None,
        endpoints: replicas.chain([mount]).collect(),
        seed: 1,
    }
}

pub(super) fn play(sizes: &EnduranceSizes, findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let mut volume = FarVolume::start_in(plan(), "sig")?;
    with_logs(sizes, &mut volume, |volume| {
        miss_and_return(sizes, volume, findings)
    })
}

fn miss_and_return(
    sizes: &EnduranceSizes,
    volume: &mut FarVolume,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    let point = volume.point(SITE).to_owned();
    volume.cluster().stop_one(RETURNING);
    let reports = Reports::follow(volume, &mount_name(SITE))?;
    let made = make_batches(sizes, &point, &reports)?;
    findings.say(&format!(
        "while replica {RETURNING} was stopped, the others executed {} batches in {}, with {} of \
         content",
        made.batches,
        seconds(made.took),
        megabytes(made.bytes)
    ));
    drop(reports);

    slow_the_links(volume, sizes.rate_mbit)?;
    // The others are followed from there, too.
    let reports = Reports::follow(volume, &replica_name(RETURNING))?;
    let what = "the other replicas vote";
    reports.wait(what, BACK_WITHIN, |it| {
        it.len() == RETURNING && it.values().all(takes_part)
    })?;
    let served_before = statuses(volume, &replica_name(RETURNING))?;
    let came = bring_back(volume, &reports, &made)?;
    tell_counters(volume, &served_before, findings)?;
    tell_what_came(&made, &came, sizes, findings);
    needs_its_vote(volume, &point, &reports, findings)
}

/// Puts the returning replica far from the others, with a narrow link.
fn slow_the_links(volume: &FarVolume, rate_mbit: f64) -> anyhow::Result<()> {
    let regions = volume.regions();
    regions.change_every(|link| link.delay_ms = DELAY_MS);
    for (from, to) in [(SITE, AWAY), (AWAY, SITE)] {
        let changed = regions.change(from, to, |link| link.rate_mbit = Some(rate_mbit));
        changed.map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}

/// What has come over the link to the replica, and when.
struct CameBack {
    state_after: Duration,
    state: Carried,
    after: Duration,
    all: Carried,
}

/// Starts the replica, and waits until it has caught up.
fn bring_back(
    volume: &mut FarVolume,
    reports: &Reports,
    made: &MadeBatches,
) -> anyhow::Result<CameBack> {
    let before = volume.regions().carried(SITE, AWAY);
    let began = Instant::now();
    volume.cluster().start_some(RETURNING..RETURNING + 1);
    let here = u16::try_from(RETURNING)?;
    let came_so_far = |what: &str| {
        let came = came_since(volume, &before).bytes;
        format!("{} had come when {what} was waited for", megabytes(came))
    };
    let what = format!("replica {RETURNING} has taken the state over");
    let waited = reports.wait(&what, BACK_WITHIN, |newest| {
        let returned = newest.get(&here);
        returned.is_some_and(|it| it.transfer.is_none() && it.executed.0 > made.first)
    });
    waited.with_context(|| came_so_far("its state"))?;
    let (state_after, state) = (began.elapsed(), came_since(volume, &before));
    let what = format!("replica {RETURNING} has caught up");
    let waited = reports.wait(&what, BACK_WITHIN, |newest| {
        let most = newest.values().map(|it| it.executed.0).max();
        newest.len() == RETURNING + 1
            && newest.get(&here).is_some_and(|it| {
                takes_part(it) && it.executed.0 >= made.last && Some(it.executed.0) >= most
            })
    });
    waited.with_context(|| came_so_far("its last batch"))?;
    Ok(CameBack {
        state_after,
        state,
        after: began.elapsed(),
        all: came_since(volume, &before),
    })
}

fn tell_what_came(
    made: &MadeBatches,
    came: &CameBack,
    sizes: &EnduranceSizes,
    findings: &mut Findings<'_>,
) {
    let rate_mbit = sizes.rate_mbit;
    findings.say(&format!(
        "the state was there after {}, for which {} came over the link to it; the batches since \
         then took {} and {}; {} packets found no room",
        seconds(came.state_after),
        megabytes(came.state.bytes),
        seconds(came.after.saturating_sub(came.state_after)),
        megabytes(came.all.bytes.saturating_sub(came.state.bytes)),
        came.all.overflowed
    ));
    let mbit = |bytes: f64| bytes * 8e-6 / came.after.as_secs_f64();
    findings.say(&format!(
        "{} came in all, of which {} was content that it needed; the link was used to {:.0} %",
        megabytes(came.all.bytes),
        megabytes(made.bytes),
        100.0 * mbit(came.all.bytes as f64) / rate_mbit
    ));
    let (rate, least) = (mbit(made.bytes as f64), sizes.rate_part * rate_mbit);
    findings.require(
        rate >= least,
        format!(
            "it has caught up and votes {} after its start: {rate:.1} Mbit/s of what it needed, \
             over {rate_mbit} Mbit/s and a round trip of {} ms; at least {least} Mbit/s are asked",
            seconds(came.after),
            2.0 * DELAY_MS
        ),
    );
}

/// What was made while a replica was stopped.
struct MadeBatches {
    batches: u64,
    /// The one before the first of them.
    first: u64,
    /// The last of them.
    last: u64,
    bytes: usize,
    took: Duration,
}

fn executed(reports: &Reports) -> u64 {
    let newest = reports.newest();
    newest.values().map(|it| it.executed.0).max().unwrap_or(0)
}

/// Sets extended attributes, one after the other, until there are enough batches.
fn make_batches(
    sizes: &EnduranceSizes,
    point: &Path,
    reports: &Reports,
) -> anyhow::Result<MadeBatches> {
    let others = |it: &BTreeMap<u16, Report>| it.len() == RETURNING;
    reports.wait("the other replicas answer", BACK_WITHIN, others)?;
    let each = sizes.batch_bytes.max(1);
    let of_an_inode = u64::try_from((INODE_BYTES / each).max(1))?;
    let (first, began) = (executed(reports), Instant::now());
    let (mut set, mut bytes) = (0_u64, 0);
    let mut path = point.join("none");
    while !set.is_multiple_of(LOOK_EVERY) || executed(reports).saturating_sub(first) < sizes.batches
    {
        ensure!(
            began.elapsed() < MADE_WITHIN,
            "only {} of {} batches were made in {}: {}",
            executed(reports).saturating_sub(first),
            sizes.batches,
            seconds(MADE_WITHIN),
            described(&reports.newest())
        );
        if set.is_multiple_of(of_an_inode) {
            path = point.join(format!("file-{set}"));
            File::create(&path)?;
        }
        let name = format!("user.part-{}", set % of_an_inode);
        let set_it = setxattr(&path, name, &noise(set, each), XattrFlags::empty());
        set_it.with_context(|| format!("set an attribute of {}", path.display()))?;
        (set, bytes) = (set + 1, bytes + each);
    }
    let took = began.elapsed();
    // Reports trail.
    std::thread::sleep(Duration::from_secs(2));
    let last = executed(reports);
    Ok(MadeBatches {
        batches: last.saturating_sub(first),
        first,
        last,
        bytes,
        took,
    })
}

fn megabytes(bytes: impl TryInto<u64>) -> String {
    let bytes = bytes.try_into().unwrap_or(u64::MAX);
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// What the link to the returning replica has carried since then.
fn came_since(volume: &FarVolume, before: &Carried) -> Carried {
    let now = volume.regions().carried(SITE, AWAY);
    Carried {
        sent: now.sent.saturating_sub(before.sent),
        lost: now.lost.saturating_sub(before.lost),
        overflowed: now.overflowed.saturating_sub(before.overflowed),
        cut: now.cut.saturating_sub(before.cut),
        bytes: now.bytes.saturating_sub(before.bytes),
    }
}

/// What the replica has counted since its start, and the others meanwhile.
fn tell_counters(
    volume: &FarVolume,
    before: &BTreeMap<u16, ReplicaStatus>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    let all = statuses(volume, &replica_name(RETURNING))?;
    let status = all.get(&u16::try_from(RETURNING)?);
    let it = &status.context("the replica does not answer")?.counters;
    let served = |count: fn(&Counters) -> u64| {
        let others = all.iter().filter_map(|(number, after)| {
            let before = before.get(number)?;
            Some(count(&after.counters).saturating_sub(count(&before.counters)))
        });
        others.sum::<u64>()
    };
    findings.say(&format!(
        "replica {RETURNING}: {} state transfers ({} moved); it used {} nodes of the state, and \
         the others sent {}; it used {} batches, and the others sent {}",
        it.transfers,
        it.transfers_moved,
        it.nodes_fetched,
        served(|it| it.nodes_served),
        it.batches_fetched,
        served(|it| it.committed_served)
    ));
    Ok(())
}

/// Stops another replica: what is changed then needs the vote of the one that has returned.
fn needs_its_vote(
    volume: &mut FarVolume,
    point: &Path,
    reports: &Reports,
    findings: &mut Findings<'_>,
) -> anyhow::Result<()> {
    volume.cluster().stop_one(STOPPED);
    let began = Instant::now();
    let made = fs::create_dir(point.join("with-its-vote"));
    let made = made.with_context(|| described(&reports.newest()));
    let right = format!(
        "with replica {STOPPED} stopped, a change needs its vote, and took {}",
        seconds(began.elapsed())
    );
    findings.check(&right, made);
    Ok(())
}
