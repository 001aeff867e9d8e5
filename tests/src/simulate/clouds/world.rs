//! One run: clouds, servers, gateways, and what happens to them.
//!
//! ```text
//! chaos    liars lie, weather changes, gateways write, read and crash, poison is committed
//! calm     no weather, no crashes; the liars (at most f) go on: everything has to work, in time
//! healed   no lies: everything is completed and scrubbed; then nothing may be missing
//! judged   the content of the clouds, and what readers get without f of them
//! ```
//!
//! The liars are the same at most f clouds for the whole run: others could not replace them before
//! a scrub has inspected everything. Weather may hit any number of clouds: it may delay or refuse
//! operations, but nothing may be lost or wrong because of it.

use super::checks::{check_request_count, check_secrecy};
use super::cloud::{Collusion, SimulatedCloud, Weather};
use super::gateway::{Ended, Gateway};
use super::ledger::Ledger;
use super::lie::Character;
use super::metadata::{FailureRate, Servers};
use super::poison::poison;
use super::weather::weather;
use super::wire::Life;
use super::{CloudOptions, collecting, replacing};
use bytes::Bytes;
use quorumfs_bft::identity::SessionId;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::{CloudKeys, Named, Sabotage, ScrubConfig, ScrubDepth};
use quorumfs_gateway::keys::{CloudSecret, Secret, SliceKey};
use quorumfs_metadata::identity::{ObjectClass, ObjectId, ShardIndex, SliceId, VolumeId};
use quorumfs_metadata::placement::{Policy, Shard};
use quorumfs_metadata::reply::ContentPage;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long the chaos lasts.
const CHAOS: Duration = Duration::from_secs(40);
/// How long one operation may take in the calm phase, when at most f clouds misbehave.
const CALM_OPERATION: Duration = Duration::from_secs(25);
/// How long completion of everything may take once no cloud misbehaves.
const COMPLETION: Duration = Duration::from_secs(120);
/// The distance between two slices in the file.
const SLOT_BYTES: u64 = 1 << 20;
/// How many readers there are at the end; each lacks different clouds.
const READERS: u64 = 2;

/// The state that all parts of a run share.
pub(super) struct World {
    pub(super) policy: Policy,
    pub(super) volume: VolumeId,
    pub(super) secrets: Vec<CloudSecret>,
    pub(super) clouds: Vec<Arc<SimulatedCloud>>,
    pub(super) liars: BTreeSet<u8>,
    pub(super) servers: Servers,
    pub(super) ledger: Arc<Ledger>,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) background_bytes_max: usize,
    /// Whether nothing goes wrong at all.
    fair: bool,
    offsets: AtomicU64,
    clients: AtomicU64,
    interrupted: Mutex<Vec<(ObjectId, SliceId)>>,
    /// Whether there are collectors.
    pub(super) reconciles: bool,
    /// Whether clouds are replaced.
    pub(super) replaces: bool,
    sessions: Mutex<Vec<SessionId>>,
    shares: Mutex<BTreeSet<ObjectId>>,
}

/// The parameters of a run.
struct Scenario {
    gateways: u64,
    operations: u64,
    /// Whether nothing goes wrong at all.
    fair: bool,
    crashes: bool,
    poisons: u64,
    failure_rate: FailureRate,
}

impl Scenario {
    fn draw(random: &mut Random) -> Self {
        let fair = random.chance(1, 10);
        Self {
            gateways: random.between(1, 3),
            operations: random.between(2, 10),
            fair,
            crashes: !fair && random.chance(2, 3),
            poisons: if fair { 0 } else { random.below(3) },
            failure_rate: FailureRate {
                per_mille: if fair { 0 } else { random.below(60) },
            },
        }
    }
}

impl World {
    /// A unique body of this length.
    pub(super) fn content(&self, seed: u64, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        blake3::Hasher::new()
            .update(&seed.to_be_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes.into()
    }

    pub(super) fn slice_key(&self, slice: SliceId) -> SliceKey {
        let mut hasher = blake3::Hasher::new_derive_key("quorumfs simulated slice keys");
        hasher.update(&slice.to_be_bytes());
        SliceKey::from_secret(Secret::from_bytes(hasher.finalize().into()))
    }

    /// The offset in the file for the next slice.
    pub(super) fn next_offset(&self) -> u64 {
        self.offsets.fetch_add(SLOT_BYTES, Ordering::Relaxed)
    }

    /// Ids of writes that a crash interrupted.
    pub(super) fn interrupted(&self) -> MutexGuard<'_, Vec<(ObjectId, SliceId)>> {
        self.interrupted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a cloud holds a shard as an honest gateway put it.
    pub(super) fn is_good(
        &self,
        (object, class): (ObjectId, ObjectClass),
        index: u8,
        shard: &Shard,
    ) -> bool {
        let named = Named {
            object,
            class,
            shard: ShardIndex(index),
            attempt: shard.attempt,
            generation: 0,
        };
        let Some(cloud) = self.clouds.get(usize::from(shard.cloud.0)) else {
            return false;
        };
        let name = cloud.keys.name(&named).ok();
        let body = name.and_then(|name| cloud.truth(&name));
        let known = self.ledger.records().bodies.get(&(object, index)).copied();
        match (body, known) {
            (Some(body), Some(hash)) => blake3::hash(&body) == hash,
            _ => false,
        }
    }

    /// All sessions of gateways that have not been ended.
    pub(super) fn sessions(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ids of the shares that lie on all clouds.
    pub(super) fn shares(&self) -> MutexGuard<'_, BTreeSet<ObjectId>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lives there were, and one.
    pub(super) fn clients(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    pub(super) fn life(&self, steps: u64) -> Arc<Life> {
        Life::new(self.clients.fetch_add(1, Ordering::Relaxed), steps)
    }
}

/// Builds the world of a seed and runs it. The results are in the ledger.
pub(super) async fn run(options: &CloudOptions, ledger: &Arc<Ledger>) -> Result<(), String> {
    let mut random = Random::new(options.seed ^ 0xc10d_c10d_c10d_c10d);
    let policy = options.drawn_policy()?;
    let scenario = Scenario::draw(&mut random);
    let n = policy.clouds();
    let collusion = Arc::new(Collusion::default());
    let all = if options.replaces {
        n + replacing::SPARES
    } else {
        n
    };
    let secrets: Vec<CloudSecret> = (0..all)
        .map(|_| CloudSecret::from_secret(Secret::from_bytes(random.bytes())))
        .collect();
    let clouds = (0..all)
        .zip(&secrets)
        .map(|(index, secret)| {
            Arc::new(SimulatedCloud::new(
                index,
                CloudKeys::derive(secret),
                Arc::clone(ledger),
                Arc::clone(&collusion),
                random.fork(u64::from(index)),
            ))
        })
        .collect();
    let mut order: Vec<u8> = (0..n).collect();
    random.shuffle(&mut order);
    let liars = match scenario.fair {
        true => 0,
        false => random
            .between(0, u64::from(policy.faulty()) * 3)
            .min(policy.faulty().into()),
    };
    let world = Arc::new(World {
        policy,
        volume: quorumfs_bft::identity::ClusterId([9; 16]),
        secrets,
        clouds,
        liars: order.into_iter().take(liars as usize).collect(),
        servers: Servers::new(policy).await?,
        ledger: Arc::clone(ledger),
        sabotage: options.sabotage,
        background_bytes_max: *random.pick(&[1 << 10, 300 << 10, 64 << 20]).unwrap_or(&0),
        fair: scenario.fair,
        offsets: AtomicU64::new(0),
        clients: AtomicU64::new(1),
        interrupted: Mutex::default(),
        reconciles: options.reconciles,
        replaces: options.replaces,
        sessions: Mutex::default(),
        shares: Mutex::default(),
    });
    for liar in &world.liars {
        let Some(cloud) = world.clouds.get(usize::from(*liar)) else {
            continue;
        };
        let climate = match random.below(12) {
            0 => Some((Weather::Hang, "hanging_for_ever")),
            1 => Some((Weather::Down, "down_for_good")),
            _ => None,
        };
        if let Some((climate, name)) = climate {
            ledger.note(&format!("cloud {liar} is {climate:?} for ever"));
            ledger.count(name);
            cloud.set_climate(Some(climate));
            continue;
        }
        let character = Character::draw(&mut random);
        ledger.note(&format!("cloud {liar} is {character:?}"));
        cloud.set_character(Some(character));
    }
    if world.reconciles {
        collecting::prepare(&world).await?;
    }
    chaos(&world, &scenario, &mut random, options.crash_at).await?;
    calm(&world, &mut random).await?;
    healed(&world, &mut random).await?;
    if world.reconciles {
        collecting::last(&world, &mut random).await?;
    } else if scenario.fair && !world.replaces {
        check_request_count(&world);
    }
    check_secrecy(&world);
    Ok(())
}

/// Writers, readers, crashes, weather, poison.
async fn chaos(
    world: &Arc<World>,
    scenario: &Scenario,
    random: &mut Random,
    crash_at: Option<u64>,
) -> Result<(), String> {
    let end = Instant::now() + if world.reconciles { 3 * CHAOS } else { CHAOS };
    let mut lives = tokio::task::JoinSet::new();
    for number in 0..scenario.gateways {
        let world = Arc::clone(world);
        let mut random = random.fork(100 + number);
        let (crashes, operations, failure_rate) =
            (scenario.crashes, scenario.operations, scenario.failure_rate);
        lives.spawn(async move {
            let mut first = crash_at.filter(|_| number == 0);
            let mut left = operations;
            while Instant::now() < end {
                let steps = match (first.take(), crashes) {
                    (Some(steps), _) => steps,
                    (None, true) if random.chance(3, 4) => {
                        let scale = random.between(2, 11);
                        1 + random.below(1 << scale)
                    }
                    _ => u64::MAX,
                };
                let life = world.life(steps);
                let seed = random.next();
                let gateway = Gateway::open(&world, Arc::clone(&life), failure_rate, seed)?;
                let work = live(&gateway, &mut random, &mut left, end);
                tokio::select! {
                    biased;
                    () = life.ended() => {}
                    () = work => {}
                }
                gateway.end();
                gateway.end_session(&mut random).await;
                if life.is_over() {
                    world.ledger.fault("crashes");
                    let client = life.client;
                    world.ledger.note(&format!("{client} crashes"));
                    tokio::time::sleep(Duration::from_millis(random.between(1, 3000))).await;
                }
                if number == 0 {
                    let mut records = world.ledger.records();
                    records.first_life_steps.get_or_insert(life.steps());
                }
            }
            Ok::<(), String>(())
        });
    }
    if world.reconciles {
        for number in 0..1 + random.below(2) {
            let (world, mut own) = (Arc::clone(world), random.fork(500 + number));
            lives.spawn(async move { collecting::run(&world, &mut own, end).await });
        }
    }
    if !scenario.fair {
        let (sky, mut own) = (Arc::clone(world), random.fork(200));
        lives.spawn(async move {
            weather(&sky, &mut own, end).await;
            Ok(())
        });
        let (house, mut own) = (Arc::clone(world), random.fork(300));
        lives.spawn(async move {
            let life = house.life(u64::MAX);
            super::housekeeping::run(&house, &life, &mut own, end).await;
            Ok(())
        });
    }
    if world.replaces {
        let (world, mut own) = (Arc::clone(world), random.fork(600));
        lives.spawn(async move { replacing::run(&world, &mut own, end).await });
    }
    for number in 0..scenario.poisons {
        let (world, mut random) = (Arc::clone(world), random.fork(400 + number));
        lives.spawn(async move {
            let length = random.below(CHAOS.as_millis() as u64 / 2);
            tokio::time::sleep(Duration::from_millis(length)).await;
            poison(&world, &mut random).await
        });
    }
    while let Some(done) = lives.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}

/// Two concurrent operations at a time until all are done, then nothing until the end.
async fn live(gateway: &Arc<Gateway>, random: &mut Random, left: &mut u64, end: Instant) {
    let mut lanes = [random.fork(1), random.fork(2)];
    while *left > 0 && Instant::now() < end {
        let [one, other] = &mut lanes;
        let both = async { tokio::join!(operate(gateway, one), operate(gateway, other)) };
        gateway.life.bound(both).await;
        *left = left.saturating_sub(1);
        let status = gateway.store.status();
        if status.background_bytes > gateway.world.background_bytes_max {
            let (bytes, most) = (status.background_bytes, gateway.world.background_bytes_max);
            gateway.world.ledger.violation(format!(
                "{bytes} bytes in the background, {most} are allowed"
            ));
        }
    }
    tokio::time::sleep_until(end).await;
}

async fn operate(gateway: &Arc<Gateway>, random: &mut Random) {
    let length = random.below(1500) * random.below(2);
    tokio::time::sleep(Duration::from_millis(length)).await;
    if gateway.world.replaces && random.chance(1, 2) {
        replacing::follow(gateway).await;
    }
    match random.below(20) {
        16.. if gateway.world.reconciles => gateway.remove(random).await,
        0..8 => {
            gateway.write(random).await;
        }
        8..10 => gateway.write_pack(random).await,
        10..18 => {
            gateway.read_something(random).await;
        }
        _ if gateway.world.fair => {}
        18 => {
            gateway.compact().await;
        }
        _ => scrub(gateway, random).await,
    }
}

/// Scrubs with a random depth.
async fn scrub(gateway: &Arc<Gateway>, random: &mut Random) {
    let per_million = *random.pick(&[0, 300_000, 1_000_000]).unwrap_or(&0);
    let config = ScrubConfig {
        depth: match random.chance(1, 3) {
            true => ScrubDepth::Full,
            false => ScrubDepth::Sample { per_million },
        },
        repair: random.chance(3, 4),
        seed: random.bytes(),
        ..ScrubConfig::default()
    };
    let ledger = &gateway.world.ledger;
    match gateway.store.scrub(&config, None).await {
        Ok(report) => {
            ledger.count("scrubs");
            let (withdrawn, restored) = (report.withdrawn, report.restored);
            ledger.note(&format!(
                "scrubbed: {withdrawn} withdrawn, {restored} restored"
            ));
        }
        Err(error) => ledger.note(&format!("not scrubbed: {error}")),
    }
}

/// Opens the volume for a phase without crashes.
pub(super) fn open_calmly(world: &Arc<World>, random: &mut Random) -> Result<Arc<Gateway>, String> {
    let failure_rate = FailureRate { per_mille: 0 };
    Gateway::open(world, world.life(u64::MAX), failure_rate, random.next())
}

/// Everything has to work, and in time, while no more than f clouds misbehave.
async fn in_time(world: &World, what: &str, operation: impl Future<Output = Ended>) {
    match tokio::time::timeout(CALM_OPERATION, operation).await {
        Ok(Ended::Done) => {}
        Ok(Ended::Failed) => world.ledger.violation(format!(
            "{what} failed although no more than f clouds misbehave"
        )),
        Err(_) => world.ledger.stall(format!(
            "{what} took more than {} s although no more than f clouds misbehave",
            CALM_OPERATION.as_secs()
        )),
    }
}

async fn calm(world: &Arc<World>, random: &mut Random) -> Result<(), String> {
    world.ledger.note("calm");
    let gateway = open_calmly(world, random)?;
    for _ in 0..2 {
        in_time(world, "a write", gateway.write(random)).await;
    }
    read_all(world, &gateway).await;
    gateway.end();
    Ok(())
}

/// Reads everything that is committed.
async fn read_all(world: &Arc<World>, gateway: &Gateway) -> Option<ContentPage> {
    let Some(page) = gateway.content().await else {
        world
            .ledger
            .stall("the metadata does not answer".to_owned());
        return None;
    };
    for listed in &page.extents {
        let (slice, length) = (listed.extent.slice, listed.extent.length);
        let what = format!("reading slice {slice}");
        in_time(world, &what, gateway.read(&page, slice, 0..length)).await;
    }
    Some(page)
}

async fn healed(world: &Arc<World>, random: &mut Random) -> Result<(), String> {
    world.ledger.note("healed");
    for cloud in &world.clouds {
        cloud.set_character(None);
        cloud.set_climate(None);
    }
    let gateway = open_calmly(world, random)?;
    if world.replaces {
        replacing::last(world, &gateway).await;
    }
    let drained = gateway.store.drain(COMPLETION).await;
    world.ledger.note(&format!("{drained:?}"));
    if drained.busy {
        let what = format!("completion is still busy: {drained:?}");
        world.ledger.stall(what);
    }
    let config = ScrubConfig {
        depth: ScrubDepth::Full,
        ..ScrubConfig::default()
    };
    match tokio::time::timeout(COMPLETION, gateway.store.scrub(&config, None)).await {
        // The report's start time is a real one, which would differ from run to run.
        Ok(Ok(report)) => world.ledger.note(&format!(
            "scrubbed {} objects: {} good, {} bad, {} unreachable, {} withdrawn, {} restored",
            report.objects,
            report.good(),
            report.found(),
            report.unreachable(),
            report.withdrawn,
            report.restored,
        )),
        Ok(Err(error)) => world
            .ledger
            .violation(format!("cannot be scrubbed: {error}")),
        Err(_) => world.ledger.stall("a scrub does not end".to_owned()),
    }
    for _ in 0..2 {
        // Compaction skips a pack the first time that it sees it.
        in_time(world, "compaction", gateway.compact()).await;
    }
    gateway.store.drain(COMPLETION).await;
    gateway.end();
    // A new gateway does not remember what the old one restored.
    let gateway = open_calmly(world, random)?;
    let page = read_all(world, &gateway).await;
    gateway.judge_evidence().await;
    if let (true, Some(page)) = (world.replaces, &page) {
        replacing::judge(world, &gateway, page).await;
    }
    gateway.end();
    let Some(page) = page else {
        return Ok(());
    };
    judge(world, &page);
    // Everything has to work without any f clouds.
    for _ in 0..READERS {
        let mut away: Vec<&Arc<SimulatedCloud>> = world.clouds.iter().collect();
        random.shuffle(&mut away);
        away.truncate(usize::from(world.policy.faulty()));
        for cloud in &away {
            cloud.set_weather(Some(Weather::Down));
        }
        let reader = open_calmly(world, random)?;
        read_all(world, &reader).await;
        reader.end();
        for cloud in away {
            cloud.set_weather(None);
        }
    }
    Ok(())
}

/// Checks that nothing committed is missing, neither in the metadata nor on an honest cloud.
fn judge(world: &World, page: &ContentPage) {
    let (committed, attempts) = {
        let records = world.ledger.records();
        let committed: BTreeSet<_> = records.committed.difference(&records.removed).collect();
        let committed: Vec<SliceId> = committed.into_iter().copied().collect();
        (committed, records.attempts.clone())
    };
    for slice in &committed {
        if !page.slices.iter().any(|(id, _)| id == slice) {
            let what = format!("slice {slice}: committed, and not in the metadata");
            world.ledger.violation(what);
        }
    }
    for (slice, row) in &page.slices {
        if attempts
            .get(slice)
            .is_none_or(|attempt| attempt.poison.is_some())
        {
            continue;
        }
        let Some((id, object)) = page.objects.iter().find(|(id, _)| *id == row.object) else {
            continue;
        };
        for (index, shard) in (0u8..).zip(&object.shards) {
            if !shard.acknowledged {
                world.ledger.violation(format!(
                    "object {id}, shard {index}: not completed although every cloud is well again"
                ));
            } else if !world.liars.contains(&shard.cloud.0)
                && !world.is_good((*id, object.class), index, shard)
            {
                world.ledger.violation(format!(
                    "object {id}, shard {index}: not good on a cloud that never lied"
                ));
            }
        }
    }
}
