//! The file system itself: what every call shares.

use super::background;
use super::budget::Budget;
use super::chunk_cache::ChunkCache;
use super::files::{Files, Node, QueuedFile};
use super::known::{self, CountPolled, KnownMetadata, Scope};
use super::quota::FreeSpaceCache;
use super::services::{Services, Tier, UnderOldEpochs, VfsOptions};
use super::window::Window;
use crate::error::VfsError;
use crate::journal::{Journal, JournalStatus};
use crate::memory::keep_at_most;
use crate::metadata::MetadataClient;
use crate::slices::Outages;
use crate::slices::SliceStore;
use crate::volume::Volume;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Files that are committed at once when all are: enough small ones to share an object. Their data
/// is in memory already, and the block store bounds what it seals of it.
const SYNC_AT_ONCE: usize = 512;

/// The state of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VfsStatus {
    /// Another mount has taken over; everything is refused.
    pub fenced: bool,
    /// Bytes that wait to be committed.
    pub dirty_bytes: u64,
    /// Files that have something to commit.
    pub dirty_files: usize,
    /// How long the oldest of them has waited.
    pub oldest_waiting: Option<Duration>,
    /// The state of the journal, if there is one.
    pub journal: Option<JournalStatus>,
    /// Open files and directories.
    pub open_handles: usize,
    /// Operations that were ordered.
    pub operations: u64,
    /// Queries that were sent.
    pub queries: u64,
    /// Files whose written data was given up.
    pub files_lost: u64,
    /// Data sealed under keys that are not the newest any more; known some time after a newer key
    /// appeared.
    pub under_old_epochs: Option<UnderOldEpochs>,
}

pub(super) struct FileSystemCore {
    pub(super) services: Arc<Services>,
    pub(super) known: Arc<KnownMetadata>,
    pub(super) files: Arc<Files>,
    pub(super) chunks: ChunkCache,
    pub(super) budget: Arc<Budget>,
    /// Slices on their way to the clouds.
    pub(super) window: Window,
    /// The clouds' outages, as writers see them.
    pub(super) outages: Outages,
    pub(super) free_space: FreeSpaceCache,
    /// Whether trash was purged for full clouds a moment ago.
    pub(super) relieving: AtomicBool,
    pub(super) files_lost: AtomicU64,
    pub(super) journal: Option<Arc<Journal>>,
}

/// A file system, testable without a kernel. Clones are the same file system.
#[derive(Clone)]
pub struct FileSystem {
    pub(super) inner: Arc<FileSystemCore>,
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl FileSystem {
    /// A file system over a session with the metadata servers and a set of clouds. Must be called
    /// within a tokio runtime, in which its background work will run.
    #[must_use]
    pub fn new(
        volume: Arc<Volume>,
        metadata: Arc<MetadataClient>,
        slices: Arc<dyn SliceStore>,
        options: VfsOptions,
    ) -> Self {
        Self::build(volume, metadata, slices, options, None)
    }

    /// The volume's id, in hexadecimal digits.
    #[must_use]
    pub fn volume_name(&self) -> String {
        let id = self.inner.services.volume.id();
        id.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn build(
        volume: Arc<Volume>,
        metadata: Arc<MetadataClient>,
        slices: Arc<dyn SliceStore>,
        options: VfsOptions,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        // All file systems of a process share the spare memory; the last one sets its bound.
        keep_at_most(options.dirty_bytes_max.saturating_add(options.cache_bytes));
        let known = KnownMetadata::new(options.attributes_max, CountPolled(metadata.clone()));
        let services = Services::new(volume, metadata, slices, options);
        let files = Files::new(services.clone(), known.clone());
        let inner = Arc::new(FileSystemCore {
            chunks: ChunkCache::new(services.options.cache_bytes),
            budget: Budget::new(services.options.dirty_bytes_max),
            window: Window::new(services.options.slices_in_flight.saturating_mul(2)),
            outages: Outages::default(),
            free_space: FreeSpaceCache::default(),
            relieving: AtomicBool::new(false),
            files_lost: AtomicU64::new(0),
            journal,
            files,
            known,
            services,
        });
        background::spawn(&inner);
        known::spawn(&inner.known);
        Self { inner }
    }

    /// How many inodes have cached attributes and names at most, about.
    #[must_use]
    pub fn attributes_max(&self) -> usize {
        self.inner.services.options.attributes_max
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        InodeId::ROOT
    }

    /// The state of the mount.
    #[must_use]
    pub fn status(&self) -> VfsStatus {
        let (operations, queries) = self.inner.services.metadata.counters();
        let queue = self.queue();
        VfsStatus {
            fenced: self.inner.services.metadata.is_fenced(),
            dirty_bytes: self.inner.budget.used(),
            dirty_files: queue.len(),
            oldest_waiting: queue.iter().filter_map(|file| file.waiting).max(),
            journal: self.inner.journal.as_ref().map(|it| it.status()),
            open_handles: self.inner.files.handles.len(),
            operations,
            queries,
            files_lost: self.inner.files_lost.load(Ordering::Relaxed),
            under_old_epochs: self.inner.services.under_old_epochs(),
        }
    }

    /// Files that have something to commit, the one that waited longest first.
    #[must_use]
    pub fn queue(&self) -> Vec<QueuedFile> {
        self.inner.files.queue()
    }

    /// Commits the pending data of one file.
    ///
    /// # Errors
    /// If it could not be committed; it is kept and tried again.
    #[boxed]
    pub async fn sync(&self, inode: InodeId) -> Result<(), VfsError> {
        self.inner.flush_inode(inode).await
    }

    /// Makes pending data of one file, or of all files, as safe as `tier` says, now.
    ///
    /// # Errors
    /// The first that occurred; everything else was still tried.
    #[boxed]
    pub async fn sync_at(&self, inode: Option<InodeId>, tier: Tier) -> Result<(), VfsError> {
        if tier == Tier::Clouds {
            return match inode {
                Some(inode) => self.sync(inode).await,
                None => self.sync_all().await,
            };
        }
        let nodes: Vec<Arc<Node>> = match inode {
            Some(inode) => self.inner.files.node(inode).into_iter().collect(),
            None => self.inner.files.collect(|node| Some(node.clone())),
        };
        let mut outcome = Ok(());
        for node in nodes {
            outcome = outcome.and(self.inner.make_safe_at(&node, tier).await);
        }
        outcome
    }

    /// Drops everything that can be queried again: attributes, names, content.
    pub fn drop_caches(&self) {
        self.inner.known.invalidate(Scope::All);
        self.inner.chunks.clear();
    }

    /// Commits all pending data, several files at once, until there was no progress for
    /// [`VfsOptions::sync_wait`].
    ///
    /// # Errors
    /// The first that occurred, everything else was still tried; or `ETIMEDOUT`, and flushes that
    /// have begun continue.
    #[boxed]
    pub async fn sync_all(&self) -> Result<(), VfsError> {
        let waiting: Vec<Arc<Node>> = self
            .inner
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
                    let inner = self.inner.clone();
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
        let wait = self.inner.services.options.sync_wait;
        let synced = self.inner.budget.while_progressing(wait, all).await;
        synced.unwrap_or(Err(VfsError::refused("sync", Errno::TIMEDOUT)))
    }

    /// Commits all pending data and ends the session.
    ///
    /// # Errors
    /// If something could not be committed. The session is ended all the same.
    #[boxed]
    pub async fn shutdown(&self) -> Result<(), VfsError> {
        let synced = self.sync_all().await;
        self.inner.files.send_last_access_times().await;
        self.inner.services.stop();
        self.inner.known.stop();
        self.inner.services.metadata.close().await;
        self.close_journal().await;
        synced
    }

    /// Leaves uncommitted data in the journal, and nothing else.
    pub(super) async fn close_journal(&self) {
        if let Some(journal) = &self.inner.journal {
            journal.close().await;
        }
    }
}
