//! The body of each message, field by field. `docs/FORMAT.md` has the same in a table, and the
//! golden fixtures pin it.

mod claims;
mod copy;
mod observe;
mod read;

use super::frame::{Envelope, Malformed};
use super::limits::{
    BATCH_REQUESTS_MAX, EPOCHS_MAX, FRAME_BYTES_MAX, OPERATIONS_MAX, REQUEST_BYTES_MAX,
    RESULTS_BYTES_MAX, TRANSFER_NODES_MAX, WINDOW,
};
use super::message::{
    Ballot, Batch, Bodies, CheckpointVote, CloseSession, Committed, FetchBodies, FetchCommitted,
    FetchEpochs, Kind, Message, NewView, OpenSession, OpenStatus, Outcome, PeerStatus, Reply,
    Request, RequestOperation, StatusAnswer, StatusQuery, Suspect, ViewChange,
};
pub(crate) use super::reader::Reader;
use super::reader::{Field, write_bytes, write_count, write_list, write_option};
use super::signed_bytes::batch_digest;
use crate::certificate::{CommitCertificate, PreparedCertificate, Vote};
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::fault_model::REPLICAS_MAX;
use crate::membership::EpochRecord;
use crate::service::Credit;
use crate::state::import::PATH_MAX;
use bytes::Bytes;
use std::sync::Arc;

type Parsed<T> = Result<T, Malformed>;

/// The length of the body, roughly; a wrong estimate costs a reallocation.
pub(crate) fn size_hint(message: &Message) -> usize {
    match message {
        Message::Request(request) => request
            .operations
            .iter()
            .map(|operation| match operation {
                RequestOperation::Execute(bytes)
                | RequestOperation::Query(bytes)
                | RequestOperation::Watch(bytes)
                | RequestOperation::Administer(bytes) => bytes.len() + 5,
                RequestOperation::Unwatch(_) | RequestOperation::Checkpoint => 9,
            })
            .sum::<usize>()
            .saturating_add(32),
        Message::Proposal(batch) => 64 + batch.requests.len() * 32,
        Message::Committed(committed) => {
            let bodies = committed.bodies.iter().map(|body| body.frame().len() + 4);
            512 + committed.batch.requests.len() * 32 + bodies.sum::<usize>()
        }
        Message::Reply(Reply {
            outcome: Outcome::Results(results),
            ..
        }) => {
            // Exact, since there is one for every request.
            let length = |result: &Bytes| 4 + result.len();
            let lengths = results.iter().map(|it| 1 + it.as_ref().map_or(0, length));
            8 + 2 + 8 + 32 + 8 + 1 + 4 + lengths.sum::<usize>()
        }
        Message::Nodes(nodes) => copy::nodes_size(nodes),
        Message::CopyPart(part) => 512 + copy::nodes_size(&part.nodes),
        Message::Read(read) => 32 + read.queries.iter().map(|it| it.len() + 4).sum::<usize>(),
        Message::ReadAnswer(answer) => read::answer_size(answer),
        _ => 256,
    }
}

pub(crate) fn encode(message: &Message, bytes: &mut Vec<u8>) {
    match message {
        Message::Request(request) => encode_request(request, bytes),
        Message::Stray(stray) => {
            stray.session.write(bytes);
            stray.lane.write(bytes);
            stray.number.write(bytes);
            write_count(bytes, 0);
        }
        Message::OpenSession(open) => {
            open.principal.write(bytes);
            open.session_key.write(bytes);
            open.lanes.write(bytes);
            open.time.write(bytes);
        }
        Message::CloseSession(close) => close.session.write(bytes),
        Message::Proposal(batch) => encode_batch(batch, bytes),
        Message::Prepare(ballot) | Message::Commit(ballot) => {
            ballot.sequence.write(bytes);
            ballot.digest.write(bytes);
            ballot.signer.write(bytes);
        }
        Message::ViewChange(change) => match &change.claims {
            None => {
                change.signer.write(bytes);
                write_list(bytes, &change.base, encode_certificate);
                write_list(bytes, &change.prepared, encode_prepared);
            }
            Some(claims) => claims::encode(change, claims, bytes),
        },
        Message::NewView(new) => encode_nested(bytes, &new.view_changes),
        Message::Suspect(suspect) => suspect.signer.write(bytes),
        Message::Status(status) => {
            status.active.write(bytes);
            status.committed.write(bytes);
            write_list(bytes, &status.open, |open, bytes| {
                open.proposal.write(bytes);
                open.prepares.write(bytes);
                open.commits.write(bytes);
            });
            status.view_changes.write(bytes);
            status.suspects.write(bytes);
            status.stable.write(bytes);
            status.kept.write(bytes);
        }
        Message::Reply(reply) => {
            reply.session.write(bytes);
            reply.lane.write(bytes);
            reply.number.write(bytes);
            reply.request.write(bytes);
            reply.version.write(bytes);
            encode_outcome(&reply.outcome, bytes);
        }
        Message::FetchBodies(fetch) => {
            fetch.sequence.write(bytes);
            write_list(bytes, &fetch.digests, Field::write);
        }
        Message::Bodies(bodies) => encode_nested(bytes, &bodies.requests),
        Message::FetchCommitted(fetch) => fetch.from.write(bytes),
        Message::Committed(committed) => encode_committed(committed, bytes),
        Message::StatusQuery(query) => query.nonce.write(bytes),
        Message::StatusAnswer(answer) => {
            answer.nonce.write(bytes);
            answer.status.encode(bytes);
        }
        Message::Checkpoint(vote) => {
            encode_checkpoint(&vote.checkpoint, bytes);
            vote.signer.write(bytes);
        }
        Message::Stable(certificate) => encode_stable(certificate, bytes),
        Message::FetchNodes(fetch) => copy::encode_paths(&fetch.root, &fetch.paths, bytes),
        Message::Nodes(nodes) => copy::encode_nodes(nodes, bytes),
        Message::FetchEpochs(fetch) => fetch.after.write(bytes),
        Message::Epochs(records) => write_list(bytes, records, EpochRecord::encode),
        Message::Read(read) => read::encode(read, bytes),
        Message::ReadAnswer(answer) => read::encode_answer(answer, bytes),
        Message::Observe(observe) => observe::encode(observe, bytes),
        Message::Observed(observed) => observe::encode_observed(observed, bytes),
        Message::Report(report) => observe::encode_report(report, bytes),
        Message::WatchEvent(event) => observe::encode_event(event, bytes),
        Message::FetchCopy(fetch) => copy::encode_fetch(fetch, bytes),
        Message::CopyPart(part) => copy::encode_part(part, bytes),
    }
}

pub(crate) fn decode(kind: Kind, reader: &mut Reader<'_>) -> Parsed<Message> {
    Ok(match kind {
        Kind::Request => Message::Request(decode_request(reader)?),
        Kind::OpenSession => Message::OpenSession(OpenSession {
            principal: reader.get("principal")?,
            session_key: reader.get("session key")?,
            lanes: reader.get("lanes")?,
            time: reader.get("time")?,
        }),
        Kind::CloseSession => Message::CloseSession(CloseSession {
            session: reader.get("session")?,
        }),
        Kind::Proposal => Message::Proposal(decode_batch(reader)?),
        Kind::Prepare => Message::Prepare(decode_ballot(reader)?),
        Kind::Commit => Message::Commit(decode_ballot(reader)?),
        Kind::ViewChange => Message::ViewChange(ViewChange {
            signer: reader.get("signer")?,
            base: reader.list("base", WINDOW, decode_certificate)?,
            prepared: reader.list("prepared", WINDOW, decode_prepared)?,
            claims: None,
        }),
        Kind::Claims => Message::ViewChange(claims::decode(reader)?),
        Kind::NewView => Message::NewView(NewView {
            view_changes: decode_nested(reader, REPLICAS_MAX.into(), &VIEW_CHANGE_KINDS)?,
        }),
        Kind::Suspect => Message::Suspect(Suspect {
            signer: reader.get("signer")?,
        }),
        Kind::Status => Message::Status(PeerStatus {
            active: reader.get("active")?,
            committed: reader.get("committed")?,
            open: reader.list("open", 2 * WINDOW, |reader| {
                Ok(OpenStatus {
                    proposal: reader.get("proposal")?,
                    prepares: reader.get("prepares")?,
                    commits: reader.get("commits")?,
                })
            })?,
            view_changes: reader.get("view changes")?,
            suspects: reader.get("suspects")?,
            stable: reader.get("stable")?,
            kept: reader.get("kept")?,
        }),
        Kind::Reply => Message::Reply(Reply {
            session: reader.get("session")?,
            lane: reader.get("lane")?,
            number: reader.get("number")?,
            request: reader.get("request")?,
            version: reader.get("version")?,
            outcome: decode_outcome(reader)?,
        }),
        Kind::FetchBodies => Message::FetchBodies(FetchBodies {
            sequence: reader.get("sequence")?,
            digests: reader.list("digests", BATCH_REQUESTS_MAX, |r| r.get("digest"))?,
        }),
        Kind::Bodies => Message::Bodies(Bodies {
            requests: decode_nested(reader, BATCH_REQUESTS_MAX, &CLIENT_KINDS)?,
        }),
        Kind::FetchCommitted => Message::FetchCommitted(FetchCommitted {
            from: reader.get("from")?,
        }),
        Kind::Committed => Message::Committed(Box::new(decode_committed(reader)?)),
        Kind::StatusQuery => Message::StatusQuery(StatusQuery {
            nonce: reader.get("nonce")?,
        }),
        Kind::StatusAnswer => Message::StatusAnswer(Box::new(StatusAnswer {
            nonce: reader.get("nonce")?,
            status: crate::metrics::ReplicaStatus::decode(&reader.rest())
                .ok_or(Malformed::Impossible { field: "status" })?,
        })),
        Kind::Checkpoint => Message::Checkpoint(CheckpointVote {
            checkpoint: decode_checkpoint(reader)?,
            signer: reader.get("signer")?,
        }),
        Kind::Stable => Message::Stable(Box::new(decode_stable(reader)?)),
        Kind::FetchNodes => Message::FetchNodes(copy::decode_fetch_nodes(reader)?),
        Kind::Nodes => Message::Nodes(copy::decode_nodes(reader)?),
        Kind::FetchEpochs => Message::FetchEpochs(FetchEpochs {
            after: reader.get("epoch")?,
        }),
        Kind::Epochs => Message::Epochs(reader.list("records", EPOCHS_MAX, EpochRecord::decode)?),
        Kind::Read => Message::Read(read::decode(reader)?),
        Kind::ReadAnswer => Message::ReadAnswer(read::decode_answer(reader)?),
        Kind::Observe => Message::Observe(observe::decode(reader)?),
        Kind::Observed => Message::Observed(observe::decode_observed(reader)?),
        Kind::Report => Message::Report(observe::decode_report(reader)?),
        Kind::WatchEvent => Message::WatchEvent(observe::decode_event(reader)?),
        Kind::FetchCopy => Message::FetchCopy(copy::decode_fetch(reader)?),
        Kind::CopyPart => Message::CopyPart(Box::new(copy::decode_part(reader)?)),
    })
}

/// The kinds that a NEW-VIEW may hold.
const VIEW_CHANGE_KINDS: [Kind; 2] = [Kind::ViewChange, Kind::Claims];
/// The kinds that a batch may hold.
const CLIENT_KINDS: [Kind; 3] = [Kind::Request, Kind::OpenSession, Kind::CloseSession];

fn encode_request(request: &Request, bytes: &mut Vec<u8>) {
    request.session.write(bytes);
    request.lane.write(bytes);
    request.number.write(bytes);
    write_list(bytes, &request.operations, |operation, bytes| {
        let (tag, body) = match operation {
            RequestOperation::Execute(body) => (0, body),
            RequestOperation::Query(body) => (1, body),
            RequestOperation::Watch(body) => (2, body),
            RequestOperation::Unwatch(watch) => {
                bytes.push(3);
                watch.write(bytes);
                return;
            }
            RequestOperation::Administer(body) => (4, body),
            RequestOperation::Checkpoint => return bytes.push(5),
        };
        bytes.push(tag);
        write_bytes(bytes, body);
    });
}

fn decode_request(reader: &mut Reader<'_>) -> Parsed<Request> {
    Ok(Request {
        session: reader.get("session")?,
        lane: reader.get("lane")?,
        number: reader.get("number")?,
        operations: reader.list("operations", OPERATIONS_MAX, |reader| {
            let tag: u8 = reader.get("operation")?;
            let body = |reader: &mut Reader<'_>| reader.bytes("operation", REQUEST_BYTES_MAX);
            match tag {
                0 => Ok(RequestOperation::Execute(body(reader)?)),
                1 => Ok(RequestOperation::Query(body(reader)?)),
                2 => Ok(RequestOperation::Watch(body(reader)?)),
                3 => Ok(RequestOperation::Unwatch(reader.get("watch")?)),
                4 => Ok(RequestOperation::Administer(body(reader)?)),
                5 => Ok(RequestOperation::Checkpoint),
                _ => Err(Malformed::Impossible { field: "operation" }),
            }
        })?,
    })
}

pub(crate) fn encode_batch(batch: &Batch, bytes: &mut Vec<u8>) {
    batch.sequence.write(bytes);
    batch.time.write(bytes);
    batch.previous.write(bytes);
    batch.behaviour_version.write(bytes);
    batch.tick.write(bytes);
    write_list(bytes, &batch.requests, Field::write);
}

pub(crate) fn decode_batch(reader: &mut Reader<'_>) -> Parsed<Batch> {
    Ok(Batch {
        sequence: reader.get("sequence")?,
        time: reader.get("time")?,
        previous: reader.get("previous")?,
        behaviour_version: reader.get("behaviour version")?,
        tick: reader.get("tick")?,
        requests: reader.list("requests", BATCH_REQUESTS_MAX, |r| r.get("request"))?,
    })
}

fn decode_ballot(reader: &mut Reader<'_>) -> Parsed<Ballot> {
    Ok(Ballot {
        sequence: reader.get("sequence")?,
        digest: reader.get("digest")?,
        signer: reader.get("signer")?,
    })
}

fn encode_votes(votes: &[Vote], bytes: &mut Vec<u8>) {
    write_list(bytes, votes, |vote, bytes| {
        vote.signer.write(bytes);
        vote.signature.write(bytes);
    });
}

fn decode_votes(reader: &mut Reader<'_>) -> Parsed<Vec<Vote>> {
    reader.list("votes", REPLICAS_MAX.into(), |reader| {
        Ok(Vote {
            signer: reader.get("signer")?,
            signature: reader.get("signature")?,
        })
    })
}

pub(crate) fn encode_certificate(certificate: &CommitCertificate, bytes: &mut Vec<u8>) {
    certificate.view.write(bytes);
    certificate.sequence.write(bytes);
    certificate.digest.write(bytes);
    encode_votes(&certificate.votes, bytes);
}

pub(crate) fn decode_certificate(reader: &mut Reader<'_>) -> Parsed<CommitCertificate> {
    Ok(CommitCertificate {
        view: reader.get("view")?,
        sequence: reader.get("sequence")?,
        digest: reader.get("digest")?,
        votes: decode_votes(reader)?,
    })
}

fn encode_checkpoint(checkpoint: &Checkpoint, bytes: &mut Vec<u8>) {
    checkpoint.sequence.write(bytes);
    checkpoint.batch.write(bytes);
    checkpoint.root.write(bytes);
    checkpoint.membership.write(bytes);
}

fn decode_checkpoint(reader: &mut Reader<'_>) -> Parsed<Checkpoint> {
    Ok(Checkpoint {
        sequence: reader.get("sequence")?,
        batch: reader.get("batch")?,
        root: reader.get("root")?,
        membership: reader.get("membership")?,
    })
}

pub(crate) fn encode_stable(certificate: &CheckpointCertificate, bytes: &mut Vec<u8>) {
    encode_checkpoint(&certificate.checkpoint, bytes);
    encode_votes(&certificate.votes, bytes);
}

pub(crate) fn decode_stable(reader: &mut Reader<'_>) -> Parsed<CheckpointCertificate> {
    Ok(CheckpointCertificate {
        checkpoint: decode_checkpoint(reader)?,
        votes: decode_votes(reader)?,
    })
}

pub(crate) fn encode_prepared(prepared: &PreparedCertificate, bytes: &mut Vec<u8>) {
    write_bytes(bytes, prepared.proposal.frame());
    encode_votes(&prepared.votes, bytes);
}

pub(crate) fn decode_prepared(reader: &mut Reader<'_>) -> Parsed<PreparedCertificate> {
    let frame = reader.bytes("proposal", FRAME_BYTES_MAX)?;
    let proposal = nested(frame, &[Kind::Proposal])?;
    Ok(PreparedCertificate {
        proposal,
        votes: decode_votes(reader)?,
    })
}

pub(crate) fn encode_nested(bytes: &mut Vec<u8>, envelopes: &[Arc<Envelope>]) {
    write_list(bytes, envelopes, |envelope, bytes| {
        write_bytes(bytes, envelope.frame())
    });
}

pub(crate) fn decode_nested(
    reader: &mut Reader<'_>,
    count_max: usize,
    kinds: &[Kind],
) -> Parsed<Vec<Arc<Envelope>>> {
    reader.list("nested frames", count_max, |reader| {
        nested(reader.bytes("nested frame", FRAME_BYTES_MAX)?, kinds)
    })
}

/// A frame in a frame. Only kinds that hold no deeper ones are passed here, except for the
/// VIEW-CHANGEs of a NEW-VIEW, so the depth is bounded by the types.
pub(crate) fn nested(frame: Bytes, kinds: &[Kind]) -> Parsed<Arc<Envelope>> {
    let tag = frame.get(..8).unwrap_or_default();
    match Kind::of_tag(tag) {
        Some(kind) if kinds.contains(&kind) => Envelope::decode(frame).map(Arc::new),
        _ => Err(Malformed::Impossible {
            field: "nested frame",
        }),
    }
}

pub(crate) fn encode_committed(committed: &Committed, bytes: &mut Vec<u8>) {
    let mut batch = Vec::with_capacity(64 + committed.batch.requests.len() * 32);
    encode_batch(&committed.batch, &mut batch);
    write_bytes(bytes, &batch);
    encode_certificate(&committed.certificate, bytes);
    encode_nested(bytes, &committed.bodies);
}

/// In addition to the fields: the batch is the certificate's, and the bodies are the batch's.
pub(crate) fn decode_committed(reader: &mut Reader<'_>) -> Parsed<Committed> {
    let bytes = reader.bytes("batch", FRAME_BYTES_MAX)?;
    let certificate = decode_certificate(reader)?;
    let bodies = decode_nested(reader, BATCH_REQUESTS_MAX, &CLIENT_KINDS)?;
    let mut inner = Reader::new(&bytes);
    let batch = decode_batch(&mut inner)?;
    inner.end()?;
    let belongs = batch_digest(&bytes) == certificate.digest
        && batch.sequence == certificate.sequence
        && batch
            .requests
            .iter()
            .eq(bodies.iter().map(|body| body.digest_ref()));
    if belongs {
        Ok(Committed {
            batch,
            certificate,
            bodies,
        })
    } else {
        Err(Malformed::Impossible {
            field: "committed batch: its parts do not belong together",
        })
    }
}

pub(crate) fn encode_outcome(outcome: &Outcome, bytes: &mut Vec<u8>) {
    match outcome {
        Outcome::Results(results) => {
            bytes.push(0);
            write_list(bytes, results, |result, bytes| {
                write_option(bytes, result.as_ref(), |result, bytes| {
                    write_bytes(bytes, result)
                });
            });
        }
        Outcome::SessionOpened { session, credit } => {
            bytes.push(1);
            session.write(bytes);
            credit.lanes.write(bytes);
            credit.bytes.write(bytes);
        }
        Outcome::SessionRefused => bytes.push(2),
        Outcome::SessionClosed => bytes.push(3),
        Outcome::Busy => bytes.push(4),
        Outcome::NoSession => bytes.push(5),
        Outcome::Superseded => bytes.push(6),
        Outcome::Conflict => bytes.push(7),
        Outcome::ResultsDigest(digest) => {
            bytes.push(9);
            digest.write(bytes);
        }
        Outcome::SessionStale { time } => {
            bytes.push(8);
            time.write(bytes);
        }
    }
}

pub(crate) fn decode_outcome(reader: &mut Reader<'_>) -> Parsed<Outcome> {
    Ok(match reader.get::<u8>("outcome")? {
        0 => Outcome::Results(reader.list("results", OPERATIONS_MAX, |reader| {
            reader.option("result", |reader| reader.bytes("result", RESULTS_BYTES_MAX))
        })?),
        1 => Outcome::SessionOpened {
            session: reader.get("session")?,
            credit: Credit {
                lanes: reader.get("lanes")?,
                bytes: reader.get("bytes")?,
            },
        },
        2 => Outcome::SessionRefused,
        3 => Outcome::SessionClosed,
        4 => Outcome::Busy,
        5 => Outcome::NoSession,
        6 => Outcome::Superseded,
        7 => Outcome::Conflict,
        9 => Outcome::ResultsDigest(reader.get("digest")?),
        8 => Outcome::SessionStale {
            time: reader.get("time")?,
        },
        _ => return Err(Malformed::Impossible { field: "outcome" }),
    })
}
