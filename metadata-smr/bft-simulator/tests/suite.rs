//! Runs of the key-value service: every profile, and the seeds that have failed.

#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

use quorumfs_bft_simulator::counters::Counters;
use quorumfs_bft_simulator::key_value::KeyValueWorkload;
use quorumfs_bft_simulator::plan::FAULTS_MIN;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::{Options, Simulation};

fn run(profile: Profile, seed: u64) -> Report {
    let options = Options::new(seed, profile);
    Simulation::run(options, KeyValueWorkload::default(), None).unwrap()
}

fn holds(profile: Profile, seeds: impl IntoIterator<Item = u64>) -> Counters {
    let mut counters = Counters::new();
    for seed in seeds {
        let report = run(profile, seed);
        counters.merge(&report.counters);
        assert!(
            report.passed(),
            "seed {seed} of profile {profile}: {:?} {:?}",
            report.violations,
            report.stalls
        );
    }
    counters
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

/// Over links of 30 to 200 ms each query became an ordered request, and a replica that had lost its
/// disk fetched nothing.
#[test]
fn distant_replicas_answer_unordered_reads_and_send_their_state() {
    let counters = holds(Profile::Distant, 1..=60);
    let accepted = counters.get("reads_accepted");
    let fallen_back = counters.get("reads_fallen_back");
    assert!(
        fallen_back * 10 < accepted,
        "{fallen_back} were ordered, {accepted} not"
    );
    let (finished, nodes) = (
        counters.get("transfers_finished"),
        counters.get("nodes_fetched"),
    );
    assert!(
        finished >= 5 && nodes >= 200,
        "{finished} with {nodes} nodes"
    );
}

/// Replicas in regions of providers: cut off in one direction or both, flapping, ten times as far
/// for a while, with losses of up to five percent.
#[test]
fn replicas_in_regions_hold() {
    let counters = holds(Profile::Regions, 1..=60);
    for name in ["region_cuts", "region_flaps", "stretches", "leaders_chosen"] {
        assert!(counters.get(name) > 0, "{name}");
    }
    let accepted = counters.get("reads_accepted");
    let fallen_back = counters.get("reads_fallen_back");
    assert!(
        fallen_back * 4 < accepted,
        "{fallen_back} were ordered, {accepted} not"
    );
}

#[test]
fn memberships_change_and_hold() {
    holds(Profile::Membership, 1..=100);
}

/// Not every copy lacks promised records: that of a learner, for one, does not.
#[test]
fn rolled_back_disks_are_noticed_and_their_replicas_rejoin() {
    let mut noticed = 0;
    for seed in 1..=300 {
        noticed += holds(Profile::Membership, [seed]).get("rollbacks_noticed");
        if noticed >= 5 {
            return;
        }
    }
    panic!("only {noticed} are noticed");
}

/// A replica that had the record of the next epoch from others, and executed its end by itself, did
/// not take the record as proof that its own root was stable.
#[test]
fn a_record_from_others_makes_the_own_root_stable() {
    holds(Profile::Membership, [427, 472]);
}

/// A state transfer that was resumed after a crash, while the root before it was written again,
/// took that root's completion for its own.
#[test]
fn a_resumed_transfer_is_not_overtaken_by_a_flush() {
    holds(Profile::Membership, [573]);
    holds(Profile::Mac, [30297]);
}

/// A checkpoint that was fetched in the next epoch left its batch's certificate, of the epoch
/// before, as the base of a VIEW-CHANGE.
#[test]
fn no_certificate_of_an_earlier_epoch_is_shown_in_a_later_one() {
    holds(Profile::Membership, [586]);
}

/// Clients knew only replicas that had all been replaced, which sent them no records.
#[test]
fn replicas_that_were_replaced_lead_their_clients_on() {
    holds(Profile::Membership, [534]);
}

/// The only voter of an epoch lacked its state, which only the replica that it had replaced had.
#[test]
fn a_voter_fetches_its_state_from_the_replica_that_it_replaced() {
    holds(Profile::Membership, [1294]);
}

/// Replicas that were to crash were stopped already, so most of the plan had no effect.
#[test]
fn a_run_whose_faults_had_no_effect_gets_others() {
    for seed in [74, 160, 171, 178] {
        let report = run(Profile::Crash, seed);
        assert!(report.faults >= FAULTS_MIN, "seed {seed}");
    }
}

/// A liar that receives all COMMITs, withholds its own and sends nothing is the only replica that
/// executed a batch, and every later view starts from it: the honest signers of the certificate
/// have to execute by it.
#[test]
fn a_batch_that_only_a_hoarding_liar_executed_delays_no_view() {
    holds(Profile::Byzantine, [190, 240, 286, 413, 577]);
}

/// After a durable root a leader's COMMIT was written without its certificate, and a crash right
/// after it made an honest replica show an empty one, for which the others blamed it.
#[test]
fn a_leader_that_crashes_after_a_root_is_not_blamed() {
    holds(Profile::Mixed, [1888]);
}

/// Two replicas that both have to answer, clients with two pending requests in a lane, and a
/// network that lets the second overtake the first: no lane may repeatedly wait for its longest
/// retry. (The blacklisted peers of these runs are Byzantine clients.)
#[test]
fn requests_that_overtake_each_other_are_answered() {
    holds(Profile::Mixed, [4097, 5022, 5150, 5364, 5438]);
}

/// Many overlapping queries without a useful hint: there are too many orders to try them all.
#[test]
fn a_history_of_many_overlapping_queries_is_decided() {
    let options = Options::new(40020, Profile::Reads);
    let report = Simulation::run(options, KeyValueWorkload::toggling(), None).unwrap();
    assert!(report.passed(), "{:?}", report.violations);
}

/// A client that lacked only the full bytes of a long result asked, in the next epoch, only the
/// replicas that had sent its digest by then, and they were too few.
#[test]
fn replicas_that_have_not_answered_in_an_epoch_are_asked_for_a_result() {
    holds(Profile::Membership, [60724]);
}

/// A machine asked to rejoin under an incarnation that was not durable, and a crash lost it: the
/// next one would have had to wait for longer than the run lasts.
#[test]
fn no_replica_rejoins_under_an_incarnation_that_is_not_durable() {
    holds(Profile::Membership, [60833]);
}
