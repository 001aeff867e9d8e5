//! A replica that receives arbitrary frames.
//!
//! Every signature is accepted, so that forged certificates, proposals, views and votes reach the
//! protocol itself: as if every key of the cluster had been stolen. The test claims nothing about
//! what such a replica then agrees to, only that it neither panics nor loops.

use super::{CLUSTER, Credulous, EPOCH, Pieces, at, fixtures, four, pieces, wire_fixtures};
use bytes::Bytes;
use quorumfs_bft::identity::{
    ConnectionId, Digest, Lane, PublicKey, ReplicaId, RequestNumber, Sequence, SessionId,
};
use quorumfs_bft::journal::framing::end_page;
use quorumfs_bft::journal::{Entry, Framing, Journal, Segment, SegmentIdentity, examine};
use quorumfs_bft::replica::{Config, Replica};
use quorumfs_bft::state::MemoryStore;
use quorumfs_bft::step::{Effect, Effects, Event, Peer, Timer, Token};
use quorumfs_bft::wire::message::{Ballot, Batch, OpenSession, Request, RequestOperation, Suspect};
use quorumfs_bft::wire::signed_bytes::genesis_digest;
use quorumfs_bft::wire::{Envelope, Header, Message, Unsigned, admit};
use quorumfs_bft_simulator::key_value::KeyValue;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many steps an input may cause by the replica's own messages to itself.
const STEPS_MAX: usize = 10_000;

/// The one principal of the service.
const PRINCIPAL: PublicKey = PublicKey([1; 32]);

const TIMERS: [Timer; 5] = [
    Timer::Progress,
    Timer::Status,
    Timer::Tick,
    Timer::Fetch,
    Timer::Clock,
];

/// A replica, and a driver that carries out its effects at once.
struct Driven {
    replica: Replica<KeyValue, MemoryStore>,
    store: MemoryStore,
    config: Config,
    nanos: u64,
}

impl Driven {
    fn start(journal: Journal) -> Option<Self> {
        let genesis = Bytes::from_static(&PRINCIPAL.0);
        let mut config = Config::new(ReplicaId(1), CLUSTER, four(), genesis);
        config.genesis_membership.epoch = EPOCH;
        let store = MemoryStore::new();
        let mut effects = Effects::default();
        let started = Replica::recover(
            config.clone(),
            KeyValue,
            store.clone(),
            journal,
            at(0),
            &mut effects,
        );
        let mut driven = Self {
            replica: started.ok()?,
            store,
            config,
            nanos: 0,
        };
        driven.carry_out(effects);
        Some(driven)
    }

    fn carry_out(&mut self, mut effects: Effects) {
        let mut waiting: VecDeque<Event> = VecDeque::new();
        for _ in 0..STEPS_MAX {
            for effect in effects.drain() {
                match effect {
                    Effect::Sign { message } => waiting.push_back(Event::Signed {
                        message: message.sign(&Credulous),
                    }),
                    Effect::Persist { token, .. } => waiting.push_back(Event::Persisted { token }),
                    Effect::Flush { batch, root } => {
                        self.store.apply(&batch);
                        waiting.push_back(Event::Flushed {
                            sequence: root.sequence,
                        });
                    }
                    _ => {}
                }
            }
            let Some(event) = waiting.pop_front() else {
                return;
            };
            self.replica.step(at(self.nanos), event, &mut effects);
        }
        assert!(
            waiting.is_empty(),
            "the replica sends itself messages without end"
        );
    }

    fn step(&mut self, event: Event) {
        let mut effects = Effects::default();
        self.replica.step(at(self.nanos), event, &mut effects);
        self.carry_out(effects);
    }

    /// A frame, or a timer and some time.
    fn feed(&mut self, kind: u8, piece: &[u8]) {
        self.nanos += u64::from(kind) * 100_000;
        let from = match kind {
            0..4 => Peer::Replica(ReplicaId(kind.into())),
            4..8 => Peer::Client(ConnectionId(kind.into())),
            _ => {
                self.nanos += 10_000_000;
                let turn = usize::from(kind) % TIMERS.len();
                if let Some(timer) = TIMERS.get(turn).copied() {
                    self.step(Event::Timer { timer });
                }
                return;
            }
        };
        let context = self.config.context();
        let frame = Bytes::copy_from_slice(piece);
        if let Ok(message) = admit(frame, from, &Credulous, &Credulous, &context) {
            self.step(Event::Received { from, message });
        }
    }
}

fn driven_by(bytes: &[u8]) -> Option<Driven> {
    let mut driven = Driven::start(Journal::default())?;
    for (kind, piece) in Pieces(bytes).take(64) {
        driven.feed(kind, piece);
    }
    Some(driven)
}

/// Frames and timers, each with its sender.
pub fn frames(bytes: &[u8]) {
    if let Some(driven) = driven_by(bytes) {
        let _ = driven.replica.status();
    }
}

/// A frame as if `Credulous` had signed it.
fn signed(message: Message) -> Arc<Envelope> {
    let header = Header {
        cluster: CLUSTER,
        epoch: EPOCH,
        ..Header::default()
    };
    Arc::clone(Unsigned::new(header, message).sign(&Credulous).envelope())
}

/// The messages of the client and the peers that make a replica execute `request` at `sequence`.
/// Returns the batch's digest.
fn order(
    parts: &mut Vec<(u8, Bytes)>,
    sequence: Sequence,
    previous: Digest,
    request: &Envelope,
) -> Digest {
    let proposal = signed(Message::Proposal(Batch {
        sequence,
        time: at(sequence.0).clock,
        previous,
        behaviour_version: 1,
        tick: false,
        requests: vec![request.digest()],
    }));
    let digest = proposal.digest();
    let ballot = |signer: u8| Ballot {
        sequence,
        digest,
        signer: ReplicaId(signer.into()),
    };
    parts.push((4, request.frame().clone()));
    parts.push((0, proposal.frame().clone()));
    for signer in [2, 3] {
        let prepare = signed(Message::Prepare(ballot(signer)));
        parts.push((signer, prepare.frame().clone()));
    }
    for signer in [0, 2, 3] {
        let commit = signed(Message::Commit(ballot(signer)));
        parts.push((signer, commit.frame().clone()));
    }
    digest
}

/// Opens a session, executes an operation in it, and then leaves the view.
fn conversation() -> Vec<u8> {
    let mut parts = Vec::new();
    let open = signed(Message::OpenSession(OpenSession {
        principal: PRINCIPAL,
        session_key: PublicKey([2; 32]),
        lanes: 1,
        time: at(0).clock,
    }));
    let genesis = genesis_digest(CLUSTER, &PRINCIPAL.0);
    let first = order(&mut parts, Sequence(1), genesis, &open);
    let request = signed(Message::Request(Request {
        session: SessionId(1),
        lane: Lane(0),
        number: RequestNumber(1),
        operations: vec![RequestOperation::Execute(Bytes::from_static(
            b"an operation",
        ))],
    }));
    order(&mut parts, Sequence(2), first, &request);
    for signer in [0, 2] {
        let suspect = Suspect {
            signer: ReplicaId(signer.into()),
        };
        let suspect = signed(Message::Suspect(suspect));
        parts.push((signer, suspect.frame().clone()));
    }
    pieces(parts.iter().map(|(kind, frame)| (*kind, &frame[..])))
}

/// Every kind of message by itself, all of them in a row with timers between, and messages that a
/// replica acts upon.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let fixtures = wire_fixtures();
    let mut seeds: Vec<Vec<u8>> = vec![conversation()];
    let alone = fixtures
        .iter()
        .map(|frame| pieces([(0, &frame[..]), (8, &[]), (9, &[])]));
    seeds.extend(alone);
    let all = fixtures.iter().zip(0_u8..);
    seeds.push(pieces(
        all.clone().map(|(frame, number)| (number % 8, &frame[..])),
    ));
    seeds.push(pieces(all.flat_map(|(frame, number)| {
        [(number % 4, &frame[..]), (8 + number % 6, &[][..])]
    })));
    seeds
}

/// After an even first byte, the bytes of a journal's file; after an odd one, records that are
/// accepted as intact.
pub fn journal(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let journal = if first % 2 == 0 {
        examine(&[Segment {
            first: Token(1),
            identity: IDENTITY,
            bytes: Bytes::copy_from_slice(rest),
        }])
    } else {
        let records = Pieces(rest).zip(1..).map(|((_, record), token)| Entry {
            token: Token(token),
            record: Bytes::copy_from_slice(record),
        });
        Journal {
            entries: records.collect(),
            ..Journal::default()
        }
    };
    if let Some(mut driven) = Driven::start(journal) {
        assert!(driven.replica.status().durable <= driven.replica.status().sequence);
        for kind in 8..20 {
            driven.feed(kind, &[]);
        }
        assert!(driven.replica.status().sequence < Sequence(u64::MAX));
    }
}

/// The identity of the input's segment.
const IDENTITY: SegmentIdentity = SegmentIdentity([1; 16]);

/// Journals with each kind of record, with and without framing.
#[must_use]
pub fn journal_seeds() -> Vec<Vec<u8>> {
    let records = fixtures("journal");
    let framing = Framing::new(IDENTITY);
    let mut framed = Vec::new();
    let mut seeds = Vec::new();
    for (record, token) in records.iter().zip(1..) {
        framing.put_record(Token(token), Token(token), record, &mut framed);
        end_page(&mut framed);
        let mut bare = vec![1];
        bare.extend_from_slice(&pieces([(0, &record[..])]));
        seeds.push(bare);
    }
    framed.extend_from_slice(&framing.seal(Token(1 + records.len() as u64)));
    framed.insert(0, 0);
    seeds.push(framed);
    let mut bare = vec![1];
    bare.extend_from_slice(&pieces(records.iter().map(|record| (0, &record[..]))));
    seeds.push(bare);
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_leads_through_the_protocol() {
        let status = driven_by(&conversation()).map(|it| it.replica.status());
        let status = status.expect("it starts");
        assert_eq!(status.sequence, Sequence(2));
        assert_eq!(status.counters.operations, 1);
        assert_eq!(status.view.0, 1);
    }
}
