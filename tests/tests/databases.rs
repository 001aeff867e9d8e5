//! SQLite in a mount, in each of its journal modes; `databases` does the same for as long as one
//! likes.

#![allow(clippy::expect_used)]

use quorumfs_tests::databases::{Mode, Plan, run};

#[test]
fn a_database_keeps_what_it_acknowledged_in_every_journal_mode_whoever_is_killed() {
    let plan = Plan {
        program: env!("CARGO_BIN_EXE_databases").into(),
        modes: Mode::ALL.to_vec(),
        transactions: 80,
        kills: (1, 1),
        shared: 30,
        seed: 5,
    };
    let mut reports = Vec::new();
    run(plan, |report| {
        println!("{report:?}");
        reports.push(report.clone());
    });
    assert_eq!(reports.len(), Mode::ALL.len());
    assert!(reports.iter().all(|it| it.transactions == 80));
    let killed: u32 = reports
        .iter()
        .map(|it| it.clients_killed + it.mounts_killed)
        .sum();
    assert_eq!(killed, 4 * 2);
    // Otherwise there was nothing to undo, and the kills have shown little.
    assert!(reports.iter().any(|it| it.left_behind > 0), "{reports:?}");
    let shared = reports.iter().filter(|it| it.shared == 60 && it.looked > 0);
    assert_eq!(shared.count(), 5);
}
