//! The metadata service under simulation.
//!
//! The operations and the model are the metadata crate's. A file system is one object: the effects
//! of a rename in two directories have to appear at once, so the whole history is searched for one
//! order that explains it.

use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft_simulator::history::{Call, History, OperationKind};
use quorumfs_bft_simulator::linearizability::{self, check, check_sessions};
use quorumfs_bft_simulator::random::Random;
use quorumfs_bft_simulator::workload::Workload;
use quorumfs_metadata::Metadata;
use quorumfs_metadata::simulation::model::Model;
use quorumfs_metadata::simulation::workload::{self, Call as MetadataCall};

/// Random file system operations of several clients on few names.
#[derive(Clone, Debug, Default)]
pub struct MetadataWorkload {
    calls: workload::Workload,
}

/// The genesis's parameters of the metadata servers; the service only stores them.
const SERVERS: (u16, u16, u16) = (1, 1, 4);

impl MetadataWorkload {
    fn call(&mut self, random: &mut Random) -> (OperationKind, Bytes) {
        match self.calls.next(&mut |bound| random.below(bound)) {
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

    fn next(&mut self, _: usize, random: &mut Random) -> (OperationKind, Bytes) {
        self.call(random)
    }

    fn answered(&mut self, _: usize, _: &Bytes, answer: Option<&Bytes>) {
        if let Some(answer) = answer {
            self.calls.learn(answer);
        }
    }

    fn judge(&self, history: &History) -> Result<(), String> {
        check(&FileSystem, history).map_err(|failure| failure.to_string())
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
        Model::default()
    }

    fn apply(&self, state: &Model, call: &Call) -> Vec<Model> {
        let answer = call.answer.as_ref().map(|(_, answer)| answer.as_ref());
        match (call.kind, answer) {
            (OperationKind::Execute, answer) => {
                let mut after = state.clone();
                match after.execute(&call.operation, answer) {
                    true => vec![after],
                    false => Vec::new(),
                }
            }
            (_, Some(answer)) if !state.read(&call.operation, answer) => Vec::new(),
            _ => vec![state.clone()],
        }
    }
}

#[cfg(test)]
mod tests;
