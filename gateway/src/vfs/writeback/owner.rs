//! What the work of committing shares.

use super::budget::Budget;
use super::quota::FreeSpaceCache;
use super::window::Window;
use crate::journal::{Journal, JournalStatus};
use crate::slices::Outages;
use crate::vfs::files::Files;
use crate::vfs::known::{KnownMetadata, QueryStamp};
use crate::vfs::services::Services;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeVersion;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a mount waits before it asks again for space that the trash holds on full clouds.
const RELIEF_PAUSE: Duration = Duration::from_secs(10);

/// See the module of the wing.
pub(in crate::vfs) struct Writeback {
    pub(super) services: Arc<Services>,
    pub(super) known: Arc<KnownMetadata>,
    pub(super) files: Arc<Files>,
    pub(super) budget: Arc<Budget>,
    /// Slices on their way to the clouds.
    pub(super) window: Window,
    /// The clouds' outages, as writers see them.
    pub(super) outages: Outages,
    pub(super) free_space: FreeSpaceCache,
    pub(super) journal: Option<Arc<Journal>>,
    /// Files whose written data was given up.
    pub(super) files_lost: AtomicU64,
    /// Whether trash was purged for full clouds a moment ago.
    relieving: AtomicBool,
}

impl Writeback {
    pub(in crate::vfs) fn new(
        services: Arc<Services>,
        known: Arc<KnownMetadata>,
        files: Arc<Files>,
        journal: Option<Arc<Journal>>,
    ) -> Arc<Self> {
        let options = &services.options;
        Arc::new(Self {
            budget: Budget::new(options.dirty_bytes_max),
            window: Window::new(options.slices_in_flight.saturating_mul(2)),
            outages: Outages::default(),
            free_space: FreeSpaceCache::default(),
            journal,
            files_lost: AtomicU64::new(0),
            relieving: AtomicBool::new(false),
            services,
            known,
            files,
        })
    }

    /// Bytes that wait to be committed.
    pub(in crate::vfs) fn dirty_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Files whose written data was given up.
    pub(in crate::vfs) fn files_lost(&self) -> u64 {
        self.files_lost.load(Ordering::Relaxed)
    }

    /// The state of the journal, if there is one.
    pub(in crate::vfs) fn journal_status(&self) -> Option<JournalStatus> {
        self.journal.as_ref().map(|it| it.status())
    }

    /// Leaves uncommitted data in the journal, and nothing else.
    pub(in crate::vfs) async fn close_journal(&self) {
        if let Some(journal) = &self.journal {
            journal.close().await;
        }
    }

    /// Our own operation changed an inode, but not its content; `asked` was taken before it.
    pub(in crate::vfs) fn learn_own(&self, attributes: &Attributes, asked: QueryStamp) {
        self.known.learn(attributes, asked);
        if let Some(node) = self.files.node(attributes.inode) {
            let mut state = node.state();
            let next = InodeVersion(state.base.version.0.saturating_add(1));
            if attributes.version == next && state.content.version() == state.base.version {
                state.content.unchanged_at(next);
            }
            let only_ours = attributes.version == next;
            state.learn(attributes);
            if only_ours {
                self.journal_base(&node, &state);
            }
        }
    }

    /// Clouds are full: some of the trash goes. The clouds' objects follow once a reconciler has
    /// deleted them.
    pub(in crate::vfs) fn relieve_trash(self: &Arc<Self>) {
        if self.relieving.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            if let Some(inner) = weak.upgrade() {
                match inner.services.metadata.relieve_trash().await {
                    Ok(0) => {}
                    Ok(inodes) => {
                        tracing::warn!(inodes, "clouds are full: the oldest trash is purged");
                    }
                    // A principal without the right leaves it to others.
                    Err(error) => tracing::debug!(%error, "the trash was not purged"),
                }
            }
            tokio::time::sleep(RELIEF_PAUSE).await;
            if let Some(inner) = weak.upgrade() {
                inner.relieving.store(false, Ordering::Release);
            }
        });
    }
}
