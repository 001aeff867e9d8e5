//! The result of a run.

use crate::counters::Counters;
use crate::profile::Profile;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The profile of its faults.
    pub profile: Profile,
    /// Violations of guarantees; empty if all is well.
    pub violations: Vec<String>,
    /// What was not finished in time; empty if all is well.
    pub stalls: Vec<String>,
    /// Operations that were answered.
    pub operations: usize,
    /// Faults that had an effect.
    pub faults: usize,
    /// Its length in virtual nanoseconds.
    pub virtual_nanos: u64,
    /// The number of simulated events.
    pub events: u64,
    /// All counters.
    pub counters: Counters,
}

impl Report {
    /// Whether all is well.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.violations.is_empty() && self.stalls.is_empty()
    }
}
