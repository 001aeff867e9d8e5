//! The bytes of wire and journal, pinned: one fixture for each kind of message and record.
//!
//! A fixture is hexadecimal, 32 bytes a line. It never changes: a change of the format gets another
//! version and fixtures of its own, and bytes written in this format must still be readable.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod copies;

use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::certificate::{CommitCertificate, PreparedCertificate, Vote};
use quorumfs_bft::checkpoint::{Checkpoint, CheckpointCertificate};
use quorumfs_bft::durability::Durability;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ClusterId, Digest, Epoch, Group, Incarnation, Lane, PublicKey, ReplicaId, RequestNumber,
    Sequence, SessionId, Signature, Time, View,
};
use quorumfs_bft::journal::Record;
use quorumfs_bft::membership::{EpochRecord, Member, Membership};
use quorumfs_bft::metrics::{Counters, ReplicaStatus, Voting};
use quorumfs_bft::observer::{
    NumberedReport, Observe, Observed, Report, WatchEvent, WatchId, WatchRefusal,
};
use quorumfs_bft::service::Credit;
use quorumfs_bft::state::DurableRoot;
use quorumfs_bft::step::Token;
use quorumfs_bft::wire::message::{
    Accepted, AnswerBody, Answered, Ballot, Batch, Bodies, CheckpointVote, Claims, CloseSession,
    Committed, FetchBodies, FetchCommitted, FetchEpochs, FetchNodes, NewView, Nodes, OpenSession,
    OpenStatus, Outcome, PeerStatus, Read, ReadAnswer, Reply, Request, RequestOperation,
    StatusAnswer, StatusQuery, Suspect, ViewChange,
};
use quorumfs_bft::wire::{Envelope, Header, Message, Unsigned};
use std::path::PathBuf;
use std::sync::Arc;

fn header(view: u64) -> Header {
    Header {
        cluster: ClusterId(*b"a cluster's name"),
        epoch: Epoch(7),
        group: Group(0),
        view: View(view),
    }
}

fn signed(view: u64, message: Message) -> Arc<Envelope> {
    let verified = Unsigned::new(header(view), message).with_signature(Signature([0xab; 64]));
    Arc::clone(verified.envelope())
}

fn unsigned(message: Message) -> Arc<Envelope> {
    Arc::new(Envelope::unsigned(header(3), message))
}

fn request() -> Arc<Envelope> {
    signed(
        0,
        Message::Request(Request {
            session: SessionId(0x0102_0304_0506_0708),
            lane: Lane(3),
            number: RequestNumber(9),
            operations: vec![
                RequestOperation::Execute(Bytes::from_static(b"execute this")),
                RequestOperation::Query(Bytes::from_static(b"and answer that")),
                RequestOperation::Administer(Bytes::from_static(b"and change that")),
            ],
        }),
    )
}

fn batch() -> Batch {
    Batch {
        sequence: Sequence(12),
        time: Time(1_700_000_000_123_456_789),
        previous: Digest([0x11; 32]),
        behaviour_version: 1,
        tick: true,
        requests: vec![request().digest()],
    }
}

fn votes() -> Vec<Vote> {
    let vote = |signer| Vote {
        signer: ReplicaId(signer),
        signature: Signature([signer as u8; 64]),
    };
    vec![vote(0), vote(2), vote(3)]
}

fn proposal() -> Arc<Envelope> {
    signed(2, Message::Proposal(batch()))
}

fn certificate(sequence: u64) -> CommitCertificate {
    CommitCertificate {
        view: View(2),
        sequence: Sequence(sequence),
        digest: proposal().digest(),
        votes: votes(),
    }
}

fn prepared() -> PreparedCertificate {
    PreparedCertificate {
        proposal: proposal(),
        votes: votes(),
    }
}

fn ballot() -> Ballot {
    Ballot {
        sequence: Sequence(12),
        digest: proposal().digest(),
        signer: ReplicaId(1),
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        sequence: Sequence(8),
        batch: proposal().digest(),
        root: Digest([0x22; 32]),
        membership: Digest([0x33; 32]),
    }
}

fn stable() -> CheckpointCertificate {
    CheckpointCertificate {
        checkpoint: checkpoint(),
        votes: certificate(8).votes,
    }
}

fn epoch_record() -> EpochRecord {
    let member = |number: u8| Member {
        key: PublicKey([number; 32]),
        incarnation: Incarnation([number; 16]),
        address: Bytes::from_static(b"replica.example:7000"),
        since: Sequence(3),
    };
    let model = FaultModel::new(1, 0, 3).expect("a preset");
    let membership = Membership {
        epoch: Epoch(8),
        from: Sequence(8),
        others: vec![member(4)],
        retired: vec![PublicKey([5; 32])],
        ..Membership::genesis(
            model,
            (1..=3).map(member).collect(),
            vec![PublicKey([6; 32])],
        )
    };
    EpochRecord::new(stable(), membership)
}

fn view_change() -> Arc<Envelope> {
    let change = ViewChange {
        signer: ReplicaId(1),
        base: vec![certificate(10), certificate(11)],
        prepared: vec![prepared()],
        claims: None,
    };
    signed(3, Message::ViewChange(change))
}

fn claims() -> Arc<Envelope> {
    let unsigned = Unsigned::new(header(2), Message::Proposal(batch()));
    let proposal = unsigned.with_signature(Signature::default());
    let executed = |sequence| CommitCertificate {
        view: View(0),
        votes: Vec::new(),
        ..certificate(sequence)
    };
    let accepted = Accepted {
        sequence: Sequence(12),
        digest: proposal.digest(),
        view: View(2),
    };
    let change = ViewChange {
        signer: ReplicaId(1),
        base: vec![executed(10), executed(11)],
        prepared: vec![PreparedCertificate {
            proposal: Arc::clone(proposal.envelope()),
            votes: Vec::new(),
        }],
        claims: Some(Box::new(Claims {
            stable: Some(stable()),
            accepted: vec![accepted],
        })),
    };
    signed(3, Message::ViewChange(change))
}

fn reply(outcome: Outcome) -> Arc<Envelope> {
    unsigned(Message::Reply(Reply {
        session: SessionId(5),
        lane: Lane(3),
        number: RequestNumber(9),
        request: request().digest(),
        version: Sequence(12),
        outcome,
    }))
}

fn read_answer() -> ReadAnswer {
    let bodies = [
        AnswerBody::Bytes(Bytes::from_static(b"the answer")),
        AnswerBody::Digest(Digest([0x55; 32])),
        AnswerBody::NoRoom,
    ];
    let answered = |body| Answered {
        version: Sequence(11),
        body,
    };
    ReadAnswer {
        nonce: 2,
        applied: Sequence(12),
        answers: Some(bodies.map(answered).to_vec()),
    }
}

fn messages() -> Vec<(&'static str, Arc<Envelope>)> {
    let results = vec![Some(Bytes::from_static(b"done")), None];
    let opened = Outcome::SessionOpened {
        session: SessionId(5),
        credit: Credit {
            lanes: 8,
            bytes: 1 << 20,
        },
    };
    let status = ReplicaStatus {
        replica: ReplicaId(1),
        epoch: Epoch(7),
        began: Sequence(2),
        ended: false,
        reborn: Some(Incarnation([0x44; 16])),
        view: View(3),
        leader: ReplicaId(3),
        active: true,
        sequence: Sequence(12),
        batch: proposal().digest(),
        time: batch().time,
        durable: Sequence(10),
        root: Digest([0x22; 32]),
        stable: Sequence(8),
        kept: Sequence(5),
        transfer: Some(Sequence(8)),
        voting: Voting::Voting,
        signers: vec![ReplicaId(0), ReplicaId(2), ReplicaId(3)],
        sessions: 4,
        waiting: 1,
        authentication: Authentication::Mac,
        durability: Durability::Os,
        counters: Counters::default(),
    };
    let open = OpenSession {
        principal: PublicKey([0x33; 32]),
        session_key: PublicKey([0x44; 32]),
        lanes: 8,
        // Nothing was released: these eight bytes were a nonce before they were a time.
        time: Time(1_800_000_000_000_000_000),
    };
    let gossip = PeerStatus {
        active: true,
        committed: Sequence(11),
        open: vec![
            OpenStatus {
                proposal: Some(proposal().digest()),
                prepares: 0b1011,
                commits: 0b10,
            },
            OpenStatus::default(),
        ],
        view_changes: 0,
        suspects: 0b1,
        stable: Sequence(8),
        kept: Sequence(5),
    };
    let close = CloseSession {
        session: SessionId(5),
    };
    vec![
        ("request", request()),
        ("open_session", signed(0, Message::OpenSession(open))),
        ("close_session", signed(0, Message::CloseSession(close))),
        ("proposal", proposal()),
        ("prepare", signed(2, Message::Prepare(ballot()))),
        ("commit", signed(2, Message::Commit(ballot()))),
        ("view_change", view_change()),
        ("claims", claims()),
        (
            "new_view",
            signed(
                3,
                Message::NewView(NewView {
                    view_changes: vec![view_change()],
                }),
            ),
        ),
        (
            "suspect",
            signed(
                3,
                Message::Suspect(Suspect {
                    signer: ReplicaId(1),
                }),
            ),
        ),
        ("status", unsigned(Message::Status(gossip))),
        ("reply_results", reply(Outcome::Results(results))),
        ("reply_opened", reply(opened)),
        ("reply_busy", reply(Outcome::Busy)),
        (
            "reply_digest",
            reply(Outcome::ResultsDigest(Digest([9; 32]))),
        ),
        (
            "reply_stale",
            reply(Outcome::SessionStale {
                time: Time(1_800_000_000_000_000_000),
            }),
        ),
        (
            "fetch_bodies",
            unsigned(Message::FetchBodies(FetchBodies {
                sequence: Sequence(12),
                digests: vec![request().digest()],
            })),
        ),
        (
            "bodies",
            unsigned(Message::Bodies(Bodies {
                requests: vec![request()],
            })),
        ),
        (
            "fetch_committed",
            unsigned(Message::FetchCommitted(FetchCommitted {
                from: Sequence(12),
            })),
        ),
        (
            "committed",
            unsigned(Message::Committed(Box::new(Committed {
                batch: batch(),
                certificate: certificate(12),
                bodies: vec![request()],
            }))),
        ),
        (
            "status_query",
            unsigned(Message::StatusQuery(StatusQuery { nonce: 1 })),
        ),
        (
            "status_answer",
            unsigned(Message::StatusAnswer(Box::new(StatusAnswer {
                nonce: 1,
                status,
            }))),
        ),
        (
            "checkpoint",
            signed(
                0,
                Message::Checkpoint(CheckpointVote {
                    checkpoint: checkpoint(),
                    signer: ReplicaId(1),
                }),
            ),
        ),
        ("stable", unsigned(Message::Stable(Box::new(stable())))),
        (
            "fetch_nodes",
            unsigned(Message::FetchNodes(FetchNodes {
                root: checkpoint().root,
                paths: vec![Bytes::new(), Bytes::from_static(&[2, 16])],
            })),
        ),
        (
            "nodes",
            unsigned(Message::Nodes(Nodes {
                root: checkpoint().root,
                gone: false,
                nodes: vec![(Bytes::from_static(&[2, 16]), Bytes::from_static(b"node"))],
            })),
        ),
        (
            "read",
            unsigned(Message::Read(Read {
                session: SessionId(5),
                nonce: 2,
                full: ReplicaId(3),
                queries: vec![Bytes::from_static(b"answer this")],
            })),
        ),
        ("read_answer", unsigned(Message::ReadAnswer(read_answer()))),
        (
            "read_answer_none",
            unsigned(Message::ReadAnswer(ReadAnswer {
                answers: None,
                ..read_answer()
            })),
        ),
        (
            "fetch_epochs",
            unsigned(Message::FetchEpochs(FetchEpochs { after: Epoch(7) })),
        ),
        ("epochs", unsigned(Message::Epochs(vec![epoch_record()]))),
    ]
    .into_iter()
    .chain(observed())
    .chain(copies::messages())
    .collect()
}

/// The messages of observing.
fn observed() -> Vec<(&'static str, Arc<Envelope>)> {
    let observe = Observe {
        reports: true,
        session: Some(SessionId(5)),
    };
    let accepted = Observed::Accepted {
        applied: Sequence(12),
        last: Some(Sequence(11)),
    };
    let report = Report {
        epoch: Epoch(7),
        view: View(3),
        leader: ReplicaId(3),
        active: true,
        executed: Sequence(12),
        stable: Sequence(8),
        transfer: Some(Sequence(8)),
        voting: Voting::Abstaining,
    };
    let event = WatchEvent {
        session: SessionId(5),
        sequence: Sequence(12),
        previous: Sequence(9),
        watches: vec![WatchId(1), WatchId(3)],
    };
    let watching = Request {
        session: SessionId(5),
        lane: Lane(3),
        number: RequestNumber(9),
        operations: vec![
            RequestOperation::Watch(Bytes::from_static(b"watch this")),
            RequestOperation::Unwatch(WatchId(2)),
        ],
    };
    let numbered = NumberedReport { number: 4, report };
    let refused = Observed::Refused(WatchRefusal::Full);
    vec![
        ("request_watch", signed(0, Message::Request(watching))),
        ("observe", unsigned(Message::Observe(observe))),
        ("observed", unsigned(Message::Observed(accepted))),
        ("observed_refused", unsigned(Message::Observed(refused))),
        ("report", unsigned(Message::Report(numbered))),
        ("watch_event", unsigned(Message::WatchEvent(event))),
    ]
}

fn records() -> Vec<(&'static str, Record)> {
    let (sequence, digest) = (Sequence(12), Digest([3; 32]));
    let root = DurableRoot { sequence, digest };
    vec![
        ("boot_mark", Record::BootMark),
        (
            "voted",
            Record::Voted {
                proposal: proposal(),
                bodies: vec![request()],
                vote: Some(signed(2, Message::Prepare(ballot()))),
            },
        ),
        (
            "prepared",
            Record::Prepared {
                prepared: Some(prepared()),
                commit: Some(signed(2, Message::Commit(ballot()))),
            },
        ),
        (
            "committed",
            Record::Committed {
                certificate: certificate(12),
                batch: None,
            },
        ),
        (
            "committed_with_batch",
            Record::Committed {
                certificate: certificate(12),
                batch: Some((batch(), vec![request()])),
            },
        ),
        (
            "view_change",
            Record::ViewChange {
                frame: view_change(),
            },
        ),
        (
            "new_view",
            Record::NewView {
                frame: signed(
                    3,
                    Message::NewView(NewView {
                        view_changes: vec![view_change()],
                    }),
                ),
            },
        ),
        ("incarnation", Record::Incarnation(Incarnation([0x44; 16]))),
        ("epoch", Record::Epoch(Box::new(epoch_record()))),
        (
            "vote_barrier",
            Record::VoteBarrier {
                epoch: Epoch(7),
                until: Sequence(12),
            },
        ),
        ("refuted", Record::Refuted { sequence }),
        ("replaced", Record::Replaced { root }),
        ("trimmed", Record::Trimmed { before: Token(77) }),
        (
            "stable",
            Record::Stable {
                certificate: stable(),
            },
        ),
    ]
}

fn hex(bytes: &[u8]) -> String {
    let line =
        |chunk: &[u8]| -> String { chunk.iter().map(|byte| format!("{byte:02x}")).collect() };
    let lines: Vec<String> = bytes.chunks(32).map(line).collect();
    lines.join("\n") + "\n"
}

fn unhex(text: &str) -> Bytes {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The pinned bytes under this name, which must be equal to these.
fn pinned(folder: &str, name: &str, bytes: &[u8]) -> Bytes {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let path = root.join(folder).join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == hex(bytes),
        "{} is not what is written now; the format must not change without another version. \
         Now it is:\n{}",
        path.display(),
        hex(bytes)
    );
    unhex(&text)
}

#[test]
fn every_message_has_the_bytes_that_were_released() {
    for (name, envelope) in messages() {
        let bytes = pinned("wire", name, envelope.frame());
        let read = Envelope::decode(bytes).expect("a fixture can be read");
        assert_eq!(read.header(), envelope.header(), "{name}");
        assert_eq!(read.digest(), envelope.digest(), "{name}");
        assert_eq!(
            format!("{:?}", read.message()),
            format!("{:?}", envelope.message())
        );
    }
}

#[test]
fn every_record_has_the_bytes_that_were_released() {
    for (name, record) in records() {
        let bytes = pinned("journal", name, &record.encode());
        let read = Record::decode(&bytes).expect("a fixture can be read");
        assert_eq!(format!("{read:?}"), format!("{record:?}"));
    }
}

#[test]
fn a_frame_of_a_newer_version_is_refused_with_its_number() {
    let (_, envelope) = messages().swap_remove(4);
    let mut bytes = envelope.frame().to_vec();
    *bytes.get_mut(8).unwrap() = 2;
    let refused = Envelope::decode(Bytes::from(bytes)).unwrap_err();
    assert!(refused.to_string().contains("version 2"), "{refused}");
}
