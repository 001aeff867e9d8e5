//! Judgements that need nothing but the ledger and the clouds.

use super::world::World;
use bytes::Bytes;

/// The length of plaintext that is searched for in the clouds, from each end of each slice.
const NEEDLE_BYTES: usize = 24;

/// Checks that in fair weather there are no unnecessary requests.
pub(super) fn check_request_count(world: &World) {
    let records = world.ledger.records();
    let n = u64::from(world.policy.clouds());
    let count = |name| records.counters.get(name);
    let (written, read) = (count("objects_written"), records.operations);
    let requests: u64 = world.clouds.iter().map(|cloud| cloud.traffic().0).sum();
    let lives = world.clients();
    // One request for each put; k of n for each read, and as many again for a late one; one probe
    // of each cloud for each life.
    let most = n * (written + 2 * read + 2 * lives);
    drop(records);
    if requests > most {
        let what = format!("{requests} requests in fair weather; at most {most} are expected");
        world.ledger.violation(what);
    }
}

/// Checks that no plaintext was ever on any cloud, so that f of them together know none.
pub(super) fn check_secrecy(world: &World) {
    let attempts = world.ledger.records().attempts.clone();
    let needles: Vec<Bytes> = attempts
        .values()
        .filter(|attempt| attempt.plain.len() >= NEEDLE_BYTES)
        .flat_map(|attempt| {
            let end = attempt.plain.len() - NEEDLE_BYTES;
            [
                attempt.plain.slice(..NEEDLE_BYTES),
                attempt.plain.slice(end..),
            ]
        })
        .collect();
    let Ok(search) = aho_corasick::AhoCorasick::new(&needles) else {
        return;
    };
    for cloud in &world.clouds {
        for (name, body) in cloud.all_bodies() {
            if search.is_match(&body[..]) {
                let what = format!("cloud {}: {name} shows plaintext", cloud.index);
                world.ledger.violation(what);
            }
        }
    }
}
