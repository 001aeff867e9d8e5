//! Two replicas with (u, r) = (0, 1): a detector of non-determinism.
//!
//! A client accepts an answer only if both replicas give it, so that clients notice a service whose
//! answers depend on anything but the order. The roots of the two states show differences that
//! answers do not: at the next checkpoint the replicas themselves stop. The metadata service must
//! pass; three services that are almost the metadata service must not.

#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

use bytes::Bytes;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{PublicKey, Time};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_bft_simulator::history::{History, OperationKind};
use quorumfs_bft_simulator::profile::Profile;
use quorumfs_bft_simulator::random::Random;
use quorumfs_bft_simulator::report::Report;
use quorumfs_bft_simulator::simulation::{Options, Simulation};
use quorumfs_bft_simulator::workload::Workload;
use quorumfs_metadata::Metadata;
use quorumfs_tests::simulate::MetadataWorkload;
use std::cell::Cell;
use std::rc::Rc;

/// The flaw of a service.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    /// None.
    Sound,
    /// Some answers name the process that gave them.
    Answer,
    /// Some rows name the process that wrote them; no answer shows it.
    State,
    /// A count in memory, which a restart forgets, is written into a row.
    Memory,
}

/// The metadata service with a flaw.
struct Flawed {
    flaw: Flaw,
    process: u8,
    executed: Cell<u64>,
}

/// The flaw shows in one of this many operations.
const RARELY: u64 = 40;

impl Service for Flawed {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        Metadata.genesis(txn, genesis)
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Metadata.open_session(txn, context, caller)
    }

    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError> {
        Metadata.close_session(txn, context, caller)
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let mut answer = Metadata.execute(txn, context, caller, operation)?;
        self.executed.set(self.executed.get() + 1);
        let shows = context.sequence.0.is_multiple_of(RARELY);
        let row = b"\xffflaw";
        match self.flaw {
            Flaw::Answer if shows => {
                let mut bytes = answer.to_vec();
                bytes.push(self.process);
                answer = Bytes::from(bytes);
            }
            Flaw::State if shows => txn.put(row, vec![self.process])?,
            Flaw::Memory => txn.put(row, self.executed.get().to_le_bytes().to_vec())?,
            _ => {}
        }
        Ok(answer)
    }

    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        Metadata.read(view, caller, query)
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        Metadata.next_deadline(view)
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        Metadata.tick(txn, context)
    }
}

/// The metadata workload on the service with a flaw.
struct FlawedWorkload {
    flaw: Flaw,
    inner: MetadataWorkload,
    processes: Rc<Cell<u8>>,
}

impl Workload for FlawedWorkload {
    type Service = Flawed;

    fn service(&self) -> Flawed {
        self.processes.set(self.processes.get().wrapping_add(1));
        Flawed {
            flaw: self.flaw,
            process: self.processes.get(),
            executed: Cell::new(0),
        }
    }

    fn genesis(&self, principals: &[PublicKey]) -> Bytes {
        self.inner.genesis(principals)
    }

    fn next(&mut self, client: usize, random: &mut Random) -> (OperationKind, Bytes) {
        self.inner.next(client, random)
    }

    fn answered(&mut self, client: usize, operation: &Bytes, answer: Option<&Bytes>) {
        self.inner.answered(client, operation, answer);
    }

    fn judge(&self, history: &History) -> Result<(), String> {
        self.inner.judge(history)
    }
}

fn run(seed: u64, profile: Profile, flaw: Flaw) -> Report {
    let workload = FlawedWorkload {
        flaw,
        inner: MetadataWorkload::default(),
        processes: Rc::default(),
    };
    let options = Options {
        fault_model: Some(FaultModel::new(0, 1, 2).unwrap()),
        ..Options::new(seed, profile)
    };
    Simulation::run(options, workload, None).unwrap()
}

fn disagree(report: &Report) -> bool {
    let mut violations = report.violations.iter();
    violations.any(|what| what.contains("agreement: replicas"))
}

#[test]
fn two_replicas_of_the_metadata_service_agree_on_everything() {
    for profile in [Profile::Mixed, Profile::Crash, Profile::Calm] {
        for seed in 1..=40 {
            let report = run(seed, profile, Flaw::Sound);
            assert!(
                report.passed() && report.operations >= 200,
                "seed {seed} of profile {profile}: {:?} {:?}",
                report.violations,
                report.stalls
            );
        }
    }
}

#[test]
fn an_answer_that_depends_on_the_process_is_found_and_never_accepted() {
    for seed in 1..=5 {
        let report = run(seed, Profile::Calm, Flaw::Answer);
        assert!(disagree(&report), "{:?}", report.violations);
        // Clients notice it without the simulator as well: the two never give the same answer.
        assert!(!report.stalls.is_empty());
    }
}

#[test]
fn a_row_that_depends_on_the_process_is_found_by_the_roots() {
    let mut stopped = 0;
    for seed in 1..=10 {
        let report = run(seed, Profile::Calm, Flaw::State);
        assert!(disagree(&report), "{:?}", report.violations);
        stopped += usize::from(!report.stalls.is_empty());
    }
    // No answer shows it; but at a checkpoint the two notice it themselves, and stop.
    assert!((5..=10).contains(&stopped), "{stopped} of 10 runs stopped");
}

#[test]
fn a_row_that_depends_on_when_a_process_started_is_found_after_a_crash() {
    assert!(run(1, Profile::Calm, Flaw::Memory).passed(), "no crash yet");
    let found = (1..=10).filter(|seed| disagree(&run(*seed, Profile::Crash, Flaw::Memory)));
    assert!(found.count() >= 5);
}
