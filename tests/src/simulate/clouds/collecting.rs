//! The profile `reconcile`: what gateways remove is collected meanwhile, and in the end nothing is
//! left but what is needed.
//!
//! ```text
//! chaos    gateways write, remove and die; packs come back to life; points are retained;
//!          collectors collect and sweep with hardly any grace, and die at any step
//! end      all sessions end; the file goes to the trash; a last collector works in peace; the file
//!          comes back
//! judged   every row's shards are there, what is retained too, shares were never touched, and no
//!          honest cloud holds anything else
//! ```
//!
//! A forget is judged when it is ordered: an honest cloud must hold no name of the object any more,
//! apart from those that were put after they had been deleted.

use super::gateway::Gateway;
use super::ledger::Ledger;
use super::metadata::{FailureRate, TIME};
use super::world::World;
use quorumfs_backends::ObjectName;
use quorumfs_bft::identity::Sequence;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::{CloudKeys, Collection, Named};
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::{InodeId, ObjectClass, ObjectId, ShardIndex, SliceId};
use quorumfs_metadata::operation::{Operation, Remove, Restore, Step};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{ContentPage, Done, Fate, QueryResult};
use quorumfs_metadata::row::{Object, RetentionKind};
use quorumfs_metadata::simulation::place;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Hardly any: so that collectors meet writers and readers.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// Deletions in a thousand that a late put follows.
const LATE_PER_MILLE: u64 = 20;
/// How long the last collector may take.
const LAST: Duration = Duration::from_secs(600);

fn collection() -> Collection {
    Collection {
        grace: GRACE,
        ..Collection::default()
    }
}

/// Makes some puts late, and puts shares of a second lock on all clouds: of the first key epoch,
/// and of one whose id a session was granted that has ended.
pub(super) async fn prepare(world: &Arc<World>) -> Result<(), String> {
    let gateway = super::world::open_calmly(world, &mut Random::new(7))?;
    let granted = gateway.client.allocate().await;
    let granted = granted.map_err(|error| error.to_string())?.object();
    for cloud in &world.clouds {
        cloud.set_late_puts(LATE_PER_MILLE);
        for object in [ObjectId::FOUNDING, granted] {
            let name = share(cloud.index, object, &cloud.keys)?;
            cloud.plant(name, vec![cloud.index; 115].into());
            world.shares().insert(object);
        }
    }
    gateway.end();
    Ok(())
}

fn share(cloud: u8, object: ObjectId, keys: &CloudKeys) -> Result<ObjectName, String> {
    let named = Named {
        object,
        class: ObjectClass::SHARE,
        shard: ShardIndex(cloud),
        attempt: 0,
        generation: 0,
    };
    keys.name(&named).map_err(|error| error.to_string())
}

/// Collects, sweeps and retains until the end; dies at random steps.
pub(super) async fn run(
    world: &Arc<World>,
    random: &mut Random,
    end: Instant,
) -> Result<(), String> {
    while Instant::now() < end {
        let steps = match random.chance(1, 2) {
            true => {
                let scale = random.between(4, 12);
                1 + random.below(1 << scale)
            }
            false => u64::MAX,
        };
        let life = world.life(steps);
        let failure_rate = FailureRate {
            per_mille: random.below(30),
        };
        let gateway = Gateway::open(world, Arc::clone(&life), failure_rate, random.next())?;
        let work = async {
            while Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(random.between(500, 5000))).await;
                one(world, &gateway, random).await;
            }
        };
        let work = life.bound(work);
        tokio::select! {
            biased;
            () = life.ended() => {}
            () = work => {}
        }
        gateway.end();
        gateway.end_session(random).await;
        if life.is_over() {
            world.ledger.fault("collector_crashes");
            tokio::time::sleep(Duration::from_millis(random.between(1, 3000))).await;
        }
    }
    Ok(())
}

async fn one(world: &Arc<World>, gateway: &Gateway, random: &mut Random) {
    let ledger = &world.ledger;
    match random.below(10) {
        0..6 => match gateway.store.collect(&collection()).await {
            Ok(done) => {
                ledger.count("collections");
                ledger.note(&format!("{} collects: {done:?}", gateway.life.client));
            }
            Err(error) => ledger.note(&format!("not collected: {error}")),
        },
        6..9 => match gateway.store.sweep_listings(&collection()).await {
            Ok(done) => {
                ledger.count("sweeps");
                ledger.note(&format!("{} sweeps: {done:?}", gateway.life.client));
            }
            Err(error) => ledger.note(&format!("not swept: {error}")),
        },
        _ => retain(world, gateway).await,
    }
}

/// Orders that a point, or all points from now on, are retained.
async fn retain_point(gateway: &Gateway, open: bool) -> Option<(u64, Sequence)> {
    let operation = Operation::Retain {
        kind: RetentionKind::RecoveryPoint,
        open,
        seconds: None,
    };
    match gateway.client.order("retain", &operation).await {
        Ok(Done::Retained { number, point }) => Some((number, point)),
        _ => None,
    }
}

/// Retains a point as a backup does, and remembers slices that were there before and after it: all
/// points are retained from some time before it on, until it is chosen.
async fn retain(world: &Arc<World>, gateway: &Gateway) {
    let Some((number, _)) = retain_point(gateway, true).await else {
        return;
    };
    let before: BTreeSet<SliceId> = {
        let records = world.ledger.records();
        records
            .committed
            .difference(&records.removed)
            .copied()
            .collect()
    };
    let Some(page) = gateway.content().await else {
        return;
    };
    let Some((other, point)) = retain_point(gateway, false).await else {
        return;
    };
    let Some(after) = gateway.content().await else {
        return;
    };
    // What only the second one retains may go again: the first is to do it alone.
    let release = Operation::Release { number: other };
    if gateway.client.order("release", &release).await.is_err() {
        return;
    }
    let narrow = Operation::Narrow { number, to: point };
    if gateway.client.order("narrow", &narrow).await.is_err() {
        return;
    }
    world.ledger.count("points_retained");
    world.ledger.note(&format!("retained {}", point.0));
    let mut records = world.ledger.records();
    for (slice, row) in &page.slices {
        // Compaction may have moved it meanwhile, and a poisoned one has no right shards.
        let stayed = after.slices.iter().any(|it| *it == (*slice, row.clone()));
        let attempt = records.attempts.get(slice);
        let is_right = attempt.is_some_and(|attempt| attempt.poison.is_none());
        if stayed && is_right && before.contains(slice) && !records.removed.contains(slice) {
            records.retained.insert((row.object, point));
        }
    }
}

/// Judges a forget that is about to be ordered.
pub(super) async fn judge_forget(world: &World, id: ObjectId) {
    let Some(row) = row(world, id).await else {
        return;
    };
    let (mut names, mut left) = (0, 0);
    for (index, shard) in (0u8..).zip(&row.shards) {
        // A liar answers as it likes about the present name; it deletes what it is told to.
        let honest = !world.liars.contains(&shard.cloud.0);
        let Some(cloud) = world.clouds.get(usize::from(shard.cloud.0)) else {
            continue;
        };
        for attempt in 0..=shard.attempt {
            let named = named(id, &row, index, attempt);
            let Ok(name) = cloud.keys.name(&named) else {
                continue;
            };
            let is_late = world
                .ledger
                .records()
                .late
                .contains(&(cloud.index, name.clone()));
            let exists = !is_late && cloud.truth(&name).is_some();
            names += 1;
            left += u64::from(exists && honest);
            if exists && attempt < shard.attempt {
                world.ledger.violation(format!(
                    "object {id}, shard {index}: forgotten while its name of attempt {attempt} is \
                     there"
                ));
            }
        }
    }
    if left > 0 {
        world.ledger.violation(format!(
            "object {id}: forgotten while {left} of its {names} names are there"
        ));
    }
}

fn named(object: ObjectId, row: &Object, index: u8, attempt: u8) -> Named {
    Named {
        object,
        class: row.class,
        shard: ShardIndex(index),
        attempt,
        generation: row.generation,
    }
}

async fn row(world: &World, id: ObjectId) -> Option<Object> {
    match world.servers.look(Question::Object(id)).await {
        Some(QueryResult::Object(row)) => Some(row),
        _ => None,
    }
}

async fn fates(world: &World, objects: Vec<ObjectId>) -> Vec<Fate> {
    match world.servers.look(Question::Fates { objects }).await {
        Some(QueryResult::Fates(fates)) => fates,
        _ => Vec::new(),
    }
}

/// The last collector, and the judgement.
pub(super) async fn last(world: &Arc<World>, random: &mut Random) -> Result<(), String> {
    let ledger = &world.ledger;
    for session in std::mem::take(&mut *world.sessions()) {
        world.servers.embedded.end_session(session).ok();
    }
    for cloud in &world.clouds {
        cloud.set_late_puts(0);
    }
    tokio::time::sleep(GRACE + Duration::from_secs(30)).await;
    let gateway = super::world::open_calmly(world, random)?;
    let before = gateway.content().await;
    let remove = Remove {
        place: place(InodeId::ROOT, "file"),
        expected: Some(world.servers.file),
        held: false,
    };
    change_name(world, &gateway, Step::Unlink(remove)).await;
    let peace = async {
        // The job of a collector that was killed is free when its time is over.
        for _ in 0..200 {
            match gateway.store.collect(&collection()).await {
                Ok(done) if done.elsewhere => {}
                Ok(done) if done.kept.unreachable > 0 => {}
                Ok(done) => {
                    ledger.note(&format!("the last collection: {done:?}"));
                    if done.kept.young + done.kept.open > 0 {
                        ledger.violation(format!("garbage is kept without a reason: {done:?}"));
                    }
                    break;
                }
                Err(error) => ledger.violation(format!("cannot be collected: {error}")),
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        match gateway.store.sweep_listings(&collection()).await {
            Ok(done) if done.elsewhere || done.failed > 0 => {
                ledger.stall(format!("the last sweep is not done: {done:?}"));
            }
            Ok(done) => ledger.note(&format!("the last sweep: {done:?}")),
            Err(error) => ledger.violation(format!("cannot be swept: {error}")),
        }
    };
    if tokio::time::timeout(LAST, peace).await.is_err() {
        ledger.stall("the last collector does not end".to_owned());
    }
    let restore = Restore {
        inode: world.servers.file,
        place: place(InodeId::ROOT, "file"),
    };
    change_name(world, &gateway, Step::Restore(restore)).await;
    let mapped = |page: Option<ContentPage>| page.map(|page| (page.attributes.size, page.extents));
    if mapped(gateway.content().await) != mapped(before) {
        let what = "the file is not the same after it was in the trash";
        ledger.violation(what.to_owned());
    }
    gateway.end();
    judge_retained(world).await;
    judge_clouds(world).await;
    Ok(())
}

/// Removes the file, or restores it.
async fn change_name(world: &World, gateway: &Gateway, step: Step) {
    let client = &gateway.client;
    let done = client.step("trash", Credentials::root(), TIME, step).await;
    match done {
        Ok(_) => world.ledger.count("trashed_and_restored"),
        Err(error) => world
            .ledger
            .violation(format!("the file's name was not changed: {error}")),
    }
}

/// What a retained point needs is there.
async fn judge_retained(world: &World) {
    let retained = world.ledger.records().retained.clone();
    for (id, point) in retained {
        let Some(row) = row(world, id).await else {
            world.ledger.violation(format!(
                "object {id}: forgotten, and point {} needs it",
                point.0
            ));
            continue;
        };
        for (index, shard) in (0u8..).zip(&row.shards) {
            let honest = !world.liars.contains(&shard.cloud.0);
            if honest && shard.acknowledged && !world.is_good((id, row.class), index, shard) {
                world.ledger.violation(format!(
                    "object {id}, shard {index}: not on its cloud, and point {} needs it",
                    point.0
                ));
            }
        }
    }
}

/// No honest cloud holds anything but shards of rows, and the shares.
async fn judge_clouds(world: &World) {
    let shares = world.shares().clone();
    for cloud in &world.clouds {
        if world.liars.contains(&cloud.index) {
            continue;
        }
        for object in &shares {
            let name = share(cloud.index, *object, &cloud.keys);
            if name.ok().and_then(|name| cloud.truth(&name)).is_none() {
                world.ledger.violation(format!(
                    "cloud {}: the share of {object} was deleted",
                    cloud.index
                ));
            }
        }
        for name in cloud.names() {
            let Some(named) = cloud.keys.invert(&name) else {
                continue;
            };
            if !matches!(named.class, ObjectClass::BLOCK | ObjectClass::PACK) {
                continue;
            }
            let fate = fates(world, vec![named.object]).await.pop();
            let needed = fate.is_some_and(|fate| {
                fate.row.is_some_and(|row| {
                    let shard = row.shards.get(usize::from(named.shard.0));
                    shard.is_some_and(|shard| {
                        (shard.cloud.0, shard.attempt) == (cloud.index, named.attempt)
                    })
                })
            });
            if !needed {
                world
                    .ledger
                    .violation(format!("cloud {}: garbage is left: {named:?}", cloud.index));
            }
        }
    }
}

/// Objects that retained points need, with the point.
pub(super) type Retained = BTreeSet<(ObjectId, Sequence)>;

impl Ledger {
    /// A cloud stores a name that it had deleted: its put was late.
    pub(super) fn late(&self, cloud: u8, name: &ObjectName) {
        self.count("late_puts");
        self.records().late.insert((cloud, name.clone()));
    }
}
