//! Uploads of slices: those of a commit, and early ones of the next. Their number at a time follows
//! the capacity of the link ([`window`](super::window)).

use super::owner::Writeback;
use crate::error::VfsError;
use crate::slices::Stored;
use crate::vfs::files::{EarlyUpload, FrozenRuns, Node, NodeState, RUN_BYTES_MAX};
use crate::vfs::services::Tier;
use bytes::Bytes;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::PACK_SLICES_MAX;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A part of a commit is handed out after this time, whatever its length, or when it is long
/// enough: where clouds are slow, a writer waits for the memory of arrived slices.
const PART_AFTER: Duration = Duration::from_secs(4);

/// The uploads of one commit. They arrive in any order and are handed out in the file's order, so
/// that it never has a length whose bytes are missing.
pub(in crate::vfs) struct Uploads {
    /// Runs that have not begun.
    rest: VecDeque<(u64, Bytes)>,
    /// Those of them that were uploaded early.
    early: BTreeMap<u64, EarlyUpload>,
    tasks: JoinSet<Result<Stored, VfsError>>,
    /// The offsets of those in flight.
    under_way: BTreeSet<u64>,
    bytes_under_way: usize,
    /// Not handed out yet.
    arrived: BTreeMap<u64, Stored>,
    failed: Option<VfsError>,
    handed_out: Instant,
}

impl Uploads {
    pub(in crate::vfs) fn new(runs: &FrozenRuns, early: BTreeMap<u64, EarlyUpload>) -> Self {
        Self {
            rest: runs.iter().map(|(at, run)| (at, run.clone())).collect(),
            early,
            tasks: JoinSet::new(),
            under_way: BTreeSet::new(),
            bytes_under_way: 0,
            arrived: BTreeMap::new(),
            failed: None,
            handed_out: Instant::now(),
        }
    }

    /// Whether everything was handed out.
    pub(in crate::vfs) fn is_done(&self) -> bool {
        self.nothing_to_come() && self.arrived.is_empty()
    }

    fn nothing_to_come(&self) -> bool {
        self.rest.is_empty() && self.under_way.is_empty() && self.failed.is_none()
    }

    /// The next ones, without gaps; an error comes after the last that arrived before it. Nothing
    /// is lost if this is dropped while it waits.
    pub(in crate::vfs) async fn part(
        &mut self,
        inner: &Arc<Writeback>,
        inode: InodeId,
    ) -> Result<Vec<Stored>, VfsError> {
        loop {
            if self.failed.is_none() {
                self.begin(inner, inode);
            }
            if self.is_part(inner.services.options.part_bytes) {
                self.handed_out = Instant::now();
                let part = self.take_part();
                return match self.failed.take() {
                    Some(error) if part.is_empty() => Err(error),
                    failed => {
                        self.failed = failed;
                        Ok(part)
                    }
                };
            }
            let waits = self.arrived.range(..self.missing_from()).next().is_some();
            let next = self.tasks.join_next();
            let arrived = if waits {
                let due = self.handed_out + PART_AFTER;
                match tokio::time::timeout_at(due, next).await {
                    Ok(arrived) => arrived,
                    Err(_) => continue,
                }
            } else {
                next.await
            };
            match arrived {
                Some(Ok(Ok(one))) => {
                    let length = usize::try_from(one.written.slice.length).unwrap_or(0);
                    self.bytes_under_way = self.bytes_under_way.saturating_sub(length);
                    self.under_way.remove(&one.offset);
                    self.arrived.insert(one.offset, one);
                }
                Some(Ok(Err(error))) => self.failed = Some(error),
                Some(Err(error)) => {
                    self.failed = Some(VfsError::Internal {
                        reason: error.to_string(),
                    });
                }
                // Not while an upload is in flight.
                None => self.under_way.clear(),
            }
        }
    }

    /// Begins as many long ones as the window allows, or short ones of no more bytes, because those
    /// share objects.
    fn begin(&mut self, inner: &Arc<Writeback>, inode: InodeId) {
        let most = inner.window.slices();
        let most = most.min(inner.services.options.slices_in_flight).max(1);
        while let Some((_, run)) = self.rest.front()
            && (self.tasks.len() < most
                || (self.tasks.len() < PACK_SLICES_MAX as usize
                    && self.bytes_under_way + run.len() <= most * RUN_BYTES_MAX))
            && let Some((offset, run)) = self.rest.pop_front()
        {
            self.bytes_under_way += run.len();
            self.under_way.insert(offset);
            let inner = inner.clone();
            let early = self.early.remove(&offset);
            self.tasks.spawn(async move {
                if let Some(early) = early
                    && let Some(stored) = early.finished().await
                {
                    return Ok(stored);
                }
                inner.upload_run(inode, offset, run).await
            });
        }
    }

    /// The first offset that has not arrived.
    fn missing_from(&self) -> u64 {
        let rest = self.rest.front().map(|(offset, _)| *offset);
        let under_way = self.under_way.first().copied();
        rest.into_iter().chain(under_way).min().unwrap_or(u64::MAX)
    }

    fn is_part(&self, enough_bytes: u64) -> bool {
        if self.nothing_to_come() || self.failed.is_some() {
            return true;
        }
        let ready = self.arrived.range(..self.missing_from());
        let mut lengths = ready.map(|(_, one)| u64::from(one.written.slice.length));
        match self.handed_out.elapsed() >= PART_AFTER {
            true => lengths.next().is_some(),
            false => lengths.sum::<u64>() >= enough_bytes,
        }
    }

    fn take_part(&mut self) -> Vec<Stored> {
        let later = self.arrived.split_off(&self.missing_from());
        let part = std::mem::replace(&mut self.arrived, later);
        part.into_values().collect()
    }
}

impl Writeback {
    async fn upload_run(
        self: Arc<Self>,
        inode: InodeId,
        offset: u64,
        run: Bytes,
    ) -> Result<Stored, VfsError> {
        let mut tries = self.outages.tries();
        let (id, written) = loop {
            let id = self.services.metadata.allocate().await?;
            let id = id.in_turn(turn(inode, offset));
            let permit = self.window.enter(run.len()).await;
            let written = self.services.slices.write(&id, run.clone()).await;
            permit.ended(written.is_ok(), Instant::now());
            match written {
                Ok(written) => break (id, written),
                Err(error) => {
                    if error.errno() == Errno::NOSPC {
                        self.relieve_trash();
                    }
                    tries.retry(error).await?;
                }
            }
        };
        self.outages.over();
        self.budget.uploaded();
        Ok(Stored::new(
            offset,
            written,
            self.services.slices.clone(),
            id,
        ))
    }

    /// Begins to upload full runs that no commit has taken yet, while a commit is under way. Each
    /// that arrives starts the next: the writer may wait meanwhile, or be done.
    pub(in crate::vfs) fn upload_early(self: &Arc<Self>, node: &Arc<Node>, state: &mut NodeState) {
        let bytes_max = self.services.options.file_dirty_bytes_max;
        // At tiers that do not wait for the clouds, these may be idle for a while.
        let waits = self.tier_of(state) == Tier::Clouds;
        let counted = |state: &NodeState| match waits {
            true => state.early_uploads.under_way(),
            false => state.early_uploads.len(),
        };
        while counted(state)
            < self
                .window
                .early_uploads()
                .min(self.services.options.slices_in_flight)
            && state.early_uploads.runs().bytes() < bytes_max
            && let Some((offset, run)) = state.dirty.take_full()
        {
            let (inner, node, position) =
                (self.clone(), node.clone(), state.early_uploads.position());
            let upload = inner.clone().upload_run(node.inode, offset, run.clone());
            let upload = tokio::spawn(async move {
                let stored = upload.await;
                drop(position);
                // If clouds fail, one failure is enough.
                if stored.is_ok() {
                    inner.upload_more_early(&node);
                }
                stored
            });
            state
                .early_uploads
                .insert(offset, run, EarlyUpload::new(upload));
        }
    }

    fn upload_more_early(self: &Arc<Self>, node: &Arc<Node>) {
        if node.content.try_lock().is_ok() {
            // No commit is under way: the rest waits for its own.
            return;
        }
        let mut state = node.state();
        if state.full.is_some() {
            return;
        }
        let before = state.dirty.cost();
        self.upload_early(node, &mut state);
        if state.dirty.cost() < before {
            self.book(&mut state);
            node.left.notify_waiters();
        }
    }
}

/// The position of a run in the order in which data is likely read: runs of one file are
/// consecutive, and so are files that were made one after the other, because many have only one.
fn turn(inode: InodeId, offset: u64) -> u32 {
    let place = inode.0.wrapping_add(offset / RUN_BYTES_MAX as u64);
    u32::try_from(place % (1 << 32)).unwrap_or_default()
}
