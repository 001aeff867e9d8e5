//! A real mount is killed under load; the program `kills` does the same for any length of time.

use quorumfs_tests::kills::{KillPlan, run};

#[test]
fn a_mount_that_is_killed_loses_nothing_that_was_synced() {
    let plan = KillPlan {
        kills: 10,
        writers: 3,
        seed: 3,
    };
    let report = run(plan);
    println!("{report:?}");
    assert_eq!(report.kills, 11);
    assert!(report.synced_without_clouds > 0 && report.renamed > 0);
    assert!(report.with_a_replica > 0 && report.with_all_replicas > 0);
}
