//! Real replicas are killed under load; the program `crashes` does the same for any length of time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::crashes::run::{CrashPlan, run};
use std::path::Path;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_are_killed_lose_and_double_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let plan = CrashPlan {
        kills: 5,
        all_every: 3,
        wipes: 1,
        swaps: 1,
        damages: 1,
        rollbacks: 1,
        clients: 2,
        hands: 4,
        seed: 7,
    };
    let program = Path::new(env!("CARGO_BIN_EXE_crashes"));
    let report = run(plan, program, directory.path()).await.unwrap();
    assert_eq!(report.kills, (4, 1));
    assert!(report.acknowledged > 100, "{report:?}");
    let recovered = [
        &report.wiped_recovered_ms,
        &report.damaged_recovered_ms,
        &report.rolled_back_recovered_ms,
        &report.joined_ms,
        &report.swapped_ms,
    ];
    assert!(recovered.iter().all(|times| times.is_some()), "{report:?}");
    println!("{}", serde_json::to_string(&report).unwrap());
}
