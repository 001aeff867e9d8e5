//! The file system itself: what every call shares.

use super::files::{Files, QueuedFile};
use super::known::{KnownMetadata, Scope};
use super::locks::FileLocks;
use super::read::Reading;
use super::services::{Caller, Identities, Services, Tier, UnderOldEpochs};
use super::shared::{SharedWithMe, TakingBack};
use super::writeback::Writeback;
use crate::error::VfsError;
use crate::journal::JournalStatus;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::row::MountMode;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The state of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VfsStatus {
    /// Another mount has taken over; everything is refused.
    pub fenced: bool,
    /// How it stands towards other mounts; `None` without a mount.
    pub mode: Option<MountMode>,
    /// How long ago the servers were last asked what others have changed, and have answered.
    pub heard: Option<Duration>,
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
    /// Locks that processes hold through this mount.
    pub locks: usize,
    /// Locks that were lost.
    pub locks_lost: u64,
    /// Data sealed under keys that are not the newest any more; known some time after a newer key
    /// appeared.
    pub under_old_epochs: Option<UnderOldEpochs>,
}

pub(super) struct FileSystemCore {
    pub(super) services: Arc<Services>,
    pub(super) known: Arc<KnownMetadata>,
    pub(super) files: Arc<Files>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) reading: Arc<Reading>,
    pub(super) locks: Arc<FileLocks>,
    pub(super) shared: SharedWithMe,
    pub(super) taking_back: TakingBack,
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
    /// Whom this process's user is in the volume, if its number there is another one.
    #[must_use]
    pub fn identities(&self) -> Option<Identities> {
        let rights = self.inner.services.volume.own_rights()?;
        let user = rustix::process::geteuid().as_raw();
        Identities::of(&rights, (user, rustix::process::getegid().as_raw()))
    }

    /// The caller of a command: the user that this process runs as.
    #[must_use]
    pub fn this_process(&self) -> Caller {
        let caller = Caller::this_process();
        match self.identities() {
            Some(identities) => identities.caller(caller),
            None => caller,
        }
    }

    /// The volume's id, in hexadecimal digits.
    #[must_use]
    pub fn volume_name(&self) -> String {
        let id = self.inner.services.volume.id();
        id.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// How many inodes have cached attributes and names at most, about.
    #[must_use]
    pub fn attributes_max(&self) -> usize {
        self.inner.services.options.attributes_max
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.inner.services.volume.root()
    }

    /// The state of the mount.
    #[must_use]
    pub fn status(&self) -> VfsStatus {
        let (operations, queries) = self.inner.services.metadata.counters();
        let queue = self.queue();
        VfsStatus {
            fenced: self.inner.services.metadata.is_fenced(),
            mode: self.inner.known.mode(),
            heard: self.inner.known.heard(),
            dirty_bytes: self.inner.writeback.dirty_bytes(),
            dirty_files: queue.len(),
            oldest_waiting: queue.iter().filter_map(|file| file.waiting).max(),
            journal: self.inner.writeback.journal_status(),
            open_handles: self.inner.files.handles.len(),
            operations,
            queries,
            files_lost: self.inner.writeback.files_lost(),
            locks: self.inner.locks.count(),
            locks_lost: self.inner.locks.lost(),
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
        self.inner.writeback.flush_inode(inode).await
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
        self.inner.writeback.make_all_safe(inode, tier).await
    }

    /// Drops everything that can be queried again: attributes, names, content.
    pub fn drop_caches(&self) {
        self.inner.known.invalidate(Scope::All);
        self.inner.reading.clear();
    }

    /// Commits all pending data, several files at once, until there was no progress for
    /// [`VfsOptions::sync_wait`](super::VfsOptions::sync_wait).
    ///
    /// # Errors
    /// The first that occurred, everything else was still tried; or `ETIMEDOUT`, and flushes that
    /// have begun continue.
    #[boxed]
    pub async fn sync_all(&self) -> Result<(), VfsError> {
        self.inner.writeback.sync_all().await
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
        self.inner.writeback.close_journal().await;
        synced
    }
}
