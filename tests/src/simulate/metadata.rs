//! The metadata service under simulation.
//!
//! The operations and the model are the metadata crate's. A file system is one object: the effects
//! of a rename in two directories have to appear at once, so the whole history is searched for one
//! order that explains it. The clients mount the realm together and ask for the news of it.

use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft_simulator::history::{Call, History, OperationKind};
use quorumfs_bft_simulator::linearizability::{self, check, check_sessions};
use quorumfs_bft_simulator::random::Random;
use quorumfs_bft_simulator::workload::Workload;
use quorumfs_metadata::Metadata;
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::simulation::model::Model;
use quorumfs_metadata::simulation::workload::mounts::Mounts;
use quorumfs_metadata::simulation::workload::{self, Call as MetadataCall};

/// Random file system operations of several clients on few names.
#[derive(Clone, Debug, Default)]
pub struct MetadataWorkload {
    calls: workload::Workload,
    mounts: Mounts,
}

/// The genesis's parameters of the metadata servers; the service only stores them.
const SERVERS: (u16, u16, u16) = (1, 1, 4);

impl MetadataWorkload {
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
    type Service = Metadata;

    fn service(&self) -> Metadata {
        Metadata
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
/// with: the search has found another one.
fn judge_news(history: &History) -> Result<(), String> {
    let mut asked: Vec<(u64, &Call)> = Vec::new();
    for call in &history.calls {
        if let (OperationKind::Query, Some(version)) = (call.kind, call.version) {
            asked.push((version, call));
        }
    }
    asked.sort_by_key(|(version, _)| *version);
    let mut asked = asked.into_iter().peekable();
    let judge = |models: &mut Vec<Model>, call: &Call| {
        let Some((_, answer)) = call.answer.as_ref().filter(|_| is_news(&call.operation)) else {
            return Ok(());
        };
        models.retain(|model| model.answers(call.client, &call.operation, answer));
        match models.is_empty() {
            true => Err(format!("not the changes of others: {call:?}")),
            false => Ok(()),
        }
    };
    let mut models = vec![Model::shared_in_order()];
    let mut sequence = 0;
    for (place, index) in history.order.iter().enumerate() {
        let Some(call) = history.calls.get(*index) else {
            continue;
        };
        if call.kind != OperationKind::Execute {
            continue;
        }
        let executed = history.sequences.get(place).copied().or(call.version);
        sequence = executed.unwrap_or(sequence);
        // An answer is that of the state after the batch of its version.
        while let Some((_, call)) = asked.next_if(|(version, _)| *version < sequence) {
            judge(&mut models, call)?;
        }
        let answer = call.answer.as_ref().map(|(_, answer)| answer.as_ref());
        let after = |model: &Model| model.after(call.client, &call.operation, answer);
        models = models.iter().flat_map(after).collect();
        models.sort();
        models.dedup();
        if models.is_empty() {
            return Ok(());
        }
    }
    asked.try_for_each(|(_, call)| judge(&mut models, call))
}

fn is_news(query: &[u8]) -> bool {
    Query::from_bytes(query).is_ok_and(|it| matches!(it.question, Question::News { .. }))
}

#[cfg(test)]
mod tests;
