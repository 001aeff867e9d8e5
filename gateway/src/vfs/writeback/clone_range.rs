//! `copy_file_range`: makes a range of one file refer to another file's slices. No bytes move.
//!
//! Pending data of both files is committed first; then one ordered operation has the destination
//! refer to the slices of the source. That costs the same for a gigabyte as for a page, until
//! either file is written to. A range with more extents than one operation can take is copied in
//! part, as the system call may; its caller asks for the rest.
//!
//! Files whose bytes lie in the inode have no slices: the call fails with `EOPNOTSUPP`, and the
//! kernel copies through memory, a kilobyte at most or enough to be worth a slice.

use super::commit::TRIES;
use super::owner::Writeback;
use crate::error::VfsError;
use crate::vfs::files::Node;
use quorumfs_metadata::operation::{CloneRange, NewContent};
use rustix::io::Errno;
use std::sync::Arc;

/// What to copy where.
#[derive(Clone, Copy)]
pub(in crate::vfs) struct Cloned {
    pub(in crate::vfs) source_offset: u64,
    pub(in crate::vfs) offset: u64,
    pub(in crate::vfs) length: u64,
}

impl Writeback {
    pub(in crate::vfs) async fn clone_range(
        self: &Arc<Self>,
        source: &Arc<Node>,
        to: &Arc<Node>,
        mut range: Cloned,
    ) -> Result<u64, VfsError> {
        let same = source.inode == to.inode;
        // In one order for both directions of copying.
        let (first, second) = if source.inode < to.inode {
            (source, to)
        } else {
            (to, source)
        };
        let _first = first.content.lock().await;
        let _second = if same {
            None
        } else {
            Some(second.content.lock().await)
        };
        self.flush_settled(source).await?;
        if !same {
            self.flush_settled(to).await?;
        }
        let mut tries = TRIES;
        loop {
            let left = source.state().base.size.saturating_sub(range.source_offset);
            range.length = range.length.min(left);
            match self.clone_once(source, to, range).await {
                Err(error) if error.is_out_of_date() && tries > 1 => {
                    tries -= 1;
                    self.files.refresh_attributes(source.inode).await?;
                    self.files.refresh_attributes(to.inode).await?;
                }
                // Too many extents for one operation: fewer bytes.
                Err(error) if error.is_too_large() && range.length > 1 => range.length /= 2,
                outcome => return outcome,
            }
        }
    }

    async fn clone_once(
        self: &Arc<Self>,
        source: &Arc<Node>,
        to: &Arc<Node>,
        range: Cloned,
    ) -> Result<u64, VfsError> {
        let (from, has) = self.commit_base(source).await?;
        let left = from.size.saturating_sub(range.source_offset);
        let length = range.length.min(left);
        if length == 0 {
            return Ok(0);
        }
        let (base, there) = self.commit_base(to).await?;
        if has.inline_bytes().is_some() || there.inline_bytes().is_some() {
            return Err(VfsError::refused("copy_file_range", Errno::OPNOTSUPP));
        }
        if source.inode == to.inode
            && range.offset < range.source_offset.saturating_add(length)
            && range.source_offset < range.offset.saturating_add(length)
        {
            return Err(VfsError::refused("copy_file_range", Errno::INVAL));
        }
        let content = NewContent::Clone(CloneRange {
            offset: range.offset,
            length,
            source: source.inode,
            source_offset: range.source_offset,
            expected: Some(from.version),
        });
        self.commit_content("copy_file_range", to, &base, content, None)
            .await?;
        Ok(length)
    }
}
