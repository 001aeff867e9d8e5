//! One setting for the memory of a mount, and how it is divided.
//!
//! ```text
//! written, not yet committed   7/32   all files; a sixteenth of it one file leaves to others
//! read, kept for readers       1/4    a quarter of it ahead of one sequential reader
//! the disk cache               1/32   half for what lies where, half for what waits to be written
//! sealed, on its way           1/4    blocks and shards of reads and writes in the foreground
//! rebuilt, being rebuilt       1/8    and 1/16 kept for the next read
//! shards in the background     1/16   after their write has returned
//! ```
//!
//! What one file may have waiting is what its writer can have under way: with 4 MiB on their way to
//! a cloud 200 ms away, less of it is less speed, for each commit ends with a wait.
//!
//! The rest is for what is not counted byte by byte: buffers that are used again, connections,
//! attributes and names (so many as fit a sixth of it), what the allocator keeps. A share has a
//! least size, below which work would not go on; a setting that is smaller than their sum is not
//! kept.
//!
//! | Module | What it holds |
//! |---|---|
//! | `budget` | how much it is, if nobody says |
//! | `host` | how much this process may use |
//! | `long` | memory for content that comes in megabytes |

mod budget;
mod host;
mod long;

pub use budget::{BudgetSource, MemoryBudget};
pub use host::{Limit, Usable, usable, usable_by};
pub(crate) use long::{BLOCK_BYTES, LongBytes, give_back_spare, keep_at_most};

use crate::blocks::BlockConfig;
use crate::disk_cache::DiskCacheOptions;
use crate::vfs::VfsOptions;
use std::path::PathBuf;

/// The least that a mount works with, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 128 << 20;
/// What it gets if nobody says and there is plenty, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 768 << 20;

/// How memory is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    total: u64,
}

impl MemoryPlan {
    /// Divides so many bytes.
    #[must_use]
    pub fn of(total: u64) -> Self {
        Self {
            total: total.max(MEMORY_BYTES_MIN),
        }
    }

    fn share(self, part: u64) -> usize {
        usize::try_from(self.total / part).unwrap_or(usize::MAX)
    }

    /// The file system's part.
    #[must_use]
    pub fn vfs(self) -> VfsOptions {
        VfsOptions {
            dirty_bytes_max: self.total / 32 * 7,
            file_dirty_bytes_max: self.total / 512 * 105,
            cache_bytes: self.total / 4,
            readahead_bytes_max: self.total / 16,
            // What is kept of an inode takes half a kibibyte here, and as much again for its name,
            // its place in a listing, and what the kernel was told.
            attributes_max: self.share(6 << 10),
            ..VfsOptions::default()
        }
    }

    /// The disk cache's part: the cache at `path` with `bytes_max` bytes there, which leaves
    /// `free_floor` bytes of the disk to others.
    #[must_use]
    pub fn disk_cache(self, path: PathBuf, bytes_max: u64, free_floor: u64) -> DiskCacheOptions {
        DiskCacheOptions {
            path,
            bytes_max,
            free_floor,
            index_bytes_max: self.share(64),
            queue_bytes_max: self.total / 64,
        }
    }

    /// The block store's part.
    #[must_use]
    pub fn blocks(self, config: BlockConfig) -> BlockConfig {
        BlockConfig {
            memory_bytes_max: self.share(4),
            rebuild_bytes_max: self.share(8),
            rebuilt_bytes_max: self.share(16),
            background_bytes_max: self.share(16),
            buffer_bytes_max: self.share(16),
            ..config
        }
    }
}

impl Default for MemoryPlan {
    fn default() -> Self {
        Self::of(MEMORY_BYTES_DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::placement::Policy;

    #[test]
    fn what_is_divided_is_not_more_than_there_is() {
        for total in [0, MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT, 8 << 30] {
            let plan = MemoryPlan::of(total);
            let vfs = plan.vfs();
            let volume = quorumfs_bft::identity::ClusterId([1; 16]);
            let policy = Policy::new(4, 1, 2, 4).unwrap();
            let blocks = plan.blocks(BlockConfig::new(volume, policy));
            let disk = plan.disk_cache(PathBuf::new(), 0, 0);
            let parts = [
                blocks.memory_bytes_max,
                blocks.rebuild_bytes_max,
                blocks.rebuilt_bytes_max,
                blocks.background_bytes_max,
                blocks.buffer_bytes_max,
                disk.index_bytes_max,
            ];
            let sum = parts.iter().map(|part| *part as u64).sum::<u64>()
                + disk.queue_bytes_max
                + vfs.dirty_bytes_max
                + vfs.cache_bytes;
            assert!(sum <= total.max(MEMORY_BYTES_MIN) * 17 / 16, "{total}");
            assert!(vfs.readahead_bytes_max <= vfs.cache_bytes / 2);
            let rest = total.max(MEMORY_BYTES_MIN) / 4;
            assert!((16_384..=rest >> 10).contains(&(vfs.attributes_max as u64)));
            assert!(vfs.file_dirty_bytes_max <= vfs.dirty_bytes_max);
        }
    }
}
