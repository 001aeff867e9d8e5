//! Each kernel request as a call of the file system.

use crate::convert::{appends, kind, number, open_mode, preserves_atime, time_change};
use crate::data::KernelWrite;
use crate::kernel_cache::{NamedPlace, unsure_for};
use crate::locks::KernelLock;
use crate::serve::{Adapter, GENERATION, KEEP_LISTING};
use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, RequestId, TimeOrNow, WriteFlags,
};
use quorumfs_gateway::vfs::{AttributeChange, HandleId, RenameMode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

/// Entries to ask for at once: about as many as a reply holds.
const ENTRIES_MAX: usize = 512;

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.agree(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (fs, caller, parent, name) = self.named(request, parent, name);
        let place = (parent, name.clone());
        let work = async move {
            match name.as_slice() {
                // The kernel has a number, perhaps from a handle, and has forgotten the inode.
                b"." => fs.by_number(parent).await.map(Some),
                b".." => fs.parent(parent).await.map(Some),
                _ => fs.lookup(&caller, parent, &name).await,
            }
        };
        self.entry("lookup", place, work, reply);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let (fs, inode) = (self.file_system.clone(), self.inode(inode));
        let work = async move { fs.getattr(inode).await };
        self.attributes("getattr", work, reply);
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (fs, caller, inode) = self.at(request, inode);
        let change = AttributeChange {
            mode: mode.map(|mode| u16::try_from(mode & 0o7777).unwrap_or(0)),
            uid: uid.map(|uid| self.shown.user(uid)),
            gid: gid.map(|gid| self.shown.group(gid)),
            size,
            atime: atime.map(time_change),
            mtime: mtime.map(time_change),
        };
        let handle = handle.map(|handle| HandleId(handle.0));
        let work = async move { fs.setattr(&caller, inode, handle, change).await };
        self.attributes("setattr", work, reply);
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        let (fs, inode) = (self.file_system.clone(), self.inode(inode));
        let work = async move { fs.readlink(inode).await };
        self.serve("readlink", work, move |outcome| match outcome {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent, name) = self.named_new(request, umask, parent, name);
        let place = (parent, name.clone());
        let work = async move {
            fs.mknod(&caller, parent, &name, mode, device)
                .await
                .map(Some)
        };
        self.entry("mknod", place, work, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent, name) = self.named_new(request, umask, parent, name);
        let place = (parent, name.clone());
        let work = async move { fs.mkdir(&caller, parent, &name, mode).await.map(Some) };
        self.entry("mkdir", place, work, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, caller, parent, name) = self.named(request, parent, name);
        let work = async move { fs.unlink(&caller, parent, &name).await };
        self.empty("unlink", work, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, caller, parent, name) = self.named(request, parent, name);
        let work = async move { fs.rmdir(&caller, parent, &name).await };
        self.empty("rmdir", work, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent, name) = self.named(request, parent, name);
        let target = target.as_os_str().as_bytes().to_vec();
        let place = (parent, name.clone());
        let work = async move { fs.symlink(&caller, parent, &name, &target).await.map(Some) };
        self.entry("symlink", place, work, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags.bits() {
            0 => RenameMode::Replace,
            bits if bits == RenameFlags::RENAME_NOREPLACE.bits() => RenameMode::NoReplace,
            bits if bits == RenameFlags::RENAME_EXCHANGE.bits() => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (fs, caller) = (self.file_system.clone(), self.caller(request));
        let (from, to) = (self.inode(parent), self.inode(new_parent));
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        let (keeper, kernel_cache) = (fs.clone(), self.kernel_cache.clone());
        let names = [(to, new_name.clone()), (from, name.clone())];
        let work = async move { fs.rename(&caller, from, &name, to, &new_name, mode).await };
        self.serve("rename", work, move |outcome| match outcome {
            Ok(renamed) => {
                let shown = [Some(renamed.moved), renamed.exchanged];
                let places = names.into_iter().zip(shown);
                let places = places.filter_map(|((directory, name), shown)| {
                    shown.map(|shown| NamedPlace {
                        directory,
                        name,
                        shown,
                    })
                });
                kernel_cache.renamed(&keeper, places.collect(), || reply.ok());
            }
            Err(error) => reply.error(error),
        });
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (fs, caller, parent, name) = self.named(request, new_parent, new_name);
        let inode = self.inode(inode);
        let place = (parent, name.clone());
        let work = async move { fs.link(&caller, inode, parent, &name).await.map(Some) };
        self.entry("link", place, work, reply);
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, caller, inode) = self.at(request, inode);
        let (keeper, kernel_cache) = (fs.clone(), self.kernel_cache.clone());
        let work = async move { fs.open(&caller, inode, open_mode(flags.0)).await };
        self.serve("open", work, move |outcome| match outcome {
            Ok(opened) => {
                if opened.first {
                    kernel_cache.opens(&keeper, inode);
                }
                let mut flags = FopenFlags::empty();
                flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_pages);
                flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.uncached);
                reply.opened(FileHandle(opened.handle.0), flags);
            }
            Err(error) => reply.error(error),
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (fs, caller, parent, name) = self.named_new(request, umask, parent, name);
        let (shown, exclusive) = (self.shown.clone(), flags & 0o200 != 0);
        let keeper = fs.clone();
        let how = open_mode(flags);
        let uncached = match fs.is_uncached(how) {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        };
        let work = async move {
            fs.create(&caller, parent, &name, mode, how, exclusive)
                .await
        };
        self.serve("create", work, move |outcome| match outcome {
            Ok((found, handle)) => reply.created(
                &unsure_for(&keeper, Some(&found)),
                &shown.attributes(&found),
                GENERATION,
                FileHandle(handle.0),
                uncached,
            ),
            Err(error) => reply.error(error),
        });
    }

    fn read(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.bring(HandleId(handle.0), offset, size, reply);
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // The data lies in the loop's buffer, and the next request overwrites it.
        let data = Bytes::copy_from_slice(data);
        let write = KernelWrite {
            inode: self.inode(inode),
            handle: HandleId(handle.0),
            offset,
            appends: appends(flags.0),
            kills_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        self.take_in(self.caller(request), write, data, reply);
    }

    fn flush(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let fs = self.file_system.clone();
        let work = async move { fs.close_descriptor(HandleId(handle.0), owner.0).await };
        self.empty("flush", work, reply);
    }

    fn getlk(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        of: i32,
        pid: u32,
        flock: bool,
        reply: ReplyLock,
    ) {
        let lock = KernelLock::new(HandleId(handle.0), owner.0, (start, end), of, pid, flock);
        self.lock_in_the_way(lock, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        of: i32,
        pid: u32,
        waits: bool,
        flock: bool,
        reply: ReplyEmpty,
    ) {
        let lock = KernelLock::new(HandleId(handle.0), owner.0, (start, end), of, pid, flock);
        let number = waits.then(|| request.unique());
        self.lock(inode, lock, number, reply);
    }

    fn interrupt(&self, _: &Request, number: RequestId) {
        self.interrupts.interrupt(number);
    }

    fn release(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let fs = self.file_system.clone();
        self.empty(
            "release",
            async move { fs.release(HandleId(handle.0)).await },
            reply,
        );
    }

    fn fsync(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let fs = self.file_system.clone();
        self.empty(
            "fsync",
            async move { fs.fsync(HandleId(handle.0)).await },
            reply,
        );
    }

    fn opendir(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, caller, inode) = self.at(request, inode);
        let (keeper, kernel_cache) = (fs.clone(), self.kernel_cache.clone());
        let keep_atime = preserves_atime(flags.0);
        let work = async move { fs.opendir(&caller, inode, keep_atime).await };
        self.serve("opendir", work, move |outcome| match outcome {
            Ok(handle) => kernel_cache.gated(|gated| {
                // The kernel's listing is older than this one only if the directory's mtime has
                // moved, and the kernel checks that first.
                let flags = if gated.listing(&keeper, inode) {
                    KEEP_LISTING
                } else {
                    FopenFlags::empty()
                };
                reply.opened(FileHandle(handle.0), flags);
            }),
            Err(error) => reply.error(error),
        });
    }

    fn readdir(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (fs, root) = (self.file_system.clone(), self.shown.root);
        let work = async move { fs.readdir(HandleId(handle.0), offset, ENTRIES_MAX).await };
        self.serve("readdir", work, move |outcome| match outcome {
            Ok(entries) => {
                for entry in entries {
                    let inode = number(entry.inode, root);
                    let name = OsStr::from_bytes(&entry.name);
                    if reply.add(inode, entry.cookie.0, kind(entry.file_type), name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (fs, kernel_cache, shown) = (
            self.file_system.clone(),
            self.kernel_cache.clone(),
            self.shown.clone(),
        );
        let work = {
            let fs = fs.clone();
            async move {
                fs.readdir_plus(HandleId(handle.0), offset, ENTRIES_MAX)
                    .await
            }
        };
        let directory = self.inode(inode);
        self.serve("readdirplus", work, move |outcome| match outcome {
            Ok(entries) => kernel_cache.gated(|gated| {
                for (entry, found) in entries {
                    let inode = number(entry.inode, shown.root);
                    let attr = shown.attributes(&found);
                    let name = OsStr::from_bytes(&entry.name);
                    // One duration for both.
                    let valid_for = gated.entry(&fs, (directory, &entry.name), Some(&found));
                    let valid_for = valid_for.attributes.min(valid_for.name);
                    if reply.add(inode, entry.cookie.0, name, &valid_for, &attr, GENERATION) {
                        break;
                    }
                }
                reply.ok();
            }),
            Err(error) => reply.error(error),
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let fs = self.file_system.clone();
        let work = async move { fs.releasedir(HandleId(handle.0)).await };
        self.empty("closedir", work, reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Every change of a directory is ordered, and so durable, before its call returns.
        reply.ok();
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.set_extended(request, inode, name, value, flags, reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        self.get_extended(request, inode, name, size, reply);
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        self.list_extended(request, inode, size, reply);
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_extended(request, inode, name, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.reserve_or_clear(request, HandleId(handle.0), (offset, length), mode, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.seek(HandleId(handle.0), offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _source: INodeNo,
        source: FileHandle,
        source_offset: u64,
        _to: INodeNo,
        to: FileHandle,
        offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let source = (HandleId(source.0), source_offset);
        let to = (HandleId(to.0), offset);
        self.clone_range(request, source, to, length, reply);
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        // Asked only without `default_permissions`; answered in any case.
        let (fs, caller, inode) = self.at(request, inode);
        let mask = u8::try_from(mask.bits() & 7).unwrap_or(7);
        self.empty(
            "access",
            async move { fs.access(&caller, inode, mask).await },
            reply,
        );
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let fs = self.file_system.clone();
        let work = async move { fs.statfs().await };
        self.serve("statfs", work, move |outcome| match outcome {
            Ok(found) => reply.statfs(
                found.blocks,
                found.blocks_free,
                found.blocks_free,
                found.files,
                found.files_free,
                found.block_bytes,
                found.name_bytes_max,
                found.block_bytes,
            ),
            Err(error) => reply.error(error),
        });
    }
}
