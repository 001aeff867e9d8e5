//! Simulated clouds in virtual time, with the real block store and the real metadata over them.
//!
//! ```text
//! lie         what a cloud may do that it must not
//! cloud       a cloud in memory: weather, character, truth
//! wire        what lies between a gateway and the world, and is cut when it dies
//! metadata    the service in this process, over a connection that fails
//! gateway     writes and commits, reads and judges, dies
//! poison      a writer with every right who writes what cannot be read
//! housekeeping  lists, looks, deletes what is left behind
//! world       one run from chaos to judgement
//! ledger      what is known from outside, and the trace
//! ```
//!
//! Everything runs on one thread, and Tokio's clock goes on when nobody has anything to do. Every
//! choice is drawn from the seed. The same seed gives the same trace, to the last request.

use super::panic_text;
use ledger::Ledger;
use quorumfs_bft_simulator::counters::Counters;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::Sabotage;
use quorumfs_metadata::placement::Policy;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

mod cloud;
mod gateway;
mod housekeeping;
mod ledger;
mod lie;
mod metadata;
mod poison;
mod summary;
mod wire;
mod world;

pub use summary::{CloudSummary, KNOWN, MEASURED_MIN};

/// The n, f and k that runs are drawn from; all n shards are kept.
pub const POLICIES: [(u8, u8, u8); 5] = [(3, 1, 1), (4, 1, 2), (5, 1, 3), (6, 1, 4), (7, 2, 3)];

/// A run that is not over by then will never be.
const VIRTUAL_MAX: Duration = Duration::from_secs(3600);

/// What a run is to be like.
#[derive(Clone, Copy, Debug)]
pub struct CloudOptions {
    /// What everything is drawn from.
    pub seed: u64,
    /// How objects are spread; `None`: as the seed says.
    pub policy: Option<Policy>,
    /// A defect in every honest gateway.
    pub sabotage: Option<Sabotage>,
    /// The first gateway dies for the first time after so many steps.
    pub crash_at: Option<u64>,
}

impl CloudOptions {
    /// What a seed is run with.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            policy: None,
            sabotage: None,
            crash_at: None,
        }
    }

    /// The policy that was asked for, or the seed's own.
    fn drawn_policy(&self) -> Result<Policy, String> {
        let mut random = Random::new(self.seed);
        let drawn = random.pick(&POLICIES).copied().unwrap_or((4, 1, 2));
        match self.policy {
            Some(policy) => Ok(policy),
            None => Policy::new(drawn.0, drawn.1, drawn.2, drawn.0).map_err(|e| e.to_string()),
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct CloudReport {
    /// Its seed.
    pub seed: u64,
    /// What must not have happened.
    pub violations: Vec<String>,
    /// What did not end in time.
    pub stalls: Vec<String>,
    /// Writes and reads that were answered.
    pub operations: u64,
    /// Faults that somebody felt.
    pub faults: u64,
    /// How long it took in virtual time.
    pub virtual_milliseconds: u64,
    /// Steps of the first gateway's first life.
    pub first_life_steps: u64,
    /// What was exercised.
    pub counters: Counters,
    /// The hash of all that happened, in its order.
    pub trace: String,
}

impl CloudReport {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.stalls.is_empty()
    }
}

/// Runs one seed; tells what happened, line by line, if somebody wants to know. A panic counts as a
/// violation.
#[must_use]
pub fn run_clouds(options: CloudOptions, mut tell: Option<&mut dyn FnMut(&str)>) -> CloudReport {
    let tracing = tell.is_some();
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
    if let Some(tell) = &mut tell {
        for line in &lines {
            tell(line);
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
