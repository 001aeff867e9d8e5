//! The paths that a run exercised, by name.
//!
//! Every path and every kind of lie has a counter. The names are listed in [`KNOWN`], so that a
//! counter that stays at zero is noticed: a path that no seed takes is not tested.

use std::collections::BTreeMap;

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    values: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// All counters of [`KNOWN`] at zero.
    #[must_use]
    pub fn new() -> Self {
        let values = KNOWN.iter().map(|name| (*name, 0)).collect();
        Self { values }
    }

    /// Adds one.
    pub fn count(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Adds several.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.values.entry(name).or_insert(0) += count;
    }

    /// Adds another run's counters.
    pub fn merge(&mut self, other: &Self) {
        for (name, count) in &other.values {
            self.add(name, *count);
        }
    }

    /// One counter.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// All counters, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.values.iter().map(|(name, count)| (*name, *count))
    }
}
/// Those of [`KNOWN`] that only a few runs in a thousand reach: a request is executed again only if
/// a lying leader orders it again while the other replicas still have its bytes, and a leader is
/// found slow only if it delays its proposals while clients always have requests for it.
pub const RARE: &[&str] = &["duplicates", "suspicions_slow"];

/// The paths that some hundred runs of the profile of regions have to exercise: its faults, and
/// what replicas and clients do about them.
pub const REGIONAL: &[&str] = &[
    "region_cuts",
    "region_flaps",
    "stretches",
    "crashes",
    "batches",
    "pipelined",
    "proposals_ahead",
    "decided_early",
    "reproposals",
    "bodies_fetched",
    "committed_fetched",
    "resends",
    "forwarded",
    "suspicions_progress",
    "suspicions_withdrawn",
    "handovers",
    "views_entered",
    "transfers_finished",
    "retries",
    "reads_accepted",
    "reads_fallen_back",
    "session_reads",
    "laggards_handed",
];

/// The paths that some hundred runs of the mixed profile have to exercise.
///
/// It omits the lies that no correct replica can accept (or refuse); their other counter is here.
pub const KNOWN: &[&str] = &[
    "batches",
    "batches_fetched",
    "prepares",
    "commits",
    "proposals",
    "reproposals",
    "pipelined",
    "pipelined_deep",
    "proposals_ahead",
    "decided_early",
    "chains_carried",
    "duplicates",
    "replies_resent",
    "replies_shortened",
    "resends",
    "bodies_fetched",
    "committed_fetched",
    "committed_served",
    "forwarded",
    "held_for_clock",
    "proposals_refused",
    "equivocations",
    "suspicions",
    "suspicions_progress",
    "suspicions_unfair",
    "suspicions_clock",
    "suspicions_slow",
    "throughput_compared",
    "view_changes",
    "views_entered",
    "new_views_led",
    "busy",
    "no_session",
    "blacklisted",
    "dropped_blacklisted",
    "flushes",
    "checkpoints",
    "checkpoints_stable",
    "batches_truncated",
    "transfers",
    "transfers_moved",
    "transfers_resumed",
    "transfers_finished",
    "nodes_fetched",
    "nodes_refused",
    "states_lost",
    "disks_rolled_back",
    "rollbacks_noticed",
    "messages_returned",
    "forged_nodes_accepted",
    "replayed",
    "ticks",
    "requests",
    "reads",
    "reads_refused",
    "reads_accepted",
    "reads_fallen_back",
    "session_reads",
    "laggards_handed",
    "operations",
    "sessions_opened",
    "sessions_closed",
    "sessions_expired",
    "crashes",
    "power_failures",
    "blackouts",
    "partitions",
    "ambushes",
    "severed",
    "staggered",
    "storms",
    "slow_disks",
    "clock_jumps",
    "client_restarts",
    "forgetful_crashes",
    "logs_damaged",
    "logs_lost",
    "recoveries",
    "recoveries_without_log",
    "torn_tails",
    "frames_corrupted",
    "peers_blacklisted",
    "frames_of_blacklisted",
    "retries",
    "busy_replies",
    "outcomes_unknown",
    "roots_compared",
    "service_ticks",
    "reports",
    "watch_events",
    "changes_told",
    "revalidations",
    "watchers_blind",
    "facts",
    "activities",
    "outlaw_busy",
    "outlaw_refused",
    "outlaw_conflicts",
    "outlaw_no_session",
    "outlaw_superseded",
    "outlaw_closed",
    "equivocations_accepted",
    "double_votes_accepted",
    "early_commits_accepted",
    "wrong_sequences_accepted",
    "wrong_views_accepted",
    "wrong_digests_accepted",
    "times_ahead_accepted",
    "times_behind_accepted",
    "wrong_requests_accepted",
    "wrong_signers_rejected",
    "duplicate_signers_rejected",
    "stale_certificates_accepted",
    "short_certificates_rejected",
    "foreign_certificates_rejected",
    "misplaced_certificates_rejected",
    "swapped_certificates_rejected",
    "forged_checkpoints_accepted",
    "forged_records_rejected",
    "forged_bodies_accepted",
    "forged_bodies_rejected",
    "false_statuses_accepted",
    "false_suspicions_accepted",
    "replays_accepted",
    "repetitions_accepted",
    "garbage_rejected",
    "contradictions_accepted",
    "floods_accepted",
    "skipped_numbers_accepted",
    "foreign_sessions_accepted",
    "foreign_sessions_rejected",
    "unknown_principals_accepted",
    "client_garbage_rejected",
];
