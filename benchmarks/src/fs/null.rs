//! A file system that stores only names and lengths: the best that FUSE allows on this machine.
//!
//! Every figure of a mount depends on the kernel, the machine and the other programs on it. This
//! file system is mounted next to the real one in the same run, with the same options, threads and
//! time-outs, and does as little as it can for each request: written data is dropped, reads return
//! zeros, and the tree is a table in memory behind one lock. Its speed is the ceiling of a
//! workload, and a real file system is measured as a fraction of it.
//!
//! It serves measurements alone: hard links are not supported, times are not stored, and only the
//! kernel checks permissions.

use super::null_tree::NullTree;
use crate::failure::{BenchResult, failed};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use quorumfs_fuse::terms::{
    BACKGROUND_MAX, GENERATION, KEEP_LISTING, VALID_FOR, WRITE_BYTES_MAX, absent, capabilities,
    options,
};
use quorumfs_fuse::{MountConfig, check};
use quorumfs_gateway::vfs::CACHED_FOR;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// `O_TRUNC`, as Linux numbers it.
const TRUNCATE: i32 = 0o1000;
/// The longest read that the kernel asks for, with a margin.
const READ_BYTES_MAX: usize = 2 << 20;

/// A mounted null file system; unmounted when it is dropped.
#[derive(Debug)]
pub(super) struct NullMounted(fuser::BackgroundSession);

impl NullMounted {
    /// Mounts one, with the options of a real mount.
    pub(super) fn mount(config: &MountConfig) -> BenchResult<Self> {
        let doing = "mount the null file system";
        let place = check(&config.mount_point).map_err(|error| failed(doing, &error))?;
        let null = Null {
            tree: Mutex::new(NullTree::default()),
            zeros: vec![0; READ_BYTES_MAX],
        };
        let session = fuser::Session::new(null, &place, &options(config));
        let session = session.and_then(fuser::Session::spawn);
        session.map(Self).map_err(|error| failed(doing, &error))
    }

    /// Unmounts it; fails if something in it is still in use.
    pub(super) fn unmount(self) -> BenchResult {
        let unmounted = self.0.umount_and_join();
        unmounted.map_err(|error| failed("unmount the null file system", &error))
    }
}

struct Null {
    tree: Mutex<NullTree>,
    zeros: Vec<u8>,
}

impl Null {
    fn tree(&self) -> MutexGuard<'_, NullTree> {
        // A table of names that a panic left half-changed is still a table of names.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        target: &[u8],
    ) -> Result<FileAttr, Errno> {
        let owner = (request.uid(), request.gid());
        let mut tree = self.tree();
        tree.create(parent.0, name.as_bytes(), mode, owner, target)
    }
}

fn entry(found: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match found {
        Ok(attr) => reply.entry_with_ttls(&CACHED_FOR, &name_valid_for(&attr), &attr, GENERATION),
        Err(error) => reply.error(error),
    }
}

/// As with the real one while nothing is invalidated.
fn name_valid_for(attr: &FileAttr) -> Duration {
    match attr.kind {
        FileType::Directory => VALID_FOR,
        _ => CACHED_FOR,
    }
}

fn empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Null {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for wanted in capabilities() {
            let _ = config.add_capabilities(wanted);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.tree().lookup(parent.0, name.as_bytes());
        match found {
            Err(Errno::ENOENT) => reply.entry(&CACHED_FOR, &absent(), GENERATION),
            found => entry(found, reply),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().attributes(inode.0) {
            Ok(attr) => reply.attr(&CACHED_FOR, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.tree().change(inode.0, mode, uid, gid, size) {
            Ok(attr) => reply.attr(&CACHED_FOR, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        match self.tree().target(inode.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        entry(self.made(request, parent, name, mode, &[]), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = NullTree::DIRECTORY | mode & 0o7777;
        entry(self.made(request, parent, name, mode, &[]), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.tree().remove(parent.0, name.as_bytes());
        empty(done, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.tree().remove(parent.0, name.as_bytes());
        empty(done, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        entry(
            self.made(request, parent, name, NullTree::SYMLINK | 0o777, target),
            reply,
        );
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = if flags.is_empty() {
            let (from, to) = (name.as_bytes(), new_name.as_bytes());
            self.tree().rename((parent.0, from), (new_parent.0, to))
        } else {
            Err(Errno::EINVAL)
        };
        empty(done, reply);
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // The kernel leaves truncation to `open`.
        if flags.0 & TRUNCATE != 0 {
            let _ = self.tree().change(inode.0, None, None, None, Some(0));
        }
        reply.opened(FileHandle(inode.0), FopenFlags::empty());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = NullTree::FILE | mode & 0o7777;
        match self.made(request, parent, name, mode, &[]) {
            Ok(attr) => {
                let handle = FileHandle(attr.ino.0);
                reply.created(&VALID_FOR, &attr, GENERATION, handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = self.tree().attributes(inode.0).map_or(0, |attr| attr.size);
        let length = end.saturating_sub(offset).min(u64::from(size));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        reply.data(self.zeros.get(..length).unwrap_or(&self.zeros));
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let end = offset.saturating_add(data.len() as u64);
        match self.tree().reach(inode.0, end) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(inode.0), KEEP_LISTING);
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.tree().list(inode.0, offset, |cookie, name, attr| {
            reply.add(attr.ino, cookie, attr.kind, OsStr::from_bytes(name))
        });
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.tree().list(inode.0, offset, |cookie, name, attr| {
            let name = OsStr::from_bytes(name);
            reply.add(
                attr.ino,
                cookie,
                name,
                &name_valid_for(attr),
                attr,
                GENERATION,
            )
        });
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 4096, 255, 4096);
    }
}
