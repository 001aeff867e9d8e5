//! A Byzantine client: it has a principal of its own, and misbehaves.
//!
//! It opens a session like other clients and then contradicts itself (one number, different
//! requests for different replicas), floods beyond its credit, skips numbers, signs for sessions
//! of others, and sends bytes that are not messages. Whatever it does, it can harm only itself.

use crate::authentication::FakeSigner;
use crate::clock::EPOCH;
use crate::lie::Lie;
use crate::random::Random;
use bytes::Bytes;
use quorumfs_bft::authentication::Signer as _;
use quorumfs_bft::identity::{
    ClusterId, Epoch, Group, Lane, Nanos, RequestNumber, SessionId, View,
};
use quorumfs_bft::wire::frame::{Envelope, Header, Unsigned};
use quorumfs_bft::wire::message::{
    CloseSession, Message, OpenSession, Outcome, Request, RequestOperation, StatusQuery,
};

/// A client that lies.
#[derive(Debug)]
pub(crate) struct ByzantineClient {
    cluster: ClusterId,
    principal: FakeSigner,
    session_key: FakeSigner,
    session: Option<SessionId>,
    number: u64,
    random: Random,
}

/// A frame for each node that gets one, and its defect.
pub(crate) type Volley = Vec<(usize, Bytes, Option<Lie>)>;

impl ByzantineClient {
    pub(crate) fn new(
        cluster: ClusterId,
        principal: FakeSigner,
        session_key: FakeSigner,
        random: Random,
    ) -> Self {
        Self {
            cluster,
            principal,
            session_key,
            session: None,
            number: 1,
            random,
        }
    }

    /// Learns its session from any replica's message, and continues when it is answered.
    pub(crate) fn receive(&mut self, frame: &Bytes) -> Option<Outcome> {
        let envelope = Envelope::decode(frame.clone()).ok()?;
        let Message::Reply(reply) = envelope.message() else {
            return None;
        };
        match &reply.outcome {
            Outcome::SessionOpened { session, .. } => self.session = Some(*session),
            Outcome::Results(_) if reply.number.0 == self.number => self.number += 1,
            _ => {}
        }
        Some(reply.outcome.clone())
    }

    /// Misbehaves once towards `nodes` nodes. Its operations have no effect on the service, so the
    /// honest clients' history can be explained without them.
    pub(crate) fn act(&mut self, nodes: usize) -> Volley {
        let all = 0..nodes;
        let Some(session) = self.session else {
            let open = OpenSession {
                principal: self.principal.public_key(),
                session_key: self.session_key.public_key(),
                lanes: 4,
                time: EPOCH,
            };
            let message = Unsigned::new(self.header(), Message::OpenSession(open));
            let frame = message.sign(&self.principal).frame().clone();
            return all.map(|node| (node, frame.clone(), None)).collect();
        };
        match self.random.below(16) {
            0..5 => all
                .map(|node| {
                    let mark = Bytes::from(vec![node as u8; 3]);
                    let operations = vec![RequestOperation::Execute(mark)];
                    let frame = self.request(session, Lane(0), self.number, operations);
                    (node, frame, Some(Lie::Contradiction))
                })
                .collect(),
            5..8 => {
                let number = self.number;
                let operations = vec![RequestOperation::Execute(Bytes::from_static(b"nonsense"))];
                let frame = self.request(session, Lane(0), number, operations);
                all.map(|node| (node, frame.clone(), None)).collect()
            }
            8..10 => {
                let mut volley = Vec::new();
                for lane in 0..4 {
                    for number in 1..4 {
                        let big = Bytes::from(vec![lane as u8; 9000]);
                        let operations = vec![RequestOperation::Execute(big)];
                        let frame = self.request(session, Lane(lane), number, operations);
                        for node in all.clone() {
                            volley.push((node, frame.clone(), Some(Lie::Flood)));
                        }
                    }
                }
                volley
            }
            10 => {
                let number = self.number + self.random.between(2, 1 << 40);
                let lane = Lane(self.random.below(70) as u16);
                let operations = vec![RequestOperation::Execute(Bytes::from_static(b"nonsense"))];
                let frame = self.request(session, lane, number, operations);
                all.map(|node| (node, frame.clone(), Some(Lie::SkippedNumber)))
                    .collect()
            }
            11 => {
                let other = SessionId(session.0.wrapping_add(self.random.between(1, 3)));
                let stray = SessionId(9_999_999);
                let session = if self.random.chance(1, 2) {
                    other
                } else {
                    stray
                };
                let frame = self.request(session, Lane(0), 1, Vec::new());
                let node = self.random.index(nodes);
                vec![(node, frame, Some(Lie::ForeignSession))]
            }
            12 => {
                let query = Message::StatusQuery(StatusQuery { nonce: 5 });
                let frame = quorumfs_bft::wire::encode(self.header(), &query);
                all.map(|node| (node, frame.clone(), None)).collect()
            }
            13 if self.random.chance(1, 8) => {
                let close = Message::CloseSession(CloseSession { session });
                let message = Unsigned::new(self.header(), close);
                let frame = message.sign(&self.session_key).frame().clone();
                all.map(|node| (node, frame.clone(), None)).collect()
            }
            14 => {
                let open = OpenSession {
                    principal: self.session_key.public_key(),
                    session_key: self.session_key.public_key(),
                    lanes: 4,
                    time: EPOCH.plus(Nanos(self.random.below(1_000_000_000))),
                };
                let message = Unsigned::new(self.header(), Message::OpenSession(open));
                let frame = message.sign(&self.session_key).frame().clone();
                all.map(|node| (node, frame.clone(), Some(Lie::UnknownPrincipal)))
                    .collect()
            }
            _ => {
                let node = self.random.index(nodes);
                let junk = Bytes::copy_from_slice(&self.random.bytes());
                vec![(node, junk, Some(Lie::ClientGarbage))]
            }
        }
    }

    fn header(&self) -> Header {
        Header {
            cluster: self.cluster,
            epoch: Epoch(0),
            group: Group(0),
            view: View(0),
        }
    }

    fn request(
        &self,
        session: SessionId,
        lane: Lane,
        number: u64,
        operations: Vec<RequestOperation>,
    ) -> Bytes {
        let request = Request {
            session,
            lane,
            number: RequestNumber(number),
            operations,
        };
        let message = Unsigned::new(self.header(), Message::Request(request));
        message.sign(&self.session_key).frame().clone()
    }
}
