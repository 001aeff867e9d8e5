//! What reads share.

use super::chunk_cache::ChunkCache;
use crate::vfs::files::Files;
use crate::vfs::services::Services;
use std::sync::Arc;

/// See the module of the wing.
pub(in crate::vfs) struct Reading {
    pub(super) services: Arc<Services>,
    pub(super) files: Arc<Files>,
    pub(super) chunks: ChunkCache,
}

impl Reading {
    pub(in crate::vfs) fn new(services: Arc<Services>, files: Arc<Files>) -> Arc<Self> {
        Arc::new(Self {
            chunks: ChunkCache::new(services.options.cache_bytes),
            services,
            files,
        })
    }

    /// Evicts all content.
    pub(in crate::vfs) fn clear(&self) {
        self.chunks.clear();
    }
}
