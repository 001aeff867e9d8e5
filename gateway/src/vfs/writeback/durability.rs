//! How safe written data is before it is committed: the tiers, and the journal's records.
//!
//! ```text
//! tier      close and fsync return when it is   lost with
//! memory    in this process                     this process
//! local     in the journal on this host's disk  this host's disk
//! clouds    committed, on w = k + f clouds      more than f clouds
//! ```
//!
//! The tier is the mount's, unless the file has one of its own (`vfs/attributes/tier.rs`).
//!
//! At every tier the content goes on to the clouds in the background, and names are ordered at
//! once. At `local`, all pending data is in the journal as well:
//!
//! * A write is journalled with its effect on the file, under the file's lock, so that the records
//!   are in the order in which readers see the writes.
//! * **Before a commit is ordered**, a record of it is made durable. So a replay after a crash
//!   knows whether a file that has changed was changed by this mount.
//! * **After it**, a record says that the committed data is void, and what the file is now. It need
//!   not be durable at once; but before another operation is ordered that changes the content of
//!   the file or its times, it is ([`Writeback::flush_settled`]).
//! * **rename, link and unlink of one of several names wait for the commit** of the file's data, at
//!   every tier. The journal could keep the content over a crash; but all clients see the new name
//!   at once, and the old content that it replaces is gone for good. If this host never came back,
//!   or until it does, there would be a name without its bytes.
//! * **A mount that was taken over keeps its journal**: the next mount on this host puts its
//!   pending data in place, or rescues it if another client has changed the file since
//!   ([`replay`]).
//!
//! * **Pending data of a file is in the journal from its first record on**, until it is settled,
//!   whatever the file's tier becomes meanwhile: a replay that had only the older of two writes
//!   would lay it over the newer one.
//! * **Or none of it is** (`unjournalled`): if a file became `local` while data was pending that is
//!   not in the journal, or if it was first written while the journal's disk is below its floor.
//!   Close and fsync wait for the commit then, and the file uses the journal again only after it: a
//!   replay that had only the newer of two writes would show a state that never was.
//!
//! Below the floor commits free space in the journal, but perhaps not on the disk, which other data
//! has filled: writers wait for the commit of their file's journalled data, and no longer.
//!
//! If the journal fails, `local` is `clouds`: pending data is in memory, and close and fsync wait
//! for its commit.
//!
//! [`replay`]: super::replay

use super::owner::Writeback;
use crate::clock;
use crate::error::VfsError;
use crate::journal::{Entry, Ground, Journal, Record, Sequence, WRITE_BYTES_MAX};
use crate::vfs::files::{Departure, Node, NodeState};
use crate::vfs::services::Tier;
use bytes::Bytes;
use quorumfs_metadata::attributes::Attributes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Writeback {
    /// What close and fsync of the file wait for.
    pub(in crate::vfs) fn tier_of(&self, state: &NodeState) -> Tier {
        state.tier().unwrap_or(self.services.options.tier)
    }

    /// The journal, if writes to the file go there.
    fn journal_for(&self, state: &NodeState) -> Option<&Journal> {
        // No process can see the data of a deleted file after a crash.
        let journal = self.journal.as_deref().filter(|_| !state.unlinked)?;
        let begins = || !state.unjournalled && !journal.is_below_floor();
        let wanted = state.journalled.is_some() || (self.tier_of(state) == Tier::Local && begins());
        wanted.then_some(journal)
    }

    /// The journal, if writes to the file go there and it is full.
    pub(in crate::vfs) fn full_journal(&self, node: &Node) -> Option<&Journal> {
        let journal = self.journal_for(&node.state())?;
        (!journal.has_space()).then_some(journal)
    }

    pub(in crate::vfs) fn journal_is_pressed(&self) -> bool {
        self.journal.as_deref().is_some_and(Journal::is_pressed)
    }

    fn journal_entry(&self, node: &Node, state: &mut NodeState, entry: Entry) {
        let Some(journal) = self.journal_for(state) else {
            state.unjournalled = true;
            return;
        };
        if state.journalled.is_none() {
            journal.push(Entry::from(Record::Stands {
                inode: node.inode,
                through: Sequence(0),
                ground: Ground::of(&state.base),
            }));
        }
        let pushed = journal.push(entry);
        state.unjournalled |= pushed.is_none();
        state.journalled = pushed.or(state.journalled);
    }

    /// Takes in written bytes, here and in the journal.
    pub(in crate::vfs) fn take_in(
        &self,
        node: &Node,
        state: &mut NodeState,
        offset: u64,
        data: &Bytes,
    ) {
        let mtime = clock::now();
        state.dirty.write(offset, data);
        state.close_failed = false;
        self.free_space.note_written(data.len() as u64);
        state.pending.mtime = Some(mtime);
        state.pending.changed = Some(self.services.metadata.agreed(mtime));
        state.wait_for_commit();
        if self.journal_for(state).is_none() {
            state.unjournalled = true;
            return;
        }
        let (mut at, mut rest) = (offset, data.clone());
        while !rest.is_empty() {
            let record = Record::Write {
                inode: node.inode,
                offset: at,
                mtime,
            };
            let bytes = rest.split_to(rest.len().min(WRITE_BYTES_MAX));
            at = at.saturating_add(bytes.len() as u64);
            self.journal_entry(node, state, Entry { record, bytes });
        }
    }

    /// Journals attributes that ride with the next commit.
    pub(in crate::vfs) fn journal_pending(&self, node: &Node, state: &mut NodeState) {
        if state.pending.is_empty() {
            return;
        }
        let record = Record::Attributes {
            inode: node.inode,
            mode: state.pending.mode,
            atime: state.pending.atime,
            mtime: state.pending.mtime,
        };
        self.journal_entry(node, state, Entry::from(record));
    }

    /// Journals that an operation of ours changed the inode, and not its content.
    pub(in crate::vfs) fn journal_base(&self, node: &Node, state: &NodeState) {
        if let (Some(journal), Some(_)) = (&self.journal, state.journalled) {
            journal.push(Entry::from(Record::Stands {
                inode: node.inode,
                through: Sequence(0),
                ground: Ground::of(&state.base),
            }));
        }
    }

    /// Journals that an operation of ours that changes the inode is about to be sent.
    pub(in crate::vfs) fn journal_change(&self, node: &Node) {
        let state = node.state();
        if let (Some(journal), Some(_)) = (&self.journal, state.journalled) {
            journal.push(Entry::from(Record::Ordering {
                inode: node.inode,
                version: state.base.version,
                mtime: None,
            }));
        }
    }

    /// Makes durable that a commit is about to be ordered.
    pub(in crate::vfs) async fn journal_commit(&self, node: &Node, departure: &Departure) {
        let Some(journal) = &self.journal else {
            return;
        };
        if departure.through.is_none() {
            // The departing data is not in the journal; that the data before it is void has to be.
            let settled = node.state().settled.take();
            if let Some(settled) = settled {
                let _ = journal.synced(settled).await;
            }
            return;
        }
        let version = node.state().base.version;
        let record = journal.push(Entry::from(Record::Ordering {
            inode: node.inode,
            version,
            mtime: departure.pending.mtime,
        }));
        if let Some(record) = record {
            // If that fails the journal is broken, and is not relied on any more.
            let _ = journal.synced(record).await;
        }
    }

    /// Journals that the departed data is in the clouds, and the file as `attributes` say.
    pub(in crate::vfs) fn settle(
        &self,
        state: &mut NodeState,
        through: Option<Sequence>,
        attributes: &Attributes,
    ) {
        let (Some(journal), Some(through)) = (&self.journal, through) else {
            return;
        };
        state.settled = journal.push(Entry::from(Record::Stands {
            inode: attributes.inode,
            through,
            ground: Ground::of(attributes),
        }));
        if state.journalled == Some(through) {
            state.journalled = None;
        }
    }

    /// Commits the file's pending data, and makes durable that it did; the caller holds `content`
    /// and is about to change it.
    pub(in crate::vfs) async fn flush_settled(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> Result<(), VfsError> {
        self.flush_locked(node).await?;
        let settled = node.state().settled.take();
        if let (Some(journal), Some(settled)) = (&self.journal, settled) {
            let _ = journal.synced(settled).await;
        }
        Ok(())
    }

    /// Drops pending data that will not be committed and that no process can see.
    pub(in crate::vfs) fn give_up(&self, node: &Node, state: &mut NodeState) {
        self.drop_journalled(node, state);
        state.give_up(None);
        self.book(state);
    }

    /// Voids the journal's records of the file.
    pub(in crate::vfs) fn drop_journalled(&self, node: &Node, state: &mut NodeState) {
        if let (Some(journal), Some(_)) = (&self.journal, state.journalled.take()) {
            journal.push(Entry::from(Record::GivenUp { inode: node.inode }));
        }
    }

    /// Pending data can never be committed through this mount; later calls report it.
    pub(in crate::vfs) fn lose(
        &self,
        node: &Node,
        state: &mut NodeState,
        departure: &Departure,
        error: &VfsError,
    ) {
        let inode = node.inode;
        let journalled = self.journal.as_ref().filter(|it| it.usable().is_ok());
        let journalled = state.journalled.is_some() && journalled.is_some();
        // Another mount may put only data in place that this mount lost with its session.
        let (errno, reason) = (error.errno(), error.to_string());
        let lost = if journalled && matches!(error, VfsError::Fenced) {
            tracing::error!(%inode, %error, "written data stays in the journal");
            state.journalled = None;
            VfsError::LeftInJournal { errno, reason }
        } else {
            if departure.end.is_some() {
                tracing::error!(%inode, %error, "written data is lost");
                self.files_lost.fetch_add(1, Ordering::Relaxed);
            }
            self.drop_journalled(node, state);
            VfsError::Lost { errno, reason }
        };
        state.give_up(Some(lost));
    }

    /// Makes the file's pending data as safe as its tier says, and reports data that was given up
    /// earlier.
    pub(in crate::vfs) async fn make_safe(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> Result<(), VfsError> {
        let tier = self.tier_of(&node.state());
        self.make_safe_at(node, tier).await
    }

    /// As [`Writeback::make_safe`], at a tier of the caller's choice.
    pub(in crate::vfs) async fn make_safe_at(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tier: Tier,
    ) -> Result<(), VfsError> {
        let (journalled, nothing, unjournalled, full, written, owner) = {
            let state = node.state();
            let written = state.holds_written() && !state.unlinked;
            let nothing = state.unlinked || !state.is_waiting();
            (
                state.journalled,
                nothing,
                state.unjournalled && !nothing,
                state.full.is_some(),
                written,
                state.base.uid,
            )
        };
        let safe = match (tier, &self.journal, journalled) {
            (Tier::Memory, ..) => true,
            // Data that was written after the journal failed is not in it.
            (Tier::Local, Some(journal), Some(journalled)) if !unjournalled => {
                journal.synced(journalled).await.is_ok() && journal.usable().is_ok()
            }
            (Tier::Local, Some(journal), None) => nothing && journal.usable().is_ok(),
            _ => false,
        };
        // Data that a quota may refuse later is not promised to be safe.
        let safe = safe && !full && (!written || self.surely_fits(owner, 0).await);
        if !safe {
            return self.flush_file(node).await;
        }
        let mut state = node.state();
        match state.lost.clone() {
            Some(lost) => Err(lost),
            None => {
                state.promised = state.holds_written();
                Ok(())
            }
        }
    }
}
