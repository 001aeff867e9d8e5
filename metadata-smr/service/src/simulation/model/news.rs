//! What a client may be told of the changes of others.
//!
//! The model does not know which sessions are alive, and so not whether an operation was logged
//! that no other mount would have been told of. But while a client has the realm mounted each
//! change of another client is logged; and each mount is told the log's end. So every change has a
//! range of positions. The news up to a position have to list what certainly lies in it, and may
//! list only what can.
//!
//! The bell has to follow the log within [`BELL_INTERVAL`] of agreed time and a tick. Clients read
//! that time now and then: what was in the log at one reading has to be told at another one that is
//! later by so much. A mount is told at once. An answer may be one from the middle of its batch, so
//! it need not know what the bell was rung for in that.

use super::Model;
use crate::identity::{InodeId, LogPosition};
use crate::limits::BELL_INTERVAL;
use crate::operation::{Compound, Step};
use crate::simulation::locks::LockNews;
use quorumfs_bft::identity::Time;
use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::rc::Rc;

/// What is kept of the past; questions about more are not judged.
const EVENTS_MAX: usize = 512;

/// The last events of the change log.
pub(super) type Events = VecDeque<Rc<MountEvent>>;

/// An event of the change log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MountEvent {
    /// A client has mounted, and was told the position of the last entry.
    Mounted {
        client: usize,
        last: u64,
        batch: u64,
    },
    /// A client may not have the realm mounted any more.
    Left { client: usize },
    /// The mount of a client is alone and was asked to share the realm.
    Recalled { client: usize },
    /// A client has changed something.
    Changed(ModelChange),
    /// Ticks may have added so many entries about the locks of an inode, or may still.
    Loose { inode: InodeId, entries: u64 },
    /// A tick has to add an entry about the locks of an inode.
    Owed { inode: InodeId },
    /// It need not.
    Waived { inode: InodeId },
    /// A client has read the agreed time.
    Clock { now: Time, batch: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModelChange {
    client: usize,
    /// Whether it learnt so. Otherwise it may have been an earlier session of the client.
    answered: bool,
    /// What has certainly changed; if this is empty, nothing may have.
    certain: BTreeSet<InodeId>,
    possible: BTreeSet<InodeId>,
}

/// An answer without a gap.
pub(super) struct Told<'a> {
    pub(super) after: LogPosition,
    pub(super) position: LogPosition,
    pub(super) inodes: &'a [InodeId],
    /// Whether there are entries behind the position that could be told too.
    pub(super) more: bool,
}

/// How far the bell has to have been rung.
#[derive(Default)]
struct RungBell {
    to: u64,
    /// The first positions of entries, with the first reading of the agreed time after each.
    owed: Vec<(u64, Option<Time>)>,
}

impl RungBell {
    fn owe(&mut self, position: u64) {
        self.owed.push((position, None));
    }

    fn pass(&mut self, now: Time) {
        let mut to = self.to;
        self.owed.retain_mut(|(position, since)| {
            let is_due = since.is_some_and(|since| since.plus(BELL_INTERVAL) <= now);
            if is_due {
                to = to.max(*position);
            }
            since.get_or_insert(now);
            !is_due
        });
        self.to = to;
    }
}

/// An entry that a tick has to add.
struct OwedEntry {
    inode: InodeId,
    /// Its position is one of these, once the bell has to have been rung for it.
    first: u64,
    last: Option<u64>,
    /// The first reading of the agreed time since it is owed.
    since: Option<Time>,
}

impl OwedEntry {
    fn pass(&mut self, now: Time, high: u64) {
        let since = *self.since.get_or_insert(now);
        if since.plus(BELL_INTERVAL) <= now {
            self.last.get_or_insert(high);
        }
    }

    /// Whether news have to list it.
    fn is_within(&self, told: &Told<'_>) -> bool {
        let within = |last| told.after.0 < self.first && last <= told.position.0;
        self.last.is_some_and(within)
    }
}

impl Model {
    /// What comes next is executed in this batch, or shows the state after it.
    pub const fn begin_batch(&mut self, batch: u64) {
        self.batch = batch;
    }

    pub(super) fn happened(&mut self, event: MountEvent) {
        if !self.keeps_events {
            return;
        }
        self.events.push_back(Rc::new(event));
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// Whether a mount of `client` can be told that the log ends at `last`.
    pub(super) fn mounts_at(&mut self, client: usize, last: LogPosition) -> bool {
        let last = last.0;
        let mut end: Option<RangeInclusive<u64>> = None;
        for event in &self.events {
            end = match (&**event, end) {
                (MountEvent::Mounted { last, .. }, _) => Some(*last..=*last),
                (MountEvent::Changed(_), Some(end)) => {
                    Some(*end.start()..=end.end().saturating_add(1))
                }
                (_, end) => end,
            };
        }
        let loose = self.loose().1;
        let batch = self.batch;
        self.happened(MountEvent::Mounted {
            client,
            last,
            batch,
        });
        end.is_none_or(|end| (*end.start()..=end.end().saturating_add(loose)).contains(&last))
    }

    /// A compound was executed: `shown` are the inodes of its steps' replies.
    pub(super) fn changes(
        &mut self,
        (client, answered): (usize, bool),
        compound: &Compound,
        shown: &[Vec<InodeId>],
        first_new: u64,
    ) {
        let mut certain = BTreeSet::new();
        let mut possible = BTreeSet::new();
        for (step, shown) in compound.steps.iter().zip(shown) {
            possible.extend(shown.iter().copied());
            match (step, shown.as_slice()) {
                // It may have existed.
                (Step::Create(_), [inode, parent]) => {
                    let is_new = inode.0 >= first_new;
                    certain.extend(is_new.then_some(*parent));
                }
                // The two names may have been links to one inode.
                (Step::Rename(_), [_, _, _]) => {}
                _ => certain.extend(shown.iter().copied()),
            }
        }
        certain.retain(|inode| inode.0 < first_new);
        if !possible.is_empty() {
            self.happened(MountEvent::Changed(ModelChange {
                client,
                answered,
                certain,
                possible,
            }));
        }
    }

    /// Whether `client` can be told that its mount is not recalled. A recall lasts until the mount
    /// shares or ends.
    pub(super) fn may_be_unrecalled(&self, client: usize) -> bool {
        let last = self.events.iter().rev().find_map(|event| match &**event {
            MountEvent::Mounted { client: by, .. } | MountEvent::Left { client: by } => {
                (*by == client).then_some(true)
            }
            MountEvent::Recalled { client: by } => (*by == client).then_some(false),
            _ => None,
        });
        last.unwrap_or(true)
    }

    /// An operation of a client, or a tick, may have told mounts of locks.
    pub fn tells_of_locks(&mut self, (client, answered): (usize, bool), news: &LockNews) {
        match *news {
            LockNews::Loose { inode, entries } => {
                self.happened(MountEvent::Loose { inode, entries });
            }
            LockNews::Owed { inode } => self.happened(MountEvent::Owed { inode }),
            LockNews::Waived { inode } => self.happened(MountEvent::Waived { inode }),
            LockNews::Entry {
                inode,
                certain,
                own,
            } => {
                let possible = BTreeSet::from([inode]);
                self.happened(MountEvent::Changed(ModelChange {
                    client,
                    answered: answered && !own,
                    certain: match certain {
                        true => possible.clone(),
                        false => BTreeSet::new(),
                    },
                    possible,
                }));
            }
        }
    }

    /// The inodes of entries that may be anywhere, and the number of those entries.
    fn loose(&self) -> (BTreeSet<InodeId>, u64) {
        let mut inodes = BTreeSet::new();
        let mut number = 0_u64;
        for event in &self.events {
            if let MountEvent::Loose { inode, entries } = &**event {
                inodes.insert(*inode);
                number = number.saturating_add(*entries);
            }
        }
        (inodes, number)
    }

    /// Whether `client` can be told this.
    pub(super) fn may_tell(&self, client: usize, told: &Told<'_>) -> bool {
        let mut since = None;
        for (index, event) in self.events.iter().enumerate() {
            match &**event {
                MountEvent::Mounted {
                    client: by, last, ..
                } if *by == client => {
                    since = Some((index, *last));
                }
                MountEvent::Left { client: by } if *by == client => since = None,
                _ => {}
            }
        }
        let (after, to) = (told.after.0, told.position.0);
        let Some((index, begin)) = since.filter(|(_, begin)| *begin <= after) else {
            return true;
        };
        let (mut possible, loose) = self.loose();
        let (mut low, mut high) = (begin, begin.saturating_add(loose));
        let mut bell = RungBell::default();
        let mut owed: Vec<OwedEntry> = Vec::new();
        for event in self.events.iter().skip(index) {
            match &**event {
                MountEvent::Mounted { last, batch, .. } => {
                    (low, high) = (*last, last.saturating_add(loose));
                    if *batch < self.batch {
                        bell.to = bell.to.max(*last);
                    }
                }
                MountEvent::Left { .. }
                | MountEvent::Recalled { .. }
                | MountEvent::Loose { .. } => {}
                MountEvent::Clock { now, batch } => {
                    if *batch < self.batch {
                        bell.pass(*now);
                    }
                    owed.iter_mut().for_each(|it| it.pass(*now, high));
                }
                MountEvent::Owed { inode } => owed.push(OwedEntry {
                    inode: *inode,
                    first: low.saturating_add(1),
                    last: None,
                    since: None,
                }),
                MountEvent::Waived { inode } => {
                    owed.retain(|it| it.inode != *inode || it.last.is_some());
                }
                MountEvent::Changed(changed) => {
                    let first = low.saturating_add(1);
                    high = high.saturating_add(1);
                    let is_own = changed.client == client;
                    if !is_own && !changed.certain.is_empty() {
                        low = first;
                        bell.owe(first);
                        let listed = |inode| told.inodes.contains(inode);
                        let is_within = first > after && high <= to;
                        if is_within && !changed.certain.iter().all(listed) {
                            return false;
                        }
                    }
                    if !(is_own && changed.answered) && high > after && first <= to {
                        possible.extend(&changed.possible);
                    }
                }
            }
        }
        let mut owed = owed.iter().filter(|it| it.is_within(told));
        if !owed.all(|it| told.inodes.contains(&it.inode)) {
            return false;
        }
        let rung = told.more || bell.to <= to;
        let is_within = after <= to && to <= high;
        rung && is_within && told.inodes.iter().all(|inode| possible.contains(inode))
    }
}
