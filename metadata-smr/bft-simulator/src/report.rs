//! What came of a run.

use crate::counters::Counters;
use crate::profile::Profile;

/// One run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What it drew its faults from.
    pub profile: Profile,
    /// What must never happen and did; empty if all is well.
    pub violations: Vec<String>,
    /// Who was not done in time; empty if all is well.
    pub stalls: Vec<String>,
    /// Operations that were answered.
    pub operations: usize,
    /// Faults that had an effect.
    pub faults: usize,
    /// Virtual nanoseconds that it took.
    pub virtual_nanos: u64,
    /// Things that happened.
    pub events: u64,
    /// Everything that was counted.
    pub counters: Counters,
}

impl Report {
    /// Whether all is well.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.violations.is_empty() && self.stalls.is_empty()
    }
}
