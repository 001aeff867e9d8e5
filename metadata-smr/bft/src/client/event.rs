//! Inputs and outputs of the client core.

use super::failure::Failure;
use crate::identity::{Monotonic, Nanos, PublicKey, ReplicaId, Sequence, SessionId, Time};
use crate::membership::Membership;
use crate::observer::{Observation, Watched};
use crate::service::Credit;
use crate::step::EffectList;
use crate::wire::{Unsigned, Verified};
use bytes::Bytes;

/// The submitter's own name for one operation; the core only returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The kind of an operation, and whether it may change state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// It runs as `Service::execute`.
    Execute,
    /// It is a [`crate::membership::Command`], for the library.
    Administer,
    /// It runs as `Service::read_in_order`, ordered like other operations.
    Query,
    /// It runs as `Service::read`, out of order, and sees everything that took effect before it was
    /// asked, for any client. It is ordered instead if the replicas do not agree.
    Read,
    /// The same, but it only has to see everything that this session has seen before.
    SessionRead,
    /// It runs as `Service::watch`: the session is notified of changes from then on. The operation
    /// says what to watch, the result is a [`WatchAnswer`](crate::observer::WatchAnswer).
    Watch,
    /// It ends a watch. The operation is the watch's number, eight bytes, little-endian; the result
    /// is a [`WatchAnswer`](crate::observer::WatchAnswer).
    Unwatch,
    /// It makes the state after its batch a checkpoint, however little came since the last one. The
    /// operation is empty, and the result is a
    /// [`CheckpointAnswer`](crate::checkpoint::CheckpointAnswer).
    Checkpoint,
}

/// The key that has to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningKey {
    /// The principal's.
    Principal,
    /// The session's.
    Session,
}

/// An input of the client.
#[derive(Clone, Debug)]
pub enum Event {
    /// Open a session under a fresh key. Only while there is none; the answer is
    /// [`Effect::Opened`] or [`Effect::Ended`].
    Open {
        /// The public half of a key pair that was made for this session and never used before.
        session_key: PublicKey,
        /// The time by this machine's clock, which should be right to within a minute.
        time: Time,
    },
    /// Close the session once all pending operations have been answered. Submissions fail from now
    /// on.
    Close,
    /// Have this operation executed. Answered by [`Effect::Deliver`] or [`Effect::Failed`].
    Submit {
        /// The submitter's name for it.
        ticket: Ticket,
        /// Whether it may change something.
        kind: OperationKind,
        /// The operation in the service's encoding.
        operation: Bytes,
        /// After this instant it counts as failed, if it has not been answered.
        deadline: Monotonic,
    },
    /// Report what happens from now on, by [`Effect::Observed`] and [`Effect::Watched`].
    Observe {
        /// The state of the replicas.
        reports: bool,
        /// Changes of rows that the session watches ([`OperationKind::Watch`]).
        watches: bool,
    },
    /// The driver signed what [`Effect::Sign`] asked for.
    Signed {
        /// The same message with its bytes.
        message: Verified,
    },
    /// A frame came from a replica, over a transport that authenticated it as this one.
    Received {
        /// Which replica.
        from: ReplicaId,
        /// The bytes of the frame.
        frame: Bytes,
    },
    /// A replica is connected; it is sent everything that it was not sent or may have missed.
    Connected {
        /// Which replica.
        replica: ReplicaId,
    },
    /// A replica is not connected any more.
    Disconnected {
        /// Which replica.
        replica: ReplicaId,
    },
    /// The timer ran out.
    Timer,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The owner closed it.
    #[error("the session was closed by its owner")]
    Closed,
    /// The service refused to open one for this principal.
    #[error("the service refuses a session to this principal: is the key registered?")]
    Refused,
    /// The replicas do not know it (any more): it expired or was fenced.
    #[error("the replicas ended the session: open another one")]
    Lost,
    /// The replicas are at an earlier state than one that was shown before.
    #[error(
        "the replicas have gone back in time: they are at operation {found}, and this client was \
         shown {shown} before"
    )]
    WentBack {
        /// The newest state that was shown.
        shown: Sequence,
        /// The state at which the session was opened.
        found: Sequence,
    },
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Sign this and feed it back as [`Event::Signed`].
    Sign {
        /// Under which key.
        key: SigningKey,
        /// What to sign.
        message: Unsigned,
    },
    /// Send a frame; nothing happens if there is no connection.
    Send {
        /// To which replica.
        to: ReplicaId,
        /// The bytes.
        frame: Bytes,
    },
    /// Set the timer, replacing an earlier setting.
    SetTimer {
        /// How long from now.
        after: Nanos,
    },
    /// An operation's result.
    Deliver {
        /// The submitter's name for the operation.
        ticket: Ticket,
        /// What the service answered.
        result: Bytes,
        /// The sequence at which it was executed. For a query answered out of order, the sequence
        /// at which anything that the answer depends on last changed.
        version: Sequence,
    },
    /// An operation has no result.
    Failed {
        /// The submitter's name for the operation.
        ticket: Ticket,
        /// Why.
        reason: Failure,
    },
    /// The session is open.
    Opened {
        /// Its number.
        session: SessionId,
        /// The credit that was granted.
        credit: Credit,
    },
    /// A replica, or a quorum of them, reports its state.
    Observed {
        /// The observation.
        observation: Observation,
    },
    /// Rows that the session watches have changed, or may have.
    Watched {
        /// The notification.
        watched: Watched,
    },
    /// Hand this frame to [`super::Client::follow`] with a verifier.
    Follow {
        /// The frame.
        frame: Bytes,
    },
    /// The replicas have changed. All connections count as closed: report which ones there are.
    NewEpoch {
        /// The new membership.
        membership: Box<Membership>,
    },
    /// The session has ended and every ticket has been answered. [`Event::Open`] starts another
    /// one.
    Ended {
        /// Why.
        end: End,
    },
}

/// The effects of one step, in order.
pub type Effects = EffectList<Effect>;
