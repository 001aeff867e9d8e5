//! Warming: brings a file's content to this machine's disk before it is read.
//!
//! It bypasses the file system's memory cache and its readers, so that it evicts nothing that they
//! need. Pending data is brought when it is committed.

use super::file_system::FileSystem;
use super::files::OpenMode;
use super::known::ReadSource;
use crate::error::VfsError;
use crate::slices::Warmed;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::FileType;
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::ops::Range;

/// How often the servers are asked about further extents for one call, a page each.
const PAGES_MAX: u32 = 64;
/// Parts of slices that are brought in parallel.
const PARTS_AT_ONCE: usize = 4;

impl FileSystem {
    /// Brings the committed data of a part of a file to this machine's disk.
    ///
    /// # Errors
    /// If it is gone or no file, the servers do not answer, or too few clouds have good shards.
    #[boxed]
    pub async fn warm(&self, inode: InodeId, range: Range<u64>) -> Result<Warmed, VfsError> {
        let inner = &self.inner;
        let attributes = inner.files.attributes(inode).await?;
        if attributes.file_type() != FileType::File {
            return Err(VfsError::refused("warm", Errno::INVAL));
        }
        // Held open meanwhile; not by `open`, which would affect what the kernel may cache.
        let opening = inner.open_handle(&attributes, OpenMode::READ, None);
        let node = opening.node()?;
        let mut sources = None;
        for _ in 0..PAGES_MAX {
            let found = {
                let state = node.state();
                let end = range.end.min(state.base.size);
                if range.start >= end {
                    return Ok(Warmed::default());
                }
                state.content.sources(range.start..end)
            };
            match found {
                Ok(found) => {
                    sources = Some(found);
                    break;
                }
                Err(from) => inner.files.learn_content(&node, from).await?,
            }
        }
        let sources = sources.ok_or(VfsError::refused("warm", Errno::AGAIN))?;
        let mut rest = sources.into_iter();
        let mut parts = tokio::task::JoinSet::new();
        let mut warmed = Warmed::default();
        loop {
            while parts.len() < PARTS_AT_ONCE
                && let Some(source) = rest.next()
            {
                let ReadSource::Slice(range, stored, begin) = source else {
                    continue;
                };
                let length = u32::try_from(range.end.saturating_sub(range.start));
                let end = begin.saturating_add(length.unwrap_or(u32::MAX));
                let inner = inner.clone();
                parts.spawn(async move {
                    inner.services.key_of(stored.slice.epoch()).await?;
                    inner.services.slices.warm(&stored, begin..end).await
                });
            }
            match parts.join_next().await {
                None => return Ok(warmed),
                Some(Ok(part)) => warmed = warmed.and(part?),
                Some(Err(error)) => {
                    return Err(VfsError::Internal {
                        reason: error.to_string(),
                    });
                }
            }
        }
    }
}
