//! Connections that only listen.

use super::TestCluster;
use crate::identity::{ConnectionId, View};
use crate::observer::Observe;
use crate::step::{Destination, Event, Peer};
use crate::wire::message::Message;
use bytes::Bytes;

impl TestCluster {
    /// A connection starts observing a node.
    pub(in crate::replica::tests) fn observe(&mut self, node: usize, by: u64, what: Observe) {
        let header = self.context().header(View(0));
        let frame = crate::wire::encode(header, &Message::Observe(what));
        self.arrive(node, Peer::Client(ConnectionId(by)), frame);
    }

    /// It is closed.
    pub(in crate::replica::tests) fn disconnect(&mut self, node: usize, by: u64) {
        let connection = ConnectionId(by);
        self.step(node, Event::Disconnected { connection });
    }

    /// The messages that a node sent it.
    pub(in crate::replica::tests) fn received(&self, node: usize, by: u64) -> &[Message] {
        self.received.get(&(node, by)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn show(&mut self, node: usize, to: &[ConnectionId], frame: &Bytes) {
        for to in to {
            self.send(node, Destination::Client(*to), frame.clone());
        }
    }
}
