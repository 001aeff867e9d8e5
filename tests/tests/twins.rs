//! Random twins for some minutes: a mount against tmpfs, the same under attack, and that the
//! comparison finds what is wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use clap::ValueEnum;
use quorumfs_tests::harness::Cluster;
use quorumfs_tests::twins::attack::FOUL;
use quorumfs_tests::twins::defect::Defect;
use quorumfs_tests::twins::draw::Weather;
use quorumfs_tests::twins::place::{Mount, Place, Tmpfs};
use quorumfs_tests::twins::{FAIR, Plan, Report, run, run_under_attack};
use std::path::Path;

const PROGRAM: &str = env!("CARGO_BIN_EXE_twins");
const LIAR: &str = env!("CARGO_BIN_EXE_lying_replica");

fn plan(steps: usize, seed: u64, weather: Weather) -> Plan {
    Plan {
        program: PROGRAM.into(),
        steps,
        seed,
        weather,
        defect: None,
        shrinks: true,
    }
}

#[track_caller]
fn assert_same(report: &Report, steps: usize) {
    assert!(report.difference.is_none(), "{:#?}", report.difference);
    assert_eq!(report.steps, steps);
    // What is refused on both sides only, or never drawn, is not compared.
    let kinds = report.succeeded.len();
    assert!(kinds >= 34, "{kinds} kinds: {:?}", report.succeeded);
}

#[test]
fn a_mount_and_tmpfs_are_the_same_after_every_step() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let mut place = Place::Mount(Box::new(Mount::new(cluster)));
    let report = run(&plan(3000, 1, FAIR), &mut place);
    assert_same(&report, 3000);
}

#[test]
fn with_a_cloud_damaged_a_replica_lying_and_the_mount_killed_they_are_still_the_same() {
    let (report, suffered) = run_under_attack(&plan(1500, 2, FOUL), Path::new(LIAR));
    println!("{suffered:?}");
    assert_same(&report, 1500);
}

#[test]
fn two_directories_of_tmpfs_are_the_same() {
    let mut place = Place::Tmpfs(Tmpfs::mount());
    let report = run(&plan(4000, 3, INSIDE), &mut place);
    assert_same(&report, 4000);
}

/// Between directories of tmpfs nothing has to time out.
const INSIDE: Weather = Weather {
    drop_caches: 1_000_000,
    wait: 1_000_000,
    remount: 300,
    kill: None,
};

#[test]
fn whatever_is_done_wrong_is_found_and_shown_by_a_short_trace() {
    for defect in Defect::value_variants() {
        let name = defect.to_possible_value().unwrap().get_name().to_owned();
        let mut place = Place::Tmpfs(Tmpfs::mount());
        let mut plan = plan(4000, 4, INSIDE);
        plan.defect = Some(name.clone());
        let report = run(&plan, &mut place);
        let difference = report
            .difference
            .unwrap_or_else(|| panic!("{name}: not found"));
        println!("{name}: {difference:#?}");
        assert!(difference.again.is_some(), "{name}: not found again");
        let steps = difference.trace.len();
        assert!(steps <= 8, "{name}: {steps} steps: {:#?}", difference.trace);
    }
}
