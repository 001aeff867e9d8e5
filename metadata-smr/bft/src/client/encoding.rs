//! The client's messages: encoding requests and decoding the frames of replicas.
//!
//! Replies are not signed: the transport identifies the sender. All other messages, and frames that
//! do not decode, are ignored.

use super::Bundle;
use super::config::ClientConfig;
use super::event::OperationKind;
use super::pending_request::{ReplyResults, Statement};
use super::queue::Pending;
use super::session::Opening;
use crate::identity::{
    Digest, Group, Lane, PublicKey, ReplicaId, RequestNumber, SessionId, Time, View,
};
use crate::observer::{NumberedReport, Observe, Observed, WatchEvent, WatchId};
use crate::wire::frame::{Envelope, Header, Unsigned, encode};
use crate::wire::limits::{OPERATIONS_MAX, REPLY_COMPARED_BYTES, REQUEST_BYTES_MAX};
use crate::wire::message::{
    CloseSession, FetchEpochs, Message, OpenSession, OperationResult, Outcome, Read, ReadAnswer,
    Reply, Request, RequestOperation,
};
use crate::wire::signed_bytes::results_digest;
use bytes::Bytes;

/// Bytes of a request apart from its operations: header, names, count, signature, and a margin.
pub(super) const REQUEST_OVERHEAD: usize = 256;
/// Bytes of an operation apart from its own: tag and length, and a margin.
pub(super) const OPERATION_OVERHEAD: usize = 8;
/// The most bytes that one bundle carries, overhead of operations included.
pub(super) const BUNDLE_BYTES_MAX: usize = REQUEST_BYTES_MAX - REQUEST_OVERHEAD;
/// The longest operation.
pub(super) const OPERATION_BYTES_MAX: usize = BUNDLE_BYTES_MAX - OPERATION_OVERHEAD;
/// Operations in a bundle.
pub(super) const BUNDLE_OPERATIONS_MAX: usize = OPERATIONS_MAX;

/// A request of ours, by name and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestName {
    pub(super) session: SessionId,
    pub(super) lane: Lane,
    pub(super) number: RequestNumber,
    pub(super) digest: Digest,
}

/// A message that we signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnMessage {
    Open { key: PublicKey, digest: Digest },
    Request(RequestName),
    Close { session: SessionId, digest: Digest },
}

/// A message of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DecodedMessage {
    Opening {
        request: Digest,
        opening: Opening,
    },
    Answer {
        request: RequestName,
        statement: Statement,
        /// Long results, if the statement contains only their digest.
        whole: Option<Vec<OperationResult>>,
    },
    Closed {
        session: SessionId,
    },
    NoSession {
        session: SessionId,
    },
    Read(ReadAnswer),
    Report(NumberedReport),
    Observed(Observed),
    Event(WatchEvent),
    Busy,
    /// A message of a later epoch.
    Later,
    /// Records of epochs.
    Epochs,
}

const fn header(config: &ClientConfig) -> Header {
    Header {
        cluster: config.cluster,
        epoch: config.epoch,
        group: Group(0),
        view: View(0),
    }
}

/// The cost of a request of these operations against credit.
pub(super) fn request_bytes(operations: &[Pending]) -> usize {
    let cost = |pending: &Pending| pending.operation.len().saturating_add(OPERATION_OVERHEAD);
    operations
        .iter()
        .map(cost)
        .sum::<usize>()
        .saturating_add(REQUEST_OVERHEAD)
}

/// Asks for a session under `key`.
pub(super) fn open(config: &ClientConfig, key: PublicKey, time: Time) -> Unsigned {
    let message = OpenSession {
        principal: config.principal,
        session_key: key,
        lanes: config.lanes,
        time,
    };
    Unsigned::new(header(config), Message::OpenSession(message))
}

/// Asks for the execution of a bundle.
pub(super) fn request(config: &ClientConfig, session: SessionId, bundle: Bundle) -> Unsigned {
    let operation = |(kind, operation)| match kind {
        OperationKind::Execute => RequestOperation::Execute(operation),
        OperationKind::Administer => RequestOperation::Administer(operation),
        OperationKind::Query | OperationKind::Read | OperationKind::SessionRead => {
            RequestOperation::Query(operation)
        }
        OperationKind::Watch => RequestOperation::Watch(operation),
        OperationKind::Unwatch => RequestOperation::Unwatch(watch_named(&operation)),
        OperationKind::Checkpoint => RequestOperation::Checkpoint,
    };
    let request = Request {
        session,
        lane: bundle.lane,
        number: bundle.number,
        operations: bundle.operations.into_iter().map(operation).collect(),
    };
    Unsigned::new(header(config), Message::Request(request))
}

/// Asks queries out of order.
pub(super) fn read(
    config: &ClientConfig,
    session: SessionId,
    nonce: u64,
    full: ReplicaId,
    queries: Vec<Bytes>,
) -> Bytes {
    let read = Read {
        session,
        nonce,
        full,
        queries,
    };
    encode(header(config), &Message::Read(read))
}

/// The watch that an operation of [`OperationKind::Unwatch`] names; 0 if it is malformed.
pub(super) fn watch_named(operation: &[u8]) -> WatchId {
    WatchId(operation.try_into().map_or(0, u64::from_le_bytes))
}

/// Asks for reports and watch events.
pub(super) fn observe(config: &ClientConfig, observe: Observe) -> Bytes {
    encode(header(config), &Message::Observe(observe))
}

/// Asks for the records that lead to later epochs.
pub(super) fn fetch_epochs(config: &ClientConfig) -> Bytes {
    let after = config.epoch;
    encode(header(config), &Message::FetchEpochs(FetchEpochs { after }))
}

/// Closes a session.
pub(super) fn close(config: &ClientConfig, session: SessionId) -> Unsigned {
    Unsigned::new(
        header(config),
        Message::CloseSession(CloseSession { session }),
    )
}

/// Recognises a message that we asked to have signed.
pub(super) fn own_message(message: &Envelope) -> Option<OwnMessage> {
    let digest = message.digest();
    match message.message() {
        Message::OpenSession(open) => Some(OwnMessage::Open {
            key: open.session_key,
            digest,
        }),
        Message::Request(request) => Some(OwnMessage::Request(RequestName {
            session: request.session,
            lane: request.lane,
            number: request.number,
            digest,
        })),
        Message::CloseSession(close) => Some(OwnMessage::Close {
            session: close.session,
            digest,
        }),
        _ => None,
    }
}

/// Decodes a frame from a replica.
pub(super) fn decode(config: &ClientConfig, frame: &Bytes) -> Option<DecodedMessage> {
    let envelope = Envelope::decode(frame.clone()).ok()?;
    let theirs = envelope.header();
    if theirs.cluster != config.cluster {
        return None;
    }
    if matches!(envelope.message(), Message::Epochs(_)) {
        return Some(DecodedMessage::Epochs);
    }
    if theirs.epoch != config.epoch {
        return (theirs.epoch > config.epoch).then_some(DecodedMessage::Later);
    }
    match envelope.message() {
        Message::Reply(reply) => Some(decode_reply(reply)),
        Message::ReadAnswer(answer) => Some(DecodedMessage::Read(answer.clone())),
        Message::Report(report) => Some(DecodedMessage::Report(*report)),
        Message::Observed(observed) => Some(DecodedMessage::Observed(*observed)),
        Message::WatchEvent(event) => Some(DecodedMessage::Event(event.clone())),
        _ => None,
    }
}

fn decode_reply(reply: &Reply) -> DecodedMessage {
    let request = RequestName {
        session: reply.session,
        lane: reply.lane,
        number: reply.number,
        digest: reply.request,
    };
    let version = reply.version;
    let session = reply.session;
    match &reply.outcome {
        Outcome::Results(results) => {
            let long = reply.outcome.results_bytes() > REPLY_COMPARED_BYTES;
            let (results, whole) = match long {
                true => (
                    ReplyResults::Digest(results_digest(results)),
                    Some(results.clone()),
                ),
                false => (ReplyResults::Whole(results.clone()), None),
            };
            DecodedMessage::Answer {
                request,
                statement: Statement::Results { version, results },
                whole,
            }
        }
        Outcome::ResultsDigest(digest) => DecodedMessage::Answer {
            request,
            statement: Statement::Results {
                version,
                results: ReplyResults::Digest(*digest),
            },
            whole: None,
        },
        Outcome::Superseded | Outcome::Conflict => DecodedMessage::Answer {
            request,
            statement: Statement::Forgotten,
            whole: None,
        },
        Outcome::SessionOpened { session, credit } => DecodedMessage::Opening {
            request: reply.request,
            opening: Opening::Opened {
                session: *session,
                credit: *credit,
                version,
            },
        },
        Outcome::SessionRefused => DecodedMessage::Opening {
            request: reply.request,
            opening: Opening::Refused,
        },
        Outcome::SessionStale { time } => DecodedMessage::Opening {
            request: reply.request,
            opening: Opening::Stale { time: *time },
        },
        Outcome::SessionClosed => DecodedMessage::Closed { session },
        Outcome::NoSession => DecodedMessage::NoSession { session },
        Outcome::Busy => DecodedMessage::Busy,
    }
}
