//! The metadata service under simulation.
//!
//! The operations and the model are the metadata crate's. A file system is one object: the effects
//! of a rename in two directories have to appear at once, so the whole history is searched for one
//! order that explains it. The clients mount the realm, alone or together, ask for the news of it,
//! and lock files. Answers about news and locks are judged in the order of execution.

mod planted;

pub use planted::{PlantedMetadata, ServiceDefect};

use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft_simulator::history::{Call, History, OperationKind};
use quorumfs_bft_simulator::linearizability::{self, check, check_sessions};
use quorumfs_bft_simulator::random::Random;
use quorumfs_bft_simulator::workload::Workload;
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::simulation::locks::{LockCall, LockJudge, agreed_time};
use quorumfs_metadata::simulation::model::Model;
use quorumfs_metadata::simulation::workload::locks::Locking;
use quorumfs_metadata::simulation::workload::mounts::Mounts;
use quorumfs_metadata::simulation::workload::{self, Call as MetadataCall};

/// Random file system operations of several clients on few names.
#[derive(Clone, Debug, Default)]
pub struct MetadataWorkload {
    calls: workload::Workload,
    mounts: Mounts,
    locking: Locking,
    /// Whether clients lock nothing.
    is_unlocked: bool,
    service: PlantedMetadata,
}

/// The genesis's parameters of the metadata servers; the service only stores them.
const SERVERS: (u16, u16, u16) = (1, 1, 4);

impl MetadataWorkload {
    /// The same of a service with a defect.
    #[must_use]
    pub fn planted(defect: Option<ServiceDefect>) -> Self {
        Self {
            service: PlantedMetadata { defect },
            ..Self::default()
        }
    }

    /// Clients that lock nothing, and whose mounts do not last: what they do for a seed is what
    /// they did before there were locks.
    #[must_use]
    pub fn unlocked(defect: Option<ServiceDefect>) -> Self {
        Self {
            mounts: Mounts::brief(),
            is_unlocked: true,
            ..Self::planted(defect)
        }
    }

    fn call(&mut self, client: usize, random: &mut Random) -> (OperationKind, Bytes) {
        let mut chance = |bound| random.below(bound);
        let next = self.mounts.next(client, &mut chance);
        let next = next.or_else(|| match self.is_unlocked {
            true => None,
            false => self.locking.next(client, &self.mounts, &mut chance),
        });
        match next.unwrap_or_else(|| self.calls.next(&mut chance)) {
            MetadataCall::Execute(bytes) => (OperationKind::Execute, Bytes::from(bytes)),
            MetadataCall::Query(bytes) => (OperationKind::Query, Bytes::from(bytes)),
        }
    }
}

impl Workload for MetadataWorkload {
    type Service = PlantedMetadata;

    fn service(&self) -> PlantedMetadata {
        self.service
    }

    fn genesis(&self, principals: &[PublicKey]) -> Bytes {
        match quorumfs_metadata::simulation::genesis(principals, SERVERS) {
            Ok(genesis) => Bytes::from(genesis),
            // The service refuses an empty genesis, and the run fails.
            Err(_) => Bytes::new(),
        }
    }

    fn next(&mut self, client: usize, random: &mut Random) -> (OperationKind, Bytes) {
        self.call(client, random)
    }

    fn answered(&mut self, client: usize, operation: &Bytes, answer: Option<&Bytes>) {
        let found = answer.map(AsRef::as_ref);
        self.mounts.learn(client, operation, found);
        self.locking.learn(client, operation, found);
        if let Some(answer) = answer {
            self.calls.learn(answer);
        }
    }

    fn judge(&self, history: &History) -> Result<(), String> {
        check(&FileSystem, history).map_err(|failure| failure.to_string())?;
        judge_in_order(history)
    }

    fn judge_sessions(&self, history: &History) -> Result<(), String> {
        check_sessions(&FileSystem, history, |_| ())
    }
}

/// The whole file system as the sequential object.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem;

impl linearizability::Model for FileSystem {
    type State = Model;

    fn initial(&self) -> Model {
        Model::shared()
    }

    fn apply(&self, state: &Model, call: &Call) -> Vec<Model> {
        let answer = call.answer.as_ref().map(|(_, answer)| answer.as_ref());
        match (call.kind, answer) {
            (OperationKind::Execute, answer) => state.after(call.client, &call.operation, answer),
            (_, Some(answer)) if !state.answers(call.client, &call.operation, answer) => Vec::new(),
            _ => vec![state.clone()],
        }
    }
}

/// Judges what depends on the order in which the replicas claim to have executed: what clients were
/// told of the changes of others, and of locks.
fn judge_in_order(history: &History) -> Result<(), String> {
    let mut judge = OrderJudge::new(history);
    let mut sequence = 0;
    for (place, index) in history.order.iter().enumerate() {
        let Some(call) = history.calls.get(*index) else {
            continue;
        };
        let executed = history.sequences.get(place).copied().or(call.version);
        let executed = executed.unwrap_or(sequence);
        if executed > sequence {
            judge.end_batch()?;
            sequence = executed;
            judge
                .models
                .iter_mut()
                .for_each(|it| it.begin_batch(sequence));
        }
        match call.kind {
            OperationKind::Execute => judge.execute(place, call)?,
            _ => {
                let again: Vec<&Call> = asked_again(history, place, call).collect();
                judge.query(place, call, &again);
            }
        }
    }
    judge.end_batch()
}

/// The calls behind a query that ask the same in its session and its batch: which of them was
/// executed at which place is not known.
fn asked_again<'h>(
    history: &'h History,
    place: usize,
    call: &'h Call,
) -> impl Iterator<Item = &'h Call> {
    let batch = history.sequences.get(place);
    let order = history.order.iter().enumerate().skip(place + 1);
    let same = order.take_while(move |(at, _)| history.sequences.get(*at) == batch);
    let calls = same.filter_map(|(_, index)| history.calls.get(*index));
    calls.filter(|it| it.session == call.session && it.operation == call.operation)
}

/// The states that the answers up to a place in the order allow.
struct OrderJudge<'h> {
    /// Of the file system. If the order does not explain the answers about it, there are none, and
    /// nothing to compare news with: the search has found another order.
    models: Vec<Model>,
    locks: LockJudge,
    /// A query that was ordered as well was answered at its place in the batch or by the state
    /// after it: these have to be explained by the end of the batch.
    doubtful: Vec<(usize, &'h Call)>,
    /// Those that may have been answered where an equal one was asked before in the batch.
    answered_before: Vec<&'h Call>,
}

impl<'h> OrderJudge<'h> {
    fn new(history: &History) -> Self {
        let readings = history
            .order
            .iter()
            .enumerate()
            .filter_map(|(place, index)| {
                let call = history.calls.get(*index)?;
                Some((place, agreed_time(&call.answer.as_ref()?.1)?))
            });
        Self {
            models: vec![Model::shared_in_order()],
            locks: LockJudge::new(readings),
            doubtful: Vec::new(),
            answered_before: Vec::new(),
        }
    }

    fn execute(&mut self, place: usize, call: &Call) -> Result<(), String> {
        let answer = call.answer.as_ref().map(|(_, answer)| answer.as_ref());
        let told = self.locks.execute(&lock_call(place, call))?;
        let after = |model: &Model| model.after(call.client, &call.operation, answer);
        self.models = self.models.iter().flat_map(after).collect();
        for model in &mut self.models {
            for news in &told {
                model.tells_of_locks((call.client, answer.is_some()), news);
            }
        }
        self.models.sort();
        self.models.dedup();
        Ok(())
    }

    fn query(&mut self, place: usize, call: &'h Call, again: &[&'h Call]) {
        for news in self.locks.pass(place, call.invoked) {
            for model in &mut self.models {
                model.tells_of_locks((call.client, true), &news);
            }
        }
        for equal in again {
            if self.allows(place, equal) {
                self.answered_before.push(equal);
            }
        }
        let mut before = self.answered_before.iter();
        let is_known = before.any(|it| std::ptr::eq(*it, call));
        if !is_known && !self.allows(place, call) {
            self.doubtful.push((place, call));
        }
    }

    fn end_batch(&mut self) -> Result<(), String> {
        self.answered_before.clear();
        let doubtful = std::mem::take(&mut self.doubtful);
        let mut wrong = doubtful.iter().filter(|(at, call)| !self.allows(*at, call));
        match wrong.next() {
            Some((_, call)) if is_news(&call.operation) => {
                Err(format!("not the changes of others: {call:?}"))
            }
            Some((_, call)) => Err(format!("not what is in the way of a lock: {call:?}")),
            None => Ok(()),
        }
    }

    /// Whether this answer is possible now, if it is one about news or locks.
    fn allows(&self, place: usize, call: &Call) -> bool {
        let Some((_, answer)) = &call.answer else {
            return true;
        };
        let tells = |model: &Model| model.answers(call.client, &call.operation, answer);
        let is_told =
            !is_news(&call.operation) || self.models.is_empty() || self.models.iter().any(tells);
        is_told && self.locks.allows(&lock_call(place, call))
    }
}

fn lock_call(place: usize, call: &Call) -> LockCall<'_> {
    LockCall {
        place,
        at: call.invoked,
        session: call.session,
        request: &call.operation,
        answer: call.answer.as_ref().map(|(_, answer)| answer.as_ref()),
    }
}

fn is_news(query: &[u8]) -> bool {
    Query::from_bytes(query).is_ok_and(|it| matches!(it.question, Question::News { .. }))
}

#[cfg(test)]
mod tests;
