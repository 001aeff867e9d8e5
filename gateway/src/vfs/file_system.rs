//! The file system itself: what every call shares.

use super::access_times::AccessTimes;
use super::budget::Budget;
use super::cache::Cache;
use super::caller::{Caller, GroupCache};
use super::chunk_cache::ChunkCache;
use super::content::ContentMap;
use super::directory::ListingCache;
use super::durability::Tier;
use super::extended::AttributeCache;
use super::extent_cache::ExtentCache;
use super::handle::Handles;
use super::key_rotation::{KeyRotation, UnderOldEpochs};
use super::lookups::Lookups;
use super::node::Node;
use super::open::LastOpen;
use super::orphans::Gone;
use super::quota::FreeSpaceCache;
use super::revalidation::Revalidation;
use super::validity::QueryStamp;
use super::window::Window;
use super::{background, revalidation};
use crate::error::VfsError;
use crate::journal::{Journal, JournalStatus};
use crate::memory::keep_at_most;
use crate::metadata::MetadataClient;
use crate::slices::Outages;
use crate::slices::SliceStore;
use crate::volume::Volume;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, Credentials, Mode};
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, RwLock};

/// Locks that keep an `open` and the `unlink` of the same inode apart.
const NAMESPACE_LOCKS: usize = 64;

/// Files that are committed at once when all are: enough small ones to share an object. Their data
/// is in memory already, and the block store bounds what it seals of it.
const SYNC_AT_ONCE: usize = 512;

/// Bounds and waits.
#[derive(Clone, Debug)]
pub struct VfsOptions {
    /// Bytes that may be written and not yet committed, all files together.
    pub dirty_bytes_max: u64,
    /// The same for one file; a writer beyond it waits for its own flush.
    pub file_dirty_bytes_max: u64,
    /// Plain content that is cached for readers, in bytes.
    pub cache_bytes: u64,
    /// How far to prefetch for a sequential reader, in bytes.
    pub readahead_bytes_max: u64,
    /// Attributes and names that are cached, so many of each at most.
    pub attributes_max: usize,
    /// How long a writer waits for memory, without progress, before it gets an error.
    pub write_wait: Duration,
    /// How long data waits to be committed if no call asks for it earlier.
    pub commit_after: Duration,
    /// How long times of access wait to be sent to the servers.
    pub access_times_after: Duration,
    /// How often to look for inodes without a name that this session need not hold any more.
    pub orphans_every: Duration,
    /// How long to try to commit everything, without progress, before giving up on the rest.
    pub sync_wait: Duration,
    /// Slices of full length in flight to the clouds at once, for one file, and twice as many for
    /// all, at most; fewer where the link is slow. There may be more short ones, with no more bytes
    /// together.
    pub slices_in_flight: usize,
    /// A long commit sends what has arrived to the servers when it is this much, in bytes, and
    /// frees its memory.
    pub part_bytes: u64,
    /// What close and fsync wait for.
    pub tier: Tier,
}

impl Default for VfsOptions {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            file_dirty_bytes_max: 64 << 20,
            cache_bytes: 128 << 20,
            readahead_bytes_max: 48 << 20,
            attributes_max: 1 << 17,
            write_wait: Duration::from_secs(45),
            commit_after: Duration::from_secs(5),
            access_times_after: Duration::from_secs(30),
            orphans_every: Duration::from_secs(30),
            sync_wait: Duration::from_secs(60),
            slices_in_flight: 8,
            part_bytes: 32 << 20,
            tier: Tier::default(),
        }
    }
}

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

/// A file that has something to commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuedFile {
    /// The file.
    pub inode: InodeId,
    /// Bytes of it that wait, or are being committed.
    pub bytes: u64,
    /// For how long; `None` if all are being committed.
    pub waiting: Option<Duration>,
}

pub(crate) struct FileSystemCore {
    pub(crate) volume: Arc<Volume>,
    pub(crate) metadata: Arc<MetadataClient>,
    pub(crate) slices: Arc<dyn SliceStore>,
    pub(crate) options: VfsOptions,
    pub(crate) cache: Cache,
    pub(crate) chunks: ChunkCache,
    pub(crate) attribute_cache: AttributeCache,
    pub(crate) budget: Arc<Budget>,
    /// Slices on their way to the clouds.
    pub(crate) window: Window,
    /// The clouds' outages, as writers see them.
    pub(crate) outages: Outages,
    pub(crate) free_space: FreeSpaceCache,
    pub(crate) handles: Handles,
    pub(crate) lookups: Lookups,
    pub(crate) last_open: LastOpen,
    pub(crate) pages: ListingCache,
    pub(crate) extent_cache: ExtentCache,
    pub(crate) revalidation: Revalidation,
    pub(crate) access_times: AccessTimes,
    /// Special files that lost their last names, and are held in case they are open.
    pub(crate) specials: Mutex<VecDeque<InodeId>>,
    pub(crate) gone: Gone,
    /// Whether trash was purged for full clouds a moment ago.
    pub(crate) relieving: AtomicBool,
    pub(crate) files_lost: AtomicU64,
    /// Wakes the background task before its time.
    pub(crate) pressure: Arc<Notify>,
    pub(crate) stopped: AtomicBool,
    pub(crate) key_rotation: KeyRotation,
    pub(crate) journal: Option<Arc<Journal>>,
    groups: GroupCache,
    nodes: Mutex<HashMap<InodeId, Arc<Node>>>,
    namespace: Vec<RwLock<()>>,
}

/// A file system, testable without a kernel. Clones are the same file system.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) inner: Arc<FileSystemCore>,
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
        let id = self.inner.volume.id();
        id.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn build(
        volume: Arc<Volume>,
        metadata: Arc<MetadataClient>,
        slices: Arc<dyn SliceStore>,
        options: VfsOptions,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        // All file systems of a process share the spare memory; the last one sets its bound.
        keep_at_most(options.dirty_bytes_max.saturating_add(options.cache_bytes));
        let inner = Arc::new(FileSystemCore {
            volume,
            metadata,
            slices,
            cache: Cache::new(options.attributes_max),
            chunks: ChunkCache::new(options.cache_bytes),
            attribute_cache: AttributeCache::default(),
            budget: Budget::new(options.dirty_bytes_max),
            window: Window::new(options.slices_in_flight.saturating_mul(2)),
            outages: Outages::default(),
            free_space: FreeSpaceCache::default(),
            handles: Handles::default(),
            lookups: Lookups::default(),
            last_open: LastOpen::new(options.attributes_max),
            pages: ListingCache::new(options.attributes_max),
            extent_cache: ExtentCache::new(options.attributes_max / 16),
            revalidation: Revalidation::default(),
            access_times: AccessTimes::default(),
            specials: Mutex::default(),
            gone: Gone::default(),
            relieving: AtomicBool::new(false),
            files_lost: AtomicU64::new(0),
            pressure: Arc::default(),
            stopped: AtomicBool::new(false),
            key_rotation: KeyRotation::default(),
            journal,
            groups: GroupCache::default(),
            nodes: Mutex::default(),
            namespace: (0..NAMESPACE_LOCKS).map(|_| RwLock::new(())).collect(),
            options,
        });
        background::spawn(&inner);
        revalidation::spawn(&inner);
        Self { inner }
    }

    /// How many inodes have cached attributes and names at most, about.
    #[must_use]
    pub fn attributes_max(&self) -> usize {
        self.inner.options.attributes_max
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        InodeId::ROOT
    }

    /// The state of the mount.
    #[must_use]
    pub fn status(&self) -> VfsStatus {
        let (operations, queries) = self.inner.metadata.counters();
        let queue = self.queue();
        VfsStatus {
            fenced: self.inner.metadata.is_fenced(),
            dirty_bytes: self.inner.budget.used(),
            dirty_files: queue.len(),
            oldest_waiting: queue.iter().filter_map(|file| file.waiting).max(),
            journal: self.inner.journal.as_ref().map(|it| it.status()),
            open_handles: self.inner.handles.len(),
            operations,
            queries,
            files_lost: self.inner.files_lost.load(Ordering::Relaxed),
            under_old_epochs: self.inner.key_rotation.under_old_epochs(),
        }
    }

    /// Files that have something to commit, the one that waited longest first.
    #[must_use]
    pub fn queue(&self) -> Vec<QueuedFile> {
        let nodes = self.inner.nodes();
        let waiting = nodes.values().filter_map(|node| {
            let state = node.state();
            state.is_waiting().then(|| QueuedFile {
                inode: node.inode,
                bytes: state.booked,
                waiting: state.waiting_since.map(|since| since.elapsed()),
            })
        });
        let mut queue: Vec<QueuedFile> = waiting.collect();
        queue.sort_by_key(|file| std::cmp::Reverse((file.waiting, file.inode)));
        queue
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
            Some(inode) => self.inner.node(inode).into_iter().collect(),
            None => self.inner.nodes().values().cloned().collect(),
        };
        let mut outcome = Ok(());
        for node in nodes {
            outcome = outcome.and(self.inner.make_safe_at(&node, tier).await);
        }
        outcome
    }

    /// Drops everything that can be queried again: attributes, names, content.
    pub fn drop_caches(&self) {
        self.inner.cache.clear();
        self.inner.pages.clear();
        self.inner.extent_cache.clear();
        self.inner.chunks.clear();
        self.inner.attribute_cache.clear();
    }

    /// Commits all pending data, several files at once, until there was no progress for
    /// [`VfsOptions::sync_wait`].
    ///
    /// # Errors
    /// The first that occurred, everything else was still tried; or `ETIMEDOUT`, and flushes that
    /// have begun continue.
    #[boxed]
    pub async fn sync_all(&self) -> Result<(), VfsError> {
        let waiting: Vec<Arc<Node>> = {
            let nodes = self.inner.nodes();
            nodes
                .values()
                .filter(|node| node.state().is_waiting())
                .cloned()
                .collect()
        };
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
        let wait = self.inner.options.sync_wait;
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
        self.send_last_access_times().await;
        self.inner.stopped.store(true, Ordering::Release);
        self.inner.pressure.notify_one();
        self.inner.metadata.close().await;
        self.close_journal().await;
        synced
    }

    /// Leaves uncommitted data in the journal, and nothing else.
    pub(crate) async fn close_journal(&self) {
        if let Some(journal) = &self.inner.journal {
            journal.close().await;
        }
    }
}

impl FileSystemCore {
    pub(crate) fn nodes(&self) -> MutexGuard<'_, HashMap<InodeId, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node of an inode that is open or has pending data.
    pub(crate) fn node(&self, inode: InodeId) -> Option<Arc<Node>> {
        self.nodes().get(&inode).cloned()
    }

    /// The node of an inode, made if there is none; `with` runs before the node can be dropped
    /// again.
    pub(crate) fn node_with<T>(
        &self,
        attributes: &Attributes,
        content: impl FnOnce(&Attributes) -> ContentMap,
        with: impl FnOnce(&mut super::node::NodeState) -> T,
    ) -> (Arc<Node>, T) {
        let mut nodes = self.nodes();
        // A change of the inode without a node has updated the cache before this.
        let base = self.newest(attributes);
        let node = nodes
            .entry(attributes.inode)
            .or_insert_with(|| {
                let cached = self.extent_cache.get(base.inode, base.version);
                let content = cached.unwrap_or_else(|| content(&base));
                Arc::new(Node::new(base, content))
            })
            .clone();
        let outcome = with(&mut node.state());
        (node, outcome)
    }

    /// Drops the node if it is neither open nor dirty.
    pub(crate) fn retire(&self, node: &Arc<Node>) {
        let mut nodes = self.nodes();
        let state = node.state();
        if state.is_idle()
            && nodes
                .get(&node.inode)
                .is_some_and(|held| Arc::ptr_eq(held, node))
        {
            if !state.unlinked && state.content.version() == state.base.version {
                self.extent_cache.insert(node.inode, &state.content);
            }
            nodes.remove(&node.inode);
        }
    }

    /// The credentials of an operation on behalf of the caller.
    pub(crate) fn credentials(&self, caller: &Caller) -> Credentials {
        self.groups.credentials(caller)
    }

    /// Whether the caller keeps the set-group-id bit of a file that it changes, as far as its group
    /// counts. Its groups are looked up only if a mode has the bit.
    pub(crate) fn may_keep_group(&self, caller: &Caller, seen: &Attributes) -> bool {
        !seen.mode.has(Mode::SET_GID) || self.credentials(caller).may_keep_group(seen.gid)
    }

    /// Keeps an `open` (read) and an `unlink` (write) of the same inode apart.
    pub(crate) fn namespace_lock(&self, inode: InodeId) -> &RwLock<()> {
        static FALLBACK: RwLock<()> = RwLock::const_new(());
        let at = usize::try_from(inode.0 % NAMESPACE_LOCKS as u64).unwrap_or(0);
        self.namespace.get(at).unwrap_or(&FALLBACK)
    }

    /// Enters the answer to a query about an inode.
    pub(crate) fn learn(&self, attributes: &Attributes, asked: QueryStamp) {
        self.learn_epoch(attributes);
        self.cache.learn(attributes, asked);
        if let Some(node) = self.node(attributes.inode) {
            node.state().learn(attributes);
        }
    }

    /// The caller's view of an inode, for which the servers answered `attributes`.
    pub(crate) fn seen(&self, attributes: &Attributes) -> Attributes {
        let newest = self.newest(attributes);
        let Some(node) = self.node(attributes.inode) else {
            return self.access_times.with_pending(newest);
        };
        let mut state = node.state();
        if newest.version > state.base.version {
            state.learn(&newest);
        }
        self.access_times.with_pending(state.attributes())
    }

    /// Answers may overtake each other: a newer known version counts more.
    pub(crate) fn newest(&self, attributes: &Attributes) -> Attributes {
        let known = self.cache.attributes(attributes.inode);
        known
            .filter(|known| known.version > attributes.version)
            .unwrap_or(*attributes)
    }

    /// Attributes as callers see them, queried unless they are cached.
    pub(crate) async fn attributes(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        if let Some(node) = self.node(inode) {
            let state = node.state();
            // While this mount has something to commit, its own view is the newest.
            if state.is_waiting() {
                return Ok(self.access_times.with_pending(state.attributes()));
            }
        }
        self.revalidate().await;
        if let Some(attributes) = self.cache.attributes(inode) {
            return Ok(self.seen(&attributes));
        }
        let asked = self.cache.query_stamp();
        let attributes = self.metadata.attributes(inode).await?;
        self.learn(&attributes, asked);
        Ok(self.seen(&attributes))
    }
}
