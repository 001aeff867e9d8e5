//! A leader that sends what a test wants, to one node.

use super::TestCluster;
use super::keys::{FakeKey, replica_key};
use crate::identity::Time;
use crate::ordering::proposer::{BatchPosition, fresh_batch};
use crate::step::Peer;
use crate::wire::message::{Bodies, Message};
use crate::wire::{Envelope, Unsigned, encode};
use std::sync::Arc;

impl TestCluster {
    /// The last batch that a node has executed.
    pub(in crate::replica::tests) fn last_of(&self, node: usize) -> BatchPosition {
        let status = self.status(node);
        BatchPosition {
            sequence: status.sequence,
            digest: status.batch,
            time: status.time,
        }
    }

    /// The leader of a node's view proposes these to it, or a tick if there are none, so many
    /// nanoseconds after `last`.
    pub(in crate::replica::tests) fn propose(
        &mut self,
        to: usize,
        last: BatchPosition,
        later: u64,
        bodies: &[Arc<Envelope>],
    ) -> BatchPosition {
        let status = self.status(to);
        let time = Time(last.time.0 + later);
        let batch = fresh_batch(&last, time, 1, bodies.is_empty(), bodies);
        let header = self.context().header(status.view);
        let unsigned = Unsigned::new(header, Message::Proposal(batch.clone()));
        let proposal = unsigned.sign(&FakeKey(replica_key(status.leader)));
        let from = Peer::Replica(status.leader);
        self.arrive(to, from, proposal.frame().clone());
        BatchPosition::of(&batch, proposal.digest())
    }

    /// The leader of a node's view sends it these bodies.
    pub(in crate::replica::tests) fn send_bodies(&mut self, to: usize, bodies: Vec<Arc<Envelope>>) {
        let status = self.status(to);
        let header = self.context().header(status.view);
        let frame = encode(header, &Message::Bodies(Bodies { requests: bodies }));
        self.arrive(to, Peer::Replica(status.leader), frame);
    }
}
