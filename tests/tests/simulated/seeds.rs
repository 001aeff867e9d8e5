//! Simulated runs that have to hold: some of each service, and the seeds that failed once.

use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::Options;
use quorumfs_tests::simulate::{OPERATIONS_MIN, Service, run_seed};

fn holds(seed: u64, service: Service) -> Report {
    holds_with(Profile::Mixed, seed, service)
}

fn holds_with(profile: Profile, seed: u64, service: Service) -> Report {
    let report = run_seed(Options::new(seed, profile), service, None);
    assert!(
        report.passed(),
        "seed {seed} of profile {profile}, {service}: {:?} {:?}",
        report.violations,
        report.stalls
    );
    assert!(report.operations >= OPERATIONS_MIN, "seed {seed}");
    report
}

#[test]
fn the_metadata_service_holds() {
    for seed in 1..=80 {
        holds(seed, Service::Metadata);
    }
}

/// Clients that crash again and again leave so many calls with an unknown outcome behind that no
/// search through all their places ended: the order of execution has to be tried first.
#[test]
fn histories_with_many_unknown_outcomes_are_decided() {
    for seed in [11, 15, 819, 953, 1701] {
        holds(seed, Service::Metadata);
    }
}

/// A checkpoint became stable after the last batch below a boundary and before the first one beyond
/// it. A replica that found that in its journal took it for lost, and with a liar among four the
/// others waited for its votes.
#[test]
fn a_boundary_that_opened_late_is_opened_again_by_the_journal() {
    holds(245, Service::Metadata);
}

/// An observer kept what replicas had said when it went on to the next epoch, where they have other
/// numbers: a liar's old word and its next one were two.
#[test]
fn an_observer_counts_nobody_twice_across_epochs() {
    holds_with(Profile::Membership, 40455, Service::Metadata);
}

/// A learner was told by the only replica that its root had gone, and of the next one, and did not
/// ask for that before it had gone as well.
#[test]
fn a_learner_catches_up_with_roots_that_go_soon() {
    holds_with(Profile::Membership, 60231, Service::Metadata);
}

#[test]
fn sessions_that_sleep_for_half_an_hour_expire() {
    let expired = (1..=40).map(|seed| {
        let report = holds(seed, Service::Alternate);
        report.counters.get("sessions_expired")
    });
    assert!(expired.sum::<u64>() > 0);
}

/// The replica that was to be taken in, and taken out again later, never became ready: what was to
/// follow upon it waited for ever.
#[test]
fn a_change_that_is_given_up_takes_what_names_it_along() {
    holds_with(Profile::Membership, 72053, Service::Metadata);
}

/// A root became durable while the leader's NEW-VIEW was on its way to the journal, which was cut
/// behind that record: votes of the view were found without it, and forgotten.
#[test]
fn a_new_view_that_is_being_written_outlives_the_journal_that_it_was_in() {
    holds_with(Profile::Mac, 105_795, Service::Alternate);
    for seed in [500_056, 500_781] {
        let options = Options {
            fault_model: FaultModel::new(0, 0, 1).ok(),
            ..Options::new(seed, Profile::Crash)
        };
        let report = run_seed(options, Service::Alternate, None);
        assert!(report.passed(), "seed {seed}: {:?}", report.violations);
    }
}

/// A lane that had lost a request took the wait for its retry for what answers usually take, and
/// waited for as long at each loss that followed.
#[test]
fn a_lane_that_lost_a_request_is_quick_again() {
    holds(321, Service::Alternate);
}

/// Clients came in bursts, with a third of the time to ask in, and were to be done by when those
/// are that ask all the time.
#[test]
fn who_comes_in_bursts_has_as_long_to_ask_as_others() {
    holds_with(Profile::Mac, 1_014_942, Service::Alternate);
    holds_with(Profile::Byzantine, 1_017_048, Service::Alternate);
}

/// The judge of session reads took a batch for the newest that a service was asked for something
/// in. The next one held a command to the cluster itself, or a request that is passed over, and who
/// asks for what is not there is shown that one too.
#[test]
fn a_session_may_be_shown_a_batch_that_comes_to_no_service() {
    holds_with(Profile::Membership, 9_000_429, Service::Alternate);
    holds_with(Profile::Clients, 9_000_221, Service::Alternate);
}

/// A liar repeated an old answer, was taken to be far away, and waited for longer than a transfer
/// waits before it goes over to the next checkpoint.
#[test]
fn a_liar_that_repeats_itself_holds_up_no_transfer() {
    holds_with(Profile::Membership, 9_004_551, Service::Alternate);
}
