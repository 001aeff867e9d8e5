//! The inputs that wait for the event loop, bounded and taken fairly.
//!
//! Links add frames, the disk adds its completions; the event loop takes them one by one. Every
//! source has a queue of its own, and a source whose queue is full waits with its own socket
//! unread, so a flood on one connection slows that connection alone. The order of service:
//!
//! 1. the request to stop;
//! 2. completions of durable writes, because held frames wait for them;
//! 3. new and ended connections;
//! 4. frames, one of a peer and one of a client in turn, peers among each other and clients among
//!    each other round-robin. So a thousand clients together get half the steps, and each the same
//!    number. *Strangers*, whose principal has no session open here, share one client turn in
//!    eight, and memory of their own: any process can generate a hundred keys, and keep hundreds of
//!    connections busy with them.
//!
//! # Invariants
//!
//! * The waiting inputs are bounded: frames by the permits that they hold, completions by being
//!   merged into one (a write is durable with all before it), ended connections by the places that
//!   they occupy until the loop has handled them.
//! * A frame's permit is returned when the event loop has taken it, never earlier.

use crate::event_loop::Ending;
use crate::limits;
use bytes::Bytes;
use quorumfs_bft::identity::{ConnectionId, Epoch, PublicKey, Sequence};
use quorumfs_bft::step::Token;
use quorumfs_bft::wire::Verified;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The source of a frame. Replicas are identified by their keys, because their numbers differ from
/// epoch to epoch, and a frame may be taken in a later epoch than it arrived in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The replica with this key.
    Replica(PublicKey),
    /// A node that claims to be a replica and is none of the current epoch.
    UnknownReplica(ConnectionId),
    /// A client.
    Client(ConnectionId),
}

/// A frame, before or after its signatures were checked.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Not checked yet; with the key that its connection proved.
    Raw(Bytes, PublicKey),
    /// Checked on another thread, as one of this epoch; with the same key.
    Admitted(Box<Verified>, Epoch, PublicKey),
}

/// An input of the event loop.
#[derive(Debug)]
pub(crate) enum Input {
    /// The owner wants the loop to end.
    Stop,
    /// The disk failed: the replica can make no promises any more.
    Failed(Ending),
    /// Everything up to this record is durable.
    Persisted(Token),
    /// The state up to this root is durable.
    Flushed(Sequence),
    /// There is a new connection to a replica.
    Connected(PublicKey),
    /// The connection of a client or an unknown replica has ended.
    Gone(ConnectionId),
    /// A frame arrived.
    Frame(Source, Arrival),
}

/// The sources whose frames share memory and turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Another replica.
    Peer,
    /// Clients whose principal has a session open.
    Client,
    /// All other sources.
    Stranger,
}

/// Strangers get one client turn out of so many, while clients wait.
const STRANGERS_TURN: u8 = 8;

/// A source's share of the memory for waiting frames.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    own: Arc<Semaphore>,
    own_bytes: usize,
}

#[derive(Debug)]
struct QueuedArrival {
    arrival: Arrival,
    _own: OwnedSemaphorePermit,
    _shared: Option<OwnedSemaphorePermit>,
}

/// Queues of one kind of source, served round-robin.
#[derive(Debug, Default)]
struct Ring {
    queues: BTreeMap<Source, VecDeque<QueuedArrival>>,
    turn: VecDeque<Source>,
}

impl Ring {
    fn push(&mut self, from: Source, waiting: QueuedArrival) {
        let queue = self.queues.entry(from).or_default();
        if queue.is_empty() {
            self.turn.push_back(from);
        }
        queue.push_back(waiting);
    }

    fn pop(&mut self) -> Option<(Source, QueuedArrival)> {
        let from = self.turn.pop_front()?;
        let queue = self.queues.get_mut(&from)?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&from);
        } else {
            self.turn.push_back(from);
        }
        Some((from, waiting))
    }

    fn forget(&mut self, from: Source) {
        if self.queues.remove(&from).is_some() {
            self.turn.retain(|other| *other != from);
        }
    }
}

#[derive(Debug, Default)]
struct Queues {
    stop: bool,
    failed: Option<Ending>,
    persisted: Option<Token>,
    flushed: Option<Sequence>,
    connected: BTreeSet<PublicKey>,
    gone: VecDeque<ConnectionId>,
    peers: Ring,
    clients: Ring,
    strangers: Ring,
    client_is_next: bool,
    /// Clients served since the last stranger.
    client_turns: u8,
    loop_sleeps: bool,
}

impl Queues {
    fn next(&mut self) -> Option<Input> {
        if self.stop {
            return Some(Input::Stop);
        }
        if let Some(ending) = self.failed.take() {
            return Some(Input::Failed(ending));
        }
        if let Some(token) = self.persisted.take() {
            return Some(Input::Persisted(token));
        }
        if let Some(sequence) = self.flushed.take() {
            return Some(Input::Flushed(sequence));
        }
        if let Some(replica) = self.connected.pop_first() {
            return Some(Input::Connected(replica));
        }
        if let Some(connection) = self.gone.pop_front() {
            return Some(Input::Gone(connection));
        }
        self.client_is_next = !self.client_is_next;
        let taken = if self.client_is_next {
            self.peers.pop().or_else(|| self.next_client_frame())
        } else {
            self.next_client_frame().or_else(|| self.peers.pop())
        };
        let (from, waiting) = taken?;
        Some(Input::Frame(from, waiting.arrival))
    }

    fn next_client_frame(&mut self) -> Option<(Source, QueuedArrival)> {
        self.client_turns = self.client_turns.saturating_add(1);
        let taken = if self.client_turns < STRANGERS_TURN {
            self.clients.pop()
        } else {
            None
        };
        taken.or_else(|| {
            let stranger = self.strangers.pop();
            self.client_turns = 0;
            stranger.or_else(|| self.clients.pop())
        })
    }
}

/// The queues between all producers and one event loop.
#[derive(Debug)]
pub(crate) struct Inbox {
    queues: Mutex<Queues>,
    filled: Notify,
    clients: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            queues: Mutex::default(),
            filled: Notify::new(),
            clients: Arc::new(Semaphore::new(limits::CLIENTS_INBOX_BYTES_MAX)),
            strangers: Arc::new(Semaphore::new(limits::STRANGERS_INBOX_BYTES_MAX)),
        }
    }
}

impl Inbox {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Every change below leaves the queues consistent before it can panic.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Queues)) {
        let mut queues = self.queues();
        change(&mut queues);
        let wake = std::mem::take(&mut queues.loop_sleeps);
        drop(queues);
        if wake {
            self.filled.notify_one();
        }
    }

    /// The share of a new source.
    pub(crate) fn allowance(from: Source) -> Allowance {
        let own_bytes = match from {
            Source::Replica(_) => limits::PEER_INBOX_BYTES_MAX,
            Source::UnknownReplica(_) | Source::Client(_) => limits::CLIENT_INBOX_BYTES_MAX,
        };
        Allowance {
            own: Arc::new(Semaphore::new(own_bytes)),
            own_bytes,
        }
    }

    /// Adds a frame, as soon as its source's share allows.
    pub(crate) async fn put(
        &self,
        from: Source,
        class: Class,
        bytes: usize,
        allowance: &Allowance,
        arrival: Arrival,
    ) {
        let cost = bytes.clamp(limits::FRAME_COST_MIN, allowance.own_bytes);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        // The semaphores are never closed.
        let Ok(own) = allowance.own.clone().acquire_many_owned(cost).await else {
            return;
        };
        let shared = match class {
            Class::Peer => None,
            Class::Client => Some(&self.clients),
            Class::Stranger => Some(&self.strangers),
        };
        let shared = match shared {
            None => None,
            Some(shared) => match shared.clone().acquire_many_owned(cost).await {
                Ok(permit) => Some(permit),
                Err(_) => return,
            },
        };
        let waiting = QueuedArrival {
            arrival,
            _own: own,
            _shared: shared,
        };
        self.change(|queues| match class {
            Class::Peer => queues.peers.push(from, waiting),
            Class::Client => queues.clients.push(from, waiting),
            Class::Stranger => queues.strangers.push(from, waiting),
        });
    }

    /// The connection of a client or an unknown replica has ended; its waiting frames are dropped.
    pub(crate) fn connection_ended(&self, connection: ConnectionId) {
        self.change(|queues| {
            queues.clients.forget(Source::Client(connection));
            queues.strangers.forget(Source::Client(connection));
            queues.strangers.forget(Source::UnknownReplica(connection));
            queues.gone.push_back(connection);
        });
    }

    /// There is a new connection to a replica.
    pub(crate) fn connected(&self, replica: PublicKey) {
        self.change(|queues| {
            queues.connected.insert(replica);
        });
    }

    /// A record and all before it are durable.
    pub(crate) fn persisted(&self, token: Token) {
        self.change(|queues| queues.persisted = queues.persisted.max(Some(token)));
    }

    /// A root is durable.
    pub(crate) fn flushed(&self, sequence: Sequence) {
        self.change(|queues| queues.flushed = queues.flushed.max(Some(sequence)));
    }

    /// The disk failed. Its first report is the cause.
    pub(crate) fn failed(&self, ending: Ending) {
        self.change(|queues| {
            queues.failed.get_or_insert(ending);
        });
    }

    /// How the disk failed, if it did and the loop has not taken that yet.
    pub(crate) fn failure(&self) -> Option<Ending> {
        self.queues().failed.clone()
    }

    /// Ends the loop.
    pub(crate) fn stop(&self) {
        self.change(|queues| queues.stop = true);
    }

    /// Takes the next input, if there is one.
    pub(crate) fn poll(&self) -> Option<Input> {
        self.queues().next()
    }

    /// Waits for the next input, until `deadline` at most.
    pub(crate) async fn wait(&self, deadline: Instant) -> Option<Input> {
        let filled = self.filled.notified();
        {
            let mut queues = self.queues();
            if let Some(input) = queues.next() {
                return Some(input);
            }
            queues.loop_sleeps = true;
        }
        // Whether an input arrived is checked below.
        let _ = tokio::time::timeout_at(deadline.into(), filled).await;
        let mut queues = self.queues();
        queues.loop_sleeps = false;
        queues.next()
    }

    /// Waits until the owner wants the loop to end, and drops all other inputs.
    pub(crate) async fn until_stopped(&self) {
        while !self.queues().stop {
            let _ = self.wait(Instant::now() + limits::KEEPALIVE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn raw(number: u8) -> Arrival {
        Arrival::Raw(vec![number].into(), PublicKey([0; 32]))
    }

    fn class(from: Source) -> Class {
        match from {
            Source::Replica(_) => Class::Peer,
            Source::Client(_) => Class::Client,
            Source::UnknownReplica(_) => Class::Stranger,
        }
    }

    async fn put(inbox: &Inbox, from: Source, allowance: &Allowance, count: u8) {
        for number in 0..count {
            let class = class(from);
            inbox.put(from, class, 1, allowance, raw(number)).await;
        }
    }

    #[tokio::test]
    async fn strangers_take_one_turn_in_eight_and_no_memory_of_clients() {
        let inbox = Inbox::default();
        let frame = 64 << 10;
        let mut strangers = 0;
        let wait = Duration::from_millis(20);
        for number in 100..1000 {
            let from = Source::Client(ConnectionId(number));
            let allowance = Inbox::allowance(from);
            let put = inbox.put(from, Class::Stranger, frame, &allowance, raw(0));
            if tokio::time::timeout(wait, put).await.is_err() {
                break;
            }
            strangers += 1;
        }
        assert_eq!(strangers * frame, limits::STRANGERS_INBOX_BYTES_MAX);
        let client = Source::Client(ConnectionId(1));
        let allowance = Inbox::allowance(client);
        for _ in 0..21 {
            let put = inbox.put(client, Class::Client, frame, &allowance, raw(0));
            let put = tokio::time::timeout(wait, put).await;
            assert!(put.is_ok(), "strangers have taken the memory of clients");
        }
        let order = order(&inbox);
        let last = order.iter().rposition(|from| *from == client);
        assert!(last.expect("served") <= 24, "{last:?}");
        assert_eq!(order.len(), strangers + 21, "and strangers are served");
    }

    fn order(inbox: &Inbox) -> Vec<Source> {
        std::iter::from_fn(|| inbox.poll())
            .map(|input| match input {
                Input::Frame(from, _) => from,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[tokio::test]
    async fn a_flood_of_one_client_delays_the_others_by_one_step_each() {
        let inbox = Inbox::default();
        let (flood, quiet) = (
            Source::Client(ConnectionId(1)),
            Source::Client(ConnectionId(2)),
        );
        let peer = Source::Replica(PublicKey([1; 32]));
        put(&inbox, flood, &Inbox::allowance(flood), 100).await;
        put(&inbox, quiet, &Inbox::allowance(quiet), 1).await;
        put(&inbox, peer, &Inbox::allowance(peer), 3).await;
        let order = order(&inbox);
        assert_eq!(order.len(), 104);
        let place = order.iter().position(|from| *from == quiet);
        assert!(place.expect("served") < 5, "{place:?}");
        let last = order.iter().rposition(|from| *from == peer);
        assert!(last.expect("served") < 7, "{last:?}");
    }

    #[tokio::test]
    async fn a_source_waits_when_its_share_is_used_up_and_no_other_does() {
        let inbox = Inbox::default();
        let (flood, quiet) = (
            Source::Client(ConnectionId(1)),
            Source::Client(ConnectionId(2)),
        );
        let allowance = Inbox::allowance(flood);
        let mut count = 0;
        let wait = Duration::from_millis(20);
        while tokio::time::timeout(
            wait,
            inbox.put(flood, Class::Client, 64 << 10, &allowance, raw(0)),
        )
        .await
        .is_ok()
        {
            count += 1;
            assert!(count < 1000, "the share is not bounded");
        }
        assert_eq!(count * (64 << 10), limits::CLIENT_INBOX_BYTES_MAX);
        put(&inbox, quiet, &Inbox::allowance(quiet), 1).await;
        assert!(inbox.poll().is_some());
        let again = inbox.put(flood, Class::Client, 64 << 10, &allowance, raw(0));
        let _ = inbox.poll();
        assert!(
            tokio::time::timeout(wait, again).await.is_ok(),
            "space was freed"
        );
    }

    #[tokio::test]
    async fn completions_come_first_and_are_merged() {
        let inbox = Inbox::default();
        let peer = Source::Replica(PublicKey([1; 32]));
        put(&inbox, peer, &Inbox::allowance(peer), 1).await;
        for token in [3, 5, 4] {
            inbox.persisted(Token(token));
        }
        assert!(matches!(inbox.poll(), Some(Input::Persisted(Token(5)))));
        assert!(matches!(inbox.poll(), Some(Input::Frame(..))));
        assert!(inbox.poll().is_none());
    }

    #[tokio::test]
    async fn frames_of_an_ended_connection_are_dropped() {
        let inbox = Inbox::default();
        let client = Source::Client(ConnectionId(1));
        put(&inbox, client, &Inbox::allowance(client), 5).await;
        inbox.connection_ended(ConnectionId(1));
        assert!(matches!(inbox.poll(), Some(Input::Gone(ConnectionId(1)))));
        assert!(inbox.poll().is_none());
        assert_eq!(
            inbox.clients.available_permits(),
            limits::CLIENTS_INBOX_BYTES_MAX
        );
    }

    #[tokio::test]
    async fn a_sleeping_loop_is_woken() {
        let inbox = Arc::new(Inbox::default());
        let other = inbox.clone();
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            other.flushed(Sequence(1));
        });
        let input = inbox.wait(Instant::now() + Duration::from_secs(10)).await;
        assert!(matches!(input, Some(Input::Flushed(Sequence(1)))));
        let nothing = inbox.wait(Instant::now() + Duration::from_millis(5)).await;
        assert!(nothing.is_none());
        waker.join().expect("waker");
    }
}
