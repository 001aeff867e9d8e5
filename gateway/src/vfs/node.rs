//! One inode that is open or has something to commit.
//!
//! ```text
//!   write ──► dirty ──► ahead ──► frozen ──seal, w acknowledgements, commit──► committed
//!               ▲         │          │
//!               └─────────┴──────────┘ when a commit fails
//! ```
//!
//! What is frozen goes over in parts, from the front, if its commit takes long; only what has not
//! gone comes back when that fails.
//!
//! A reader sees dirty over what is uploaded ahead, over frozen, over committed, all as of one
//! moment. `content` is held by whoever changes committed content (a flush, a truncation), so that
//! these follow each other; readers and writers take only the short lock on the state. Attributes
//! that ride with the next commit are *pending*: they are what callers see at once.

use super::ahead::{Ahead, EarlyUpload};
use super::content::ContentMap;
use super::dirty::{DirtyRuns, FrozenRuns};
use super::keep::Tier;
use super::quota::Full;
use super::{VfsError, clock};
use crate::journal::Sequence;
use quorumfs_metadata::attributes::{Attributes, Mode, Timestamp};
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Attributes that are to be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) mode: Option<Mode>,
    pub(crate) atime: Option<Timestamp>,
    pub(crate) mtime: Option<Timestamp>,
    /// When the last of it, or of the content that it goes with, was changed.
    pub(crate) changed: Option<Timestamp>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.mode.is_none() && self.atime.is_none() && self.mtime.is_none()
    }

    /// What of `older` was not decided anew.
    fn over(self, older: Self) -> Self {
        Self {
            mode: self.mode.or(older.mode),
            atime: self.atime.or(older.atime),
            mtime: self.mtime.or(older.mtime),
            changed: self.changed.or(older.changed),
        }
    }
}

/// What a flush takes away to commit.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// What the servers have not been told yet.
    frozen: Mutex<FrozenRuns>,
    /// Where the last run ended; nothing if attributes go alone.
    pub(crate) end: Option<u64>,
    pub(crate) pending: Pending,
    /// Of some of the runs, by their offsets: taken by whoever uploads them.
    pub(crate) uploads: Mutex<BTreeMap<u64, EarlyUpload>>,
    /// The last record of it in the journal, if any is there.
    pub(crate) through: Option<Sequence>,
}

impl Departure {
    /// Attributes alone.
    pub(crate) fn of_pending(pending: Pending) -> Self {
        Self {
            pending,
            ..Self::default()
        }
    }

    fn new(frozen: &FrozenRuns, pending: Pending) -> Self {
        Self {
            frozen: Mutex::new(frozen.clone()),
            end: (!frozen.is_empty()).then(|| frozen.end()),
            pending,
            ..Self::default()
        }
    }

    fn frozen(&self) -> MutexGuard<'_, FrozenRuns> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs that the servers have not been told of yet.
    pub(crate) fn runs(&self) -> FrozenRuns {
        self.frozen().clone()
    }

    /// When it was changed: its ctime has been shown already.
    pub(crate) fn done_at(&self) -> Timestamp {
        self.pending.changed.unwrap_or_else(clock::now)
    }

    /// The uploads that have begun already.
    pub(crate) fn take_uploads(&self) -> BTreeMap<u64, EarlyUpload> {
        std::mem::take(&mut *self.uploads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug)]
pub(crate) struct State {
    /// As the servers have it, as far as we know.
    pub(crate) base: Attributes,
    pub(crate) dirty: DirtyRuns,
    /// Full runs that are uploaded before a commit wants them.
    pub(crate) ahead: Ahead,
    pub(crate) frozen: FrozenRuns,
    pub(crate) pending: Pending,
    /// Attributes on their way: still what callers see.
    pub(crate) departing: Pending,
    /// When the oldest thing that waits to be committed came.
    pub(crate) waiting_since: Option<Instant>,
    pub(crate) content: ContentMap,
    /// Open handles, and how many of them can write.
    pub(crate) handles: u32,
    pub(crate) writers: u32,
    /// The last entry is gone; the inode lives until the last handle closes.
    pub(crate) unlinked: bool,
    /// Data that had to be given up, to be reported at every close and fsync from now on.
    pub(crate) lost: Option<VfsError>,
    /// Why what waits was refused, if it was for lack of room.
    pub(crate) full: Option<Full>,
    /// The last close was told that what waits could not be committed.
    pub(crate) told: bool,
    /// Somebody was told that what waits is safe, before it was committed.
    pub(crate) promised: bool,
    /// The last record of what waits here in the journal, if any is there.
    pub(crate) kept: Option<Sequence>,
    /// The record that says that what waited before is in the clouds.
    pub(crate) settled: Option<Sequence>,
    /// Something waits that the journal has not.
    pub(crate) unkept: bool,
    /// The file's own tier, if it has one, and which version of the inode's attributes says so.
    tier: (InodeVersion, Option<Tier>),
    /// What the budget was told that this file holds, in bytes.
    pub(crate) booked: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) inode: InodeId,
    state: Mutex<State>,
    /// Held by whoever changes committed content.
    pub(crate) content: tokio::sync::Mutex<()>,
    /// Told when dirty bytes have left.
    pub(crate) left: Notify,
}

impl Node {
    pub(crate) fn new(base: Attributes, content: ContentMap) -> Self {
        Self {
            inode: base.inode,
            state: Mutex::new(State {
                base,
                dirty: DirtyRuns::default(),
                ahead: Ahead::default(),
                frozen: FrozenRuns::default(),
                pending: Pending::default(),
                departing: Pending::default(),
                waiting_since: None,
                content,
                handles: 0,
                writers: 0,
                unlinked: false,
                lost: None,
                full: None,
                told: false,
                promised: false,
                kept: None,
                settled: None,
                unkept: false,
                tier: (InodeVersion(0), None),
                booked: 0,
            }),
            content: tokio::sync::Mutex::new(()),
            left: Notify::new(),
        }
    }

    /// The short lock: never held across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether something waits to be committed.
    pub(crate) fn is_waiting(&self) -> bool {
        self.holds_written() || !self.pending.is_empty() || !self.departing.is_empty()
    }

    /// Whether content was written that is not committed yet.
    pub(crate) fn holds_written(&self) -> bool {
        !self.dirty.is_empty() || !self.ahead.runs().is_empty() || !self.frozen.is_empty()
    }

    /// Whether nothing holds on to the node any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.handles == 0 && !self.is_waiting()
    }

    /// What callers see: committed attributes with everything local over them.
    pub(crate) fn attributes(&self) -> Attributes {
        let mut seen = self.base;
        let nothing = self.ahead.runs().is_empty() && self.frozen.is_empty();
        if !self.dirty.is_empty() || !nothing {
            seen.size = self.size();
            // As an ordinary file system would count them once they are written out: what waits
            // may lie over what is kept, and then counts twice, but no more than the whole file.
            let runs = [
                self.dirty.bytes(),
                self.ahead.runs().bytes(),
                self.frozen.bytes(),
            ];
            let waiting = runs.into_iter().fold(0, u64::saturating_add);
            let at_most = seen.allocated.max(seen.size);
            seen.allocated = seen.allocated.saturating_add(waiting).min(at_most);
        }
        let pending = self.pending.over(self.departing);
        seen.mode = pending.mode.unwrap_or(seen.mode);
        seen.atime = pending.atime.unwrap_or(seen.atime);
        seen.mtime = pending.mtime.unwrap_or(seen.mtime);
        // As the commit will set it: who compares it before and after has to find no difference.
        seen.ctime = pending.changed.map_or(seen.ctime, |at| at.max(seen.ctime));
        seen
    }

    /// How long the file is with what is written here. A file is only ever cut by order, so that is
    /// as far as anything reaches.
    pub(crate) fn size(&self) -> u64 {
        let written = self.dirty.end().max(self.frozen.end());
        self.base.size.max(written).max(self.ahead.runs().end())
    }

    /// Whether the file has no bytes, here or there, so that cutting it to nothing changes none.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.base.size == 0
            && self.dirty.is_empty()
            && self.ahead.runs().is_empty()
            && self.frozen.is_empty()
            && self.content.is_empty()
    }

    /// The servers told us about the inode.
    pub(crate) fn learn(&mut self, attributes: &Attributes) {
        if attributes.version < self.base.version {
            return;
        }
        if attributes.version != self.content.version() {
            // Somebody else changed it: what we knew of its content may be wrong. What is dirty
            // here stays and will be written over it.
            self.content = ContentMap::unknown(attributes.version);
        }
        self.base = *attributes;
    }

    /// Somebody wrote, of the file's group or not, who may not keep its set-id bits.
    /// Answers whether it had any.
    pub(crate) fn drop_set_id(&mut self, in_group: bool, now: Timestamp) -> bool {
        let mode = self.attributes().mode;
        let without = mode.without_set_id(in_group);
        if without != mode {
            self.pending.mode = Some(without);
            // The write that it goes with may be on its way already.
            self.pending.changed.get_or_insert(now);
            self.wait_for_commit();
        }
        without != mode
    }

    /// The file's own tier, if it has one.
    pub(crate) fn tier(&self) -> Option<Tier> {
        self.tier.1
    }

    /// Its attributes, as of `of`, say which tier it has; newer ones may have been seen already.
    pub(crate) fn learn_tier(&mut self, of: &Attributes, tier: Option<Tier>) {
        if of.extended.changed >= self.tier.0 {
            self.tier = (of.extended.changed, tier);
        }
    }

    /// Something now waits to be committed.
    pub(crate) fn wait_for_commit(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// Takes what is to be committed; nothing if there is nothing.
    pub(crate) fn depart(&mut self) -> Option<Departure> {
        let nothing = self.dirty.is_empty() && self.ahead.runs().is_empty();
        if nothing && self.pending.is_empty() {
            return None;
        }
        let (frozen, uploads) = self.ahead.depart(&mut self.dirty);
        self.frozen = frozen;
        let pending = std::mem::take(&mut self.pending);
        self.departing = pending;
        self.waiting_since = None;
        Some(Departure {
            uploads: Mutex::new(uploads),
            through: self.kept,
            ..Departure::new(&self.frozen, pending)
        })
    }

    /// Takes aside what a truncation to nothing will make void. Callers see it until that is known
    /// to have happened; if it fails, [`State::put_back`] has it all wait again.
    pub(crate) fn set_aside(&mut self) -> Departure {
        self.ahead.put_back(&mut self.dirty);
        self.frozen = self.dirty.freeze();
        self.departing = std::mem::take(&mut self.pending);
        Departure::new(&self.frozen, self.departing)
    }

    /// The file was cut to nothing: what was set aside is void.
    pub(crate) fn cut(&mut self, attributes: &Attributes) {
        self.frozen = FrozenRuns::default();
        self.departing = Pending::default();
        self.settled_well();
        if !self.is_waiting() {
            self.waiting_since = None;
        }
        self.unkept &= self.is_waiting();
        self.resized(attributes);
    }

    /// The servers have changed the file's length: extents beyond the new end are gone, and those
    /// that cross it are shorter.
    pub(crate) fn resized(&mut self, attributes: &Attributes) {
        self.learn(attributes);
        if attributes.version == self.base.version {
            self.content = if attributes.size == 0 {
                ContentMap::empty(attributes.version)
            } else {
                ContentMap::unknown(attributes.version)
            };
        }
    }

    /// A part of the commit is done, the file's runs up to `until`: `attributes` are the committed
    /// ones. The memory of the runs goes now, since the rest may take long.
    pub(crate) fn arrive_until(
        &mut self,
        until: u64,
        departure: &Departure,
        attributes: &Attributes,
        content: &ContentMap,
    ) {
        departure.frozen().remove_until(until);
        self.frozen.remove_until(until);
        if attributes.version >= self.base.version {
            self.base = *attributes;
            self.content = content.clone();
        }
    }

    /// The commit is done: `attributes` are the committed ones.
    pub(crate) fn arrive(&mut self, attributes: &Attributes, content: ContentMap) {
        self.frozen = FrozenRuns::default();
        self.departing = Pending::default();
        self.unkept &= self.is_waiting();
        self.settled_well();
        if attributes.version >= self.base.version {
            self.base = *attributes;
            self.content = content;
        } else {
            // Somebody else changed it right after our commit, and we heard of that first.
            self.content = ContentMap::unknown(self.base.version);
        }
    }

    /// Nothing is left of what was refused or promised before.
    fn settled_well(&mut self) {
        self.full = None;
        self.told = false;
        self.promised &= self.holds_written();
    }

    /// The commit failed: everything waits again, beneath what came since.
    pub(crate) fn put_back(&mut self, departure: &Departure) {
        self.ahead.put_back(&mut self.dirty);
        let frozen = std::mem::take(&mut self.frozen);
        self.dirty.put_beneath(frozen);
        self.pending = self.pending.over(departure.pending);
        self.departing = Pending::default();
        if self.is_waiting() {
            self.wait_for_commit();
        }
    }

    /// Gives up what cannot be committed any more.
    pub(crate) fn give_up(&mut self, error: Option<VfsError>) {
        self.dirty.clear();
        self.ahead = Ahead::default();
        self.frozen = FrozenRuns::default();
        self.pending = Pending::default();
        self.departing = Pending::default();
        self.waiting_since = None;
        self.unkept = false;
        self.settled_well();
        if error.is_some() {
            self.lost = error;
        }
    }
}
