//! Attributes as callers see them: of inodes, and of the whole volume.

use crate::error::VfsError;
use crate::vfs::file_system::FileSystem;
use crate::vfs::services::Caller;
use crate::vfs::shared::{NOT_SHARED, READ_ONLY, is_shared};
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Access, Attributes, Detail};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::row::Resource;
use rustix::io::Errno;

/// What `statfs` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks in all: used and free.
    pub blocks: u64,
    /// Free blocks: the free space of the clouds. A large number if no cloud has a size.
    pub blocks_free: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// The longest name in bytes.
    pub name_bytes_max: u32,
}

impl FileSystem {
    /// What `stat` shows; of a recently removed inode the last attributes, without a name.
    ///
    /// # Errors
    /// If the inode is gone or the servers do not answer.
    #[boxed]
    pub async fn getattr(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        if is_shared(inode) {
            return self.inner.shared.attributes(inode).await.ok_or(NOT_SHARED);
        }
        match self.inner.files.attributes(inode).await {
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::STALE) => {
                self.inner.files.gone.get(inode).ok_or(error)
            }
            outcome => outcome,
        }
    }

    /// What `stat` shows of an inode that still has a name, or is held open without one.
    ///
    /// # Errors
    /// If the inode is gone or the servers do not answer.
    #[boxed]
    pub async fn by_number(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        if is_shared(inode) {
            return self.getattr(inode).await;
        }
        self.inner.files.attributes(inode).await
    }

    /// The directory that a directory lies in; the root lies in itself.
    ///
    /// # Errors
    /// If either is gone, the inode is no directory, or the servers do not answer.
    #[boxed]
    pub async fn parent(&self, inode: InodeId) -> Result<Attributes, VfsError> {
        match self.by_number(inode).await?.detail {
            Detail::Directory { parent, .. } => self.inner.files.attributes(parent).await,
            _ => Err(VfsError::refused("lookup", Errno::NOTDIR)),
        }
    }

    /// Whether the caller may do all of `mask` (4 read, 2 write, 1 execute or search).
    ///
    /// # Errors
    /// `EACCES` if not.
    #[boxed]
    pub async fn access(&self, caller: &Caller, inode: InodeId, mask: u8) -> Result<(), VfsError> {
        if is_shared(inode) {
            return match mask & Access::WRITE.0 {
                0 => Ok(()),
                _ => Err(READ_ONLY),
            };
        }
        // A mode whose commit is pending must count.
        self.inner.writeback.flush_inode(inode).await?;
        let credentials = self.inner.services.credentials(caller);
        self.inner
            .services
            .metadata
            .access(credentials, inode, Access(mask))
            .await
    }

    /// Counts for `statfs`.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn statfs(&self) -> Result<Usage, VfsError> {
        /// A block of the size that `stat` counts would overflow what some programs multiply.
        const BLOCK_BYTES: u32 = 128 << 10;
        /// If no cloud has a size: one pebibyte. And as many inodes as fit 48 bits: nothing here
        /// fills up first.
        const BLOCKS: u64 = (1 << 50) / BLOCK_BYTES as u64;
        const FILES: u64 = 1 << 47;
        let (inodes, allocated) = self.inner.services.metadata.usage().await?;
        let free_bytes = self.inner.services.slices.room().await;
        let realm = self.inner.services.metadata.realm_quota().await?;
        let left = |of| realm.limit.remaining(of, &realm.used);
        let free = free_bytes.map_or(BLOCKS, |bytes| bytes / u64::from(BLOCK_BYTES));
        let free = free.min(left(Resource::Bytes) / u64::from(BLOCK_BYTES));
        let files_free = FILES.min(left(Resource::Inodes));
        let used = allocated.div_ceil(u64::from(BLOCK_BYTES));
        Ok(Usage {
            block_bytes: BLOCK_BYTES,
            blocks: free.saturating_add(used),
            blocks_free: free,
            files: files_free.saturating_add(inodes),
            files_free,
            name_bytes_max: 255,
        })
    }
}
