//! Warming: brings a file's content to this machine's disk before it is read.
//!
//! It bypasses the file system's memory cache and its readers, so that it evicts nothing that they
//! need. Pending data is brought when it is committed.

use super::owner::Reading;
use crate::error::VfsError;
use crate::slices::Warmed;
use crate::vfs::files::Node;
use crate::vfs::known::ReadSource;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// How often the servers are asked about further extents for one call, a page each.
const PAGES_MAX: u32 = 64;
/// Parts of slices that are brought in parallel.
const PARTS_AT_ONCE: usize = 4;

impl Reading {
    /// Brings the committed data of a part of a file to this machine's disk. The caller holds the
    /// file open meanwhile.
    pub(in crate::vfs) async fn warm(
        self: &Arc<Self>,
        node: &Arc<Node>,
        range: Range<u64>,
    ) -> Result<Warmed, VfsError> {
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
                Err(from) => self.files.learn_content(node, from).await?,
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
                let inner = Arc::clone(self);
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
