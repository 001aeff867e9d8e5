//! Frames in transit: through the network, to nodes and to clients.

use super::{ClientLink, FrameSource, Happening, Simulation};
use crate::agenda::MILLISECOND;
use crate::liar::OutgoingFrame;
use crate::lie::Lie;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::client;
use quorumfs_bft::identity::{ConnectionId, Monotonic, PublicKey, ReplicaId, Signature};
use quorumfs_bft::step::{Event, Peer};
use quorumfs_bft::wire::message::Kind;
use quorumfs_bft::wire::{Envelope, Message, Rejection};

impl<W: Workload> Simulation<'_, W> {
    /// The network's number of a client; the Byzantine client follows the honest ones.
    fn endpoint(&self, client: usize) -> usize {
        self.nodes.len() + client
    }

    /// Sends a node's frame to every node of a replica.
    pub(super) fn send_to_replica(
        &mut self,
        node: usize,
        generation: u64,
        to: PublicKey,
        out: OutgoingFrame,
    ) {
        if let Some(lie) = out.lie {
            self.counters.count(lie.sent());
        }
        for to in self.nodes_of(&to) {
            let OutgoingFrame { frame, lie, delay } = out.clone();
            if delay > 0 {
                self.agenda.after(
                    delay,
                    Happening::Tell {
                        node,
                        generation,
                        to,
                        frame,
                        lie,
                    },
                );
            } else {
                self.transmit(node, to, frame, lie);
            }
        }
    }

    /// The nodes with this key: two, if they are twins.
    fn nodes_of(&self, key: &PublicKey) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        let known = nodes.filter(|(_, node)| node.key() == *key);
        known.map(|(index, _)| index).collect()
    }

    /// Sends a frame from node to node.
    pub(super) fn transmit(&mut self, from: usize, to: usize, frame: Bytes, lie: Option<Lie>) {
        if self.ambushed(from, to, &frame) || self.hit(from, to, &frame) {
            return;
        }
        let fate = self.network.send(from, to, &mut self.network_random);
        self.effective.extend(fate.by);
        let Some(generation) = self.generation(to) else {
            return;
        };
        for (delay, corrupted) in fate.arrivals {
            let frame = self.after_network(&frame, corrupted);
            self.agenda.after(
                delay,
                Happening::FrameToNode {
                    node: to,
                    generation,
                    from: FrameSource::Node(from),
                    frame,
                    lie,
                    corrupted,
                },
            );
        }
    }

    /// The bytes of a frame after the network.
    fn after_network(&mut self, frame: &Bytes, corrupted: bool) -> Bytes {
        if !corrupted {
            return frame.clone();
        }
        self.counters.count("frames_corrupted");
        let mut bytes = frame.to_vec();
        let at = self.network_random.index(bytes.len());
        let bit = self.network_random.below(8);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << bit;
        }
        Bytes::from(bytes)
    }

    /// Sends a frame from a client, honest or not, to one node.
    fn client_to_node(&mut self, client: usize, node: usize, frame: &Bytes, lie: Option<Lie>) {
        let connection = match self.honest_clients.get(client) {
            Some(honest_client) => honest_client.links.get(&node).copied(),
            None => self.byzantine_client_link(node),
        };
        let (Some(connection), Some(generation)) = (connection, self.generation(node)) else {
            return;
        };
        let from = self.endpoint(client);
        let fate = self.network.send(from, node, &mut self.network_random);
        self.effective.extend(fate.by);
        for (delay, corrupted) in fate.arrivals {
            let frame = self.after_network(frame, corrupted);
            self.agenda.after(
                delay,
                Happening::FrameToNode {
                    node,
                    generation,
                    from: FrameSource::Client(connection),
                    frame,
                    lie,
                    corrupted,
                },
            );
        }
    }

    /// Sends a frame from an honest client to every node of a replica.
    pub(super) fn send_request(&mut self, client: usize, to: ReplicaId, frame: &Bytes) {
        let honest_client = self.honest_clients.get(client);
        let known = honest_client.and_then(|honest_client| honest_client.membership().member(to));
        let Some(key) = known.map(|member| member.key) else {
            return;
        };
        for node in self.nodes_of(&key) {
            self.client_to_node(client, node, frame, None);
        }
    }

    /// Sends a frame from a node to a client.
    pub(super) fn reply(&mut self, node: usize, to: ConnectionId, frame: Bytes) {
        let Some(ClientLink { client, .. }) = self.links.get(&to).copied() else {
            return;
        };
        let generation = match self.honest_clients.get(client) {
            Some(honest_client) => honest_client.generation,
            None => 0,
        };
        if self.nodes.get(node).is_some_and(crate::node::Node::honest)
            && frame.starts_with(&Kind::Report.tag())
            && let Ok(envelope) = Envelope::decode(frame.clone())
            && let Message::Report(report) = envelope.message()
        {
            self.watching.reported(&report.report);
        }
        let endpoint = self.endpoint(client);
        let fate = self.network.send(node, endpoint, &mut self.network_random);
        self.effective.extend(fate.by);
        for (delay, corrupted) in fate.arrivals {
            let frame = self.after_network(&frame, corrupted);
            self.agenda.after(
                delay,
                Happening::FrameToClient {
                    client,
                    generation,
                    node,
                    frame,
                    corrupted,
                },
            );
        }
    }

    pub(super) fn frame_to_node(
        &mut self,
        index: usize,
        from: FrameSource,
        frame: Bytes,
        lie: Option<Lie>,
        corrupted: bool,
    ) {
        let peer = match from {
            FrameSource::Node(other) => match self.nodes.get(other) {
                Some(other) => {
                    let listener = self.nodes.get(index);
                    let key = other.key();
                    match listener.and_then(|node| node.membership.place(&key)) {
                        Some(place) => Peer::Replica(place),
                        None => {
                            self.counters.count("frames_of_strangers");
                            return;
                        }
                    }
                }
                None => return,
            },
            FrameSource::Client(connection) if self.links.contains_key(&connection) => {
                Peer::Client(connection)
            }
            FrameSource::Client(_) => return,
        };
        let at = self.agenda.now();
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        if !node.running() {
            return;
        }
        let honest = node.honest();
        let now = node.clock.now(at);
        if !node.listens_to(now, peer) {
            self.counters.count("frames_of_blacklisted");
            return;
        }
        let verdict = node.admit(peer, frame.clone());
        if corrupted {
            // TLS would have detected it; the decoder gets the bytes all the same.
            if let Ok(message) = verdict
                && message.message().kind().signed()
                && message.signature() != Some(Signature::default())
                && !matches!(message.message(), Message::Stray(_))
            {
                let what = format!("a corrupted frame was admitted: {message:?}");
                self.judge.violation(what);
            }
            return;
        }
        match verdict {
            Ok(message) => {
                if let Some(lie) = lie.filter(|_| honest) {
                    self.counters.count(lie.accepted());
                    if node.is_deceived_by(lie, message.message()) {
                        let what =
                            format!("node {index} admits what no correct replica admits: {lie:?}");
                        self.judge.violation(what);
                    }
                }
                self.note(|_| format!("{peer:?} -> node {index}: {:?}", message.message()));
                let event = Event::Received {
                    from: peer,
                    message,
                };
                let acts = match self.nodes.get_mut(index) {
                    Some(node) => node.handle(now, event),
                    None => return,
                };
                self.carry_out(index, acts);
            }
            Err(rejection) => {
                if let Some(lie) = lie.filter(|_| honest) {
                    self.counters.count(lie.rejected());
                } else if honest && self.is_honest(from) && rejection != Rejection::OtherEpoch {
                    let what = format!("node {index} refuses honest {peer:?}: {rejection}");
                    self.judge.violation(what);
                }
                self.note(|_| {
                    let envelope = Envelope::decode(frame);
                    let message = envelope.as_ref().map(Envelope::message);
                    format!("{peer:?} -> node {index}: refused: {rejection}: {message:?}")
                });
                self.refused(index, peer, rejection);
            }
        }
    }

    fn is_honest(&self, from: FrameSource) -> bool {
        match from {
            FrameSource::Node(node) => self.nodes.get(node).is_some_and(crate::node::Node::honest),
            FrameSource::Client(connection) => self
                .links
                .get(&connection)
                .is_some_and(|link| link.client < self.honest_clients.len()),
        }
    }

    pub(super) fn frame_to_client(
        &mut self,
        client: usize,
        generation: u64,
        node: usize,
        frame: Bytes,
        corrupted: bool,
    ) {
        if corrupted {
            // The decoder has to survive it; TLS drops it before the client.
            let _ = Envelope::decode(frame);
            return;
        }
        self.note(|_| {
            let envelope = Envelope::decode(frame.clone());
            let message = envelope.as_ref().map(Envelope::message);
            format!("node {node} -> client {client}: {message:?}")
        });
        if client >= self.honest_clients.len() {
            self.byzantine_client_receives(&frame);
            return;
        }
        let Some(from) = self.number_for_client(client, node) else {
            return;
        };
        self.with_client(client, generation, |client, now| {
            client.step(now, client::Event::Received { from, frame })
        });
    }

    /// The number of a node in a client's membership.
    fn number_for_client(&self, client: usize, node: usize) -> Option<ReplicaId> {
        let key = self.nodes.get(node)?.key();
        self.honest_clients.get(client)?.membership().place(&key)
    }

    /// A client has another membership: its connections have other numbers now.
    pub(super) fn renumber(&mut self, client: usize, generation: u64) {
        let links = self.honest_clients.get(client).map(|it| it.links.clone());
        for node in links.unwrap_or_default().into_keys() {
            if let Some(replica) = self.number_for_client(client, node) {
                self.with_client(client, generation, |client, now| {
                    client.step(now, client::Event::Connected { replica })
                });
            }
        }
    }

    fn fresh_connection(&mut self, client: usize, node: usize) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.links.insert(connection, ClientLink { client, node });
        connection
    }

    /// Connects a client and a node, if both are running.
    pub(super) fn connect(&mut self, client: usize, node: usize) {
        let running = self.nodes.get(node).is_some_and(|node| node.running());
        let linked = match self.honest_clients.get(client) {
            Some(honest_client) => honest_client.links.contains_key(&node),
            None => self.byzantine_client.is_none() || self.byzantine_client_link(node).is_some(),
        };
        if !running || linked {
            return;
        }
        let connection = self.fresh_connection(client, node);
        let now = Monotonic(self.agenda.now().0);
        let replica = self.number_for_client(client, node);
        if let Some(honest_client) = self.honest_clients.get_mut(client) {
            honest_client.links.insert(node, connection);
            let Some(replica) = replica else {
                return;
            };
            let actions = honest_client.step(now, client::Event::Connected { replica });
            let generation = honest_client.generation;
            self.carry_out_client(client, generation, actions);
        }
    }

    /// A node has stopped: its connections end.
    pub(super) fn disconnect_node(&mut self, node: usize) {
        self.links.retain(|_, link| link.node != node);
        let now = Monotonic(self.agenda.now().0);
        for client in 0..self.honest_clients.len() {
            let replica = self.number_for_client(client, node);
            let Some(honest_client) = self.honest_clients.get_mut(client) else {
                continue;
            };
            if honest_client.links.remove(&node).is_some() && !self.twin_linked(client, node) {
                let (Some(honest_client), Some(replica)) =
                    (self.honest_clients.get_mut(client), replica)
                else {
                    continue;
                };
                let actions = honest_client.step(now, client::Event::Disconnected { replica });
                let generation = honest_client.generation;
                self.carry_out_client(client, generation, actions);
            }
        }
    }

    /// Whether a client is still connected to the other copy of a replica.
    fn twin_linked(&self, client: usize, node: usize) -> bool {
        let replica = self.plan.nodes.get(node);
        let others = self.plan.nodes.iter().enumerate();
        others
            .filter(|(other, id)| *other != node && Some(*id) == replica)
            .any(|(other, _)| {
                let honest_client = self.honest_clients.get(client);
                honest_client.is_some_and(|honest_client| honest_client.links.contains_key(&other))
            })
    }

    /// A client has ended: its connections end.
    pub(super) fn disconnect_client(&mut self, client: usize) {
        let gone: Vec<(ConnectionId, usize)> = self
            .links
            .iter()
            .filter(|(_, link)| link.client == client)
            .map(|(connection, link)| (*connection, link.node))
            .collect();
        for (connection, node) in gone {
            self.links.remove(&connection);
            if let Some(generation) = self.generation(node) {
                self.with_node(node, generation, |node, now| {
                    node.handle(now, Event::Disconnected { connection })
                });
            }
        }
    }

    fn byzantine_client_link(&self, node: usize) -> Option<ConnectionId> {
        let byzantine_client = self.honest_clients.len();
        let mut links = self.links.iter();
        links
            .find(|(_, link)| link.client == byzantine_client && link.node == node)
            .map(|(connection, _)| *connection)
    }

    /// The Byzantine client acts once.
    pub(super) fn byzantine_client_acts(&mut self) {
        let nodes = self.nodes.len();
        let Some(byzantine_client) = &mut self.byzantine_client else {
            return;
        };
        let volley = byzantine_client.act(nodes);
        for (node, frame, lie) in volley {
            if let Some(lie) = lie {
                self.counters.count(lie.sent());
            }
            self.client_to_node(self.honest_clients.len(), node, &frame, lie);
        }
        if self.agenda.now() < self.plan.healed {
            let pause = self.client_random.between(20, 120) * MILLISECOND;
            self.agenda.after(pause, Happening::ByzantineClient);
        }
    }

    fn byzantine_client_receives(&mut self, frame: &Bytes) {
        use quorumfs_bft::wire::message::Outcome;
        let Some(byzantine_client) = &mut self.byzantine_client else {
            return;
        };
        match byzantine_client.receive(frame) {
            Some(Outcome::SessionOpened { session, .. }) => {
                self.byzantine_sessions.insert(session);
            }
            Some(Outcome::Busy) => self.counters.count("outlaw_busy"),
            Some(Outcome::SessionRefused) => self.counters.count("outlaw_refused"),
            Some(Outcome::Conflict) => self.counters.count("outlaw_conflicts"),
            Some(Outcome::NoSession) => self.counters.count("outlaw_no_session"),
            Some(Outcome::Superseded) => self.counters.count("outlaw_superseded"),
            Some(Outcome::SessionClosed) => self.counters.count("outlaw_closed"),
            _ => {}
        }
    }
}
