//! Connections that only listen.

use super::TestCluster;
use crate::identity::{ConnectionId, View};
use crate::observer::Observe;
use crate::step::{Destination, Event, Peer};
use crate::wire::message::Message;
use bytes::Bytes;

impl TestCluster {
    /// A connection asks a node to be told what happens.
    pub(in crate::replica::tests) fn observe(&mut self, node: usize, by: u64, what: Observe) {
        let header = self.context().header(View(0));
        let frame = crate::wire::encode(header, &Message::Observe(what));
        self.arrive(node, Peer::Client(ConnectionId(by)), frame);
    }

    /// It is gone.
    pub(in crate::replica::tests) fn disconnect(&mut self, node: usize, by: u64) {
        let connection = ConnectionId(by);
        self.step(node, Event::Disconnected { connection });
    }

    /// What a node told it.
    pub(in crate::replica::tests) fn told(&self, node: usize, by: u64) -> &[Message] {
        self.told.get(&(node, by)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn show(&mut self, node: usize, to: &[ConnectionId], frame: &Bytes) {
        for to in to {
            self.send(node, Destination::Client(*to), frame.clone());
        }
    }
}
