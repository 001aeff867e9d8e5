//! The disk cache as a mount has it: made as the configuration says, and told of in `status`.
//!
//! Nothing that goes wrong with it keeps a volume from being mounted: it is told, and done without.

use super::opened::Configured;
use quorumfs_gateway::disk_cache::{CachedSlices, DiskCache};
use quorumfs_gateway::memory::MemoryPlan;
use quorumfs_gateway::vfs::SliceStore;
use quorumfs_gateway::volume::Volume;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// What a mount has of it.
#[derive(Debug)]
pub(super) enum MountCache {
    /// It is not wanted, or this is no mount.
    Off,
    /// It is wanted and cannot be, for this reason.
    Without(String),
    /// It is there.
    On {
        /// Where.
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
        // Several volumes may be told the same place.
        let path = state.join(&section.path).join(volume.id().to_string());
        match configured.host_key() {
            Ok(key) => {
                let options = plan.disk_cache(path.clone(), bytes, section.free_space_floor());
                let cache = Arc::new(DiskCache::open(options, key.cache()));
                Self::On { path, cache }
            }
            Err(failure) => {
                tracing::warn!(%failure, "there is no disk cache");
                Self::Without(failure.message)
            }
        }
    }

    /// Before whoever keeps slices, if it is there.
    pub(super) fn before(&self, slices: Arc<dyn SliceStore>) -> Arc<dyn SliceStore> {
        match self {
            Self::Off | Self::Without(_) => slices,
            Self::On { cache, .. } => Arc::new(CachedSlices::new(slices, cache.clone())),
        }
    }

    /// Writes what waits, and lets go of the directory.
    pub(super) async fn close(&self) {
        if let Self::On { cache, .. } = self {
            cache.close().await;
        }
    }

    /// How it is doing.
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

/// What a running mount says about its disk cache.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CacheReport {
    /// Where it lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
    /// Bytes on disk.
    pub(crate) bytes: u64,
    /// As many as there may be.
    pub(crate) bytes_max: u64,
    /// Pieces of files that can be found.
    pub(crate) chunks: u64,
    /// Pieces that were read from it.
    pub(crate) hits: u64,
    /// Pieces that were not there.
    pub(crate) misses: u64,
    /// Pieces that were not taken: too many came at once, or the disk is too full.
    pub(crate) refused: u64,
    /// Pieces that were there and did not open.
    pub(crate) damaged: u64,
    /// Why nothing more is written, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

impl CacheReport {
    /// For people.
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
