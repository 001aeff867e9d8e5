//! The results of many seeds, and whether they exercised enough.

use super::CloudReport;
use super::lie::Lie;
use quorumfs_bft_simulator::counters::Counters;
use serde_json::{Map, Value, json};

/// From this many seeds on, no required counter may stay at zero.
pub const MEASURED_MIN: u64 = 500;

/// Required counters in addition to the lies: weather, crashes, poison, and the reactions of the
/// block store.
pub const KNOWN: [&str; 51] = [
    "weather_down",
    "weather_hang",
    "weather_slow",
    "weather_throttle",
    "weather_lose_answers",
    "weather_over_more_than_f",
    "correlated_outages",
    "hanging_for_ever",
    "down_for_good",
    "late_effects",
    "crashes",
    "metadata_not_executed",
    "metadata_answer_lost",
    "metadata_repeated",
    "commits_found_done",
    "commits_given_up",
    "writes_refused",
    "poison_parity",
    "poison_digests",
    "poison_other_slice",
    "poison_key",
    "poison_nothing",
    "poison_data",
    "poison_named",
    "written_by_another",
    "clouds_convicted",
    "faults_testified",
    "scrubs",
    "shards_scrubbed",
    "shards_withdrawn",
    "lists",
    "heads",
    "deletes",
    "objects_written",
    "bytes_written",
    "bytes_read",
    "shards_put",
    "puts_failed",
    "puts_dropped",
    "shards_refused",
    "shards_missing",
    "shards_replaced",
    "objects_rebuilt",
    "shards_completed",
    "shards_repaired",
    "repairs_failed",
    "packs_committed",
    "compactions",
    "slices_moved",
    "packs_compacted",
    "bytes_freed",
];

/// Required counters of the profile `reconcile`.
const KNOWN_OF_RECONCILE: [&str; 13] = [
    "collections",
    "sweeps",
    "collector_crashes",
    "slices_removed",
    "packs_revived",
    "points_retained",
    "trashed_and_restored",
    "late_puts",
    "objects_collected",
    "bytes_collected",
    "shards_swept",
    "crashes",
    "metadata_repeated",
];

/// The results of many seeds.
#[derive(Debug, Default)]
pub struct CloudSummary {
    /// How many seeds there were.
    pub seeds: u64,
    /// How many of them had a violation.
    pub violations: u64,
    /// How many of them stalled.
    pub stalls: u64,
    operations: u64,
    faults: u64,
    milliseconds: Vec<f64>,
    virtual_milliseconds: u64,
    counters: Counters,
    /// Whether the runs had collectors.
    reconciles: bool,
}

impl CloudSummary {
    /// No results of runs with collectors yet.
    #[must_use]
    pub fn of_reconcile() -> Self {
        Self {
            reconciles: true,
            ..Self::default()
        }
    }

    /// Adds a run that took this many milliseconds of processor time.
    pub fn add(&mut self, report: &CloudReport, milliseconds: f64) {
        self.seeds += 1;
        self.violations += u64::from(!report.violations.is_empty());
        self.stalls += u64::from(!report.stalls.is_empty());
        self.operations += report.operations;
        self.faults += report.faults;
        self.milliseconds.push(milliseconds);
        self.virtual_milliseconds += report.virtual_milliseconds;
        self.counters.merge(&report.counters);
    }

    /// The required counters that are zero.
    #[must_use]
    pub fn zero(&self) -> Vec<&'static str> {
        let lies = Lie::ALL.map(Lie::name);
        if self.reconciles {
            let known = KNOWN_OF_RECONCILE.into_iter();
            return known.filter(|name| self.counters.get(name) == 0).collect();
        }
        let known = KNOWN.iter().copied().chain(lies);
        known.filter(|name| self.counters.get(name) == 0).collect()
    }

    /// The minimums that the run did not reach.
    #[must_use]
    pub fn shortcomings(&self) -> Vec<String> {
        match self.seeds {
            MEASURED_MIN.. => {
                let zero = self.zero().into_iter();
                zero.map(|name| format!("nothing was counted as {name}"))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// All results, as one object.
    #[must_use]
    pub fn json(&self) -> Map<String, Value> {
        let mut milliseconds = self.milliseconds.clone();
        milliseconds.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let last = milliseconds.len().saturating_sub(1);
            let index = (last as f64 * share).round() as usize;
            let value = milliseconds.get(index).copied().unwrap_or_default();
            json!((value * 100.0).round() / 100.0)
        };
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| line.insert(name.into(), value);
        put("seeds", json!(self.seeds));
        put("violations", json!(self.violations));
        put("stalls", json!(self.stalls));
        put("median_ms", quantile(0.5));
        put("p99_ms", quantile(0.99));
        put("max_ms", quantile(1.0));
        put("operations", json!(self.operations));
        put("faults", json!(self.faults));
        put("virtual_seconds", json!(self.virtual_milliseconds / 1000));
        put("counters_at_zero", json!(self.zero()));
        for (name, count) in self.counters.iter() {
            put(name, json!(count));
        }
        line
    }
}
