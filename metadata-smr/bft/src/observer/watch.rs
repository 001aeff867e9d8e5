//! Changes of rows that a session asked to be notified of.
//!
//! ```text
//!   RequestOperation::Watch ── ordered ──► WatchAnswer{watch, first, last}   at an agreed sequence
//!   a batch changes rows under its prefixes ──► WatchEvent{sequence, previous, watches}
//!                                                     │ r + 1 equal copies
//!                  Chain: … ◄─previous─ event ◄─previous─ event   a gap ──► Revalidate
//! ```
//!
//! A watch is part of the replicated state, belongs to its session and ends with it. If a batch
//! changes rows that a session watches, there is one event for the session: the batch's sequence,
//! that of the session's event before it, and the watches that it concerns, ascending (a watch's
//! index in the batch is its position in that list). All of it follows from the order, so the
//! copies of correct replicas are equal, also after a restart or a transfer. A row counts as
//! changed if it was written, even to the same value. A watch that was registered in a batch may be
//! notified of rows that the batch wrote before it, too.
//!
//! # Invariants
//!
//! * An event is passed on when r + 1 replicas sent the same: one of them is correct, and it
//!   happened.
//! * Events are passed on in order and once, each with its predecessor passed on or covered by a
//!   [`Watched::Revalidate`].
//! * As long as n − u correct replicas are connected, every event is passed on or covered before
//!   long. Replicas report every second which event was the last: the (r+1)-th highest of these
//!   took place, or lies below one that did.
//! * A client that revalidates reads a state that is at least as new as the revalidation says, and
//!   after an event a state that contains it: the client asks for no older one from then on, even
//!   where a quorum of replicas has not executed it yet.
//!
//! # Failures
//!
//! Too few replicas are connected: [`Watched::Blind`], and a revalidation once there are enough
//! again. Copies are lost, or their senders took the state over instead of executing it: the client
//! waits [`WATCH_GRACE`] for missing events and then covers them by a revalidation.

use crate::fault_model::FaultModel;
use crate::identity::{Monotonic, ReplicaId, Sequence, SessionId};
use crate::sabotage::Flag;
use crate::wire::limits::{WATCH_EVENTS_KEPT, WATCH_GRACE};
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A watch; numbers are assigned in order and never reused.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct WatchId(pub u64);

impl fmt::Display for WatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The result of an attempt to watch or to end a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum WatchAnswer {
    /// The session watches from now on.
    Watching {
        /// The watch's number.
        watch: WatchId,
        /// Whether it is the session's only one.
        first: bool,
        /// The session's last event so far; for a session's only watch, a number in its place.
        last: Sequence,
    },
    /// The service does not allow it, or does not know the operation.
    Refused,
    /// The session, or all of them together, have reached the limit of watches.
    TooMany,
    /// The watch has ended.
    Ended,
    /// There is no watch with that number.
    Unknown,
}

impl WatchAnswer {
    /// Encodes it as the result of an operation.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(24);
        // Writing into a vector cannot fail.
        let _ = self.serialize(&mut bytes);
        bytes.into()
    }

    /// Decodes the result of an operation.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        borsh::from_slice(bytes).ok()
    }
}

/// Asks a replica to report what happens, for as long as the connection lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observe {
    /// Whether to send reports.
    pub reports: bool,
    /// The session whose watches to report. The transport has checked that it is the caller's.
    pub session: Option<SessionId>,
}

/// A replica's answer to an observer about the observing: at once, and every second for observers
/// that watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It reports what happens.
    Accepted {
        /// The last sequence that it has executed.
        applied: Sequence,
        /// The session's last event up to there; none if it watches nothing.
        last: Option<Sequence>,
    },
    /// It refuses.
    Refused(WatchRefusal),
}

/// Why a replica refuses to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchRefusal {
    /// It has as many observers as it may have.
    #[error("this replica has as many observers as it may have: ask another one")]
    Full,
    /// It knows no such session; it may be behind.
    #[error("this replica knows no such session, or not yet")]
    NoSession,
}

/// A batch changed rows that a session watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The session that watches.
    pub session: SessionId,
    /// The batch.
    pub sequence: Sequence,
    /// The session's event before this one.
    pub previous: Sequence,
    /// The watches concerned, ascending.
    pub watches: Vec<WatchId>,
}

/// A notification for a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Rows that these watches cover have changed.
    Changed {
        /// In this batch.
        sequence: Sequence,
        /// The watches, ascending.
        watches: Vec<WatchId>,
    },
    /// An event was missed, or may have been: look at everything that is watched.
    Revalidate {
        /// Events up to here are covered.
        up_to: Sequence,
    },
    /// Too few replicas are connected: there may be no notification until there are more, and then
    /// there will be a revalidation.
    Blind,
}

/// A session's events, from the messages of replicas to the notifications.
#[derive(Debug)]
pub struct Chain {
    small: usize,
    medium: usize,
    /// The number of equal copies that count; never more than [`Chain::small`].
    copies: usize,
    /// Everything up to here has been passed on or covered; `None` while nothing is watched.
    head: Option<Sequence>,
    /// The open watches.
    watches: BTreeSet<WatchId>,
    /// Copies without enough equal ones, by sender.
    single: BTreeMap<ReplicaId, BTreeMap<Sequence, WatchEvent>>,
    /// Events that wait for their predecessors.
    waiting: BTreeMap<Sequence, WatchEvent>,
    /// The last event according to each connected replica that reports.
    last: BTreeMap<ReplicaId, Sequence>,
    /// Whether enough replicas report.
    sees: bool,
    /// When missing events count as lost.
    patience: Option<Monotonic>,
    news: Vec<Watched>,
}

impl Chain {
    /// Nothing is watched yet.
    #[must_use]
    pub fn new(model: &FaultModel) -> Self {
        Self {
            small: model.small().into(),
            medium: model.medium().into(),
            copies: model.small().into(),
            head: None,
            watches: BTreeSet::new(),
            single: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last: BTreeMap::new(),
            sees: false,
            patience: None,
            news: Vec::new(),
        }
    }

    /// One with a planted defect, if the flag is set: a single copy counts.
    #[must_use]
    pub fn sabotaged(model: &FaultModel, accepts_one: Flag) -> Self {
        let mut chain = Self::new(model);
        if accepts_one.is_set() {
            chain.copies = 1;
        }
        chain
    }

    /// Takes the pending notifications, oldest first.
    pub fn take(&mut self) -> Vec<Watched> {
        std::mem::take(&mut self.news)
    }

    /// Handles the answer to an attempt to watch or to end a watch.
    pub fn answered(&mut self, answer: &WatchAnswer, now: Monotonic) {
        if let WatchAnswer::Watching { watch, first, last } = *answer {
            self.watches.insert(watch);
            match self.head {
                // There was no chain, or it had ended and this is another one.
                Some(head) if first => self.head = Some(head.max(last)),
                Some(_) => {}
                None => self.head = Some(last),
            }
            self.advance(now);
        }
    }

    /// Handles the end of a watch that its owner asked for.
    pub fn ended(&mut self, watch: WatchId) {
        self.watches.remove(&watch);
        if self.watches.is_empty() {
            self.head = None;
            self.waiting.clear();
            self.single.clear();
            self.patience = None;
        }
    }

    /// Handles a replica's standing with the session.
    pub fn standing(&mut self, replica: ReplicaId, observed: &Observed, now: Monotonic) {
        match *observed {
            Observed::Refused(_) => self.lost(replica),
            Observed::Accepted { last, .. } => {
                self.last.insert(replica, last.unwrap_or_default());
                self.advance(now);
            }
        }
    }

    /// Enters a later epoch, in which replicas have other numbers: events without a second copy are
    /// dropped, and each replica has to report its standing again.
    pub fn enter(&mut self, model: &FaultModel) {
        let all: Vec<ReplicaId> = self.last.keys().copied().collect();
        for replica in all {
            self.lost(replica);
        }
        self.single.clear();
        let accepts_one = self.copies < self.small;
        self.small = model.small().into();
        self.medium = model.medium().into();
        self.copies = if accepts_one { 1 } else { self.small };
    }

    /// A replica does not report any more.
    pub fn lost(&mut self, replica: ReplicaId) {
        self.last.remove(&replica);
        self.single.remove(&replica);
        let enough = self.last.len() >= self.medium;
        if self.sees && !enough {
            self.sees = false;
            if self.head.is_some() {
                self.news.push(Watched::Blind);
            }
        }
    }

    /// Handles a replica's copy of an event.
    pub fn event(&mut self, replica: ReplicaId, event: WatchEvent, now: Monotonic) {
        let sequence = event.sequence;
        let known = self.head.is_some_and(|head| sequence <= head);
        if known || self.waiting.contains_key(&sequence) || event.previous >= sequence {
            return;
        }
        let equal = |copies: &BTreeMap<Sequence, WatchEvent>| copies.get(&sequence) == Some(&event);
        let others = self.single.iter().filter(|(from, _)| **from != replica);
        let copies = 1 + others.filter(|(_, copies)| equal(copies)).count();
        if copies < self.copies {
            let own = self.single.entry(replica).or_default();
            own.insert(sequence, event);
            if own.len() > WATCH_EVENTS_KEPT {
                own.pop_first();
            }
            return;
        }
        self.waiting.insert(sequence, event);
        if self.waiting.len() > WATCH_EVENTS_KEPT {
            // The chain is broken there, and the next one's predecessor will be missed.
            self.waiting.pop_first();
        }
        for copies in self.single.values_mut() {
            copies.remove(&sequence);
        }
        self.advance(now);
    }

    /// Ends all watches, since the session has ended.
    pub fn reset(&mut self) {
        self.watches.clear();
        self.head = None;
        self.waiting.clear();
        self.single.clear();
        self.last.clear();
        self.sees = false;
        self.patience = None;
    }

    /// Covers missing events by a revalidation if they have been waited for long enough.
    pub fn expire(&mut self, now: Monotonic) {
        if self.patience.is_none_or(|until| until > now) {
            return;
        }
        self.patience = None;
        if let Some(missed) = self.missed() {
            self.revalidate(missed);
        }
        self.advance(now);
    }

    /// The instant at which that happens.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Monotonic> {
        self.patience
    }

    /// Whether a replica reports to this session.
    #[must_use]
    pub fn is_reporting(&self, replica: ReplicaId) -> bool {
        self.last.contains_key(&replica)
    }

    /// The last event that took place according to r + 1 replicas.
    fn took_place(&self) -> Option<Sequence> {
        let mut all: Vec<Sequence> = self.last.values().copied().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(self.small.checked_sub(1)?).copied()
    }

    /// The sequence up to which events are missing.
    fn missed(&self) -> Option<Sequence> {
        let before_next = self.waiting.first_key_value().map(|(_, it)| it.previous);
        let target = before_next.max(self.took_place())?;
        self.head.filter(|head| target > *head).map(|_| target)
    }

    fn revalidate(&mut self, up_to: Sequence) {
        self.news.push(Watched::Revalidate { up_to });
        self.head = Some(up_to);
    }

    fn advance(&mut self, now: Monotonic) {
        let Some(before) = self.head else {
            return;
        };
        if !self.sees && self.last.len() >= self.medium {
            self.sees = true;
            let up_to = before.max(self.took_place().unwrap_or_default());
            self.revalidate(up_to);
        }
        let mut head = self.head.unwrap_or(before);
        while let Some(next) = self.waiting.first_entry()
            && next.get().previous <= head
        {
            let event = next.remove();
            if event.sequence > head {
                head = event.sequence;
                self.news.push(Watched::Changed {
                    sequence: event.sequence,
                    watches: event.watches,
                });
            }
        }
        self.head = Some(head);
        for copies in self.single.values_mut() {
            *copies = copies.split_off(&head.next());
        }
        if self.missed().is_none() {
            self.patience = None;
        } else if head > before || self.patience.is_none() {
            self.patience = Some(now.plus(WATCH_GRACE));
        }
    }
}

#[cfg(test)]
mod tests;
