//! `fallocate`: reserving, punching holes, zeroing.
//!
//! Object stores have no size, so there is nothing to reserve: ranges that were never written take
//! no space, read as zeros and can be written later as well as before. So a reservation only moves
//! the end of the file, and zeroing a range is the same as punching a hole.
//!
//! A hole is an ordered operation, after pending data of the same file is committed: extents within
//! it go, and those that reach beyond it are cut. A hole over more extents than one operation can
//! change takes several; a crash between them leaves a part of it. Bytes inline in the inode are
//! sealed together, so zeros are written there instead.

use super::commit::{TRIES, commit_of};
use super::owner::Writeback;
use crate::clock;
use crate::error::VfsError;
use crate::vfs::files::Node;
use bytes::Bytes;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::operation::{Commit, NewContent, Step};
use quorumfs_metadata::reply::StepDone;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// What to do to a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its bytes become zeros that take no space; otherwise they stay.
    pub clear: bool,
    /// The file keeps its length, even if the range ends beyond it.
    pub keep_size: bool,
}

impl Writeback {
    pub(in crate::vfs) async fn allocate(
        self: &Arc<Self>,
        node: &Arc<Node>,
        range: Range<u64>,
        how: Allocation,
    ) -> Result<(), VfsError> {
        let _content = node.content.lock().await;
        self.flush_settled(node).await?;
        let before = node.state().base.version;
        let mut rest = vec![range.clone()];
        if !how.clear {
            rest.clear();
        }
        for _ in 0..TRIES {
            match self.allocate_rest(node, &range, &mut rest, how).await {
                Err(error) if error.is_out_of_date() => {
                    self.files.refresh_attributes(node.inode).await?
                }
                Ok(()) => {
                    // It counts as a change of content even if no operation was ordered.
                    let mut state = node.state();
                    if state.base.version == before {
                        let now = clock::now();
                        state.pending.mtime = Some(now);
                        state.pending.changed = Some(self.services.metadata.agreed(now));
                        state.wait_for_commit();
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(VfsError::refused("fallocate", Errno::AGAIN))
    }

    /// Clears the rest of the range, and sets the length last.
    async fn allocate_rest(
        self: &Arc<Self>,
        node: &Arc<Node>,
        whole: &Range<u64>,
        rest: &mut Vec<Range<u64>>,
        how: Allocation,
    ) -> Result<(), VfsError> {
        let (mut base, content) = self.commit_base(node).await?;
        if let Some(inline) = content.inline_bytes()
            && !rest.is_empty()
        {
            self.zero_inline(node, whole, inline.len() as u64).await?;
            rest.clear();
            base = node.state().base;
        }
        let size = (!how.keep_size).then(|| base.size.max(whole.end));
        while let Some(next) = rest.pop() {
            let hole = NewContent::Hole {
                offset: next.start,
                length: next.end.saturating_sub(next.start),
            };
            match self
                .commit_content("fallocate", node, &base, hole, None)
                .await
            {
                Ok(attributes) => base = attributes,
                Err(error) if error.is_too_large() => {
                    // Too many extents for one operation: split in halves, the first half first.
                    let end = next.end.min(base.size);
                    let middle = next.start.midpoint(end);
                    if middle <= next.start || middle >= end {
                        return Err(error);
                    }
                    rest.push(middle..next.end);
                    rest.push(next.start..middle);
                }
                Err(error) => {
                    // Finished parts are not repeated at the next try.
                    rest.push(next);
                    return Err(error);
                }
            }
        }
        if size.is_some() {
            self.commit_content("fallocate", node, &base, NewContent::Same, size)
                .await?;
        }
        Ok(())
    }

    /// Writes zeros over a part of a file's inline bytes, and commits them.
    async fn zero_inline(
        self: &Arc<Self>,
        node: &Arc<Node>,
        range: &Range<u64>,
        length: u64,
    ) -> Result<(), VfsError> {
        let end = range.end.min(length);
        let count = usize::try_from(end.saturating_sub(range.start)).unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        {
            let mut state = node.state();
            let zeros = Bytes::from(vec![0; count]);
            self.take_in(node, &mut state, range.start, &zeros);
            self.book(&mut state);
        }
        self.flush_settled(node).await
    }

    /// One operation that changes a file's content without new data; the caller holds `content` and
    /// has committed pending data. Returns the new attributes.
    pub(in crate::vfs) async fn commit_content(
        &self,
        what: &'static str,
        node: &Arc<Node>,
        base: &Attributes,
        content: NewContent,
        size: Option<u64>,
    ) -> Result<Attributes, VfsError> {
        let now = clock::now();
        let commit = Commit {
            size,
            mtime: Some(now),
            ..commit_of(base, content)
        };
        let (own, asked) = (self.services.metadata.own(), self.known.query_stamp());
        let done = self
            .services
            .metadata
            .step(what, own, now, Step::Commit(commit));
        match done.await? {
            StepDone::Committed(attributes) => {
                self.known.learn(&attributes, asked);
                node.state().resized(&attributes);
                Ok(attributes)
            }
            other => Err(self.services.metadata.mismatch(what, &other)),
        }
    }
}
