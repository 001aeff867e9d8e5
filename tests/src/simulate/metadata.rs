//! The metadata service under simulation.
//!
//! The operations and the model are the metadata crate's. A file system is one object: the effects
//! of a rename in two directories have to appear at once, so the whole history is searched for one
//! order that explains it. The clients mount the realm, alone or together, and ask for the news of
//! it.

mod planted;

pub use planted::{PlantedMetadata, ServiceDefect};

use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft_simulator::history::{Call, History, OperationKind};
use quorumfs_bft_simulator::linearizability::{self, check, check_sessions};
use quorumfs_bft_simulator::random::Random;
use quorumfs_bft_simulator::workload::Workload;
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::simulation::model::Model;
use quorumfs_metadata::simulation::workload::mounts::Mounts;
use quorumfs_metadata::simulation::workload::{self, Call as MetadataCall};

/// Random file system operations of several clients on few names.
#[derive(Clone, Debug, Default)]
pub struct MetadataWorkload {
    calls: workload::Workload,
    mounts: Mounts,
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

    fn call(&mut self, client: usize, random: &mut Random) -> (OperationKind, Bytes) {
        let mut chance = |bound| random.below(bound);
        let next = self.mounts.next(client, &mut chance);
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
        if let Some(answer) = answer {
            self.calls.learn(answer);
        }
    }

    fn judge(&self, history: &History) -> Result<(), String> {
        check(&FileSystem, history).map_err(|failure| failure.to_string())?;
        judge_news(history)
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

/// Judges what clients were told of the changes of others, in the order in which the replicas claim
/// to have executed. If that order does not explain the other answers there is nothing to compare
/// with: the search has found another one. A query that was ordered as well was answered at its
/// place in the batch or by the state after it.
fn judge_news(history: &History) -> Result<(), String> {
    let mut models = vec![Model::shared_in_order()];
    let (mut sequence, mut doubtful): (u64, Vec<&Call>) = (0, Vec::new());
    for (place, index) in history.order.iter().enumerate() {
        let Some(call) = history.calls.get(*index) else {
            continue;
        };
        let executed = history.sequences.get(place).copied().or(call.version);
        let executed = executed.unwrap_or(sequence);
        if executed > sequence {
            judge_all(&models, doubtful.drain(..))?;
            sequence = executed;
        }
        match call.kind {
            OperationKind::Execute => {
                let answer = call.answer.as_ref().map(|(_, answer)| answer.as_ref());
                let after = |model: &Model| model.after(call.client, &call.operation, answer);
                models = models.iter().flat_map(after).collect();
                models.sort();
                models.dedup();
                if models.is_empty() {
                    return Ok(());
                }
            }
            _ if !may_be_told(&models, call) => doubtful.push(call),
            _ => {}
        }
    }
    judge_all(&models, doubtful.into_iter())
}

fn judge_all<'c>(models: &[Model], calls: impl Iterator<Item = &'c Call>) -> Result<(), String> {
    let mut wrong = calls.filter(|call| !may_be_told(models, call));
    match wrong.next() {
        Some(call) => Err(format!("not the changes of others: {call:?}")),
        None => Ok(()),
    }
}

/// Whether this answer, if it is one about news, is possible in one of these states.
fn may_be_told(models: &[Model], call: &Call) -> bool {
    let Some((_, answer)) = call.answer.as_ref().filter(|_| is_news(&call.operation)) else {
        return true;
    };
    let mut models = models.iter();
    models.any(|model| model.answers(call.client, &call.operation, answer))
}

fn is_news(query: &[u8]) -> bool {
    Query::from_bytes(query).is_ok_and(|it| matches!(it.question, Question::News { .. }))
}

#[cfg(test)]
mod tests;
