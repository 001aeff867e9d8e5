//! Runs of the key-value service: every profile, every sabotage, and the seeds that failed once.

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
