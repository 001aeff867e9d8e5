//! Bounds and waits of a file system.

use super::tier::Tier;
use std::time::Duration;

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
