//! The messages of replicas and clients.
//!
//! | Message | Signed by | Meaning |
//! |---|---|---|
//! | [`Request`] | the session's key | execute this bundle, exactly once |
//! | [`OpenSession`] | the principal's key | open a session under this key; idempotent |
//! | [`CloseSession`] | the session's key | no more requests will come |
//! | [`Batch`] as a proposal | the leader | this batch at this sequence; the leader's PREPARE |
//! | [`Ballot`] as PREPARE | a replica | I hold it with all bodies, and nothing else in this view |
//! | [`Ballot`] as COMMIT | a replica | I hold its prepared certificate |
//! | [`ViewChange`] | a replica | I vote in no earlier view; this is what I know, or claim |
//! | [`NewView`] | the new leader | these q VIEW-CHANGEs decide what the view begins with |
//! | [`Suspect`] | a replica | this view's leader should be replaced; promises nothing |
//! | [`CheckpointVote`] | a replica | this state is durable here |
//! | [`CheckpointCertificate`] | – | q of those: the newest stable checkpoint |
//! | [`PeerStatus`] | – | my state, so that you can send what I miss |
//! | [`Reply`] | – | the outcome of your request |
//! | [`FetchBodies`], [`Bodies`] | – | requests by digest |
//! | [`FetchCommitted`], [`Committed`] | – | committed batches with certificate and bodies |
//! | [`FetchNodes`], [`Nodes`] | – | parts of a checkpoint's state |
//! | [`FetchCopy`], [`CopyPart`] | – | the same for a client that copies the state |
//! | [`FetchEpochs`], [`EpochRecord`]s | – | the records that lead from an epoch to the next ones |
//! | [`Read`], [`ReadAnswer`] | – | queries that are answered out of order |
//! | [`Observe`], [`Observed`] | – | report what happens; I will, or why not |
//! | [`NumberedReport`] | – | my current state |
//! | [`WatchEvent`] | – | what your session watches has changed |
//! | [`StatusQuery`], [`StatusAnswer`] | – | an operator's question |
//!
//! In a cluster whose votes are not signed ([`crate::authentication::Authentication`]) the proposal
//! and both kinds of [`Ballot`] have a signature of zeros.
//!
//! An unsigned message relies on the transport, which authenticates its sender, or proves itself: a
//! body by its digest and its client's signature, a committed batch by its certificate, a node by
//! the digest that its parent names.

mod copy;
mod view_change;

pub use super::kind::Kind;
pub use copy::{CopyPart, FetchCopy};
pub use view_change::{Accepted, Claims, NewView, ViewChange};

use super::Envelope;
use crate::certificate::CommitCertificate;
use crate::checkpoint::{Checkpoint, CheckpointCertificate};
use crate::identity::{
    Digest, Epoch, Lane, PublicKey, ReplicaId, RequestNumber, Sequence, SessionId, Time,
};
use crate::membership::EpochRecord;
use crate::metrics::ReplicaStatus;
use crate::observer::{NumberedReport, Observe, Observed, WatchEvent, WatchId};
use crate::service::Credit;
use crate::state::Path;
use bytes::Bytes;
use std::sync::Arc;

/// One operation of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOperation {
    /// May change something.
    Execute(Bytes),
    /// Changes nothing.
    Query(Bytes),
    /// Subscribes to changes; of what, is in the service's encoding.
    Watch(Bytes),
    /// Ends such a subscription.
    Unwatch(WatchId),
    /// A [`crate::membership::Command`]: for the library, not for the service.
    Administer(Bytes),
    /// Makes the state after its batch a checkpoint: for the library, not for the service.
    Checkpoint,
}

/// A bundle: operations with independent results under one signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its session.
    pub session: SessionId,
    /// Its lane.
    pub lane: Lane,
    /// Counted in that lane from 1.
    pub number: RequestNumber,
    /// The operations, in this order.
    pub operations: Vec<RequestOperation>,
}

/// Opens a session. The same session key gets the same session, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// The principal, which signs this.
    pub principal: PublicKey,
    /// A key made for this session.
    pub session_key: PublicKey,
    /// Lanes asked for.
    pub lanes: u16,
    /// When this was signed, by the client's clock or by the agreed time that it was sent. It has
    /// to be recent when it is executed, so that it cannot be used again later.
    pub time: Time,
}

/// Closes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseSession {
    /// The session; its key signs this.
    pub session: SessionId,
}

/// A batch of requests at one position in the order. Its bytes, and so its digest, do not contain
/// the view: a batch that a view change carries over keeps its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its sequence.
    pub sequence: Sequence,
    /// Its time, above that of the batch before it.
    pub time: Time,
    /// The digest of the batch before it; of genesis, for the first.
    pub previous: Digest,
    /// The behaviour to execute it with.
    pub behaviour_version: u32,
    /// Whether it was proposed because a tick is due; only then may it be empty.
    pub tick: bool,
    /// The requests, by digest, in the order of execution.
    pub requests: Vec<Digest>,
}

/// A PREPARE or COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// The batch's sequence.
    pub sequence: Sequence,
    /// The batch.
    pub digest: Digest,
    /// The voter.
    pub signer: ReplicaId,
}

/// The header's view should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The replica that suspects it.
    pub signer: ReplicaId,
}

/// A replica's progress with one open sequence in its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenStatus {
    /// The proposal.
    pub proposal: Option<Digest>,
    /// The replicas whose PREPAREs it has for that.
    pub prepares: u64,
    /// The replicas whose COMMITs it has for that.
    pub commits: u64,
}

/// The state of a replica; the header has its view. Masks have bit i set for replica i.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PeerStatus {
    /// Whether it knows what its view begins with; otherwise it waits for the NEW-VIEW.
    pub active: bool,
    /// The last sequence that it has executed.
    pub committed: Sequence,
    /// Its progress with the sequences after that, up to the last that it knows anything of.
    pub open: Vec<OpenStatus>,
    /// The replicas whose VIEW-CHANGEs for this view it has.
    pub view_changes: u64,
    /// The replicas that, as far as it knows, suspect this view.
    pub suspects: u64,
    /// The newest stable checkpoint that it knows; 0 at genesis.
    pub stable: Sequence,
    /// The first sequence whose batch it still has for others.
    pub kept: Sequence,
}

/// The signer's state after a batch is this, and durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointVote {
    /// The batch and the state.
    pub checkpoint: Checkpoint,
    /// The signer.
    pub signer: ReplicaId,
}

/// The result of one operation: the service's answer, or `None` if the answers before it left no
/// space for it in [`super::limits::RESULTS_BYTES_MAX`]; then it had no effect.
pub type OperationResult = Option<Bytes>;

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was executed: one result for each operation.
    Results(Vec<OperationResult>),
    /// The session is open.
    SessionOpened {
        /// Its number.
        session: SessionId,
        /// What it may have in flight.
        credit: Credit,
    },
    /// The service refuses this principal a session, or there are too many.
    SessionRefused,
    /// The opening was not signed recently: sign it again with this time.
    SessionStale {
        /// The agreed time.
        time: Time,
    },
    /// The session is closed now; for an opening: it was used before, and its session has ended.
    SessionClosed,
    /// Beyond the session's credit or this replica's capacity: send it again later.
    Busy,
    /// There is no such session, or no more.
    NoSession,
    /// Its number was executed long ago; the results are gone.
    Superseded,
    /// Another request with the same number was executed.
    Conflict,
    /// It was executed, and the results have this digest ([`results_digest`]): another replica
    /// sends them whole, and so does this one if it is asked again.
    ///
    /// [`results_digest`]: super::signed_bytes::results_digest
    ResultsDigest(Digest),
}

impl Outcome {
    /// The total length of the results, if it has any.
    #[must_use]
    pub fn results_bytes(&self) -> usize {
        match self {
            Self::Results(results) => results.iter().flatten().map(Bytes::len).sum(),
            _ => 0,
        }
    }
}

/// An answer to a client. Two replicas' answers match if request, version and outcome are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The session, lane and number that the request named (zero for `OpenSession`).
    pub session: SessionId,
    /// See [`Reply::session`].
    pub lane: Lane,
    /// See [`Reply::session`].
    pub number: RequestNumber,
    /// The digest of the request's frame.
    pub request: Digest,
    /// The sequence at which it was executed; 0 if the outcome is not of an execution.
    pub version: Sequence,
    /// Its outcome.
    pub outcome: Outcome,
}

/// Asks for requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchBodies {
    /// The sequence of the proposal that needs them.
    pub sequence: Sequence,
    /// Their digests.
    pub digests: Vec<Digest>,
}

/// Requests that were asked for.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// As their clients signed them.
    pub requests: Vec<Arc<Envelope>>,
}

/// Asks for committed batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchCommitted {
    /// From this sequence on.
    pub from: Sequence,
}

/// A committed batch with everything needed to verify and execute it.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The batch.
    pub batch: Batch,
    /// The proof.
    pub certificate: CommitCertificate,
    /// Its requests, in order; the certificate vouches for their signatures.
    pub bodies: Vec<Arc<Envelope>>,
}

/// Asks for nodes of a state's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchNodes {
    /// The digest of all its rows.
    pub root: Digest,
    /// The nodes' paths.
    pub paths: Vec<Path>,
}

/// Nodes that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The digest of all rows of their state.
    pub root: Digest,
    /// Whether that state is not kept any more.
    pub gone: bool,
    /// Each with its path; children's ids are left out.
    pub nodes: Vec<(Path, Bytes)>,
}

/// Asks for the records of later epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchEpochs {
    /// The epoch that is known.
    pub after: Epoch,
}

/// An operator's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// Returned in the answer.
    pub nonce: u64,
}

/// The answer: one replica's report about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusAnswer {
    /// That of the question.
    pub nonce: u64,
    /// Its status.
    pub status: ReplicaStatus,
}

/// Queries to be answered from this replica's current state, out of order and unsigned: the
/// transport authenticates the principal, and the session that it names has to be that principal's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The session that asks.
    pub session: SessionId,
    /// Returned in the answer.
    pub nonce: u64,
    /// The replica that answers in full, where the others may give digests of long answers;
    /// [`Read::ALL`] for all.
    pub full: ReplicaId,
    /// The queries, answered one by one.
    pub queries: Vec<Bytes>,
}

impl Read {
    /// No replica's number: all answer in full.
    pub const ALL: ReplicaId = ReplicaId(u16::MAX);
}

/// One replica's answers to a [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAnswer {
    /// That of the question.
    pub nonce: u64,
    /// The last sequence that this replica had executed.
    pub applied: Sequence,
    /// One for each query, or nothing if it cannot answer now: it does not know the session, or it
    /// has not caught up yet with what it had shown before a restart.
    pub answers: Option<Vec<Answered>>,
}

/// The answer to one query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// When anything that it depends on last changed.
    pub version: Sequence,
    /// Its content.
    pub body: AnswerBody,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// The answer.
    Bytes(Bytes),
    /// Its digest, from a replica that was not asked for all of it.
    Digest(Digest),
    /// The answers before it left no space for this one.
    NoRoom,
}

/// A request of a session whose key is not known here. Nothing about it has been verified; it only
/// serves to tell its sender that the session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayRequest {
    /// The session that it names.
    pub session: SessionId,
    /// The lane that it names.
    pub lane: Lane,
    /// The number that it names.
    pub number: RequestNumber,
}

impl StrayRequest {
    /// The stray request for `message` if the session that signed it were not known; `None` for
    /// messages that sessions do not sign.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let (session, lane, number) = match message {
            Message::Request(request) => (request.session, request.lane, request.number),
            Message::CloseSession(close) => (close.session, Default::default(), Default::default()),
            _ => return None,
        };
        Some(Self {
            session,
            lane,
            number,
        })
    }
}

/// Any message.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Message {
    Request(Request),
    OpenSession(OpenSession),
    CloseSession(CloseSession),
    Proposal(Batch),
    Prepare(Ballot),
    Commit(Ballot),
    ViewChange(ViewChange),
    NewView(NewView),
    Suspect(Suspect),
    Status(PeerStatus),
    Reply(Reply),
    FetchBodies(FetchBodies),
    Bodies(Bodies),
    FetchCommitted(FetchCommitted),
    Committed(Box<Committed>),
    StatusQuery(StatusQuery),
    StatusAnswer(Box<StatusAnswer>),
    Checkpoint(CheckpointVote),
    Stable(Box<CheckpointCertificate>),
    FetchNodes(FetchNodes),
    Nodes(Nodes),
    Read(Read),
    ReadAnswer(ReadAnswer),
    Observe(Observe),
    Observed(Observed),
    Report(NumberedReport),
    WatchEvent(WatchEvent),
    FetchEpochs(FetchEpochs),
    Epochs(Vec<EpochRecord>),
    Stray(StrayRequest),
    FetchCopy(FetchCopy),
    CopyPart(Box<CopyPart>),
}

impl Message {
    /// The kind that its frames are tagged with.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Request(_) | Self::Stray(_) => Kind::Request,
            Self::OpenSession(_) => Kind::OpenSession,
            Self::CloseSession(_) => Kind::CloseSession,
            Self::Proposal(_) => Kind::Proposal,
            Self::Prepare(_) => Kind::Prepare,
            Self::Commit(_) => Kind::Commit,
            Self::ViewChange(change) => match change.claims {
                None => Kind::ViewChange,
                Some(_) => Kind::Claims,
            },
            Self::NewView(_) => Kind::NewView,
            Self::Suspect(_) => Kind::Suspect,
            Self::Status(_) => Kind::Status,
            Self::Reply(_) => Kind::Reply,
            Self::FetchBodies(_) => Kind::FetchBodies,
            Self::Bodies(_) => Kind::Bodies,
            Self::FetchCommitted(_) => Kind::FetchCommitted,
            Self::Committed(_) => Kind::Committed,
            Self::StatusQuery(_) => Kind::StatusQuery,
            Self::StatusAnswer(_) => Kind::StatusAnswer,
            Self::Checkpoint(_) => Kind::Checkpoint,
            Self::Stable(_) => Kind::Stable,
            Self::FetchNodes(_) => Kind::FetchNodes,
            Self::Nodes(_) => Kind::Nodes,
            Self::Read(_) => Kind::Read,
            Self::ReadAnswer(_) => Kind::ReadAnswer,
            Self::Observe(_) => Kind::Observe,
            Self::Observed(_) => Kind::Observed,
            Self::Report(_) => Kind::Report,
            Self::WatchEvent(_) => Kind::WatchEvent,
            Self::FetchEpochs(_) => Kind::FetchEpochs,
            Self::Epochs(_) => Kind::Epochs,
            Self::FetchCopy(_) => Kind::FetchCopy,
            Self::CopyPart(_) => Kind::CopyPart,
        }
    }
}
