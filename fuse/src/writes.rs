//! Writes of processes.

use crate::serve::Adapter;
use bytes::Bytes;
use fuser::ReplyWrite;
use quorumfs_gateway::vfs::{Caller, HandleId, InodeId};

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

impl Adapter {
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
        let root = self.root;
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
