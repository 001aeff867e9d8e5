//! Slices on their way to the clouds: those of a commit, and those of the next one. How many there
//! are at a time follows what the way carries ([`window`](super::window)).

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
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A part of a commit goes to the servers after this time, with whatever it has, or when it is long
/// enough: where clouds are slow, the memory of what has arrived is what a writer waits for.
const PART_AFTER: Duration = Duration::from_secs(4);

/// The runs of one commit on their way to the clouds. They arrive in any order and are handed out
/// in that of the file, so that it never has a length whose bytes are not there.
pub(super) struct Uploads {
    /// Those that have not begun.
    rest: VecDeque<(u64, Bytes)>,
    /// Those of them that have, for the clouds had nothing else to do.
    early: BTreeMap<u64, EarlyUpload>,
    tasks: JoinSet<Result<Stored, VfsError>>,
    /// Where those on their way begin.
    under_way: BTreeSet<u64>,
    bytes_under_way: usize,
    /// Not handed out yet.
    arrived: BTreeMap<u64, Stored>,
    failed: Option<VfsError>,
    handed_out: Instant,
}

impl Uploads {
    pub(super) fn new(runs: &FrozenRuns, early: BTreeMap<u64, EarlyUpload>) -> Self {
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
    pub(super) fn is_done(&self) -> bool {
        self.nothing_to_come() && self.arrived.is_empty()
    }

    fn nothing_to_come(&self) -> bool {
        self.rest.is_empty() && self.under_way.is_empty() && self.failed.is_none()
    }

    /// The next ones, of which none is missing in between; an error after the last that arrived
    /// before it. Nothing is lost if it is dropped while it waits.
    pub(super) async fn part(
        &mut self,
        inner: &Arc<Inner>,
        inode: InodeId,
    ) -> Result<Vec<Stored>, VfsError> {
        loop {
            if self.failed.is_none() {
                self.begin(inner, inode);
            }
            if self.is_part(inner.options.part_bytes) {
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
                // Not while something is under way.
                None => self.under_way.clear(),
            }
        }
    }

    /// Begins as many as there may be long ones, or short ones of no more bytes, for those share
    /// objects.
    fn begin(&mut self, inner: &Arc<Inner>, inode: InodeId) {
        let most = inner.window.slices();
        let most = most.min(inner.options.slices_in_flight).max(1);
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

    /// Where the first begins that has not arrived.
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

impl Inner {
    async fn upload_run(
        self: Arc<Self>,
        inode: InodeId,
        offset: u64,
        run: Bytes,
    ) -> Result<Stored, VfsError> {
        let mut tries = self.outages.tries();
        let (id, written) = loop {
            let id = self.metadata.allocate().await?;
            let id = id.in_turn(turn(inode, offset));
            let place = self.window.enter(run.len()).await;
            let written = self.slices.write(&id, run.clone()).await;
            place.ended(written.is_ok(), Instant::now());
            match written {
                Ok(written) => break (id, written),
                Err(error) => tries.another(error).await?,
            }
        };
        self.outages.over();
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
        while counted(state) < self.window.ahead().min(self.options.slices_in_flight)
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
