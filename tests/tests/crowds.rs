//! A directory with many entries in a mount; `crowds` does the same with a million.

#![allow(clippy::panic)]

use quorumfs_tests::crowds::{Plan, run};

#[test]
fn a_directory_of_many_entries_costs_what_a_smaller_one_does_and_stays_within_memory() {
    let plan = Plan {
        entries: 20_000,
        in_the_mount: 400,
        timed: 100,
    };
    let report = run(plan);
    println!("{report:?}");
    assert_eq!(report.compared.len(), 5);
    // By turns, so that whatever else the machine does is in both; what grew with the number of
    // entries would be ten times as much.
    for it in &report.compared {
        assert!(it.large_us < 3 * it.smaller_us + 1000, "{it:?}");
    }
}
