//! Events in, effects out: the border between the core and its driver.
//!
//! ```text
//!   frames ──verify──► Received ─┐                  ┌─► Sign ──► the driver signs, feeds Signed
//!   own signed bytes ──► Signed ─┤                  ├─► Persist{record, token} ─► group commit
//!   group commit ───► Persisted ─┼─► Replica::step ─┼─► Send{to, frame, after: token}
//!   state written ────► Flushed ─┤                  ├─► Flush{batch, root}
//!   clock ──────────────► Timer ─┘                  └─► SetTimer, SessionKey, Poison, …
//! ```
//!
//! A message that promises something names the durable write that it waits for (`after`); the
//! driver sends it when that write has completed and never before. Effects are carried out in the
//! order in which they were emitted.

use crate::identity::{ConnectionId, Nanos, PublicKey, ReplicaId, Sequence, SessionId};
use crate::membership::Membership;
use crate::service::Credit;
use crate::state::{DurableRoot, WriteBatch};
use crate::wire::{Unsigned, Verified};
use bytes::Bytes;

/// Names one durable write; tokens rise by one from record to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token(pub u64);

/// The origin of a message, as the transport authenticated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// A voter, by its pinned TLS identity.
    Replica(ReplicaId),
    /// A client's connection.
    Client(ConnectionId),
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// One other replica.
    Replica(ReplicaId),
    /// Every other replica.
    Replicas,
    /// A client's connection; nothing happens if it is gone.
    Client(ConnectionId),
}

/// What the core waits for. At most one of each kind is set at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// A verified request has been open for too long in this view.
    Progress,
    /// Time to send our status to the peers.
    Status,
    /// The service asked for a tick.
    Tick,
    /// The answer of a peer (a body, a batch) has not come.
    Fetch,
    /// A proposal is ahead of our clock, which should have caught up by now.
    Clock,
    /// Requests have been collected for long enough while other batches are under way.
    Batch,
}

/// What happens to a replica.
#[derive(Clone, Debug)]
pub enum Event {
    /// A verified message came in.
    Received {
        /// The sender, as the transport authenticated it.
        from: Peer,
        /// The message, with the bytes that it came in.
        message: Verified,
    },
    /// The driver signed what [`Effect::Sign`] asked for.
    Signed {
        /// The same message, in the bytes that all others will see.
        message: Verified,
    },
    /// A record is durable, and so is every one before it.
    Persisted {
        /// The record's token.
        token: Token,
    },
    /// A [`Effect::Flush`] is durable.
    Flushed {
        /// The sequence of its root.
        sequence: Sequence,
    },
    /// A timer ran out.
    Timer {
        /// Which.
        timer: Timer,
    },
    /// There is a new connection to this replica: earlier messages may not have arrived.
    Connected {
        /// Which replica.
        replica: ReplicaId,
    },
    /// A client's connection is gone.
    Disconnected {
        /// Which.
        connection: ConnectionId,
    },
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Sign this and feed it back as [`Event::Signed`].
    Sign {
        /// What to sign.
        message: Box<Unsigned>,
    },
    /// Append to the journal; feed [`Event::Persisted`] back once it is durable.
    Persist {
        /// The encoded record, without the journal's own framing.
        record: Bytes,
        /// Its name.
        token: Token,
    },
    /// Send a frame.
    Send {
        /// The receiver.
        to: Destination,
        /// The bytes of the frame.
        frame: Bytes,
        /// The write that must be durable first, if any.
        after: Option<Token>,
    },
    /// Send a frame to observers, if their connections have room: it may be dropped, and must not
    /// delay anything else.
    Show {
        /// The receivers.
        to: Vec<ConnectionId>,
        /// The bytes of the frame.
        frame: Bytes,
    },
    /// Make these writes durable in the state store, atomically, then feed [`Event::Flushed`] back.
    Flush {
        /// The writes.
        batch: WriteBatch,
        /// The root of the resulting state.
        root: DurableRoot,
    },
    /// Journal records with a smaller token are needed no more.
    TrimJournal {
        /// The first token that is still needed.
        before: Token,
    },
    /// Set a timer, replacing an earlier setting of the same one.
    SetTimer {
        /// Which.
        timer: Timer,
        /// How long from now.
        after: Nanos,
    },
    /// Forget a timer.
    CancelTimer {
        /// Which.
        timer: Timer,
    },
    /// A session is open: verify its requests under this key and enforce this credit.
    SessionKey {
        /// The session.
        id: SessionId,
        /// Its key.
        key: PublicKey,
        /// Its owner: only connections of this principal may use it.
        principal: PublicKey,
        /// What it may have in flight.
        credit: Credit,
    },
    /// A session has ended: its key is void.
    SessionClosed {
        /// The session.
        id: SessionId,
    },
    /// Ignore this peer for a while: it signed something that no correct one would.
    Blacklist {
        /// The peer.
        peer: Peer,
        /// Why, for the operator.
        reason: &'static str,
    },
    /// An epoch has begun: from now on replicas are numbered, verified and found by this
    /// membership, and frames are admitted in its context. Also emitted once at the start.
    NewEpoch {
        /// The members.
        membership: Box<Membership>,
        /// This replica's own number; [`ReplicaId::NONE`] if it is not a member.
        me: ReplicaId,
    },
    /// A problem that an operator has to know; the replica goes on as its status says.
    Alarm {
        /// What it is.
        reason: String,
    },
    /// The state store failed: stop and stay silent.
    Poison {
        /// What failed, for the operator.
        reason: String,
    },
}

/// The effects of one step, in order.
pub type Effects = EffectList<Effect>;

/// What one step of a core asks of its driver, in order.
#[derive(Debug)]
pub struct EffectList<E> {
    list: Vec<E>,
}

impl<E> Default for EffectList<E> {
    fn default() -> Self {
        Self { list: Vec::new() }
    }
}

impl<E> EffectList<E> {
    /// Adds one.
    pub fn push(&mut self, effect: E) {
        self.list.push(effect);
    }

    /// Takes all that have been collected, oldest first.
    pub fn drain(&mut self) -> std::vec::Drain<'_, E> {
        self.list.drain(..)
    }

    /// All that have been collected, oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, E> {
        self.list.iter()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
