//! Calls on the bytes of open files.
//!
//! Each finds the file of its handle, checks that it may, and hands the work to its owner.

use super::file_system::FileSystem;
use super::files::{HandleId, OpenMode};
use super::read::Seek;
use super::services::{Caller, cancel_safe};
use super::writeback::{Allocation, Cloned};
use crate::error::VfsError;
use crate::slices::Warmed;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::attributes::FileType;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::FILE_SIZE_MAX;
use rustix::io::Errno;
use std::ops::Range;

/// The most that one call copies: what its answer can count, in whole pages.
const LENGTH_MAX: u64 = (u32::MAX as u64) & !0xfff;

impl FileSystem {
    /// Reads up to `size` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// If the handle is not open for reading, or too few clouds have good shards.
    #[boxed]
    pub async fn read(&self, handle: HandleId, offset: u64, size: u32) -> Result<Bytes, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.file(handle)?;
        // The kernel reads from files that are open for writing only, to fill pages.
        if !handle.mode.read && !handle.mode.write {
            return Err(VfsError::refused("read", Errno::BADF));
        }
        handle.keeps_locks()?;
        inner.reading.read(&handle, offset, size).await
    }

    /// Writes `data` at `offset`; returns how many bytes were taken, which is all of them.
    ///
    /// # Errors
    /// If the handle is not open for writing, the file would grow too long, memory is short, or the
    /// mount was taken over.
    #[boxed]
    pub async fn write(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<u32, VfsError> {
        let data = Bytes::copy_from_slice(data);
        self.write_bytes(handle, offset, data).await
    }

    /// The same with bytes that need not be copied for the journal.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    #[boxed]
    pub async fn write_bytes(
        &self,
        handle: HandleId,
        offset: u64,
        data: Bytes,
    ) -> Result<u32, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.file(handle)?;
        if !handle.mode.write {
            return Err(VfsError::refused("write", Errno::BADF));
        }
        handle.keeps_locks()?;
        let end = offset.saturating_add(data.len() as u64);
        let count =
            u32::try_from(data.len()).map_err(|_| VfsError::refused("write", Errno::INVAL))?;
        if end > FILE_SIZE_MAX {
            return Err(VfsError::refused("write", Errno::FBIG));
        }
        inner.writeback.write(&handle.node, offset, data).await?;
        Ok(count)
    }

    /// Writes `data` at the end of the file (`O_APPEND`); returns where that was. Nothing that is
    /// appended through other mounts at the same time is lost.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; also if the servers do not answer.
    #[boxed]
    pub async fn append(&self, handle: HandleId, data: Bytes) -> Result<u64, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.file(handle)?;
        if !handle.mode.write {
            return Err(VfsError::refused("write", Errno::BADF));
        }
        handle.keeps_locks()?;
        inner.locks.append(&handle.node, data).await
    }

    /// Takes the set-id bits off a file after a write by a user who may not keep them. They go with
    /// the commit of the write.
    ///
    /// # Errors
    /// If the handle is no file's.
    pub fn drop_set_id(&self, caller: &Caller, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        self.inner.writeback.drop_set_id(caller, &handle.node);
        Ok(())
    }

    /// The same for writes through any handle of the same file: `close` calls it.
    ///
    /// # Errors
    /// As [`FileSystem::fsync`].
    #[boxed]
    pub async fn flush(&self, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        if !handle.mode.write {
            return Ok(());
        }
        self.inner.writeback.make_safe(&handle.node).await
    }

    /// Makes the file's writes as safe as its tier says, or the mount's if it has none.
    ///
    /// # Errors
    /// If they could not be committed; they are kept and retried.
    #[boxed]
    pub async fn fsync(&self, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        handle.keeps_locks()?;
        self.inner.writeback.make_safe(&handle.node).await
    }

    /// Commits the file's writes, whatever tier it has.
    ///
    /// # Errors
    /// If they could not be committed, or some were lost.
    #[boxed]
    pub async fn fsync_to_clouds(&self, handle: HandleId) -> Result<(), VfsError> {
        let handle = self.inner.files.handles.file(handle)?;
        handle.keeps_locks()?;
        self.inner.writeback.flush_file(&handle.node).await
    }

    /// Does what `how` says to `length` bytes from `offset`.
    ///
    /// # Errors
    /// If the handle is not open for writing, the file would grow too long, or the servers refuse.
    #[boxed]
    pub async fn allocate(
        &self,
        handle: HandleId,
        offset: u64,
        length: u64,
        how: Allocation,
    ) -> Result<(), VfsError> {
        let inner = self.inner.clone();
        let handle = inner.files.handles.file(handle)?;
        if !handle.mode.write {
            return Err(VfsError::refused("fallocate", Errno::BADF));
        }
        handle.keeps_locks()?;
        if length == 0 {
            return Err(VfsError::refused("fallocate", Errno::INVAL));
        }
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= FILE_SIZE_MAX)
            .ok_or(VfsError::refused("fallocate", Errno::FBIG))?;
        let node = handle.node.clone();
        cancel_safe(async move { inner.writeback.allocate(&node, offset..end, how).await }).await
    }

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
        source.keeps_locks()?;
        to.keeps_locks()?;
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
            inner.writeback.clone_range(&source, &to, range).await
        })
        .await
    }

    /// The first position of a kind from `offset` on.
    ///
    /// # Errors
    /// `ENXIO` if `offset` is not before the end of the file, or no data follows.
    #[boxed]
    pub async fn seek(&self, handle: HandleId, offset: u64, to: Seek) -> Result<u64, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.file(handle)?;
        handle.keeps_locks()?;
        inner.reading.seek(&handle.node, offset, to).await
    }

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
        inner.reading.warm(&node, range).await
    }
}
