//! One inode that is open or has something to commit.
//!
//! ```text
//!   write ──► dirty ──► early ──► frozen ──seal, w acknowledgements, commit──► committed
//!               ▲         │          │
//!               └─────────┴──────────┘ when a commit fails
//! ```
//!
//! Frozen runs are committed in parts, from the front, if the commit takes long; if it fails, only
//! the uncommitted rest comes back.
//!
//! A reader sees dirty over early uploads over frozen over committed runs, all as of one moment. A
//! flush or truncation holds `content` while it changes committed content, so that these follow
//! each other; readers and writers take only the short lock on the state. Attributes that ride with
//! the next commit are *pending*: callers see them at once.

use super::commit_state::CommitState;
use super::dirty::{DirtyRuns, FrozenRuns};
use super::early_upload::{EarlyUpload, EarlyUploads};
use super::full::Full;
use crate::clock;
use crate::error::VfsError;
use crate::journal::Sequence;
use crate::vfs::known::ContentMap;
use crate::vfs::services::Tier;
use quorumfs_metadata::attributes::{Attributes, Mode, Timestamp};
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Attributes that wait for a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::vfs) struct Pending {
    pub(in crate::vfs) mode: Option<Mode>,
    pub(in crate::vfs) atime: Option<Timestamp>,
    pub(in crate::vfs) mtime: Option<Timestamp>,
    /// When the last of them, or the content that they ride with, was changed.
    pub(in crate::vfs) changed: Option<Timestamp>,
}

impl Pending {
    pub(in crate::vfs) fn is_empty(&self) -> bool {
        self.mode.is_none() && self.atime.is_none() && self.mtime.is_none()
    }

    /// With the attributes of `older` that are not set here.
    fn over(self, older: Self) -> Self {
        Self {
            mode: self.mode.or(older.mode),
            atime: self.atime.or(older.atime),
            mtime: self.mtime.or(older.mtime),
            changed: self.changed.or(older.changed),
        }
    }
}

/// What a flush takes to commit.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Departure {
    /// Runs that are not committed yet.
    frozen: Mutex<FrozenRuns>,
    /// Where the last run ended; `None` for attributes alone.
    pub(in crate::vfs) end: Option<u64>,
    pub(in crate::vfs) pending: Pending,
    /// Early uploads of some of the runs, by their offsets, until they are taken.
    pub(in crate::vfs) uploads: Mutex<BTreeMap<u64, EarlyUpload>>,
    /// Its last record in the journal, if there is one.
    pub(in crate::vfs) through: Option<Sequence>,
}

impl Departure {
    /// For attributes alone.
    pub(in crate::vfs) fn of_pending(pending: Pending) -> Self {
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

    /// The runs that are not committed yet.
    pub(in crate::vfs) fn runs(&self) -> FrozenRuns {
        self.frozen().clone()
    }

    /// When it was changed: callers have seen this ctime already.
    pub(in crate::vfs) fn done_at(&self) -> Timestamp {
        self.pending.changed.unwrap_or_else(clock::now)
    }

    /// Takes the uploads that have begun already.
    pub(in crate::vfs) fn take_uploads(&self) -> BTreeMap<u64, EarlyUpload> {
        std::mem::take(&mut *self.uploads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug)]
pub(in crate::vfs) struct NodeState {
    /// The servers' attributes, as far as known.
    pub(in crate::vfs) base: Attributes,
    pub(in crate::vfs) dirty: DirtyRuns,
    /// Full runs that are uploaded before a commit needs them.
    pub(in crate::vfs) early_uploads: EarlyUploads,
    pub(in crate::vfs) pending: Pending,
    /// What has departed with the commit under way: callers still see it.
    commit: CommitState,
    /// Since when the oldest pending change has waited for its commit.
    pub(in crate::vfs) waiting_since: Option<Instant>,
    pub(in crate::vfs) content: ContentMap,
    /// Open handles, and how many of them can write.
    pub(in crate::vfs) handles: u32,
    pub(in crate::vfs) writers: u32,
    /// Others changed the content while it was open here: the kernel may have pages from before.
    pub(in crate::vfs) pages_mixed: bool,
    /// The version that others made last while it was open here, and the one since which the kernel
    /// has no older pages.
    changed_by_others: InodeVersion,
    pages_since: InodeVersion,
    /// Some of what waits has to be committed before another mount is let in.
    pub(in crate::vfs) commits_before_sharing: bool,
    /// The last entry is gone; the inode lives until the last handle closes.
    pub(in crate::vfs) unlinked: bool,
    /// Data was given up; every close and fsync reports it from now on.
    pub(in crate::vfs) lost: Option<VfsError>,
    /// Why a quota refused pending data, if it did.
    pub(in crate::vfs) full: Option<Full>,
    /// The last close reported that pending data could not be committed.
    pub(in crate::vfs) close_failed: bool,
    /// Pending data was promised to be safe before its commit.
    pub(in crate::vfs) promised: bool,
    /// The last record of pending data in the journal, if there is one.
    pub(in crate::vfs) journalled: Option<Sequence>,
    /// The record that says that earlier data is in the clouds.
    pub(in crate::vfs) settled: Option<Sequence>,
    /// Some pending data is not in the journal.
    pub(in crate::vfs) unjournalled: bool,
    /// The file's own tier, if it has one, and the version of the inode's attributes that says so.
    tier: (InodeVersion, Option<Tier>),
    /// The bytes of this file in the budget.
    pub(in crate::vfs) booked: u64,
}

/// The right to change committed content.
pub(in crate::vfs) type ContentGuard<'a> = tokio::sync::MutexGuard<'a, ()>;

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct Node {
    pub(in crate::vfs) inode: InodeId,
    state: Mutex<NodeState>,
    /// Held while committed content changes.
    content: tokio::sync::Mutex<()>,
    /// Notified when dirty bytes have departed.
    pub(in crate::vfs) left: Notify,
}

impl Node {
    pub(in crate::vfs) fn new(base: Attributes, content: ContentMap) -> Self {
        Self {
            inode: base.inode,
            state: Mutex::new(NodeState {
                base,
                dirty: DirtyRuns::default(),
                early_uploads: EarlyUploads::default(),
                pending: Pending::default(),
                commit: CommitState::default(),
                waiting_since: None,
                content,
                handles: 0,
                writers: 0,
                pages_mixed: false,
                changed_by_others: InodeVersion(0),
                pages_since: InodeVersion(0),
                commits_before_sharing: false,
                unlinked: false,
                lost: None,
                full: None,
                close_failed: false,
                promised: false,
                journalled: None,
                settled: None,
                unjournalled: false,
                tier: (InodeVersion(0), None),
                booked: 0,
            }),
            content: tokio::sync::Mutex::new(()),
            left: Notify::new(),
        }
    }

    /// Waits until committed content may be changed: by one at a time, for as long as the result
    /// is held.
    pub(in crate::vfs) async fn change(&self) -> ContentGuard<'_> {
        self.content.lock().await
    }

    /// Whether committed content is being changed: most likely by a commit.
    pub(in crate::vfs) fn is_changing(&self) -> bool {
        self.content.try_lock().is_err()
    }

    /// The short lock: never held across an await.
    pub(in crate::vfs) fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeState {
    /// Runs that have departed with the commit under way.
    pub(in crate::vfs) fn frozen(&self) -> &FrozenRuns {
        self.commit.runs()
    }

    /// Whether something waits to be committed.
    pub(in crate::vfs) fn is_waiting(&self) -> bool {
        self.holds_written() || !self.pending.is_empty() || !self.commit.attributes().is_empty()
    }

    /// Whether there is uncommitted content.
    pub(in crate::vfs) fn holds_written(&self) -> bool {
        !self.dirty.is_empty() || !self.early_uploads.runs().is_empty() || !self.frozen().is_empty()
    }

    /// Whether the node is neither open nor dirty.
    pub(in crate::vfs) fn is_idle(&self) -> bool {
        self.handles == 0 && !self.is_waiting()
    }

    /// The attributes that callers see: committed ones with local changes over them.
    pub(in crate::vfs) fn attributes(&self) -> Attributes {
        let mut seen = self.base;
        let nothing = self.early_uploads.runs().is_empty() && self.frozen().is_empty();
        if !self.dirty.is_empty() || !nothing {
            seen.size = self.size();
            // As a local file system would count them after write-back: pending data may overlap
            // committed data and then counts twice, but no more than the whole file.
            let runs = [
                self.dirty.bytes(),
                self.early_uploads.runs().bytes(),
                self.frozen().bytes(),
            ];
            let waiting = runs.into_iter().fold(0, u64::saturating_add);
            let at_most = seen.allocated.max(seen.size);
            seen.allocated = seen.allocated.saturating_add(waiting).min(at_most);
        }
        let pending = self.pending.over(self.commit.attributes());
        seen.mode = pending.mode.unwrap_or(seen.mode);
        seen.atime = pending.atime.unwrap_or(seen.atime);
        seen.mtime = pending.mtime.unwrap_or(seen.mtime);
        // As the commit will set it, so that it is the same before and after.
        seen.ctime = pending.changed.map_or(seen.ctime, |at| at.max(seen.ctime));
        seen
    }

    /// The file's length with uncommitted writes. A file is shortened only by an ordered operation,
    /// so no run reaches beyond that.
    pub(in crate::vfs) fn size(&self) -> u64 {
        let written = self.dirty.end().max(self.frozen().end());
        self.base
            .size
            .max(written)
            .max(self.early_uploads.runs().end())
    }

    /// Whether the file has no bytes at all, so that truncating it changes none.
    pub(in crate::vfs) fn holds_nothing(&self) -> bool {
        self.base.size == 0
            && self.dirty.is_empty()
            && self.early_uploads.runs().is_empty()
            && self.frozen().is_empty()
            && self.content.is_empty()
    }

    /// The present version, if the kernel may have pages from before others have changed the file.
    /// It may until [`NodeState::dropped_pages`]: several processes may ask at the same time.
    pub(in crate::vfs) fn old_pages(&self) -> Option<InodeVersion> {
        (self.changed_by_others > self.pages_since).then_some(self.base.version)
    }

    /// The kernel has dropped all pages from before this version.
    pub(in crate::vfs) fn dropped_pages(&mut self, version: InodeVersion) {
        self.pages_since = self.pages_since.max(version);
    }

    /// Enters attributes from the servers.
    pub(in crate::vfs) fn learn(&mut self, attributes: &Attributes) {
        if attributes.version < self.base.version {
            return;
        }
        if attributes.version != self.content.version() {
            // Another client changed it: the known content may be wrong. Dirty data stays and will
            // be written over it.
            self.content = ContentMap::unknown(attributes.version);
            self.pages_mixed = true;
            self.changed_by_others = attributes.version;
        }
        self.base = *attributes;
    }

    /// A writer, in the file's group or not, may not keep its set-id bits. Returns whether it had
    /// any.
    pub(in crate::vfs) fn drop_set_id(&mut self, in_group: bool, now: Timestamp) -> bool {
        let mode = self.attributes().mode;
        let without = mode.without_set_id(in_group);
        if without != mode {
            self.pending.mode = Some(without);
            // The write that it rides with may have departed already.
            self.pending.changed.get_or_insert(now);
            self.wait_for_commit();
        }
        without != mode
    }

    /// The file's own tier, if it has one.
    pub(in crate::vfs) fn tier(&self) -> Option<Tier> {
        self.tier.1
    }

    /// Its attributes, as of `of`, say which tier it has; newer ones may have been seen already.
    pub(in crate::vfs) fn learn_tier(&mut self, of: &Attributes, tier: Option<Tier>) {
        if of.extended.changed >= self.tier.0 {
            self.tier = (of.extended.changed, tier);
        }
    }

    /// Something now waits to be committed.
    pub(in crate::vfs) fn wait_for_commit(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// Takes everything that waits to be committed; `None` if nothing does.
    pub(in crate::vfs) fn depart(&mut self) -> Option<Departure> {
        let nothing = self.dirty.is_empty() && self.early_uploads.runs().is_empty();
        if nothing && self.pending.is_empty() {
            return None;
        }
        let (frozen, uploads) = self.early_uploads.depart(&mut self.dirty);
        let pending = std::mem::take(&mut self.pending);
        let departure = Departure::new(&frozen, pending);
        self.commit = CommitState::Departed {
            runs: frozen,
            attributes: pending,
        };
        self.waiting_since = None;
        Some(Departure {
            uploads: Mutex::new(uploads),
            through: self.journalled,
            ..departure
        })
    }

    /// Takes aside data that a truncation to nothing will make void. Callers see it until the
    /// truncation is certain; if that fails, [`NodeState::put_back`] makes it pending again.
    pub(in crate::vfs) fn set_aside(&mut self) -> Departure {
        self.early_uploads.put_back(&mut self.dirty);
        let (runs, attributes) = (self.dirty.freeze(), std::mem::take(&mut self.pending));
        let departure = Departure::new(&runs, attributes);
        self.commit = CommitState::Departed { runs, attributes };
        departure
    }

    /// The file was truncated to nothing: data that was taken aside is void.
    pub(in crate::vfs) fn cut(&mut self, attributes: &Attributes) {
        self.commit.end();
        self.clear_refusals();
        if !self.is_waiting() {
            self.waiting_since = None;
        }
        self.unjournalled &= self.is_waiting();
        self.resized(attributes);
    }

    /// The servers have changed the file's length: extents beyond the new end are gone, and those
    /// that cross it are shorter.
    pub(in crate::vfs) fn resized(&mut self, attributes: &Attributes) {
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
    /// ones. The memory of the runs is freed now, since the rest may take long.
    pub(in crate::vfs) fn arrive_until(
        &mut self,
        until: u64,
        departure: &Departure,
        attributes: &Attributes,
        content: &ContentMap,
    ) {
        departure.frozen().remove_until(until);
        self.commit.committed_until(until);
        if attributes.version >= self.base.version {
            self.base = *attributes;
            self.content = content.clone();
        }
    }

    /// The commit is done: `attributes` are the committed ones.
    pub(in crate::vfs) fn arrive(&mut self, attributes: &Attributes, content: ContentMap) {
        self.commit.end();
        self.unjournalled &= self.is_waiting();
        self.clear_refusals();
        if attributes.version >= self.base.version {
            self.base = *attributes;
            self.content = content;
        } else {
            // Another client changed it right after our commit, and that answer came first.
            self.content = ContentMap::unknown(self.base.version);
            self.pages_mixed = true;
            self.changed_by_others = self.base.version;
        }
    }

    /// Clears refusals and promises of earlier data.
    fn clear_refusals(&mut self) {
        self.full = None;
        self.close_failed = false;
        self.promised &= self.holds_written();
        self.commits_before_sharing &= self.holds_written();
    }

    /// The commit failed: its data is pending again, beneath newer data.
    pub(in crate::vfs) fn put_back(&mut self, departure: &Departure) {
        self.early_uploads.put_back(&mut self.dirty);
        self.dirty.put_beneath(self.commit.end());
        self.pending = self.pending.over(departure.pending);
        if self.is_waiting() {
            self.wait_for_commit();
        }
    }

    /// Gives up data that cannot be committed any more.
    pub(in crate::vfs) fn give_up(&mut self, error: Option<VfsError>) {
        self.dirty.clear();
        self.early_uploads = EarlyUploads::default();
        self.commit.end();
        self.pending = Pending::default();
        self.waiting_since = None;
        self.unjournalled = false;
        self.clear_refusals();
        if error.is_some() {
            self.lost = error;
        }
    }
}
