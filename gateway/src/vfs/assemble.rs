//! Putting a file system together: its owners, each over those below it, and its background tasks.

use super::background;
use super::file_system::{FileSystem, FileSystemCore};
use super::files::Files;
use super::known::{self, ChangeLog, KnownMetadata};
use super::locks::{self, FileLocks};
use super::names::spawn_claims;
use super::read::Reading;
use super::services::{Services, VfsOptions};
use super::shared::{SharedWithMe, TakingBack};
use super::writeback::Writeback;
use crate::journal::Journal;
use crate::memory::keep_at_most;
use crate::metadata::MetadataClient;
use crate::slices::SliceStore;
use crate::volume::Volume;
use std::sync::Arc;

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

    pub(super) fn build(
        volume: Arc<Volume>,
        metadata: Arc<MetadataClient>,
        slices: Arc<dyn SliceStore>,
        options: VfsOptions,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        // All file systems of a process share the spare memory; the last one sets its bound.
        keep_at_most(options.dirty_bytes_max.saturating_add(options.cache_bytes));
        let known = KnownMetadata::new(options.attributes_max, ChangeLog(metadata.clone()));
        let services = Services::new(volume, metadata, slices, options);
        let files = Files::new(services.clone(), known.clone());
        let writeback = Writeback::new(services.clone(), known.clone(), files.clone(), journal);
        let locks = FileLocks::new(
            services.clone(),
            known.clone(),
            files.clone(),
            writeback.clone(),
        );
        known.before_sharing(&locks);
        let inner = Arc::new(FileSystemCore {
            reading: Reading::new(services.clone(), files.clone()),
            shared: SharedWithMe::new(services.clone()),
            taking_back: TakingBack::default(),
            locks,
            writeback,
            files,
            known,
            services,
        });
        background::spawn(&inner);
        known::spawn(&inner.known);
        locks::spawn(&inner.locks);
        spawn_claims(&inner);
        Self { inner }
    }
}
