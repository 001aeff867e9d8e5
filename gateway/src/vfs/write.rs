//! Taking in writes, and when they are committed.
//!
//! A write returns once its bytes are in memory. They are committed when a call asks for it (flush,
//! fsync, the last release), when a file has enough for its slices to be worth while, when they
//! have waited long enough, or when memory runs short. Flushes run in tasks of their own, so that a
//! caller that gives up does not interrupt one. The file's tier decides what flush and fsync wait
//! for ([`durability`](super::durability)).

use super::budget::Reservation;
use super::file_system::{FileSystem, FileSystemCore};
use super::files::HandleId;
use super::files::RUN_BYTES_MAX;
use super::files::{Node, NodeState};
use super::services::Caller;
use super::services::Tier;
use super::services::cancel_safe;
use crate::clock;
use crate::cost::PaidWork;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::identity::{InodeId, Uid};
use quorumfs_metadata::limits::FILE_SIZE_MAX;
use rustix::io::Errno;
use std::sync::Arc;

/// A file with this much is flushed while it is still written to: two slices, so that sealing one
/// overlaps with taking in the next.
const FLUSH_FROM_BYTES: u64 = 2 * RUN_BYTES_MAX as u64;

impl FileSystem {
    /// Writes `data` at `offset`; returns how many bytes were taken, which is all of them.
    ///
    /// # Errors
    /// If the handle is not open for writing, the file would grow too long, memory is short, or the
    /// mount was taken over.
    #[boxed]
    pub async fn write(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<u32, VfsError> {
        let data = Bytes::copy_from_slice(data);
        self.write_bytes(handle, offset, data).await
    }

    /// The same with bytes that need not be copied for the journal.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    #[boxed]
    pub async fn write_bytes(
        &self,
        handle: HandleId,
        offset: u64,
        data: Bytes,
    ) -> Result<u32, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.file(handle)?;
        if !handle.mode.write {
            return Err(VfsError::refused("write", Errno::BADF));
        }
        let end = offset.saturating_add(data.len() as u64);
        let count =
            u32::try_from(data.len()).map_err(|_| VfsError::refused("write", Errno::INVAL))?;
        if end > FILE_SIZE_MAX {
            return Err(VfsError::refused("write", Errno::FBIG));
        }
        inner.services.metadata.not_fenced()?;
        if !inner.services.slices.allows(PaidWork::Write) {
            return Err(VfsError::OverBudget);
        }
        let node = &handle.node;
        inner.takes_more(node, data.len() as u64).await?;
        let reserved = inner.reserve(node, data.len() as u64).await?;
        let commits = node.content.try_lock().is_err();
        let full = {
            let mut state = node.state();
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            inner.take_in(node, &mut state, offset, &data);
            if commits {
                inner.upload_early(node, &mut state);
            }
            inner.book(&mut state);
            drop(reserved);
            let held = state.dirty.cost();
            let held = held.saturating_add(state.early_uploads.runs().bytes());
            held >= inner.flush_from_bytes(&state)
        };
        if full && !commits {
            inner.flush_in_background(node);
        }
        Ok(count)
    }

    /// Takes the set-id bits off a file after a write by a user who may not keep them. They go with
    /// the commit of the write.
    ///
    /// # Errors
    /// If the handle is no file's.
    pub fn drop_set_id(&self, caller: &Caller, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        // A principal that may not act as the superuser leaves it to the servers.
        if self.inner.services.metadata.own().uid == Uid::ROOT {
            let seen = handle.node.state().attributes();
            let in_group = self.inner.services.may_keep_group(caller, &seen);
            let mut state = handle.node.state();
            let now = self.inner.services.metadata.agreed(clock::now());
            if state.drop_set_id(in_group, now) {
                self.inner.journal_pending(&handle.node, &mut state);
            }
        }
        Ok(())
    }

    /// The same for writes through any handle of the same file: `close` calls it.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    #[boxed]
    pub async fn flush(&self, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        if !handle.mode.write {
            return Ok(());
        }
        self.inner.make_safe(&handle.node).await
    }

    /// Makes the file's writes as safe as its tier says, or the mount's if it has none.
    ///
    /// # Errors
    /// If they could not be committed; they are kept and retried.
    #[boxed]
    pub async fn fsync(&self, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        self.inner.make_safe(&handle.node).await
    }
}

impl FileSystemCore {
    /// The bytes with which a file is flushed while it is still written to. At tiers that do not
    /// wait for the clouds, sealing would only take processor time from the writer.
    fn flush_from_bytes(&self, state: &NodeState) -> u64 {
        match self.tier_of(state) {
            Tier::Clouds => FLUSH_FROM_BYTES,
            _ => FLUSH_FROM_BYTES.max(self.services.options.file_dirty_bytes_max / 8 * 7),
        }
    }

    /// Waits until the file and the mount have memory for another write, and reserves it; as long
    /// as there is progress.
    async fn reserve<'a>(
        self: &'a Arc<Self>,
        node: &Arc<Node>,
        bytes: u64,
    ) -> Result<Reservation<'a>, VfsError> {
        let wait = self.services.options.write_wait;
        let reservation = async {
            loop {
                let left = node.left.notified();
                tokio::pin!(left);
                left.as_mut().enable();
                let own = node.state().dirty.cost();
                if own >= self.services.options.file_dirty_bytes_max {
                    // There is memory as soon as the commit has taken its data; it goes on.
                    tokio::select! {
                        biased;
                        flushed = self.flush(node) => flushed?,
                        () = left => {}
                    }
                } else if let Some(journal) = self.full_journal(node) {
                    self.services.pressure.notify_one();
                    journal.wait_for_space().await;
                } else if let Some(reservation) = self.budget.try_reserve(bytes) {
                    return Ok(reservation);
                } else {
                    self.services.pressure.notify_one();
                    self.budget.wait().await;
                }
            }
        };
        let reservation = self.budget.while_progressing(wait, reservation).await;
        reservation.unwrap_or_else(|| {
            Err(VfsError::NoRoom {
                waited: wait,
                dirty_bytes: self.budget.used(),
            })
        })
    }

    /// Updates the file's bytes in the budget.
    pub(super) fn book(&self, state: &mut NodeState) {
        let away = state
            .frozen
            .bytes()
            .saturating_add(state.early_uploads.runs().bytes());
        let now = state.dirty.cost().saturating_add(away);
        self.budget.adjust(state.booked, now);
        state.booked = now;
    }

    pub(super) fn flush_in_background(self: &Arc<Self>, node: &Arc<Node>) {
        let (inner, node) = (self.clone(), node.clone());
        tokio::spawn(async move {
            if let Err(error) = inner.flush_now(&node).await {
                tracing::warn!(inode = %node.inode, %error, "a background commit failed");
            }
            inner.files.retire(&node);
        });
    }

    /// As [`FileSystemCore::flush`], and reports data that was given up earlier.
    pub(super) async fn flush_file(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        let outcome = self.flush(node).await;
        let lost = node.state().lost.clone();
        match (outcome, lost) {
            (Err(error), _) | (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Commits an inode's pending data, if this mount has the inode.
    pub(super) async fn flush_inode(self: &Arc<Self>, inode: InodeId) -> Result<(), VfsError> {
        match self.files.node(inode) {
            Some(node) => self.flush(&node).await,
            None => Ok(()),
        }
    }

    /// Commits the file's pending data, in a task that runs to its end.
    pub(super) async fn flush(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        if !node.state().is_waiting() {
            return Ok(());
        }
        let (inner, of) = (self.clone(), node.clone());
        cancel_safe(async move {
            let outcome = inner.flush_now(&of).await;
            // It may not be open any more.
            inner.files.retire(&of);
            outcome
        })
        .await
    }

    async fn flush_now(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        let _content = node.content.lock().await;
        self.flush_locked(node).await
    }

    /// Commits the file's pending data; the caller holds `content`.
    pub(super) async fn flush_locked(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
        if let Some(error) = self.still_full(node).await {
            self.note_full(node, &mut node.state(), &error);
            return Err(error);
        }
        let Some(departure) = node.state().depart() else {
            return Ok(());
        };
        node.left.notify_waiters();
        self.journal_commit(node, &departure).await;
        let asked = self.known.query_stamp();
        let outcome = self.commit(node, &departure).await;
        self.budget.committed(outcome.is_ok());
        let mut state = node.state();
        let outcome = match outcome {
            Ok((attributes, content)) => {
                self.known.learn(&attributes, asked);
                if !content.is_unknown() {
                    self.known
                        .last_open()
                        .committed(state.base.version, &attributes);
                }
                state.arrive(&attributes, content);
                self.settle(&mut state, departure.through, &attributes);
                Ok(())
            }
            // Deleted meanwhile: no process can see its data any more.
            Err(error) if error.is_final() && state.unlinked => {
                tracing::debug!(inode = %node.inode, %error, "a deleted file is not committed");
                self.give_up(node, &mut state);
                Ok(())
            }
            Err(error) if error.is_final() => {
                self.lose(node, &mut state, &departure, &error);
                Err(error)
            }
            Err(error) => {
                state.put_back(&departure);
                self.note_full(node, &mut state, &error);
                Err(error)
            }
        };
        self.book(&mut state);
        outcome
    }
}
