//! Simulated clouds in virtual time, with the real block store and the real metadata service.
//!
//! ```text
//! lie         how a cloud may violate its contract
//! cloud       a cloud in memory: weather, character, true content
//! weather     bad weather over some clouds
//! wire        the connections of a gateway, which are cut when it crashes
//! metadata    the service in this process, over a connection that fails
//! gateway     writes and commits, reads and judges, crashes
//! poison      an authorised writer that writes unreadable objects
//! housekeeping  lists, inspects, deletes obsolete names
//! collecting  the profile `reconcile`: removals, collectors, what is left in the end
//! replacing   the profile `replace`: clouds are replaced by others
//! checks      judgements that need nothing but the ledger and the clouds
//! world       one run from chaos to judgement
//! ledger      observations from outside, and the trace
//! ```
//!
//! Everything runs on one thread, and Tokio's clock advances when no task is ready. Every choice is
//! drawn from the seed. The same seed gives the same trace, to the last request.

use super::panic_text;
use ledger::Ledger;
use quorumfs_bft_simulator::counters::Counters;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::Sabotage;
use quorumfs_metadata::placement::Policy;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

mod checks;
mod cloud;
mod collecting;
mod gateway;
mod housekeeping;
mod ledger;
mod lie;
mod metadata;
mod poison;
mod replacing;
mod summary;
mod weather;
mod wire;
mod world;

pub use summary::{CloudSummary, KNOWN, MEASURED_MIN};

/// The n, f and k that runs are drawn from; all n shards are kept.
pub const POLICIES: [(u8, u8, u8); 5] = [(3, 1, 1), (4, 1, 2), (5, 1, 3), (6, 1, 4), (7, 2, 3)];

/// A run that is not over by then will not end.
const VIRTUAL_MAX: Duration = Duration::from_secs(3600);

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct CloudOptions {
    /// The seed of all choices.
    pub seed: u64,
    /// The policy by which objects are spread; `None`: drawn from the seed.
    pub policy: Option<Policy>,
    /// A defect in every honest gateway.
    pub sabotage: Option<Sabotage>,
    /// The step at which the first gateway crashes for the first time.
    pub crash_at: Option<u64>,
    /// Whether gateways remove what they wrote, and collectors free it.
    pub reconciles: bool,
    /// Whether clouds are replaced by others.
    pub replaces: bool,
}

impl CloudOptions {
    /// The default options of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            policy: None,
            sabotage: None,
            crash_at: None,
            reconciles: false,
            replaces: false,
        }
    }

    /// The configured policy, or one drawn from the seed.
    fn drawn_policy(&self) -> Result<Policy, String> {
        let mut random = Random::new(self.seed);
        let drawn = random.pick(&POLICIES).copied().unwrap_or((4, 1, 2));
        match self.policy {
            Some(policy) => Ok(policy),
            None => Policy::new(drawn.0, drawn.1, drawn.2, drawn.0).map_err(|e| e.to_string()),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct CloudReport {
    /// Its seed.
    pub seed: u64,
    /// Violations of what has to hold.
    pub violations: Vec<String>,
    /// Operations that did not end in time.
    pub stalls: Vec<String>,
    /// Writes and reads that were answered.
    pub operations: u64,
    /// Faults that affected an operation.
    pub faults: u64,
    /// The length of the run in virtual time.
    pub virtual_milliseconds: u64,
    /// Steps of the first gateway's first life.
    pub first_life_steps: u64,
    /// Counts of exercised behaviour.
    pub counters: Counters,
    /// The hash of all events, in order.
    pub trace: String,
}

impl CloudReport {
    /// Whether there were no violations and no stalls.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.stalls.is_empty()
    }
}

/// Runs one seed; passes the trace to `print`, line by line, if it is given. A panic counts as a
/// violation.
#[must_use]
pub fn run_clouds(options: CloudOptions, mut print: Option<&mut dyn FnMut(&str)>) -> CloudReport {
    let tracing = print.is_some();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let failed = |what: String| CloudReport {
        seed: options.seed,
        violations: vec![what],
        stalls: Vec::new(),
        operations: 0,
        faults: 0,
        virtual_milliseconds: 0,
        first_life_steps: 0,
        counters: Counters::default(),
        trace: String::new(),
    };
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(error.to_string()),
    };
    let run = || {
        runtime.block_on(async {
            let ledger = Arc::new(Ledger::new(tracing));
            let run = world::run(&options, &ledger);
            match tokio::time::timeout(VIRTUAL_MAX, run).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => ledger.violation(error),
                Err(_) => ledger.stall("the run does not end".to_owned()),
            }
            (ledger.milliseconds(), ledger.finish())
        })
    };
    let (virtual_milliseconds, (trace, lines, records)) = match catch_unwind(AssertUnwindSafe(run))
    {
        Ok(done) => done,
        Err(panic) => return failed(panic_text(panic.as_ref())),
    };
    if let Some(print) = &mut print {
        for line in &lines {
            print(line);
        }
    }
    CloudReport {
        seed: options.seed,
        violations: records.violations,
        stalls: records.stalls,
        operations: records.operations,
        faults: records.faults,
        virtual_milliseconds,
        first_life_steps: records.first_life_steps.unwrap_or_default(),
        counters: records.counters,
        trace: trace.to_hex().to_string(),
    }
}
