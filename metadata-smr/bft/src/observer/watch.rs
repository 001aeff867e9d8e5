//! Changes of rows that a session asked to be told of.
//!
//! ```text
//!   RequestOperation::Watch ── ordered ──► WatchAnswer{watch, first, last}     at an agreed sequence
//!   a batch changes rows under its prefixes ──► WatchEvent{sequence, previous, watches}
//!                                                     │ r + 1 equal copies
//!                  Chain: … ◄─previous─ event ◄─previous─ event   a gap ──► Revalidate
//! ```
//!
//! A watch lives in the replicated state, belongs to its session and ends with it. If a batch
//! changes anything that a session watches, there is one event for the session: the batch's
//! sequence, that of the session's event before it, and the watches that it is about, ascending (a
//! watch's index in the batch is its place in that list). All of it follows from the order, so the
//! copies of correct replicas are equal, also after a restart or a transfer. A row counts as
//! changed if it was written, even to the same value. A watch that was registered in a batch may be
//! told of what that batch wrote before it, too.
//!
//! # What always holds
//!
//! * An event is handed on when r + 1 replicas sent the same: one of them is correct, and it
//!   happened.
//! * Events are handed on in order and once, each with its predecessor handed on or covered by a
//!   [`Watched::Revalidate`].
//! * As long as n − u correct replicas are connected, every event is handed on or covered before
//!   long. Replicas say every second which event was the last: the (r+1)-th highest of these is
//!   one that took place, or lies below one.
//! * Whoever revalidates reads a state that is at least as new as the revalidation says, and
//!   whoever was told of an event one that has it: the client asks no older one from then on, also
//!   where a quorum of replicas has not executed it yet.
//!
//! # What can go wrong
//!
//! Too few replicas are connected: [`Watched::Blind`], and a revalidation once there are enough
//! again. Copies are lost, or their senders took the state over instead of executing it: what is
//! missing is waited for [`WATCH_GRACE`] and then covered by a revalidation.

use crate::fault_model::FaultModel;
use crate::identity::{Monotonic, ReplicaId, Sequence, SessionId};
use crate::sabotage::Flag;
use crate::wire::limits::{WATCH_EVENTS_KEPT, WATCH_GRACE};
use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A watch; given out by order, and never again.
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

/// What an attempt to watch came to: the result of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum WatchAnswer {
    /// From now on.
    Watching {
        /// Its name.
        watch: WatchId,
        /// Whether it is the session's only one.
        first: bool,
        /// The session's last event so far; for a session's only one what stands for it.
        last: Sequence,
    },
    /// The service does not allow it, or knows nothing of the kind.
    Refused,
    /// The session, or all of them together, have as many as there may be.
    TooMany,
    /// The watch has ended.
    Ended,
    /// There was none of that name.
    Unknown,
}

impl WatchAnswer {
    /// As the result of an operation.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(24);
        // Writing into a vector cannot fail.
        let _ = self.serialize(&mut bytes);
        bytes.into()
    }

    /// Reads the result of an operation.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        borsh::from_slice(bytes).ok()
    }
}

/// Asks a replica to tell what happens, for as long as the connection lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observe {
    /// Whether to send reports.
    pub reports: bool,
    /// Whose watches to tell of, if of any. The transport knows that it is the asker's.
    pub session: Option<SessionId>,
}

/// What a replica says to an observer about the observing: at once, and every second to those who
/// watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It tells what happens.
    Accepted {
        /// The last sequence that it has executed.
        applied: Sequence,
        /// The session's last event up to there; none if it watches nothing.
        last: Option<Sequence>,
    },
    /// It does not.
    Refused(Refusal),
}

/// Why a replica does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As many observe it as may.
    #[error("as many observe this replica as may")]
    Full,
    /// It knows no such session; it may be behind.
    #[error("this replica knows no such session, or not yet")]
    NoSession,
}

/// A batch changed what a session watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// Whose watches.
    pub session: SessionId,
    /// The batch.
    pub sequence: Sequence,
    /// The session's event before this one.
    pub previous: Sequence,
    /// Which of them, ascending.
    pub watches: Vec<WatchId>,
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// What these watches cover has changed.
    Changed {
        /// In this batch.
        sequence: Sequence,
        /// Ascending.
        watches: Vec<WatchId>,
    },
    /// Something was missed, or may have been: look at everything that is watched.
    Revalidate {
        /// What happened up to here is covered.
        up_to: Sequence,
    },
    /// Too few replicas are connected: nothing may be told until there are more, and then there
    /// will be a revalidation.
    Blind,
}

/// A session's events, from what replicas send to what is handed on.
#[derive(Debug)]
pub struct Chain {
    small: usize,
    medium: usize,
    /// Copies that are believed; more than [`Chain::small`] never are.
    copies: usize,
    /// Everything up to here has been handed on or covered; none while nothing is watched.
    head: Option<Sequence>,
    /// The watches that there are.
    watches: BTreeSet<WatchId>,
    /// Copies that lack equals, by sender.
    single: BTreeMap<ReplicaId, BTreeMap<Sequence, WatchEvent>>,
    /// Events that wait for their predecessors.
    waiting: BTreeMap<Sequence, WatchEvent>,
    /// What each connected replica that tells says the last event was.
    last: BTreeMap<ReplicaId, Sequence>,
    /// Whether enough of them tell.
    sees: bool,
    /// When what is missing counts as lost.
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

    /// One that has a simulation's defect, if the flag is set: it believes a single replica.
    #[must_use]
    pub fn sabotaged(model: &FaultModel, believes_one: Flag) -> Self {
        let mut chain = Self::new(model);
        if believes_one.is_set() {
            chain.copies = 1;
        }
        chain
    }

    /// Takes what there is to hand on, oldest first.
    pub fn take(&mut self) -> Vec<Watched> {
        std::mem::take(&mut self.news)
    }

    /// An attempt to watch, or to end a watch, was answered.
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

    /// A watch has ended by its owner's wish.
    pub fn ended(&mut self, watch: WatchId) {
        self.watches.remove(&watch);
        if self.watches.is_empty() {
            self.head = None;
            self.waiting.clear();
            self.single.clear();
            self.patience = None;
        }
    }

    /// A replica says where it stands with the session.
    pub fn standing(&mut self, replica: ReplicaId, observed: &Observed, now: Monotonic) {
        match *observed {
            Observed::Refused(_) => self.lost(replica),
            Observed::Accepted { last, .. } => {
                self.last.insert(replica, last.unwrap_or_default());
                self.advance(now);
            }
        }
    }

    /// The watcher knows a later epoch now, in which replicas have other numbers: whatever lacks a
    /// second copy is void, and each of them has to say again where it stands.
    pub fn enter(&mut self, model: &FaultModel) {
        let all: Vec<ReplicaId> = self.last.keys().copied().collect();
        for replica in all {
            self.lost(replica);
        }
        self.single.clear();
        let believes_one = self.copies < self.small;
        self.small = model.small().into();
        self.medium = model.medium().into();
        self.copies = if believes_one { 1 } else { self.small };
    }

    /// A replica does not tell any more.
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

    /// A replica tells of an event.
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

    /// The session has ended, and its watches with it.
    pub fn reset(&mut self) {
        self.watches.clear();
        self.head = None;
        self.waiting.clear();
        self.single.clear();
        self.last.clear();
        self.sees = false;
        self.patience = None;
    }

    /// What was waited for long enough is covered by a revalidation.
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

    /// When that will be.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Monotonic> {
        self.patience
    }

    /// Whether a replica tells this session what happens.
    #[must_use]
    pub fn hears(&self, replica: ReplicaId) -> bool {
        self.last.contains_key(&replica)
    }

    /// What r + 1 replicas say took place.
    fn took_place(&self) -> Option<Sequence> {
        let mut all: Vec<Sequence> = self.last.values().copied().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(self.small.checked_sub(1)?).copied()
    }

    /// Up to where something is missing.
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
mod tests {
    use super::*;

    const NOW: Monotonic = Monotonic(0);

    struct Watcher(Chain);

    impl Watcher {
        /// Watches from sequence 10 on; three replicas tell it.
        fn new() -> Self {
            let mut chain = Chain::new(&FaultModel::new(1, 1, 4).unwrap());
            let answer = WatchAnswer::Watching {
                watch: WatchId(1),
                first: true,
                last: Sequence(9),
            };
            chain.answered(&answer, NOW);
            let mut watcher = Self(chain);
            for replica in 0..3 {
                watcher.stands(replica, 0);
            }
            assert_eq!(watcher.told(), [revalidate(9)]);
            watcher
        }

        fn stands(&mut self, replica: u16, last: u64) {
            let observed = Observed::Accepted {
                applied: Sequence(last),
                last: Some(Sequence(last)),
            };
            self.0.standing(ReplicaId(replica), &observed, NOW);
        }

        fn hears(&mut self, replica: u16, sequence: u64, previous: u64) {
            let event = WatchEvent {
                session: SessionId(5),
                sequence: Sequence(sequence),
                previous: Sequence(previous),
                watches: vec![WatchId(1)],
            };
            self.0.event(ReplicaId(replica), event, NOW);
        }

        fn told(&mut self) -> Vec<Watched> {
            self.0.take()
        }

        fn waits(&mut self) -> Vec<Watched> {
            assert_eq!(self.told(), []);
            self.0.expire(NOW.plus(WATCH_GRACE));
            self.told()
        }
    }

    fn changed(sequence: u64) -> Watched {
        Watched::Changed {
            sequence: Sequence(sequence),
            watches: vec![WatchId(1)],
        }
    }

    fn revalidate(up_to: u64) -> Watched {
        let up_to = Sequence(up_to);
        Watched::Revalidate { up_to }
    }

    #[test]
    fn an_event_counts_with_two_equal_copies_and_once() {
        let mut watcher = Watcher::new();
        watcher.hears(0, 12, 9);
        watcher.hears(0, 12, 9);
        assert_eq!(watcher.told(), [], "one replica twice is one");
        watcher.hears(1, 12, 8);
        assert_eq!(watcher.told(), [], "and another chain another event");
        watcher.hears(2, 12, 9);
        assert_eq!(watcher.told(), [changed(12)]);
        watcher.hears(1, 12, 9);
        watcher.hears(3, 12, 9);
        assert_eq!(watcher.told(), []);
    }

    #[test]
    fn events_wait_for_their_predecessors() {
        let mut watcher = Watcher::new();
        watcher.hears(0, 12, 9);
        for replica in [1, 3] {
            watcher.hears(replica, 15, 12);
        }
        assert_eq!(watcher.told(), [], "one who withholds does not make a gap");
        watcher.hears(2, 12, 9);
        assert_eq!(watcher.told(), [changed(12), changed(15)]);
        assert_eq!(watcher.0.next_deadline(), None);
    }

    #[test]
    fn a_predecessor_that_does_not_come_is_covered() {
        let mut watcher = Watcher::new();
        for replica in [1, 2] {
            watcher.hears(replica, 15, 12);
        }
        assert_eq!(watcher.waits(), [revalidate(12), changed(15)]);
        assert_eq!(watcher.waits(), []);
        watcher.hears(0, 12, 9);
        watcher.hears(3, 12, 9);
        assert_eq!(watcher.told(), [], "what is covered is not told again");
    }

    #[test]
    fn a_last_event_that_does_not_come_is_covered_too() {
        let mut watcher = Watcher::new();
        watcher.stands(3, u64::MAX);
        assert_eq!(watcher.waits(), [], "a liar alone says nothing");
        watcher.stands(0, 20);
        assert_eq!(watcher.waits(), [revalidate(20)]);
        for replica in [1, 2] {
            watcher.hears(replica, 22, 20);
        }
        assert_eq!(watcher.told(), [changed(22)]);
    }

    #[test]
    fn too_few_who_tell_make_a_watcher_blind_until_it_looks_again() {
        let mut watcher = Watcher::new();
        watcher.0.lost(ReplicaId(0));
        watcher.0.lost(ReplicaId(0));
        assert_eq!(watcher.told(), [Watched::Blind]);
        for replica in [1, 2] {
            watcher.hears(replica, 12, 9);
        }
        assert_eq!(watcher.told(), [changed(12)], "two are enough to believe");
        watcher.stands(1, 12);
        watcher.stands(2, 12);
        watcher.stands(0, 17);
        assert_eq!(watcher.told(), [revalidate(12)]);
    }

    #[test]
    fn a_copy_under_an_old_number_does_not_count_in_the_next_epoch() {
        let mut watcher = Watcher::new();
        watcher.hears(3, 12, 9);
        watcher.0.enter(&FaultModel::new(1, 1, 4).unwrap());
        watcher.hears(2, 12, 9);
        assert_eq!(watcher.told(), [Watched::Blind], "it may be the same one");
        for replica in 0..3 {
            watcher.stands(replica, 9);
        }
        assert_eq!(watcher.told(), [revalidate(9)]);
        watcher.hears(0, 12, 9);
        assert_eq!(watcher.told(), [changed(12)]);
    }

    #[test]
    fn what_a_liar_invents_costs_its_own_room() {
        let mut watcher = Watcher::new();
        watcher.hears(0, 12, 9);
        for sequence in 100..100 + 10 * WATCH_EVENTS_KEPT as u64 {
            watcher.hears(3, sequence, sequence - 1);
        }
        let kept = watcher.0.single.values().map(BTreeMap::len);
        assert!(kept.max() <= Some(WATCH_EVENTS_KEPT));
        watcher.hears(1, 12, 9);
        assert_eq!(watcher.told(), [changed(12)]);
    }

    #[test]
    fn a_chain_ends_with_its_last_watch_and_begins_anew() {
        let mut watcher = Watcher::new();
        watcher.0.ended(WatchId(1));
        watcher.stands(0, 12);
        watcher.stands(1, 12);
        assert_eq!(watcher.waits(), []);
        let answer = WatchAnswer::Watching {
            watch: WatchId(2),
            first: true,
            last: Sequence(29),
        };
        watcher.0.answered(&answer, NOW);
        assert_eq!(
            watcher.told(),
            [],
            "it may read now, and will be told from now on"
        );
        watcher.hears(0, 31, 29);
        watcher.hears(1, 31, 29);
        assert_eq!(watcher.told(), [changed(31)]);
    }
}
