//! The disk cache of a mount: made as configured, and reported in `status`.
//!
//! No failure of it keeps a volume from being mounted: it is logged, and the cache is bypassed.

use super::opened::Configured;
use quorumfs_gateway::disk_cache::{CachedSlices, DiskCache};
use quorumfs_gateway::memory::MemoryPlan;
use quorumfs_gateway::vfs::SliceStore;
use quorumfs_gateway::volume::Volume;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// The disk cache of a mount.
#[derive(Debug)]
pub(super) enum MountCache {
    /// It is not configured, or this is no mount.
    Off,
    /// It is configured and unusable, for this reason.
    Without(String),
    /// It is in use.
    On {
        /// Its directory.
        path: PathBuf,
        /// The cache.
        cache: Arc<DiskCache>,
    },
}

impl MountCache {
    /// The cache that the configuration asks for.
    pub(super) fn open(configured: &Configured, volume: &Volume, plan: MemoryPlan) -> Self {
        let section = &configured.configuration().cache;
        let Some(bytes) = section.bytes() else {
            return Self::Off;
        };
        let state = configured.state();
        // Several volumes may be configured with the same place.
        let path = state.join(&section.path).join(volume.id().to_string());
        match configured.host_key() {
            Ok(key) => {
                let options = plan.disk_cache(path.clone(), bytes, section.free_space_floor());
                let cache = Arc::new(DiskCache::open(options, key.cache()));
                Self::On { path, cache }
            }
            Err(failure) => {
                tracing::warn!(%failure, "the disk cache is bypassed");
                Self::Without(failure.message)
            }
        }
    }

    /// Puts it in front of the store of slices, if it is in use.
    pub(super) fn before(&self, slices: Arc<dyn SliceStore>) -> Arc<dyn SliceStore> {
        match self {
            Self::Off | Self::Without(_) => slices,
            Self::On { cache, .. } => Arc::new(CachedSlices::new(slices, cache.clone())),
        }
    }

    /// Writes pending entries and releases the directory.
    pub(super) async fn close(&self) {
        if let Self::On { cache, .. } = self {
            cache.close().await;
        }
    }

    /// Its condition.
    pub(super) fn report(&self) -> Option<CacheReport> {
        match self {
            Self::Off => None,
            Self::Without(problem) => Some(CacheReport {
                problem: Some(problem.clone()),
                ..CacheReport::default()
            }),
            Self::On { path, cache } => {
                let status = cache.status();
                Some(CacheReport {
                    path: Some(path.clone()),
                    bytes: status.bytes,
                    bytes_max: status.bytes_max,
                    chunks: status.chunks as u64,
                    hits: status.hits,
                    misses: status.misses,
                    refused: status.refused,
                    damaged: status.damaged,
                    problem: status.problem,
                })
            }
        }
    }
}

/// What a running mount reports of its disk cache.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CacheReport {
    /// Its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
    /// Bytes on disk.
    pub(crate) bytes: u64,
    /// The most that it may take.
    pub(crate) bytes_max: u64,
    /// Chunks of files that it holds.
    pub(crate) chunks: u64,
    /// Chunks that were read from it.
    pub(crate) hits: u64,
    /// Chunks that it did not hold.
    pub(crate) misses: u64,
    /// Chunks that were not stored: too many came at once, or the disk is too full.
    pub(crate) refused: u64,
    /// Chunks that it held and that could not be opened.
    pub(crate) damaged: u64,
    /// Why nothing more is written, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

impl CacheReport {
    /// The text form.
    pub(crate) fn text(&self) -> String {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut text = format!(
            "; {:.1} of {:.0} MiB on disk in its cache, {} hits, {} misses",
            mebibytes(self.bytes),
            mebibytes(self.bytes_max),
            self.hits,
            self.misses
        );
        if self.refused > 0 {
            text.push_str(&format!(", {} refused", self.refused));
        }
        if self.damaged > 0 {
            text.push_str(&format!(", {} DAMAGED", self.damaged));
        }
        if let Some(problem) = &self.problem {
            text.push_str(&format!("; THE DISK CACHE IS NOT WRITTEN: {problem}"));
        }
        text
    }
}
