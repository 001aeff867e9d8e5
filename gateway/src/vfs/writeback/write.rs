//! Taking in writes.
//!
//! A write returns once its bytes are in memory, and in the journal's queue if the file's tier says
//! so ([`durability`](super::durability)). It waits while there is no memory, as long as there is
//! progress.

use super::budget::Reservation;
use super::owner::Writeback;
use crate::clock;
use crate::cost::PaidWork;
use crate::error::VfsError;
use crate::vfs::files::{Node, NodeState, RUN_BYTES_MAX};
use crate::vfs::services::{Caller, Tier};
use bytes::Bytes;
use quorumfs_metadata::identity::Uid;
use std::sync::Arc;

/// A file with this much is flushed while it is still written to: two slices, so that sealing one
/// overlaps with taking in the next.
const FLUSH_FROM_BYTES: u64 = 2 * RUN_BYTES_MAX as u64;

impl Writeback {
    /// Takes in bytes at an offset of a file.
    pub(in crate::vfs) async fn write(
        self: &Arc<Self>,
        node: &Arc<Node>,
        offset: u64,
        data: Bytes,
    ) -> Result<(), VfsError> {
        self.write_where(node, data, |_| Ok(Some(offset)))
            .await
            .map(drop)
    }

    /// Takes in bytes at the offset that is decided when there is memory for them, under the file's
    /// lock; returns it. Without an offset nothing is written.
    pub(in crate::vfs) async fn write_where(
        self: &Arc<Self>,
        node: &Arc<Node>,
        data: Bytes,
        place: impl FnOnce(&mut NodeState) -> Result<Option<u64>, VfsError> + Send,
    ) -> Result<Option<u64>, VfsError> {
        self.services.metadata.not_fenced()?;
        if !self.services.slices.allows(PaidWork::Write) {
            return Err(VfsError::OverBudget);
        }
        self.takes_more(node, data.len() as u64).await?;
        let reserved = self.reserve(node, data.len() as u64).await?;
        let commits = node.is_changing();
        let (offset, full) = {
            let mut state = node.state();
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            let Some(offset) = place(&mut state)? else {
                return Ok(None);
            };
            self.take_in(node, &mut state, offset, &data);
            if commits {
                self.upload_early(node, &mut state);
            }
            self.book(&mut state);
            drop(reserved);
            let held = state.dirty.cost();
            let held = held.saturating_add(state.early_uploads.runs().bytes());
            (offset, held >= self.flush_from_bytes(&state))
        };
        if full && !commits {
            self.flush_in_background(node);
        }
        Ok(Some(offset))
    }

    /// Takes the set-id bits off a file after a write by a user who may not keep them.
    pub(in crate::vfs) fn drop_set_id(&self, caller: &Caller, node: &Node) {
        // A principal that may not act as the superuser leaves it to the servers.
        if self.services.metadata.own().uid == Uid::ROOT {
            let seen = node.state().attributes();
            let in_group = self.services.may_keep_group(caller, &seen);
            let mut state = node.state();
            let now = self.services.metadata.agreed(clock::now());
            if state.drop_set_id(in_group, now) {
                self.journal_pending(node, &mut state);
            }
        }
    }

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
}
