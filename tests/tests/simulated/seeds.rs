//! Simulated runs that have to pass: some of each service, and the seeds that once failed. Those
//! which failed before there were locks are run without them, so that they do what they did then.

use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::Options;
use quorumfs_tests::simulate::{OPERATIONS_MIN, Service, run_seed};

fn holds(seed: u64, service: Service) -> Report {
    holds_with(Profile::Mixed, seed, service)
}

fn holds_with(profile: Profile, seed: u64, service: Service) -> Report {
    let report = run_seed(Options::new(seed, profile), service, None, None);
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

/// Principals are admitted, dismissed and left out while replicas lie, lag and crash.
#[test]
fn people_who_are_gone_are_told_nothing() {
    for profile in [Profile::Mixed, Profile::Reads, Profile::Clients] {
        for seed in 1..=15 {
            holds_with(profile, seed, Service::People);
        }
    }
}

/// Clients that crash repeatedly leave so many calls with an unknown outcome that a search through
/// all their positions does not end: the order of execution has to be tried first.
#[test]
fn histories_with_many_unknown_outcomes_are_decided() {
    for seed in [11, 15, 819, 953, 1701] {
        holds(seed, Service::Unlocked);
    }
}

/// A checkpoint became stable after the last batch below a boundary and before the first one beyond
/// it. A replica that found this in its journal assumed a loss, and with a liar among four the
/// others waited for its votes.
#[test]
fn a_boundary_that_opened_late_is_opened_again_by_the_journal() {
    holds(245, Service::Unlocked);
}

/// A state transfer moved to a newer root while nodes were being written. They were asked for again
/// and got other children, of which the tree then lacked some.
#[test]
fn nodes_that_are_being_written_are_not_asked_for_again() {
    holds_with(Profile::Crash, 947, Service::Metadata);
}

/// An observer kept the statements of replicas into the next membership epoch, where replicas have
/// other numbers: a liar's old statement and its next one counted twice.
#[test]
fn an_observer_counts_no_replica_twice_across_epochs() {
    holds_with(Profile::Membership, 40455, Service::Unlocked);
}

/// The only source notified a learner that its root had been dropped, and of the next one. The
/// learner did not ask for that before it had been dropped as well.
#[test]
fn a_learner_catches_up_with_roots_that_go_soon() {
    holds_with(Profile::Membership, 60231, Service::Unlocked);
}

#[test]
fn sessions_that_sleep_for_half_an_hour_expire() {
    let expired = (1..=40).map(|seed| {
        let report = holds(seed, Service::Alternate);
        report.counters.get("sessions_expired")
    });
    assert!(expired.sum::<u64>() > 0);
}

/// A replica that was to be admitted, and removed again later, never became ready: the changes that
/// depended on it waited indefinitely.
#[test]
fn a_change_that_is_given_up_cancels_the_changes_that_depend_on_it() {
    holds_with(Profile::Membership, 72053, Service::Unlocked);
}

/// A root became durable while the leader's NEW-VIEW was on its way to the journal, which was
/// truncated after that record: votes of the view were found without it, and forgotten.
#[test]
fn a_new_view_that_is_being_written_outlives_the_journal_that_it_was_in() {
    holds_with(Profile::Mac, 105_795, Service::Unlocked);
    for (seed, service) in [(500_056, Service::KeyValue), (500_781, Service::Unlocked)] {
        let options = Options {
            fault_model: FaultModel::new(0, 0, 1).ok(),
            ..Options::new(seed, Profile::Crash)
        };
        let report = run_seed(options, service, None, None);
        assert!(report.passed(), "seed {seed}: {:?}", report.violations);
    }
}

/// A lane that had lost a request counted the wait for its retry as the usual time of an answer,
/// and waited as long at each later loss.
#[test]
fn a_lane_that_lost_a_request_is_quick_again() {
    holds(321, Service::Unlocked);
}

/// Clients that sent requests in bursts had a third of the time for them, but the deadline of
/// clients that send all the time.
#[test]
fn clients_with_bursts_have_as_much_time_as_others() {
    holds_with(Profile::Mac, 1_014_942, Service::Alternate);
    holds_with(Profile::Byzantine, 1_017_048, Service::Alternate);
}

/// The judge of session reads assumed that the newest batch is one with an operation of the
/// service. The next one held a command to the cluster, or a skipped request, and a client that
/// asks for a missing row sees that batch, too.
#[test]
fn a_session_may_see_a_batch_without_an_operation_of_the_service() {
    holds_with(Profile::Membership, 9_000_429, Service::Unlocked);
    holds_with(Profile::Clients, 9_000_221, Service::Unlocked);
}

/// A liar repeated an old answer, was assumed to be far away, and delayed the transfer for longer
/// than a transfer waits before it continues with the next checkpoint.
#[test]
fn a_liar_that_repeats_itself_holds_up_no_transfer() {
    holds_with(Profile::Membership, 9_004_551, Service::Unlocked);
}

/// A waiter for a lock was dropped when its turn was over, and its mount ended later: the judge
/// took the turn of the next one to begin only then.
#[test]
fn the_turn_of_a_waiter_may_begin_before_the_mount_of_the_one_before_it_ends() {
    holds_with(Profile::Regions, 1955, Service::Alternate);
}

/// Two equal questions of a session were in one batch, before and after another one was asked to
/// share: the judge took one for the other.
#[test]
fn equal_questions_in_one_batch_may_be_answered_differently() {
    holds_with(Profile::Byzantine, 517, Service::Alternate);
}

/// The clients had more to ask one after the other, over round trips of a quarter of a second, than
/// a run was given time for.
#[test]
fn a_run_over_long_ways_has_the_time_that_it_needs() {
    holds_with(Profile::Distant, 298, Service::Alternate);
}

/// A replica that only followed the others asked too seldom, and was never where they were.
#[test]
fn a_replica_that_follows_from_afar_catches_up() {
    for seed in [591, 805] {
        holds_with(Profile::Regions, seed, Service::Alternate);
    }
}
