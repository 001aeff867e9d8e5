//! Frames on their way: through the network, to nodes and to clients.

use super::{Happening, Link, Simulation, Source};
use crate::agenda::MILLISECOND;
use crate::liar::Told;
use crate::lie::Lie;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::client;
use quorumfs_bft::identity::{ConnectionId, Monotonic, PublicKey, ReplicaId, Signature};
use quorumfs_bft::step::{Event, Peer};
use quorumfs_bft::wire::message::Kind;
use quorumfs_bft::wire::{Envelope, Message, Rejection};

impl<W: Workload> Simulation<'_, W> {
    /// The network's number of a client, or of the Byzantine client behind the honest ones.
    fn endpoint(&self, client: usize) -> usize {
        self.nodes.len() + client
    }

    /// Sends what a node says to every node of a replica.
    pub(super) fn tell(&mut self, node: usize, generation: u64, to: PublicKey, told: Told) {
        if let Some(lie) = told.lie {
            self.counters.count(lie.sent());
        }
        for to in self.nodes_of(&to) {
            let Told { frame, lie, delay } = told.clone();
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

    /// The nodes that are known by this key: two, if they are twins.
    fn nodes_of(&self, key: &PublicKey) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        let known = nodes.filter(|(_, node)| node.key() == *key);
        known.map(|(index, _)| index).collect()
    }

    /// From node to node.
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
            let frame = self.passed(&frame, corrupted);
            self.agenda.after(
                delay,
                Happening::FrameToNode {
                    node: to,
                    generation,
                    from: Source::Node(from),
                    frame,
                    lie,
                    corrupted,
                },
            );
        }
    }

    /// What a frame looks like after the network had it.
    fn passed(&mut self, frame: &Bytes, corrupted: bool) -> Bytes {
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

    /// From a client, honest or not, to one node.
    fn client_to_node(&mut self, client: usize, node: usize, frame: &Bytes, lie: Option<Lie>) {
        let connection = match self.customers.get(client) {
            Some(customer) => customer.links.get(&node).copied(),
            None => self.outlaw_link(node),
        };
        let (Some(connection), Some(generation)) = (connection, self.generation(node)) else {
            return;
        };
        let from = self.endpoint(client);
        let fate = self.network.send(from, node, &mut self.network_random);
        self.effective.extend(fate.by);
        for (delay, corrupted) in fate.arrivals {
            let frame = self.passed(frame, corrupted);
            self.agenda.after(
                delay,
                Happening::FrameToNode {
                    node,
                    generation,
                    from: Source::Client(connection),
                    frame,
                    lie,
                    corrupted,
                },
            );
        }
    }

    /// From an honest client to every node of a replica.
    pub(super) fn ask(&mut self, client: usize, to: ReplicaId, frame: &Bytes) {
        let customer = self.customers.get(client);
        let known = customer.and_then(|customer| customer.membership().member(to));
        let Some(key) = known.map(|member| member.key) else {
            return;
        };
        for node in self.nodes_of(&key) {
            self.client_to_node(client, node, frame, None);
        }
    }

    /// From a node to a client.
    pub(super) fn reply(&mut self, node: usize, to: ConnectionId, frame: Bytes) {
        let Some(Link { client, .. }) = self.links.get(&to).copied() else {
            return;
        };
        let generation = match self.customers.get(client) {
            Some(customer) => customer.generation,
            None => 0,
        };
        if self.nodes.get(node).is_some_and(crate::node::Node::honest)
            && frame.starts_with(&Kind::Report.tag())
            && let Ok(envelope) = Envelope::decode(frame.clone())
            && let Message::Report(said) = envelope.message()
        {
            self.watching.said(&said.report);
        }
        let endpoint = self.endpoint(client);
        let fate = self.network.send(node, endpoint, &mut self.network_random);
        self.effective.extend(fate.by);
        for (delay, corrupted) in fate.arrivals {
            let frame = self.passed(&frame, corrupted);
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
        from: Source,
        frame: Bytes,
        lie: Option<Lie>,
        corrupted: bool,
    ) {
        let peer = match from {
            Source::Node(other) => match self.nodes.get(other) {
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
            Source::Client(connection) if self.links.contains_key(&connection) => {
                Peer::Client(connection)
            }
            Source::Client(_) => return,
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
            // TLS would have noticed; the bytes are shown to the decoder all the same.
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
                    if node.deceived_by(lie, message.message()) {
                        let what =
                            format!("node {index} lets in what no correct replica does: {lie:?}");
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
                    let what = format!("node {index} refuses {peer:?}, who is honest: {rejection}");
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

    fn is_honest(&self, from: Source) -> bool {
        match from {
            Source::Node(node) => self.nodes.get(node).is_some_and(crate::node::Node::honest),
            Source::Client(connection) => self
                .links
                .get(&connection)
                .is_some_and(|link| link.client < self.customers.len()),
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
            // The decoder has to survive it; TLS keeps it from the client.
            let _ = Envelope::decode(frame);
            return;
        }
        self.note(|_| {
            let envelope = Envelope::decode(frame.clone());
            let message = envelope.as_ref().map(Envelope::message);
            format!("node {node} -> client {client}: {message:?}")
        });
        if client >= self.customers.len() {
            self.outlaw_hears(&frame);
            return;
        }
        let Some(from) = self.known_as(client, node) else {
            return;
        };
        self.with_client(client, generation, |client, now| {
            client.step(now, client::Event::Received { from, frame })
        });
    }

    /// The number of a node in the membership that a client knows.
    fn known_as(&self, client: usize, node: usize) -> Option<ReplicaId> {
        let key = self.nodes.get(node)?.key();
        self.customers.get(client)?.membership().place(&key)
    }

    /// A client knows another membership: its connections have other numbers now.
    pub(super) fn renumber(&mut self, client: usize, generation: u64) {
        let links = self.customers.get(client).map(|it| it.links.clone());
        for node in links.unwrap_or_default().into_keys() {
            if let Some(replica) = self.known_as(client, node) {
                self.with_client(client, generation, |client, now| {
                    client.step(now, client::Event::Connected { replica })
                });
            }
        }
    }

    fn fresh_connection(&mut self, client: usize, node: usize) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.links.insert(connection, Link { client, node });
        connection
    }

    /// A client and a node get a connection, if both are there.
    pub(super) fn connect(&mut self, client: usize, node: usize) {
        let running = self.nodes.get(node).is_some_and(|node| node.running());
        let linked = match self.customers.get(client) {
            Some(customer) => customer.links.contains_key(&node),
            None => self.outlaw.is_none() || self.outlaw_link(node).is_some(),
        };
        if !running || linked {
            return;
        }
        let connection = self.fresh_connection(client, node);
        let now = Monotonic(self.agenda.now().0);
        let replica = self.known_as(client, node);
        if let Some(customer) = self.customers.get_mut(client) {
            customer.links.insert(node, connection);
            let Some(replica) = replica else {
                return;
            };
            let wishes = customer.step(now, client::Event::Connected { replica });
            let generation = customer.generation;
            self.grant(client, generation, wishes);
        }
    }

    /// A node went down: its connections are gone.
    pub(super) fn disconnect_node(&mut self, node: usize) {
        self.links.retain(|_, link| link.node != node);
        let now = Monotonic(self.agenda.now().0);
        for client in 0..self.customers.len() {
            let replica = self.known_as(client, node);
            let Some(customer) = self.customers.get_mut(client) else {
                continue;
            };
            if customer.links.remove(&node).is_some() && !self.twin_linked(client, node) {
                let (Some(customer), Some(replica)) = (self.customers.get_mut(client), replica)
                else {
                    continue;
                };
                let wishes = customer.step(now, client::Event::Disconnected { replica });
                let generation = customer.generation;
                self.grant(client, generation, wishes);
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
                let customer = self.customers.get(client);
                customer.is_some_and(|customer| customer.links.contains_key(&other))
            })
    }

    /// A client went away: the nodes lose its connections.
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

    fn outlaw_link(&self, node: usize) -> Option<ConnectionId> {
        let outlaw = self.customers.len();
        let mut links = self.links.iter();
        links
            .find(|(_, link)| link.client == outlaw && link.node == node)
            .map(|(connection, _)| *connection)
    }

    /// The Byzantine client does something.
    pub(super) fn outlaw_acts(&mut self) {
        let nodes = self.nodes.len();
        let Some(outlaw) = &mut self.outlaw else {
            return;
        };
        let volley = outlaw.act(nodes);
        for (node, frame, lie) in volley {
            if let Some(lie) = lie {
                self.counters.count(lie.sent());
            }
            self.client_to_node(self.customers.len(), node, &frame, lie);
        }
        if self.agenda.now() < self.plan.healed {
            let pause = self.client_random.between(20, 120) * MILLISECOND;
            self.agenda.after(pause, Happening::Outlaw);
        }
    }

    fn outlaw_hears(&mut self, frame: &Bytes) {
        use quorumfs_bft::wire::message::Outcome;
        let Some(outlaw) = &mut self.outlaw else {
            return;
        };
        match outlaw.hear(frame) {
            Some(Outcome::SessionOpened { session, .. }) => {
                self.outlaw_sessions.insert(session);
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
