//! The option `replaces`: clouds are replaced while everything goes on.
//!
//! ```text
//! chaos    a liar, if there is one, or a cloud that is well is replaced by a spare; perhaps its
//!          successor by another spare, or by itself again; movers move shards and die at any step
//! healed   a last mover works in peace
//! judged   no needed row names a cloud that was replaced, and its successors hold everything
//! ```
//!
//! A liar keeps its character when it is replaced: whatever it answers, its shards have to arrive.

use super::gateway::Gateway;
use super::metadata::{FailureRate, OWNER_SEED, USER};
use super::world::World;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::{Drainage, Draining};
use quorumfs_gateway::keys::{Secret, VolumeRoot};
use quorumfs_metadata::fleet::{
    ChangeClouds, CloudChange, CloudState, CloudStep, Fleet, SignedCloudChange,
};
use quorumfs_metadata::identity::{CloudIndex, RealmEpoch};
use quorumfs_metadata::operation::Operation;
use quorumfs_metadata::reply::ContentPage;
use quorumfs_metadata::row::{Cloud, SignedBy};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Clouds that can be added.
pub(super) const SPARES: u8 = 2;
/// How long the last mover may take.
const LAST: Duration = Duration::from_secs(300);
const FAST: Draining = Draining {
    every: Duration::from_secs(1),
    bytes_per_second: None,
};

/// The fleet as the servers have it.
async fn fleet(gateway: &Gateway) -> Option<Fleet> {
    let shown = gateway.client.cloud_changes(u32::MAX - 1).await;
    shown.ok().map(|(_, fleet, _)| fleet)
}

/// Lets a gateway learn of changes of the clouds.
pub(super) async fn follow(gateway: &Gateway) {
    if let Some(fleet) = fleet(gateway).await
        && let Err(error) = gateway.store.learn_clouds(&[], fleet)
    {
        let what = format!("a gateway does not follow: {error}");
        gateway.world.ledger.violation(what);
    }
}

/// Orders a change as the owner, until it is done.
async fn order(gateway: &Gateway, step: CloudStep) -> Result<(), String> {
    let owner = VolumeRoot::from_seed(Secret::from_bytes(OWNER_SEED));
    let number = loop {
        if let Some(fleet) = fleet(gateway).await {
            break fleet.changes.saturating_add(1);
        }
    };
    let change = CloudChange {
        volume: gateway.world.volume,
        number,
        epoch: RealmEpoch(0),
        step,
    };
    let bytes = change.to_bytes();
    let signer = owner.public().0;
    let secrets = match &change.step {
        CloudStep::Add { .. } => vec![(signer, vec![1; 80]), (USER, vec![1; 80])],
        CloudStep::Replace { .. } => Vec::new(),
    };
    let signature = owner.sign(&CloudChange::signed_bytes(&bytes));
    let operation = Operation::ChangeClouds(ChangeClouds {
        signed: SignedCloudChange {
            change: bytes,
            signed: SignedBy { signer, signature },
        },
        secrets,
    });
    let ordered = gateway.client.order("replacing", &operation).await;
    ordered.map(drop).map_err(|error| error.to_string())
}

/// Replaces clouds, and moves their shards, until the end.
pub(super) async fn run(
    world: &Arc<World>,
    random: &mut Random,
    end: Instant,
) -> Result<(), String> {
    let n = world.policy.clouds();
    let orders = super::world::open_calmly(world, random)?;
    let old = world.liars.iter().copied().next();
    let old = old.unwrap_or_else(|| u8::try_from(random.below(u64::from(n))).unwrap_or_default());
    let second = match random.below(3) {
        0 => Some((n, n + 1)),
        1 => Some((n, old)),
        _ => None,
    };
    for (old, new) in std::iter::once((old, n)).chain(second) {
        tokio::time::sleep(Duration::from_millis(random.between(500, 12_000))).await;
        if new >= n && new != old {
            order(&orders, added(world, new)).await?;
        }
        let step = CloudStep::Replace {
            old: CloudIndex(old),
            new: CloudIndex(new),
        };
        order(&orders, step).await?;
        world.ledger.count("clouds_replaced");
        let what = format!("cloud {new} takes the place of cloud {old}");
        world.ledger.note(&what);
        let until = Instant::now() + Duration::from_millis(random.between(100, 15_000));
        move_until(world, random, until.min(end)).await?;
    }
    orders.end();
    move_until(world, random, end).await
}

fn added(world: &World, index: u8) -> CloudStep {
    let known = world.secrets.get(usize::from(index));
    CloudStep::Add {
        cloud: Cloud {
            index: CloudIndex(index),
            kind: "local".to_owned(),
            failure_domain: format!("domain-{index}"),
            name: format!("cloud-{index}"),
        },
        secret: known.map_or(quorumfs_bft::identity::Digest([0; 32]), |it| it.digest()),
        description: Vec::new(),
    }
}

/// Lives of movers, each of which may die at any step.
async fn move_until(world: &Arc<World>, random: &mut Random, end: Instant) -> Result<(), String> {
    while Instant::now() < end {
        let steps = match random.chance(1, 2) {
            true => {
                let scale = random.between(4, 11);
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
                follow(&gateway).await;
                let drained = gateway.store.drain_clouds(&FAST).await;
                note(world, drained.as_ref().ok());
                tokio::time::sleep(Duration::from_millis(random.between(500, 4000))).await;
            }
        };
        let work = life.bound(work);
        tokio::select! {
            biased;
            () = life.ended() => {}
            () = work => {}
            () = tokio::time::sleep_until(end) => {}
        }
        gateway.end();
        if life.is_over() {
            world.ledger.fault("mover_crashes");
        }
    }
    Ok(())
}

fn note(world: &World, drained: Option<&Drainage>) {
    match drained {
        Some(drained) => world.ledger.note(&format!(
            "drained: {} moved, {} stuck, finished: {}",
            drained.shards_moved, drained.shards_stuck, drained.finished
        )),
        None => world.ledger.note("drained: not ordered"),
    }
}

/// The last mover: everything has to move once every cloud is well.
pub(super) async fn last(world: &Arc<World>, gateway: &Gateway) {
    let until = Instant::now() + LAST;
    loop {
        follow(gateway).await;
        let drained = gateway.store.drain_clouds(&FAST).await;
        note(world, drained.as_ref().ok());
        if drained.is_ok_and(|drained| drained.finished) {
            world.ledger.count("clouds_drained");
            return;
        }
        if Instant::now() > until {
            world
                .ledger
                .stall("a replaced cloud is not drained".to_owned());
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Checks that no needed row names a cloud that was replaced.
pub(super) async fn judge(world: &World, gateway: &Gateway, page: &ContentPage) {
    let Some(fleet) = fleet(gateway).await else {
        return world
            .ledger
            .stall("the metadata does not answer".to_owned());
    };
    for (id, object) in &page.objects {
        for shard in &object.shards {
            if fleet.state(shard.cloud) != CloudState::Active {
                let what = format!("object {id} has a shard on replaced cloud {}", shard.cloud);
                world.ledger.violation(what);
            }
        }
    }
}
