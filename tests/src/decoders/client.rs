//! A client that receives arbitrary frames.

use super::{CLUSTER, Credulous, EPOCH, Pieces, four, pieces, wire_fixtures};
use bytes::Bytes;
use quorumfs_bft::client::{Client, ClientConfig, Effect, Effects, Event, OperationKind, Ticket};
use quorumfs_bft::identity::{
    Lane, Monotonic, PublicKey, ReplicaId, RequestNumber, SessionId, Time,
};
use quorumfs_bft::service::Credit;
use quorumfs_bft::wire::message::{Outcome, Reply};
use quorumfs_bft::wire::{Envelope, Header, Message};

/// How many tickets are submitted.
const TICKETS: u64 = 8;

struct Driven {
    client: Client,
    /// The digest of the last request that it signed.
    last_request: Option<quorumfs_bft::identity::Digest>,
    answered: Vec<Ticket>,
}

impl Driven {
    fn carry_out(&mut self, now: Monotonic, effects: &mut Effects) {
        loop {
            let list: Vec<Effect> = effects.drain().collect();
            if list.is_empty() {
                return;
            }
            for effect in list {
                match effect {
                    Effect::Sign { message, .. } => {
                        let message = message.sign(&Credulous);
                        self.last_request = Some(message.envelope().digest());
                        self.client.step(now, Event::Signed { message }, effects);
                    }
                    Effect::Deliver { ticket, .. } | Effect::Failed { ticket, .. } => {
                        self.answered.push(ticket);
                    }
                    _ => {}
                }
            }
        }
    }

    fn step(&mut self, now: Monotonic, event: Event) {
        let mut effects = Effects::default();
        self.client.step(now, event, &mut effects);
        self.carry_out(now, &mut effects);
        self.client.dispatch(now, &mut effects);
        self.carry_out(now, &mut effects);
    }

    /// A reply of `replica` to the last request.
    fn reply(&mut self, now: Monotonic, replica: u16, session: SessionId, outcome: Outcome) {
        let Some(request) = self.last_request else {
            return;
        };
        let opening = matches!(outcome, Outcome::SessionOpened { .. });
        let reply = Reply {
            session,
            lane: Lane(0),
            number: RequestNumber(u64::from(!opening)),
            request,
            version: quorumfs_bft::identity::Sequence(5),
            outcome,
        };
        let header = Header {
            cluster: CLUSTER,
            epoch: EPOCH,
            ..Header::default()
        };
        let frame = Envelope::unsigned(header, Message::Reply(reply))
            .frame()
            .clone();
        let from = ReplicaId(replica);
        self.step(now, Event::Received { from, frame });
    }
}

/// Opens a session and submits operations between arbitrary frames.
pub fn frames(bytes: &[u8]) {
    let mut config = ClientConfig::new(CLUSTER, four(), PublicKey([1; 32]));
    config.epoch = EPOCH;
    let mut driven = Driven {
        client: Client::new(config),
        last_request: None,
        answered: Vec::new(),
    };
    let start = Monotonic(0);
    for replica in 0..4 {
        let replica = ReplicaId(replica);
        driven.step(start, Event::Connected { replica });
    }
    let session_key = PublicKey([2; 32]);
    let time = Time(1_700_000_000_000_000_000);
    driven.step(start, Event::Open { session_key, time });
    for (number, (kind, piece)) in (0..).zip(Pieces(bytes).take(64)) {
        let now = Monotonic(number * 50_000_000 + u64::from(kind));
        let from = ReplicaId((kind % 8).into());
        match kind / 8 {
            0 => {
                let frame = Bytes::copy_from_slice(piece);
                driven.step(now, Event::Received { from, frame });
            }
            1 => {
                let session = SessionId(5);
                let credit = Credit {
                    lanes: 2,
                    bytes: 1 << 20,
                };
                let opened = Outcome::SessionOpened { session, credit };
                driven.reply(now, from.0, SessionId(0), opened);
            }
            2 => {
                let result = Bytes::copy_from_slice(piece);
                let results = Outcome::Results(vec![Some(result)]);
                driven.reply(now, from.0, SessionId(5), results);
            }
            3 => driven.step(now, Event::Disconnected { replica: from }),
            4 => driven.step(now, Event::Connected { replica: from }),
            5 if number < TICKETS => driven.step(
                now,
                Event::Submit {
                    ticket: Ticket(number),
                    kind: OperationKind::Execute,
                    operation: Bytes::copy_from_slice(piece),
                    deadline: Monotonic(u64::from(kind) * 1_000_000_000),
                },
            ),
            _ => driven.step(now, Event::Timer),
        }
    }
    let count = driven.answered.len();
    driven.answered.sort_unstable();
    driven.answered.dedup();
    assert_eq!(driven.answered.len(), count, "a ticket was answered twice");
}

/// A session with an operation, with every kind of message between its steps.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let plain: &[(u8, &[u8])] = &[
        (8, b""),
        (9, b""),
        (40, b"an operation"),
        (16, b"its result"),
        (18, b"its result"),
        (48, b""),
    ];
    let mut seeds = vec![pieces(plain.iter().copied())];
    for frame in wire_fixtures() {
        let mut parts = plain.to_vec();
        parts.insert(2, (1, &frame));
        parts.insert(4, (2, &frame));
        seeds.push(pieces(parts));
    }
    seeds
}
