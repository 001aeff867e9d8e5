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
use super::file_system::{FileSystem, FileSystemCore};
use super::files::HandleId;
use super::files::Node;
use super::services::cancel_safe;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::limits::FILE_SIZE_MAX;
use quorumfs_metadata::operation::{CloneRange, NewContent};
use rustix::io::Errno;
use std::sync::Arc;

/// The most that one call copies: what its answer can count, in whole pages.
const LENGTH_MAX: u64 = (u32::MAX as u64) & !0xfff;

impl FileSystem {
    /// Makes `length` bytes of a file what another has; returns how many, fewer at the end of the
    /// source.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if one of the files is tiny, so that bytes have to be copied. If a handle is
    /// not open for it, the ranges overlap, the file would grow too long, or the servers refuse.
    #[boxed]
    pub async fn clone_range(
        &self,
        (source, source_offset): (HandleId, u64),
        (to, offset): (HandleId, u64),
        length: u64,
    ) -> Result<u64, VfsError> {
        let inner = self.inner.clone();
        let (source, to) = (
            inner.files.handles.file(source)?,
            inner.files.handles.file(to)?,
        );
        if !source.mode.read || !to.mode.write {
            return Err(VfsError::refused("copy_file_range", Errno::BADF));
        }
        let length = length.min(LENGTH_MAX);
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(VfsError::refused("copy_file_range", Errno::FBIG));
        }
        let (source, to) = (source.node.clone(), to.node.clone());
        cancel_safe(async move {
            let range = Cloned {
                source_offset,
                offset,
                length,
            };
            inner.clone_range(&source, &to, range).await
        })
        .await
    }
}

/// What to copy where.
#[derive(Clone, Copy)]
struct Cloned {
    source_offset: u64,
    offset: u64,
    length: u64,
}

impl FileSystemCore {
    async fn clone_range(
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
