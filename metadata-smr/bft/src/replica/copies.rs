//! Nodes of the state for clients that copy it.
//!
//! A client with the right gets what a replica in a state transfer gets: nodes of the two durable
//! roots, and the newest stable certificate if it asks for another root. [`crate::state_copy`] is
//! the client's side. The driver has checked that the session is the connection's own, as for a
//! query; the service decides whether its principal may copy, in the state as it is now.
//!
//! Always: ordering comes first, so each connection has an allowance, as a peer has; a client
//! without the right costs two rows that are mostly cached, and no node. Nothing about a connection
//! is kept once it is closed, and nothing about one that was refused.

use super::Replica;
use crate::admission::Pace;
use crate::identity::ConnectionId;
use crate::service::Service;
use crate::state::{StateError, Store};
use crate::state_transfer::source;
use crate::step::{Destination, Effects};
use crate::wire::message::{CopyPart, FetchCopy, FetchNodes, Message, Nodes};
use std::collections::BTreeMap;

/// The clients that copy the state.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The rate limits of their connections.
    served: BTreeMap<ConnectionId, Pace>,
}

impl Copies {
    /// A connection is closed.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        self.served.remove(&connection);
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// A client copies our state.
    pub(super) fn serve_copy(
        &mut self,
        connection: ConnectionId,
        fetch: &FetchCopy,
        effects: &mut Effects,
    ) -> Result<(), StateError> {
        let to = Destination::Client(connection);
        if !self.executor.may_copy(&self.space, fetch.session)? {
            self.counters.copies_refused += 1;
            let refused = CopyPart {
                refused: true,
                stable: None,
                nodes: Nodes {
                    root: fetch.root,
                    gone: false,
                    nodes: Vec::new(),
                },
            };
            self.send_unsigned(to, Message::CopyPart(Box::new(refused)), effects);
            return Ok(());
        }
        let now = self.now.monotonic;
        let pace = self.copies.served.entry(connection).or_default();
        if !pace.allows(now) {
            return Ok(());
        }
        let asked = FetchNodes {
            root: fetch.root,
            paths: fetch.paths.clone(),
        };
        let nodes = source::answer(&self.space, &asked)?;
        let bytes = nodes.nodes.iter().map(|(_, node)| node.len()).sum();
        if let Some(pace) = self.copies.served.get_mut(&connection) {
            pace.served(bytes);
        }
        self.counters.nodes_copied += nodes.nodes.len() as u64;
        let stable = self.states.known.stable().filter(|_| nodes.gone).cloned();
        let part = CopyPart {
            refused: false,
            stable,
            nodes,
        };
        self.send_unsigned(to, Message::CopyPart(Box::new(part)), effects);
        Ok(())
    }
}
