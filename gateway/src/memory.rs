//! The memory budget of a mount, and its division.
//!
//! ```text
//! written, not yet committed   7/32   all files; one file leaves a sixteenth of it to others
//! read, cached for readers     1/4    a quarter of it prefetched for one sequential reader
//! the disk cache               1/32   half for its index, half for chunks that wait to be written
//! sealed, in flight            1/4    blocks and shards of reads and writes in the foreground
//! rebuilt, being rebuilt       1/8    and 1/16 cached for the next read
//! shards in the background     1/16   after their write has returned
//! ```
//!
//! The uncommitted bytes of one file bound its writer's parallelism: with 4 MiB on their way to a
//! cloud 200 ms away, fewer bytes mean less speed, since each commit ends with a wait.
//!
//! The rest is for memory that is not counted byte by byte: pooled buffers, connections, attributes
//! and names (as many as fit a sixth of it), the allocator's overhead. Each share has a minimum,
//! below which work would stall; a setting smaller than their sum is exceeded.
//!
//! | Module | Content |
//! |---|---|
//! | `budget` | the size of the budget without a setting |
//! | `host` | the memory that this process may use |
//! | `long` | memory for content of several megabytes |

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

/// The least budget of a mount, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 128 << 20;
/// The default budget on a machine with plenty of memory, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 768 << 20;

/// The division of the budget.
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
            // The attributes of an inode take half a kibibyte here, and as much again for its name,
            // its place in a listing, and the record of the kernel's cache.
            attributes_max: self.share(6 << 10),
            ..VfsOptions::default()
        }
    }

    /// The disk cache's part: the cache at `path` with `bytes_max` bytes on disk, which leaves
    /// `free_floor` bytes of the disk free.
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
    fn the_shares_are_not_more_than_the_budget() {
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
