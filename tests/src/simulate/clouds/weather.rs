//! Bad weather: clouds that are down, slow or hang for a while, also more than f of them at a time.
//!
//! Weather may delay and refuse, and nothing may be lost or wrong because of it.

use super::cloud::{SimulatedCloud, Weather};
use super::world::World;
use quorumfs_bft_simulator::random::Random;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Repeatedly puts bad weather over some clouds for a while.
pub(super) async fn weather(world: &World, random: &mut Random, end: Instant) {
    // Half of the seeds stay within the number of faults that the policy tolerates.
    let within = random.chance(1, 2);
    let f = usize::from(world.policy.faulty());
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(random.between(10, 8000))).await;
        let mut hit: Vec<&Arc<SimulatedCloud>> = world.clouds.iter().collect();
        random.shuffle(&mut hit);
        let count = match within {
            true => f.saturating_sub(world.liars.len()),
            false => random.index(world.clouds.len()) + 1,
        };
        hit.truncate(count);
        if hit.len() > f {
            world.ledger.count("weather_over_more_than_f");
        }
        let same = Weather::ALL.get(random.index(Weather::ALL.len())).copied();
        if hit.len() > 1 && same == Some(Weather::Down) {
            world.ledger.count("correlated_outages");
        }
        for cloud in &hit {
            world
                .ledger
                .note(&format!("cloud {}: {same:?}", cloud.index));
            cloud.set_weather(same);
        }
        let length = Duration::from_millis(random.between(50, 15_000));
        tokio::time::sleep(length.min(end.saturating_duration_since(Instant::now()))).await;
        for cloud in hit {
            cloud.set_weather(None);
        }
    }
    for cloud in &world.clouds {
        cloud.set_weather(None);
    }
}
