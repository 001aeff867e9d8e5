//! A journal's data after a crash, and putting it in place.
//!
//! *In place* means as if it had just been written: it is visible at once, pending in memory and in
//! the journal, and committed in the background, so that a mount is ready while the clouds are
//! down. What must not go in place is rescued (`vfs/rescue.rs`).

use super::owner::Writeback;
use crate::clock;
use crate::error::VfsError;
use crate::journal::{
    Disk, Entry, Journal, JournalError, JournalOptions, Record, Recovered, Sequence,
};
use crate::keys::Secret;
use crate::vfs::files::{DirtyRuns, Node, Pending};
use crate::vfs::known::ContentMap;
use crate::vfs::services::Tier;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::{InodeId, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An open journal with its pending data.
#[derive(Debug)]
pub struct Replay {
    pub(in crate::vfs) journal: Journal,
    pub(in crate::vfs) recovered: Recovered,
    pub(in crate::vfs) files: BTreeMap<InodeId, Waiting>,
}

/// Pending data of one inode.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Waiting {
    pub(in crate::vfs) runs: DirtyRuns,
    pending: Pending,
    last: Sequence,
}

impl Waiting {
    /// Whether it is of attributes alone.
    pub(in crate::vfs) fn is_without_bytes(&self) -> bool {
        self.runs.is_empty()
    }

    fn take(&mut self, sequence: Sequence, entry: &Entry) {
        self.last = sequence;
        match entry.record {
            Record::Write { offset, mtime, .. } => {
                self.runs.write(offset, &entry.bytes);
                self.pending.mtime = Some(mtime);
                self.pending.changed = Some(mtime);
            }
            Record::Attributes {
                mode, atime, mtime, ..
            } => {
                self.pending.mode = mode.or(self.pending.mode);
                self.pending.atime = atime.or(self.pending.atime);
                self.pending.mtime = mtime.or(self.pending.mtime);
                // The record does not say when that was.
                self.pending.changed = None;
            }
            _ => {}
        }
    }
}

impl Replay {
    /// Opens the journal on `disk`. See [`Journal::open`].
    ///
    /// # Errors
    /// If the disk fails, or a later release wrote it.
    pub fn open<D: Disk>(
        disk: D,
        secret: Secret,
        volume: VolumeId,
        options: JournalOptions,
    ) -> Result<Self, JournalError> {
        let mut files: BTreeMap<InodeId, Waiting> = BTreeMap::new();
        let each = |sequence, entry: Entry| {
            let waiting = files.entry(entry.record.inode()).or_default();
            waiting.take(sequence, &entry);
        };
        let (journal, recovered) = Journal::open(disk, secret, volume, options, each)?;
        Ok(Self {
            journal,
            recovered,
            files,
        })
    }
}

impl Writeback {
    /// As if it had just been written.
    pub(in crate::vfs) fn put_in_place(&self, found: &Attributes, waiting: Waiting) {
        self.files.learn(found, self.known.unconfirmed());
        let Waiting {
            runs,
            mut pending,
            last,
        } = waiting;
        // Callers see this ctime from now on: the commit will set it, and it is not earlier than
        // the one that they saw before.
        pending.changed.get_or_insert_with(clock::now);
        let (node, ()) = self.files.node_with(found, ContentMap::fresh, |state| {
            state.dirty = runs;
            state.pending = pending;
            state.journalled = Some(last);
            state.wait_for_commit();
        });
        let mut state = node.state();
        self.book(&mut state);
    }

    /// Voids the journal's records of an inode whose bytes were rescued.
    pub(in crate::vfs) async fn rescued(&self, inode: InodeId) {
        if let Some(journal) = &self.journal
            && let Some(record) = journal.push(Entry::from(Record::GivenUp { inode }))
        {
            // If it is not durable, the data is rescued again.
            let _ = journal.synced(record).await;
        }
    }

    /// Takes rescued bytes in as the content of a new file, and makes them as safe as the journal.
    pub(in crate::vfs) async fn fill_rescue_file(
        self: &Arc<Self>,
        node: &Arc<Node>,
        waiting: Waiting,
    ) -> Result<(), VfsError> {
        let mut runs = waiting.runs;
        for (offset, run) in runs.freeze().iter() {
            let mut state = node.state();
            self.take_in(node, &mut state, offset, run);
            self.book(&mut state);
        }
        // At any tier of the mount: rescued data is to be no less safe than in the journal.
        self.make_safe_at(node, Tier::Local).await
    }
}
