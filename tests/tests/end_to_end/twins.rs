//! The same operations on a mount and on tmpfs, compared after each step, and two mounts compared
//! with what is promised to them; the program `twins` does this for any number of steps.

#![allow(clippy::unwrap_used)]

use quorumfs_tests::harness::Cluster;
use quorumfs_tests::twins::attack::FOUL;
use quorumfs_tests::twins::draw::Weather;
use quorumfs_tests::twins::place::{Mount, Place};
use quorumfs_tests::twins::several::{self, BOUND, SeveralPlan};
use quorumfs_tests::twins::{FAIR, TwinsPlan, TwinsReport, run, run_under_attack};
use std::path::Path;

fn plan(steps: usize, seed: u64, weather: Weather) -> TwinsPlan {
    TwinsPlan {
        program: env!("CARGO_BIN_EXE_twins").into(),
        steps,
        seed,
        weather,
        defect: None,
        // Shrinking takes minutes; the program does it with the same seed.
        shrinks: false,
    }
}

#[track_caller]
fn assert_the_same(report: &TwinsReport, steps: usize) {
    let difference = report.difference.as_ref();
    let found = difference.map(|it| (it.at, it.what.as_str()));
    assert_eq!(found, None);
    assert_eq!(report.steps, steps);
}

#[test]
fn a_mount_does_what_tmpfs_does() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let mut place = Place::Mount(Box::new(Mount::new(cluster)));
    let report = run(&plan(1500, 3, FAIR), &mut place);
    assert_the_same(&report, 1500);
}

#[test]
fn a_mount_does_what_tmpfs_does_while_it_is_attacked_from_all_sides() {
    let liar = Path::new(env!("CARGO_BIN_EXE_lying_replica"));
    let (report, counts) = run_under_attack(&plan(4000, 7, FOUL), liar);
    println!("{counts:?}");
    assert_the_same(&report, 4000);
}

#[test]
fn two_mounts_of_a_volume_show_what_is_promised_to_them() {
    let report = several::run(SeveralPlan {
        mounts: 2,
        steps: 300,
        seed: 3,
        attack: false,
        bound: BOUND,
        // An open meets a replacement twice in a row if the machine is slow.
        allow_stale_opens: true,
    });
    println!("{}", serde_json::to_string(&report).unwrap());
    let broken = report.broken.map(|broken| broken.to_string());
    assert_eq!(broken, None);
}
