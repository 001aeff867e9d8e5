//! Data and holes of a file: `SEEK_DATA` and `SEEK_HOLE`.
//!
//! Uncommitted writes are data; committed data is where extents are. Bytes that happen to be zeros
//! are data like all others. The end of the file counts as a hole.

use super::owner::Reading;
use crate::error::VfsError;
use crate::vfs::files::{Node, NodeState};
use rustix::io::Errno;
use std::sync::Arc;

/// How often the servers are asked about further extents for one call, a page each.
const PAGES_MAX: u32 = 4096;

/// The target of a seek.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte that was written.
    Data,
    /// The next byte that was not, or the end of the file.
    Hole,
}

impl Reading {
    /// The first position of a kind from `offset` on.
    pub(in crate::vfs) async fn seek(
        &self,
        node: &Arc<Node>,
        offset: u64,
        to: Seek,
    ) -> Result<u64, VfsError> {
        let mut at = offset;
        for _ in 0..PAGES_MAX {
            let found = {
                let state = node.state();
                match to {
                    Seek::Data => state.next_data(at),
                    Seek::Hole => state.next_hole(at),
                }
            };
            match found {
                Ok(Some(place)) => return Ok(place),
                Ok(None) => return Err(VfsError::refused("lseek", Errno::NXIO)),
                Err(from) => {
                    // Everything before it is of the other kind: do not search it again.
                    self.files.learn_content(node, from).await?;
                    at = from;
                }
            }
        }
        Err(VfsError::refused("lseek", Errno::AGAIN))
    }
}

impl NodeState {
    /// The first byte from `at` on that was written; or the offset to ask the servers about.
    fn next_data(&self, at: u64) -> Result<Option<u64>, u64> {
        let size = self.size();
        if at >= size {
            return Ok(None);
        }
        let local = [
            self.dirty.next_byte(at),
            self.early_uploads.runs().next_byte(at),
            self.frozen.next_byte(at),
        ];
        let local = local.into_iter().flatten().min();
        let before = self.base.size.min(local.unwrap_or(u64::MAX));
        let committed = self.content.next_byte(at, before)?;
        Ok(committed.or(local))
    }

    /// The first byte from `at` on that was not written; or the offset to ask the servers about.
    fn next_hole(&self, at: u64) -> Result<Option<u64>, u64> {
        let size = self.size();
        if at >= size {
            return Ok(None);
        }
        let mut place = at;
        while place < size {
            let local = self
                .dirty
                .covered_until(place)
                .or_else(|| self.early_uploads.runs().covered_until(place))
                .or_else(|| self.frozen.covered_until(place));
            let covered = match local {
                Some(end) => Some(end),
                // Nothing is committed beyond the committed end.
                None if place >= self.base.size => None,
                None => self.content.covered_until(place)?,
            };
            match covered {
                Some(end) => place = end,
                None => break,
            }
        }
        Ok(Some(place.min(size)))
    }
}
