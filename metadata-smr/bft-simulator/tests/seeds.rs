//! Runs of the key-value service: every profile, and the seeds that failed once.

#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

use quorumfs_bft_simulator::key_value::KeyValueWorkload;
use quorumfs_bft_simulator::plan::FAULTS_MIN;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::{Options, Simulation};

fn run(profile: Profile, seed: u64) -> Report {
    let options = Options::new(seed, profile);
    Simulation::run(options, KeyValueWorkload::default(), None).unwrap()
}

fn holds(profile: Profile, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let report = run(profile, seed);
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
        let (first, second) = (run(Profile::Mixed, seed), run(Profile::Mixed, seed));
        assert_eq!(first.events, second.events);
        assert_eq!(first.virtual_nanos, second.virtual_nanos);
        assert_eq!(first.counters, second.counters);
    }
}

/// Replicas that were to crash were down already, so that most of the plan came to nothing.
#[test]
fn a_run_whose_faults_came_to_nothing_gets_others() {
    for seed in [74, 160, 171, 178] {
        let report = run(Profile::Crash, seed);
        assert!(report.faults >= FAULTS_MIN, "seed {seed}");
    }
}

/// A liar that hears all COMMITs, keeps its own and hands nothing out is the only one to have
/// executed a batch, and every later view starts from it: the honest signers of the certificate
/// have to execute by it.
#[test]
fn what_only_a_hoarding_liar_has_executed_holds_up_no_view() {
    holds(Profile::Byzantine, [190, 240, 286, 413, 577]);
}

/// Behind a durable root a leader's COMMIT was written without its certificate, and a crash right
/// after it made an honest replica show an empty one, for which the others blamed it.
#[test]
fn a_leader_that_crashes_behind_a_root_is_not_blamed() {
    holds(Profile::Mixed, [1888]);
}

/// Two replicas that both have to answer, clients with two requests in flight in a lane, and a
/// network that lets the second overtake the first: no lane may end up waiting for its longest
/// retry again and again. (The blacklisted peers of these runs are Byzantine clients.)
#[test]
fn requests_that_overtake_each_other_on_the_way_to_two_replicas_are_answered() {
    holds(Profile::Mixed, [4097, 5022, 5150, 5364, 5438]);
}
