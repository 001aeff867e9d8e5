//! Where the content of a file lies, for those who link it.
//!
//! Only what is committed can be linked: what was written is committed first.

use super::file_system::FileSystem;
use super::files::HandleId;
use super::known::ReadSource;
use super::services::Tier;
use crate::blocks::{LinkFor, LinkedObject};
use crate::error::VfsError;
use crate::keys::SliceKey;
use crate::slices::StoredSlice;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use rustix::io::Errno;
use std::sync::Arc;

/// How much of a file is looked at in one step.
const WINDOW_BYTES: u64 = 1 << 30;
/// How often to begin again if the file changes meanwhile.
const TRIES: u32 = 8;
/// Answers of the servers that one step takes at most.
const PAGES_MAX: u32 = 1 << 16;

/// Where a run of a file comes from.
#[derive(Clone, Debug)]
pub enum ContentSource {
    /// It lies in the inode.
    Inline(Bytes),
    /// It lies in a slice, from this position on.
    Slice(Arc<StoredSlice>, u32),
}

/// A run of a file.
#[derive(Clone, Debug)]
pub struct ContentRun {
    /// Where it begins.
    pub at: u64,
    /// Its bytes.
    pub length: u32,
    /// Where it comes from.
    pub source: ContentSource,
}

impl FileSystem {
    /// The committed content of an open file, and its size: runs in ascending order, all of one
    /// moment. What no run covers is zeros.
    ///
    /// # Errors
    /// `EAGAIN` if it changes all the time; or the servers do not answer.
    #[boxed]
    pub async fn content_of(&self, handle: HandleId) -> Result<(u64, Vec<ContentRun>), VfsError> {
        let inner = &self.inner;
        let node = inner.files.handles.file(handle)?.node.clone();
        self.sync_at(Some(node.inode), Tier::Clouds).await?;
        for _ in 0..TRIES {
            let (version, size) = {
                let state = node.state();
                (state.base.version, state.base.size)
            };
            let is_same = || {
                let state = node.state();
                state.base.version == version && !state.holds_written()
            };
            let (mut runs, mut at, mut pages) = (Vec::new(), 0, 0);
            while at < size && is_same() && pages < PAGES_MAX {
                let end = size.min(at.saturating_add(WINDOW_BYTES));
                let sources = node.state().content.sources(at..end);
                // What is known of a long file is taken at once: it may be forgotten when more is
                // learnt.
                let (sources, until) = match sources {
                    Ok(sources) => (sources, end),
                    Err(from) if from > at => {
                        let known = node.state().content.sources(at..from);
                        (known.unwrap_or_default(), from)
                    }
                    Err(from) => {
                        pages += 1;
                        inner.files.learn_content(&node, from).await?;
                        continue;
                    }
                };
                for source in sources {
                    runs.extend(run_of(source)?);
                }
                at = until;
            }
            if at >= size && is_same() {
                return Ok((size, runs));
            }
            self.sync_at(Some(node.inode), Tier::Clouds).await?;
        }
        Err(VfsError::refused("link", Errno::AGAIN))
    }

    /// Links the object of a slice.
    ///
    /// # Errors
    /// If too few clouds can link it.
    #[boxed]
    pub async fn link_object(
        &self,
        stored: &StoredSlice,
        link_for: &mut LinkFor,
    ) -> Result<LinkedObject, VfsError> {
        self.inner.services.slices.link(stored, link_for).await
    }

    /// The key of a slice, to be given away with a link.
    ///
    /// # Errors
    /// If this principal does not have it.
    #[boxed]
    pub async fn key_of_slice(&self, stored: &StoredSlice) -> Result<SliceKey, VfsError> {
        let services = &self.inner.services;
        services.key_of(stored.slice.epoch()).await?;
        services.slices.key_of(stored)
    }
}

/// A run; `None` for a hole.
fn run_of(source: ReadSource) -> Result<Option<ContentRun>, VfsError> {
    let (range, source) = match source {
        ReadSource::Hole(_) => return Ok(None),
        ReadSource::Inline(range, bytes) => {
            let within = |position: u64| {
                usize::try_from(position).map_or(bytes.len(), |it| it.min(bytes.len()))
            };
            let part = bytes.slice(within(range.start)..within(range.end));
            let end = range.start.saturating_add(part.len() as u64);
            (range.start..end, ContentSource::Inline(part))
        }
        ReadSource::Slice(range, stored, begin) => (range, ContentSource::Slice(stored, begin)),
    };
    let length = range.end.saturating_sub(range.start);
    let length = u32::try_from(length).map_err(|_| VfsError::Internal {
        reason: "a run of a file is longer than its slice can be".to_owned(),
    })?;
    Ok((length > 0).then_some(ContentRun {
        at: range.start,
        length,
        source,
    }))
}
