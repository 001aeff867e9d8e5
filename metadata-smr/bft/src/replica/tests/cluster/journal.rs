//! Changes to a journal between a crash and the next start.

use super::TestCluster;
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::identity::{Digest, Epoch, Sequence};
use crate::journal::{Entry, Record};
use crate::membership::{EpochRecord, Membership};
use crate::replica::Status;

impl TestCluster {
    /// An epoch that begins where nothing has been executed.
    pub(in crate::replica::tests) fn next_epoch(&self) -> EpochRecord {
        let membership = Membership {
            epoch: Epoch(1),
            ..self.config(0).genesis_membership
        };
        let checkpoint = Checkpoint {
            sequence: Sequence(0),
            batch: Digest::default(),
            root: Digest::default(),
            membership: membership.digest(),
        };
        let votes = Vec::new();
        EpochRecord::new(CheckpointCertificate { checkpoint, votes }, membership)
    }

    /// Adds a record to the journal of a node that is down.
    pub(in crate::replica::tests) fn write(&mut self, node: usize, record: &Record) {
        let this = &mut self.nodes[node];
        this.durable_token.0 += 1;
        let (token, record) = (this.durable_token, record.encode());
        this.written.push(Entry { token, record });
    }

    /// The status of a node that starts on its journal without the first `cut` records.
    pub(in crate::replica::tests) fn begins_without(&mut self, node: usize, cut: usize) -> Status {
        let whole = self.nodes[node].written.clone();
        self.nodes[node].written.drain(..cut);
        self.start(node);
        let status = self.status(node);
        self.crash(node);
        self.nodes[node].written = whole;
        status
    }
}
