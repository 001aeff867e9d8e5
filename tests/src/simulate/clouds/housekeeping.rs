//! A client with a collector's rights that lists, inspects and deletes.
//!
//! It deletes names that are no longer needed: those that a shard had before it was put again under
//! its next name. The block store does not depend on that, whatever a cloud answers; the answers of
//! honest clouds have to be true.

use super::metadata::OWNER;
use super::wire::{Life, Wire};
use super::world::World;
use quorumfs_backends::{Deadline, ObjectStore};
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::QueryResult;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(2);
/// A reader's rows are younger than this, so that names which became obsolete earlier can be
/// deleted.
const GRACE: Duration = Duration::from_secs(20);

/// Inspects the clouds at random intervals until the end.
pub(super) async fn run(world: &Arc<World>, life: &Arc<Life>, random: &mut Random, end: Instant) {
    let Ok(session) = world.servers.embedded.open_session(OWNER) else {
        return;
    };
    let client = MetadataClient::new(Arc::new(session), Credentials::root());
    let began = Instant::now();
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(random.between(500, 9000))).await;
        let Some(cloud) = random.pick(&world.clouds) else {
            return;
        };
        let wire = Wire {
            cloud: Arc::clone(cloud),
            life: Arc::clone(life),
            ledger: Arc::clone(&world.ledger),
        };
        let Ok(page) = wire.list("", None, 50, Deadline::after(PATIENCE)).await else {
            continue;
        };
        world.ledger.count("lists");
        let honest = !world.liars.contains(&cloud.index);
        for name in page.names.iter().take(5) {
            let head = wire.head(name, Deadline::after(PATIENCE)).await;
            let truth = cloud.truth(name).map(|body| body.len() as u64);
            // A collector may have deleted it in between.
            let alone = honest && !world.reconciles;
            if alone && head.is_ok_and(|info| Some(info.length) != truth) {
                let what = format!("cloud {}: an honest length is wrong", cloud.index);
                world.ledger.violation(what);
            }
            world.ledger.count("heads");
            let Some(named) = cloud.keys.invert(name) else {
                continue;
            };
            let asked = client.ask(
                "collection",
                Credentials::root(),
                Question::Object(named.object),
            );
            let Ok(QueryResult::Object(row)) = asked.await else {
                continue;
            };
            let shard = row.shards.get(usize::from(named.shard.0));
            let left_behind = shard
                .is_some_and(|shard| shard.cloud.0 == cloud.index && shard.attempt > named.attempt);
            if left_behind && began.elapsed() > GRACE {
                world.ledger.count("deletes");
                let _ = wire.delete(name, Deadline::after(PATIENCE)).await;
            }
        }
    }
}
