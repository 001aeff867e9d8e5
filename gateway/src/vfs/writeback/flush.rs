//! When written data is committed, and what follows from the outcome.
//!
//! Data is committed when a call asks for it (flush, fsync, the last release), when a file has
//! enough for its slices to be worth while, when it has waited long enough, or when memory runs
//! short. Flushes run in tasks of their own, so that a caller that gives up does not interrupt one.

use super::owner::Writeback;
use crate::error::VfsError;
use crate::vfs::files::{Node, NodeState};
use crate::vfs::services::{Tier, cancel_safe};
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::sync::Arc;

/// Files that are committed at once when all are: enough small ones to share an object. Their data
/// is in memory already, and the block store bounds what it seals of it.
const SYNC_AT_ONCE: usize = 512;

impl Writeback {
    /// Updates the file's bytes in the budget.
    pub(in crate::vfs) fn book(&self, state: &mut NodeState) {
        let away = state
            .frozen
            .bytes()
            .saturating_add(state.early_uploads.runs().bytes());
        let now = state.dirty.cost().saturating_add(away);
        self.budget.adjust(state.booked, now);
        state.booked = now;
    }

    pub(in crate::vfs) fn flush_in_background(self: &Arc<Self>, node: &Arc<Node>) {
        let (inner, node) = (self.clone(), node.clone());
        tokio::spawn(async move {
            if let Err(error) = inner.flush_now(&node).await {
                tracing::warn!(inode = %node.inode, %error, "a background commit failed");
            }
            inner.files.retire(&node);
        });
    }

    /// As [`Writeback::flush`], and reports data that was given up earlier.
    pub(in crate::vfs) async fn flush_file(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> Result<(), VfsError> {
        let outcome = self.flush(node).await;
        let lost = node.state().lost.clone();
        match (outcome, lost) {
            (Err(error), _) | (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Commits an inode's pending data, if this mount has the inode.
    pub(in crate::vfs) async fn flush_inode(
        self: &Arc<Self>,
        inode: InodeId,
    ) -> Result<(), VfsError> {
        match self.files.node(inode) {
            Some(node) => self.flush(&node).await,
            None => Ok(()),
        }
    }

    /// Commits the file's pending data, in a task that runs to its end.
    pub(in crate::vfs) async fn flush(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), VfsError> {
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
    pub(in crate::vfs) async fn flush_locked(
        self: &Arc<Self>,
        node: &Arc<Node>,
    ) -> Result<(), VfsError> {
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

    /// Commits all pending data, several files at once, until there was no progress for a while.
    pub(in crate::vfs) async fn sync_all(self: &Arc<Self>) -> Result<(), VfsError> {
        let waiting: Vec<Arc<Node>> = self
            .files
            .collect(|node| node.state().is_waiting().then(|| node.clone()));
        let all = async {
            let mut first = Ok(());
            let mut flushes = tokio::task::JoinSet::new();
            let mut rest = waiting.into_iter();
            loop {
                while flushes.len() < SYNC_AT_ONCE
                    && let Some(node) = rest.next()
                {
                    let inner = Arc::clone(self);
                    flushes.spawn(async move { inner.flush(&node).await });
                }
                match flushes.join_next().await {
                    None => return first,
                    Some(Ok(outcome)) => first = first.and(outcome),
                    Some(Err(error)) => {
                        let reason = error.to_string();
                        first = first.and(Err(VfsError::Internal { reason }));
                    }
                }
            }
        };
        let wait = self.services.options.sync_wait;
        let synced = self.budget.while_progressing(wait, all).await;
        synced.unwrap_or(Err(VfsError::refused("sync", Errno::TIMEDOUT)))
    }

    /// Makes pending data of one file, or of all files, as safe as `tier` says.
    pub(in crate::vfs) async fn make_all_safe(
        self: &Arc<Self>,
        inode: Option<InodeId>,
        tier: Tier,
    ) -> Result<(), VfsError> {
        let nodes: Vec<Arc<Node>> = match inode {
            Some(inode) => self.files.node(inode).into_iter().collect(),
            None => self.files.collect(|node| Some(node.clone())),
        };
        let mut outcome = Ok(());
        for node in nodes {
            outcome = outcome.and(self.make_safe_at(&node, tier).await);
        }
        outcome
    }
}
