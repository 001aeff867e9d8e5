//! Extended attributes, by the kernel's protocol: a request with an empty buffer gets the length,
//! and a request with a buffer that is too small gets `ERANGE`.

use crate::serve::Adapter;
use fuser::{Errno, INodeNo, ReplyEmpty, ReplyXattr, Request};
use quorumfs_gateway::vfs::SetMode;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `XATTR_CREATE`.
const CREATE: i32 = 1;
/// `XATTR_REPLACE`.
const REPLACE: i32 = 2;

fn answer(outcome: Result<impl AsRef<[u8]>, Errno>, size: u32, reply: ReplyXattr) {
    match outcome {
        Err(error) => reply.error(error),
        Ok(found) => {
            let found = found.as_ref();
            let length = u32::try_from(found.len()).unwrap_or(u32::MAX);
            if size == 0 {
                reply.size(length);
            } else if length > size {
                reply.error(Errno::ERANGE);
            } else {
                reply.data(found);
            }
        }
    }
}

impl Adapter {
    pub(crate) fn get_extended(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let (fs, caller, inode) = self.at(request, inode);
        let name = name.as_bytes().to_vec();
        let shown = self.shown.clone();
        let work = async move {
            let value = fs.getxattr(&caller, inode, &name).await?;
            Ok(shown.acl(&name, value.to_vec()))
        };
        self.serve("getxattr", work, move |outcome| {
            answer(outcome, size, reply)
        });
    }

    pub(crate) fn list_extended(
        &self,
        request: &Request,
        inode: INodeNo,
        size: u32,
        reply: ReplyXattr,
    ) {
        let (fs, caller, inode) = self.at(request, inode);
        let work = async move { fs.listxattr(&caller, inode).await };
        self.serve("listxattr", work, move |outcome| {
            answer(outcome, size, reply);
        });
    }

    pub(crate) fn set_extended(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => SetMode::Any,
            CREATE => SetMode::Create,
            REPLACE => SetMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (fs, caller, inode) = self.at(request, inode);
        let name = name.as_bytes().to_vec();
        let value = self.shown.acl(&name, value.to_vec());
        let work = async move { fs.setxattr(&caller, inode, &name, &value, mode).await };
        self.empty("setxattr", work, reply);
    }

    pub(crate) fn remove_extended(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        reply: ReplyEmpty,
    ) {
        let (fs, caller, inode) = self.at(request, inode);
        let name = name.as_bytes().to_vec();
        let work = async move { fs.removexattr(&caller, inode, &name).await };
        self.empty("removexattr", work, reply);
    }
}
