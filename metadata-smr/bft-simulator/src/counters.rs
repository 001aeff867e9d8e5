//! What a run exercised, by name.
//!
//! Every path and every kind of lie has a counter. The names are listed in [`KNOWN`], so that one
//! that stays at zero is seen: a path that no seed takes is a path that is not tested.

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

    /// Counts one.
    pub fn count(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts several.
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

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.values.iter().map(|(name, count)| (*name, *count))
    }
}
/// What has to be exercised over a few thousand runs of the mixed profile.
pub const KNOWN: &[&str] = &[];
