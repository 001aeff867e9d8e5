//! The results of many seeds, and whether they exercised enough.
//!
//! A run without violations means little if little happened in it. So the mixed profile is measured
//! as well: every seed has to have answered enough operations and counts enough faults, and over
//! many seeds no required counter may stay at zero. The profile of regions has counters of its own.

use quorumfs_bft_simulator::counters::{Counters, KNOWN, RARE, REGIONAL};
use quorumfs_bft_simulator::plan::FAULTS_MIN;
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::report::Report;
use serde_json::{Map, Value, json};

/// Operations that every seed has to answer.
pub const OPERATIONS_MIN: usize = 200;
/// From this many seeds on, every counter has to be above zero.
pub const MEASURED_MIN: u64 = 500;
/// From this many seeds on, the rare counters have to be above zero as well.
pub const RARE_MIN: u64 = 2000;

/// The results of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many seeds there were.
    pub seeds: u64,
    /// How many of them had a violation.
    pub violations: u64,
    /// How many of them stalled.
    pub stalls: u64,
    operations: Vec<usize>,
    faults: Vec<usize>,
    milliseconds: Vec<f64>,
    slowest: (f64, u64),
    virtual_seconds: f64,
    counters: Counters,
}

impl Summary {
    /// Adds a run that took this many milliseconds of processor time.
    pub fn add(&mut self, report: &Report, milliseconds: f64) {
        self.seeds += 1;
        self.violations += u64::from(!report.violations.is_empty());
        self.stalls += u64::from(!report.stalls.is_empty());
        self.operations.push(report.operations);
        self.faults.push(report.faults);
        self.milliseconds.push(milliseconds);
        if milliseconds > self.slowest.0 {
            self.slowest = (milliseconds, report.seed);
        }
        self.virtual_seconds += report.virtual_nanos as f64 / 1e9;
        self.counters.merge(&report.counters);
    }

    /// The minimums that a run of this profile did not reach.
    #[must_use]
    pub fn shortcomings(&self, profile: Profile) -> Vec<String> {
        let mut found = match profile {
            Profile::Mixed => self.low_seeds(),
            _ => Vec::new(),
        };
        if self.seeds >= MEASURED_MIN {
            let few = self.seeds < RARE_MIN;
            let zero = self.zero(profile).into_iter();
            let zero = zero.filter(|name| !few || !RARE.contains(name));
            found.extend(zero.map(|name| format!("nothing was counted as {name}")));
        }
        found
    }

    /// The minimums of each seed that one did not reach.
    fn low_seeds(&self) -> Vec<String> {
        let mut found = Vec::new();
        let least = |values: &[usize]| values.iter().min().copied().unwrap_or_default();
        let (operations, faults) = (least(&self.operations), least(&self.faults));
        if operations < OPERATIONS_MIN {
            found.push(format!(
                "a seed answered {operations} operations; {OPERATIONS_MIN} are the least"
            ));
        }
        if faults < FAULTS_MIN {
            found.push(format!(
                "a seed felt {faults} faults; {FAULTS_MIN} are the least"
            ));
        }
        found
    }

    /// The counters at zero of those that many seeds of a profile have to exercise.
    fn zero(&self, profile: Profile) -> Vec<&'static str> {
        let required = match profile {
            Profile::Mixed => KNOWN,
            Profile::Regions => REGIONAL,
            _ => &[],
        };
        let required = required.iter().copied();
        required
            .filter(|name| self.counters.get(name) == 0)
            .collect()
    }

    /// All results, as one object.
    #[must_use]
    pub fn json(&self, profile: Profile) -> Map<String, Value> {
        let mut milliseconds = self.milliseconds.clone();
        milliseconds.sort_by(f64::total_cmp);
        let (mut operations, mut faults) = (self.operations.clone(), self.faults.clone());
        operations.sort_unstable();
        faults.sort_unstable();
        let milliseconds = |share: f64| json!(round(quantile(&milliseconds, share)));
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| line.insert(name.into(), value);
        put("seeds", json!(self.seeds));
        put("violations", json!(self.violations));
        put("stalls", json!(self.stalls));
        put("median_ms", milliseconds(0.5));
        put("p99_ms", milliseconds(0.99));
        put("max_ms", milliseconds(1.0));
        put("slowest_seed", json!(self.slowest.1));
        put("operations_min", json!(quantile(&operations, 0.0)));
        put("operations_median", json!(quantile(&operations, 0.5)));
        put("operations_max", json!(quantile(&operations, 1.0)));
        put("faults_min", json!(quantile(&faults, 0.0)));
        put("faults_median", json!(quantile(&faults, 0.5)));
        put("virtual_seconds", json!(round(self.virtual_seconds)));
        put("counters_at_zero", json!(self.zero(profile)));
        for (name, count) in self.counters.iter() {
            put(name, json!(count));
        }
        line
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let last = sorted.len().saturating_sub(1);
    let index = (last as f64 * share).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A summary of equal seeds; all counters are one, except those in `without`.
    fn summary(seeds: u64, operations: usize, faults: usize, without: &[&str]) -> Summary {
        let mut counters = Counters::new();
        for name in KNOWN.iter().filter(|name| !without.contains(name)) {
            counters.count(name);
        }
        let report = Report {
            seed: 1,
            profile: Profile::Mixed,
            violations: Vec::new(),
            stalls: Vec::new(),
            operations,
            faults,
            virtual_nanos: 0,
            events: 0,
            counters,
        };
        let mut summary = Summary::default();
        for _ in 0..seeds {
            summary.add(&report, 1.0);
        }
        summary
    }

    #[test]
    fn a_run_in_which_too_little_happened_is_reported() {
        let shortcomings = |operations, faults, without| {
            summary(MEASURED_MIN, operations, faults, without).shortcomings(Profile::Mixed)
        };
        assert_eq!(shortcomings(200, 3, &[]), Vec::<String>::new());
        assert_eq!(shortcomings(199, 3, &[]).len(), 1);
        assert_eq!(shortcomings(200, 2, &[]).len(), 1);
        let zero = shortcomings(200, 3, &["torn_tails", "sessions_expired"]);
        assert_eq!(zero.len(), 2);
        assert!(zero.iter().any(|what| what.contains("torn_tails")));
        let rare = |seeds| {
            summary(seeds, 200, 3, RARE)
                .shortcomings(Profile::Mixed)
                .len()
        };
        assert_eq!((rare(MEASURED_MIN), rare(RARE_MIN)), (0, RARE.len()));
    }

    #[test]
    fn a_few_seeds_need_not_exercise_everything() {
        let shortcomings = |operations, faults| {
            let summary = summary(3, operations, faults, &["crashes"]);
            summary.shortcomings(Profile::Mixed).len()
        };
        assert_eq!((shortcomings(200, 3), shortcomings(1, 0)), (0, 2));
    }

    #[test]
    fn regions_that_exercise_too_little_are_reported() {
        let mut seen = summary(MEASURED_MIN, 1, 0, &[]);
        let zero = seen.shortcomings(Profile::Regions);
        assert!(zero.iter().any(|what| what.contains("region_cuts")));
        for name in REGIONAL {
            seen.counters.count(name);
        }
        assert_eq!(seen.shortcomings(Profile::Regions), Vec::<String>::new());
        assert_eq!(seen.shortcomings(Profile::Calm), Vec::<String>::new());
    }
}
