//! Reads and writes of processes.

use crate::convert::errno;
use crate::kernel_cache::KernelCache;
use crate::serve::Adapter;
use bytes::Bytes;
use fuser::{ReplyData, ReplyWrite};
use quorumfs_gateway::vfs::{Caller, FileSystem, HandleId, InodeId, VfsError};
use std::sync::Arc;

/// How often a read is done again because the file has grown.
const READ_TRIES: u32 = 4;

/// A write, as the kernel asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelWrite {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    /// Where the bytes go, or, if they are appended, where the kernel supposes the end.
    pub(crate) offset: u64,
    pub(crate) appends: bool,
    /// The writer may not keep the file's set-id bits.
    pub(crate) kills_set_id: bool,
}

/// A read, as the kernel asks for it, and what is needed to answer it.
struct KernelRead {
    fs: FileSystem,
    kernel_cache: Arc<KernelCache>,
    handle: HandleId,
    offset: u64,
    size: u32,
}

impl KernelRead {
    async fn bytes(&self) -> Result<Bytes, VfsError> {
        self.fs.read(self.handle, self.offset, self.size).await
    }

    /// Replies, unless the file has grown since the bytes were read; returns the reply then.
    fn answer(&self, bytes: &Bytes, reply: ReplyData) -> Option<ReplyData> {
        let wanted = usize::try_from(self.size).unwrap_or(usize::MAX);
        if bytes.len() >= wanted || !self.fs.is_shared() {
            reply.data(bytes);
            return None;
        }
        let end = self.offset.saturating_add(bytes.len() as u64);
        let ends = || self.fs.ends_at(self.handle, end).unwrap_or(true);
        let mut reply = Some(reply);
        self.kernel_cache.ends(ends, || {
            if let Some(reply) = reply.take() {
                reply.data(bytes);
            }
        });
        reply
    }

    /// Reads again until the file has not grown meanwhile.
    async fn again(self, mut reply: ReplyData) {
        for _ in 0..READ_TRIES {
            match self.bytes().await {
                Ok(bytes) => match self.answer(&bytes, reply) {
                    Some(unused) => reply = unused,
                    None => return,
                },
                Err(error) => return reply.error(errno(&error)),
            }
        }
        // It grows faster than it is read.
        match self.bytes().await {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

impl Adapter {
    /// Brings bytes of an open file.
    pub(crate) fn bring(&self, handle: HandleId, offset: u64, size: u32, reply: ReplyData) {
        let read = KernelRead {
            fs: self.file_system.clone(),
            kernel_cache: self.kernel_cache.clone(),
            handle,
            offset,
            size,
        };
        let fs = self.file_system.clone();
        let work = async move { fs.read(handle, offset, size).await };
        let runtime = self.runtime.clone();
        self.serve("read", work, move |outcome| match outcome {
            Ok(bytes) => {
                if let Some(reply) = read.answer(&bytes, reply) {
                    runtime.spawn(read.again(reply));
                }
            }
            Err(error) => reply.error(error),
        });
    }

    /// Takes in what a process writes.
    pub(crate) fn take_in(
        &self,
        writer: Caller,
        write: KernelWrite,
        data: Bytes,
        reply: ReplyWrite,
    ) {
        let KernelWrite {
            inode,
            handle,
            offset,
            appends,
            kills_set_id,
        } = write;
        let (fs, kernel_cache) = (self.file_system.clone(), self.kernel_cache.clone());
        // In an exclusive mount the kernel knows where the end is.
        let appends = appends && fs.may_be_shared();
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let work = async move {
            let at = match appends {
                true => fs.append(handle, data).await?,
                false => fs.write_bytes(handle, offset, data).await.map(|_| offset)?,
            };
            if kills_set_id {
                fs.drop_set_id(&writer, handle)?;
            }
            Ok(at)
        };
        let root = self.shown.root;
        self.serve("write", work, move |outcome| match outcome {
            Ok(at) => {
                reply.written(length);
                if at != offset {
                    // The kernel knows another length, and may have the bytes in another place. It
                    // holds the file until this request has returned.
                    drop(tokio::task::spawn_blocking(move || {
                        kernel_cache.drop_pages(inode, root);
                    }));
                }
            }
            Err(error) => reply.error(error),
        });
    }
}
