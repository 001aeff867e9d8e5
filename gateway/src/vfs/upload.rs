//! Slices on their way to the clouds: those of a commit, and those of the next one.

use super::VfsError;
use super::ahead::EarlyUpload;
use super::commit::Stored;
use super::dirty::{FrozenRuns, RUN_BYTES_MAX};
use super::file_system::Inner;
use super::keep::Tier;
use super::node::{Node, State};
use bytes::Bytes;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::PACK_SLICES_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Inner {
    /// Seals each run and puts it to the clouds: as many at a time as there may be long ones, or
    /// short ones of no more bytes, for those share objects.
    pub(super) async fn upload(
        self: &Arc<Self>,
        inode: InodeId,
        runs: &FrozenRuns,
        mut early: BTreeMap<u64, EarlyUpload>,
    ) -> Result<Vec<Stored>, VfsError> {
        let mut uploads = tokio::task::JoinSet::new();
        let mut stored = BTreeMap::new();
        let mut rest = runs.iter().peekable();
        let most = self.options.slices_in_flight.max(1);
        let mut bytes = 0;
        loop {
            while let Some((_, run)) = rest.peek()
                && (uploads.len() < most
                    || (uploads.len() < PACK_SLICES_MAX as usize
                        && bytes + run.len() <= most * RUN_BYTES_MAX))
                && let Some((offset, run)) = rest.next()
            {
                bytes += run.len();
                let (inner, run) = (self.clone(), run.clone());
                let early = early.remove(&offset);
                uploads.spawn(async move {
                    if let Some(early) = early
                        && let Some(stored) = early.finished().await
                    {
                        return Ok(stored);
                    }
                    inner.upload_run(inode, offset, run).await
                });
            }
            match uploads.join_next().await {
                None => return Ok(stored.into_values().collect()),
                Some(Ok(Ok(one))) => {
                    let length = one.written.slice.length;
                    bytes = bytes.saturating_sub(usize::try_from(length).unwrap_or(0));
                    stored.insert(one.offset, one);
                }
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(error)) => {
                    return Err(VfsError::Internal {
                        reason: error.to_string(),
                    });
                }
            }
        }
    }

    async fn upload_run(
        self: Arc<Self>,
        inode: InodeId,
        offset: u64,
        run: Bytes,
    ) -> Result<Stored, VfsError> {
        let id = self.metadata.allocate().await?;
        let id = id.in_turn(turn(inode, offset));
        let written = self.slices.write(&id, run).await?;
        self.budget.uploaded();
        Ok(Stored {
            offset,
            written,
            slices: self.slices.clone(),
            committed: false,
            _id: id,
        })
    }

    /// Begins to upload full runs that no commit has taken yet, while one is under way. Each that
    /// arrives makes room for the next: whoever writes may wait meanwhile, or be done.
    pub(crate) fn upload_ahead(self: &Arc<Self>, node: &Arc<Node>, state: &mut State) {
        let bytes_max = self.options.file_dirty_bytes_max;
        // Where nobody waits for the clouds they may as well have nothing to do for a while.
        let waits = self.tier_of(state) == Tier::Clouds;
        let counted = |state: &State| match waits {
            true => state.ahead.under_way(),
            false => state.ahead.len(),
        };
        while counted(state) < self.options.slices_in_flight
            && state.ahead.runs().bytes() < bytes_max
            && let Some((offset, run)) = state.dirty.take_full()
        {
            let (inner, node, place) = (self.clone(), node.clone(), state.ahead.place());
            let upload = inner.clone().upload_run(node.inode, offset, run.clone());
            let upload = tokio::spawn(async move {
                let stored = upload.await;
                drop(place);
                // Where clouds fail, one that did says enough.
                if stored.is_ok() {
                    inner.upload_more_ahead(&node);
                }
                stored
            });
            state.ahead.insert(offset, run, EarlyUpload::new(upload));
        }
    }

    fn upload_more_ahead(self: &Arc<Self>, node: &Arc<Node>) {
        if node.content.try_lock().is_ok() {
            // No commit is under way: what is left waits for its own.
            return;
        }
        let mut state = node.state();
        if state.full.is_some() {
            return;
        }
        let before = state.dirty.cost();
        self.upload_ahead(node, &mut state);
        if state.dirty.cost() < before {
            self.book(&mut state);
            node.left.notify_waiters();
        }
    }
}

/// Which one a run is in the order in which things are read: one file's follow each other, and so
/// do files that were made one after the other, for many have but one.
fn turn(inode: InodeId, offset: u64) -> u32 {
    let place = inode.0.wrapping_add(offset / RUN_BYTES_MAX as u64);
    u32::try_from(place % (1 << 32)).unwrap_or_default()
}
