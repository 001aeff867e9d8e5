//! Every defect that can be built into the replicas is seen.
//!
//! How many of 500 seeds see each, of both services, says
//! `cargo run --release -p quorumfs-tests --bin simulate -- --sabotage all --seeds 500 --json`;
//! it fails if one is seen by fewer than five. Here two are enough, of the
//! key-value service.

#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

use quorumfs_bft::replica::Sabotage;
use quorumfs_bft_simulator::key_value::KeyValueWorkload;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::simulation::{Options, Simulation};

/// Seeds that are tried, at most.
const SEEDS: u64 = 500;
/// So many have to see a defect.
const SEEN_MIN: usize = 2;

fn passes(seed: u64, profile: Profile, sabotage: Option<Sabotage>) -> bool {
    // What readers are shown goes wrong where values change to and fro.
    let workload = match profile {
        Profile::Reads => KeyValueWorkload::toggling(),
        _ => KeyValueWorkload::default(),
    };
    let options = Options {
        sabotage,
        ..Options::new(seed, profile)
    };
    let run = move || Simulation::run(options, workload, None).unwrap();
    std::panic::catch_unwind(run).is_ok_and(|report| report.passed())
}

/// At least two seeds of a bounded range fail with the defect and pass without. A list of such
/// seeds would be quicker, but every change of a message makes them other runs.
#[track_caller]
fn seen(sabotage: Sabotage) {
    let profile = match sabotage {
        Sabotage::ReadWithoutVersion => Profile::Reads,
        Sabotage::ThroughputComparedIdle => Profile::Calm,
        Sabotage::OldEpochVoteCounted => Profile::Membership,
        Sabotage::ClaimNotAccepted | Sabotage::NothingInsteadOfWaiting | Sabotage::OneVoucher => {
            Profile::Mac
        }
        _ => Profile::Mixed,
    };
    let fails = |seed: u64| !passes(seed, profile, Some(sabotage));
    let sees = |seed: &u64| fails(*seed) && passes(*seed, profile, None);
    let seen: Vec<u64> = (1..=SEEDS).filter(sees).take(SEEN_MIN).collect();
    assert!(
        seen.len() >= SEEN_MIN,
        "{sabotage:?} is seen by {seen:?} only"
    );
}

#[test]
fn a_quorum_one_short_is_seen() {
    seen(Sabotage::QuorumOneShort);
}

#[test]
fn a_vote_of_an_earlier_epoch_that_counts_is_seen() {
    seen(Sabotage::OldEpochVoteCounted);
}

#[test]
fn a_vote_without_its_certificate_is_seen() {
    seen(Sabotage::VoteWithoutPreparedCertificate);
}

#[test]
fn a_vote_without_the_bodies_is_seen() {
    seen(Sabotage::PrepareWithoutBody);
}

#[test]
fn a_reproposal_refused_by_the_clock_is_seen() {
    seen(Sabotage::ReproposalRefusedByClock);
}

#[test]
fn a_signer_that_counts_twice_is_seen() {
    seen(Sabotage::DuplicateSignerCounted);
}

#[test]
fn a_retry_that_runs_twice_is_seen() {
    seen(Sabotage::RetryExecutedTwice);
}

#[test]
fn a_lock_on_a_lower_view_is_seen() {
    seen(Sabotage::LockOnLowerView);
}

#[test]
fn a_commit_before_its_predecessor_is_seen() {
    seen(Sabotage::CommitBeforePredecessor);
}

#[test]
fn a_forgotten_fsync_is_seen() {
    seen(Sabotage::ForgottenFsync);
}

#[test]
fn a_state_that_is_taken_over_unseen_is_seen() {
    seen(Sabotage::TransferUnverified);
}

#[test]
fn an_answer_without_its_version_is_seen() {
    seen(Sabotage::ReadWithoutVersion);
}

#[test]
fn a_throughput_that_is_compared_while_idle_is_seen() {
    seen(Sabotage::ThroughputComparedIdle);
}

#[test]
fn missing_status_is_seen() {
    seen(Sabotage::MissingStatus);
}

#[test]
fn a_reply_cache_outside_of_the_state_is_seen() {
    seen(Sabotage::ReplyCacheOutsideState);
}

#[test]
fn a_watcher_that_believes_one_replica_is_seen() {
    seen(Sabotage::WatchOnOneCopy);
}

#[test]
fn a_claim_that_nobody_else_has_accepted_is_seen() {
    seen(Sabotage::ClaimNotAccepted);
}

#[test]
fn a_view_that_begins_before_it_is_known_with_what_is_seen() {
    seen(Sabotage::NothingInsteadOfWaiting);
}

#[test]
fn a_batch_believed_on_one_word_is_seen() {
    seen(Sabotage::OneVoucher);
}
