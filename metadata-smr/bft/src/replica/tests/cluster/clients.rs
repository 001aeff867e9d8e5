//! The clients: each sends one request after the other, and repeats it until enough replicas have
//! answered alike.

use super::keys::FakeKey;
use super::{MS, ScheduledEvent, TestCluster};
use crate::identity::{
    ConnectionId, Digest, Lane, PublicKey, RequestNumber, Sequence, SessionId, Time, View,
};
use crate::step::Peer;
use crate::wire::message::{
    CloseSession, Kind, Message, OpenSession, Outcome, Reply, Request, RequestOperation,
};
use crate::wire::{Envelope, Unsigned};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) struct TestClient {
    key: PublicKey,
    session: Option<SessionId>,
    number: u64,
    target: u64,
    /// The nodes that it does not send to.
    silent_to: Vec<usize>,
    pub(super) frame: Bytes,
    digest: Digest,
    answers: BTreeMap<usize, Reply>,
    pub(super) results: Vec<u64>,
}

impl TestCluster {
    /// A client that executes `target` operations, one after the other.
    pub(in crate::replica::tests) fn client(&mut self, target: u64) -> usize {
        let index = self.clients.len();
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(index as u64 + 1).to_le_bytes());
        self.clients.push(TestClient {
            key: PublicKey(key),
            session: None,
            number: 0,
            target,
            silent_to: Vec::new(),
            frame: Bytes::new(),
            digest: Digest::default(),
            answers: BTreeMap::new(),
            results: Vec::new(),
        });
        self.ask(index);
        index
    }

    pub(in crate::replica::tests) fn more(&mut self, client: usize, operations: u64) {
        self.clients[client].target += operations;
        if self.clients[client].frame.is_empty() {
            self.ask(client);
        }
    }

    /// From now on the client sends to these nodes only.
    pub(in crate::replica::tests) fn sends_to(&mut self, client: usize, nodes: &[usize]) {
        let others = (0..self.nodes.len()).filter(|node| !nodes.contains(node));
        self.clients[client].silent_to = others.collect();
    }

    fn ask(&mut self, index: usize) {
        let header = self.context().header(View(0));
        let operation = Bytes::from_static(self.operation);
        let now = self.now;
        let client = &mut self.clients[index];
        client.answers.clear();
        let message = match client.session {
            None => Message::OpenSession(OpenSession {
                principal: client.key,
                session_key: client.key,
                lanes: 1,
                time: Time(super::EPOCH + now),
            }),
            Some(session) if (client.results.len() as u64) < client.target => {
                client.number += 1;
                Message::Request(Request {
                    session,
                    lane: Lane(0),
                    number: RequestNumber(client.number),
                    operations: vec![RequestOperation::Execute(operation)],
                })
            }
            Some(_) => {
                client.frame = Bytes::new();
                return;
            }
        };
        let signed = Unsigned::new(header, message).sign(&FakeKey(client.key));
        client.frame = signed.frame().clone();
        client.digest = signed.digest();
        self.transmit(index);
    }

    pub(super) fn transmit(&mut self, client: usize) {
        for node in 0..self.nodes.len() {
            let latency = self.latency();
            let sent_to = !self.clients[client].silent_to.contains(&node);
            if self.random(1000) >= self.loss && sent_to {
                let from = Peer::Client(ConnectionId(client as u64));
                let frame = self.clients[client].frame.clone();
                self.schedule(
                    latency,
                    ScheduledEvent::Arrival {
                        to: node,
                        from,
                        frame,
                    },
                );
            }
        }
        self.schedule(250 * MS, ScheduledEvent::Retry { client });
    }

    pub(super) fn reply(&mut self, index: usize, from: usize, frame: Bytes) {
        let envelope = Envelope::decode(frame).expect("a reply");
        let Message::Reply(reply) = envelope.message() else {
            let received = self.received.entry((from, index as u64)).or_default();
            received.push(envelope.message().clone());
            return;
        };
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        if reply.request != client.digest || client.frame.is_empty() {
            return;
        }
        client.answers.insert(from, reply.clone());
        let same = client
            .answers
            .values()
            .filter(|other| *other == reply)
            .count();
        if same < usize::from(self.model.small()) {
            return;
        }
        match &reply.outcome {
            Outcome::SessionOpened { session, .. } => client.session = Some(*session),
            Outcome::Results(results) => {
                let bytes = results[0].as_ref().expect("room for eight bytes");
                client
                    .results
                    .push(u64::from_be_bytes(bytes.as_ref().try_into().unwrap()));
            }
            Outcome::Busy => return,
            other => panic!("client {index} got {other:?}"),
        }
        self.ask(index);
    }

    /// The client sends a request again that it sent before.
    pub(in crate::replica::tests) fn resend(&mut self, client: usize, number: u64) {
        let this = &self.clients[client];
        let (session, key) = (this.session.expect("it is open"), this.key);
        self.send_to_all(client, key, session, number);
    }

    /// A client sends a request to all in a session that is not open.
    pub(in crate::replica::tests) fn stray(&mut self, session: SessionId) {
        self.send_to_all(1_000, PublicKey([8; 32]), session, 1);
    }

    /// The client's session.
    pub(in crate::replica::tests) fn session_of(&self, client: usize) -> SessionId {
        self.clients[client].session.expect("it is open")
    }

    /// The client, which has nothing pending, orders a checkpoint.
    pub(in crate::replica::tests) fn order_checkpoint(&mut self, client: usize) {
        let header = self.context().header(View(0));
        let this = &mut self.clients[client];
        this.number += 1;
        let message = Message::Request(Request {
            session: this.session.expect("it is open"),
            lane: Lane(0),
            number: RequestNumber(this.number),
            operations: vec![RequestOperation::Checkpoint],
        });
        let frame = Unsigned::new(header, message).sign(&FakeKey(this.key));
        for node in 0..self.nodes.len() {
            let from = Peer::Client(ConnectionId(client as u64));
            self.arrive(node, from, frame.frame().clone());
        }
    }

    /// What a connection has received since the last time, in addition to replies.
    pub(in crate::replica::tests) fn take_received(
        &mut self,
        from: usize,
        connection: u64,
    ) -> Vec<Message> {
        let received = self.received.remove(&(from, connection));
        received.unwrap_or_default()
    }

    /// A request of so many bytes in the client's session, signed by it.
    pub(in crate::replica::tests) fn request(
        &self,
        client: usize,
        number: u64,
        bytes: usize,
    ) -> Arc<Envelope> {
        let this = &self.clients[client];
        let message = Message::Request(Request {
            session: this.session.expect("it is open"),
            lane: Lane(0),
            number: RequestNumber(number),
            operations: vec![RequestOperation::Execute(vec![0; bytes].into())],
        });
        let unsigned = Unsigned::new(self.context().header(View(0)), message);
        Arc::clone(unsigned.sign(&FakeKey(this.key)).envelope())
    }

    /// The client closes its session.
    pub(in crate::replica::tests) fn close_session(&mut self, client: usize) {
        let this = &self.clients[client];
        let session = this.session.expect("it is open");
        let message = Message::CloseSession(CloseSession { session });
        let unsigned = Unsigned::new(self.context().header(View(0)), message);
        let frame = unsigned.sign(&FakeKey(this.key)).frame().clone();
        for node in 0..self.nodes.len() {
            let from = Peer::Client(ConnectionId(client as u64));
            self.arrive(node, from, frame.clone());
        }
    }

    fn send_to_all(&mut self, from: usize, key: PublicKey, session: SessionId, number: u64) {
        let message = Message::Request(Request {
            session,
            lane: Lane(0),
            number: RequestNumber(number),
            operations: vec![RequestOperation::Execute(Bytes::from_static(
                self.operation,
            ))],
        });
        let header = self.context().header(View(0));
        let signed = Unsigned::new(header, message).sign(&FakeKey(key));
        for node in 0..self.nodes.len() {
            let from = Peer::Client(ConnectionId(from as u64));
            self.arrive(node, from, signed.frame().clone());
        }
    }

    pub(in crate::replica::tests) fn finished(&self) -> bool {
        self.clients.iter().all(|client| client.frame.is_empty())
    }

    pub(in crate::replica::tests) fn results(&self, client: usize) -> &[u64] {
        &self.clients[client].results
    }

    /// How much longer this frame takes because its sender delays it.
    pub(super) fn proposal_delay(&self, from: usize, frame: &Bytes) -> u64 {
        let kind = Kind::of_tag(frame.get(..8).unwrap_or_default());
        let proposal_delay = self
            .slow_leaders
            .get(&from)
            .filter(|_| kind == Some(Kind::Proposal));
        proposal_delay.copied().unwrap_or(0)
    }

    /// Lets all replicas catch up, and checks that every operation ran once and all states are
    /// equal.
    #[track_caller]
    pub(in crate::replica::tests) fn check(&mut self) {
        self.run_for(3_000);
        let mut all: Vec<u64> = self
            .clients
            .iter()
            .flat_map(|it| it.results.clone())
            .collect();
        for client in &self.clients {
            assert!(client.results.is_sorted());
        }
        all.sort_unstable();
        let expected: Vec<u64> = (1..=all.len() as u64).collect();
        assert_eq!(all, expected, "every operation ran exactly once");
        let up: Vec<usize> = (0..self.nodes.len())
            .filter(|node| self.up(*node))
            .collect();
        (0..self.nodes.len()).for_each(|node| self.check_no_rollback_noticed(node));
        let digests: BTreeSet<(Sequence, Digest)> = up
            .iter()
            .map(|node| {
                let core = self.nodes[*node].core.as_mut().expect("it is up");
                (
                    core.status().sequence,
                    core.state_digest().expect("memory does not fail"),
                )
            })
            .collect();
        assert_eq!(digests.len(), 1, "different states: {:#?}", self.statuses());
    }
}
