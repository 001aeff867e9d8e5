//! What replicas and clients say to each other.
//!
//! | Message | Signed by | Says |
//! |---|---|---|
//! | [`Request`] | the session's key | execute this bundle, exactly once |
//! | [`OpenSession`] | the principal's key | open a session under this key; idempotent |
//! | [`CloseSession`] | the session's key | no more will come |
//! | [`Batch`] as a proposal | the leader | this batch at this sequence; the leader's PREPARE |
//! | [`Ballot`] as PREPARE | a replica | I hold it with all bodies, and nothing else in this view |
//! | [`Ballot`] as COMMIT | a replica | I hold its prepared certificate |
//! | [`ViewChange`] | a replica | I vote in no earlier view; this is what I know, or claim |
//! | [`NewView`] | the new leader | these q VIEW-CHANGEs decide what the view begins with |
//! | [`Suspect`] | a replica | this view's leader should go; promises nothing |
//! | [`CheckpointVote`] | a replica | this state is durable here |
//! | [`CheckpointCertificate`] | – | q of those: the newest stable checkpoint |
//! | [`PeerStatus`] | – | where I stand, so that you can send what I miss |
//! | [`Reply`] | – | what your request came to |
//! | [`FetchBodies`], [`Bodies`] | – | requests by digest |
//! | [`FetchCommitted`], [`Committed`] | – | committed batches with certificate and bodies |
//! | [`FetchNodes`], [`Nodes`] | – | parts of a checkpoint's state |
//! | [`FetchEpochs`], [`EpochRecord`]s | – | what leads from an epoch to the next ones |
//! | [`Read`], [`ReadAnswer`] | – | queries that are answered out of order |
//! | [`Observe`], [`Observed`] | – | tell me what happens; I will, or why not |
//! | [`NumberedReport`] | – | what I am now |
//! | [`WatchEvent`] | – | what your session watches has changed |
//! | [`StatusQuery`], [`StatusAnswer`] | – | an operator's question |
//!
//! In a cluster whose votes are not signed ([`crate::authentication::Authentication`]) the proposal
//! and both kinds of [`Ballot`] have a signature of zeros.
//!
//! What is not signed rests on the transport's word about who sent it, or proves itself: a body by
//! its digest and its client's signature, a committed batch by its certificate, a node by the
//! digest that its parent names.

mod view_change;

pub use super::kind::Kind;
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
pub enum Operation {
    /// May change something.
    Execute(Bytes),
    /// Cannot.
    Query(Bytes),
    /// Asks to be told of changes; what of, in the service's encoding.
    Watch(Bytes),
    /// Asks to be told of them no longer.
    Unwatch(WatchId),
    /// A [`crate::membership::Command`]: for the library, not for the service.
    Administer(Bytes),
}

/// A bundle: operations with independent results under one signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose.
    pub session: SessionId,
    /// In which of its lanes.
    pub lane: Lane,
    /// Counted in that lane from 1.
    pub number: RequestNumber,
    /// What to do, in this order.
    pub operations: Vec<Operation>,
}

/// Opens a session. The same session key gets the same session, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// Who asks; signs this.
    pub principal: PublicKey,
    /// A key made for this session.
    pub session_key: PublicKey,
    /// Lanes asked for.
    pub lanes: u16,
    /// When this was signed, by the client's clock or by what it was told the agreed time is. It
    /// has to be recent when it is executed: nobody can use it again later.
    pub time: Time,
}

/// Closes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseSession {
    /// Which; its key signs this.
    pub session: SessionId,
}

/// A batch of requests at one place in the order. Its bytes, and so its digest, say nothing of
/// the view: what a view change carries over keeps its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its place.
    pub sequence: Sequence,
    /// Its time, above that of the batch before it.
    pub time: Time,
    /// The digest of the batch before it; of genesis, for the first.
    pub previous: Digest,
    /// The behaviour that it is to be executed with.
    pub behaviour_version: u32,
    /// Whether it was proposed because a tick is due; only then may it be empty.
    pub tick: bool,
    /// The requests, by digest, in the order of execution.
    pub requests: Vec<Digest>,
}

/// A PREPARE or COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// The batch's place.
    pub sequence: Sequence,
    /// The batch.
    pub digest: Digest,
    /// Who votes.
    pub signer: ReplicaId,
}

/// The header's view should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Who thinks so.
    pub signer: ReplicaId,
}

/// What a replica has of one open sequence in its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenStatus {
    /// The proposal.
    pub proposal: Option<Digest>,
    /// Whose PREPAREs it has for that.
    pub prepares: u64,
    /// Whose COMMITs it has for that.
    pub commits: u64,
}

/// Where a replica stands; the header has its view. Masks have bit i set for replica i.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PeerStatus {
    /// Whether it knows what its view begins with; otherwise it waits for the NEW-VIEW.
    pub active: bool,
    /// The last sequence that it has executed.
    pub committed: Sequence,
    /// What it has of the sequences after that, as far as it has anything.
    pub open: Vec<OpenStatus>,
    /// Whose VIEW-CHANGEs for this view it has.
    pub view_changes: u64,
    /// Who, as far as it knows, suspects this view.
    pub suspects: u64,
    /// The newest stable checkpoint that it knows; 0 at genesis.
    pub stable: Sequence,
    /// The first sequence whose batch it still has for others.
    pub kept: Sequence,
}

/// The signer's state after a batch is this, and durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointVote {
    /// Which batch, and which state.
    pub checkpoint: Checkpoint,
    /// Who says so.
    pub signer: ReplicaId,
}

/// The result of one operation: the service's answer, or `None` if the answers before it left no
/// room for this one in [`super::limits::RESULTS_BYTES_MAX`]; then it had no effect.
pub type OperationResult = Option<Bytes>;

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was executed: one result for each operation.
    Results(Vec<OperationResult>),
    /// The session is open.
    SessionOpened {
        /// Its number.
        session: SessionId,
        /// What it may have under way.
        credit: Credit,
    },
    /// The service refuses this principal a session, or there are too many.
    SessionRefused,
    /// The opening was not signed recently: sign it again with this time.
    SessionStale {
        /// The agreed time.
        time: Time,
    },
    /// The session is closed now; of an opening, that it was used before and its session ended.
    SessionClosed,
    /// Beyond the session's credit or this replica's room: send it again later.
    Busy,
    /// There is no such session, or no more.
    NoSession,
    /// Its number was executed long ago; the results are gone.
    Superseded,
    /// Another request with the same number was executed.
    Conflict,
    /// It was executed, and the results have this digest ([`results_digest`]): another replica
    /// gives them whole, and so does this one if it is asked again.
    ///
    /// [`results_digest`]: super::signed_bytes::results_digest
    ResultsDigest(Digest),
}

impl Outcome {
    /// How long the results are together, if it has any.
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
    /// What it came to.
    pub outcome: Outcome,
}

/// Asks for requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchBodies {
    /// For which proposal's sequence.
    pub sequence: Sequence,
    /// Which.
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

/// A committed batch with everything that it takes to believe and to execute it.
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
    /// Where the nodes lie.
    pub paths: Vec<Path>,
}

/// Nodes that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The digest of all rows of the state that they are of.
    pub root: Digest,
    /// Whether that state is not kept any more.
    pub gone: bool,
    /// Each with its place; children's ids are left out.
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
    /// Handed back.
    pub nonce: u64,
}

/// The answer: one replica's word about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusAnswer {
    /// The question's.
    pub nonce: u64,
    /// How it is.
    pub status: ReplicaStatus,
}

/// Queries to be answered from this replica's state as it is, out of order and unsigned: the
/// transport says which principal asks, and the session that it names has to be that principal's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// On behalf of which session.
    pub session: SessionId,
    /// Handed back.
    pub nonce: u64,
    /// Who answers in full, where the others need only give digests of what is long;
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
    /// The question's.
    pub nonce: u64,
    /// The last sequence that this replica had executed.
    pub applied: Sequence,
    /// One for each query, or nothing if it cannot answer now: it does not know the session, or it
    /// has not caught up yet with what it knew before a restart.
    pub answers: Option<Vec<Answered>>,
}

/// The answer to one query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// When anything that it depends on last changed.
    pub version: Sequence,
    /// What it is.
    pub body: AnswerBody,
}

/// What a query was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// The answer.
    Bytes(Bytes),
    /// Its digest, from a replica that was not asked for all of it.
    Digest(Digest),
    /// The answers before it left no room for this one.
    NoRoom,
}

/// A request of a session whose key is not known here. Nothing about it has been verified; it is
/// only there so that its sender can be told that the session has ended.
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
    /// What it would be if the session that signed `message` were not known; only sessions sign
    /// these.
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
}

impl Message {
    /// What its frames are tagged with.
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
        }
    }
}
