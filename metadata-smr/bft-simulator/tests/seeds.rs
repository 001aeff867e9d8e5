//! Runs of the key-value service: every profile, every sabotage, and the seeds that failed once.

#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

use quorumfs_bft::replica::Sabotage;
use quorumfs_bft_simulator::key_value::KeyValueWorkload;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::{Options, Simulation};

fn run(profile: Profile, seed: u64, sabotage: Option<Sabotage>) -> Report {
    let options = Options {
        seed,
        profile,
        sabotage,
    };
    Simulation::run(options, KeyValueWorkload::default(), None).unwrap()
}

fn holds(profile: Profile, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let report = run(profile, seed, None);
        assert!(
            report.passed(),
            "seed {seed} of profile {profile}: {:?} {:?}",
            report.violations,
            report.stalls
        );
    }
}

#[test]
fn the_mixed_profile_holds() {
    holds(Profile::Mixed, 1..=200);
}

#[test]
fn every_other_profile_holds() {
    for profile in Profile::ALL {
        holds(profile, 10_000..10_020);
    }
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in 1..=5 {
        let (first, second) = (
            run(Profile::Mixed, seed, None),
            run(Profile::Mixed, seed, None),
        );
        assert_eq!(first.events, second.events);
        assert_eq!(first.virtual_nanos, second.virtual_nanos);
        assert_eq!(first.counters, second.counters);
    }
}

/// Seeds of the survey.
const SURVEYED: u64 = 200;

/// Which of these seeds see a defect.
fn seeds_that_see(sabotage: Sabotage, seeds: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let sees = |seed: &u64| {
        std::panic::catch_unwind(|| !run(Profile::Mixed, *seed, Some(sabotage)).passed())
            .unwrap_or(true)
    };
    seeds.into_iter().filter(sees).collect()
}

#[test]
#[ignore = "a survey: shows how often each sabotage is seen"]
fn how_often_each_sabotage_is_seen() {
    for sabotage in Sabotage::ALL {
        let seen = seeds_that_see(sabotage, 1..=SURVEYED);
        println!("{sabotage:?}: {} of {SURVEYED}: {seen:?}", seen.len());
    }
}
