//! How a request of the kernel is served.
//!
//! A callback copies what it needs and answers at once if it need not wait. The rest it hands over
//! to a task, so that few threads read requests while many are served. Every request has a deadline
//! and is answered with `ETIMEDOUT` when it passes; work that must not be cancelled midway runs in
//! tasks of the file system itself. A request that panics drops its reply, which answers `EIO`.

use crate::convert::{Shown, absent, errno};
use crate::kernel_cache::KernelCache;
use crate::locks::Interrupts;
use crate::watchdog::InFlight;
use fuser::{
    Errno, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, ReplyAttr, ReplyEmpty,
    ReplyEntry, Request,
};
use quorumfs_gateway::vfs::{Attributes, Caller, FileSystem, GroupSource, InodeId, VfsError};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::error::Elapsed;

/// How long the kernel may use an answer that is not invalidated (`kernel_cache`), while only
/// commands may change things: both sides agree on a second.
pub const VALID_FOR: Duration = Duration::from_secs(1);
/// The kernel may cache a directory's listing, and list from there.
pub const KEEP_LISTING: FopenFlags =
    FopenFlags::FOPEN_CACHE_DIR.union(FopenFlags::FOPEN_KEEP_CACHE);
/// Numbers are never used twice, so there is one generation.
pub const GENERATION: Generation = Generation(0);

/// Requests that the kernel may queue in the background; the default of 16 starves readahead.
pub const BACKGROUND_MAX: u16 = 128;
/// The largest write; the kernel clips it to what it can do.
pub const WRITE_BYTES_MAX: u32 = 1 << 20;

/// The capabilities to ask the kernel for, as far as it offers them. Locks are not among them: in
/// an exclusive mount the kernel handles them itself, `flock` and `fcntl` apart. Nor is
/// asynchronous direct I/O (`FUSE_ASYNC_DIO`): only after a direct write that it waits for does the
/// kernel forget the pages that readers cached meanwhile.
#[must_use]
pub const fn capabilities() -> [InitFlags; 10] {
    [
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_AUTO_INVAL_DATA,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        // We remove set-id bits ourselves: the kernel would make the writer change the mode, and
        // the writer may not be the owner.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // The kernel then asks for access control lists and obeys them too, and leaves the umask to
        // us, since a directory's default list replaces it.
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_DONT_MASK,
        // It then finds forgotten inodes by their numbers, as file handles (`open_by_handle_at`)
        // require.
        InitFlags::FUSE_EXPORT_SUPPORT,
    ]
}

/// The same in addition, for a mount that may share the volume: locks across mounts. The kernel
/// caches no pages for a descriptor that appends there, and may map the file all the same.
const SHARING_CAPABILITIES: [InitFlags; 3] = [
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// How many deadlines a request gets that waits for content on its way to the clouds.
const PATIENCE: u32 = 20;

/// Whether a request may have to wait until a file's content is on its clouds. The file system
/// itself fails requests that cannot go on; slow clouds are waited for.
fn may_wait_for_clouds(request: &str) -> bool {
    matches!(
        request,
        "write"
            | "flush"
            | "release"
            | "fsync"
            | "open"
            | "create"
            | "setattr"
            | "fallocate"
            | "copy_file_range"
            | "rename"
            | "link"
            | "unlink"
            | "setlk"
            | "setxattr"
            | "removexattr"
    )
}

pub(crate) struct Adapter {
    pub(crate) file_system: FileSystem,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) deadline: Duration,
    pub(crate) shown: Shown,
    pub(crate) kernel_cache: Arc<KernelCache>,
    pub(crate) interrupts: Arc<Interrupts>,
}

impl Adapter {
    /// On whose behalf a request is made.
    pub(crate) fn caller(&self, request: &Request) -> Caller {
        let caller = Caller {
            uid: request.uid(),
            gid: request.gid(),
            groups: GroupSource::Thread(request.pid()),
            umask: 0,
        };
        match &self.shown.identities {
            Some(identities) => identities.caller(caller),
            None => caller,
        }
    }

    /// The same of a request that creates something. The kernel leaves the umask to us, since a
    /// directory's default access control list replaces it.
    fn creating_caller(&self, request: &Request, umask: u32) -> Caller {
        Caller {
            umask: u16::try_from(umask & 0o777).unwrap_or(0),
            ..self.caller(request)
        }
    }

    pub(crate) fn inode(&self, number: INodeNo) -> InodeId {
        if number == INodeNo::ROOT {
            self.shown.root
        } else {
            InodeId(number.0)
        }
    }

    /// Agrees with the kernel on what it asks for and caches.
    pub(crate) fn agree(&self, config: &mut KernelConfig) {
        let may_share = self.file_system.may_be_shared();
        let sharing = SHARING_CAPABILITIES.into_iter().filter(|_| may_share);
        for wanted in capabilities().into_iter().chain(sharing) {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "this kernel does not offer a capability");
            }
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
    }

    /// What the work of a request about an inode needs.
    pub(crate) fn at(&self, request: &Request, inode: INodeNo) -> (FileSystem, Caller, InodeId) {
        let (fs, caller) = (self.file_system.clone(), self.caller(request));
        (fs, caller, self.inode(inode))
    }

    /// What the work of a request about a name in a directory needs: the file system, the caller,
    /// the directory and the name.
    pub(crate) fn named(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
    ) -> (FileSystem, Caller, InodeId, Vec<u8>) {
        self.named_new(request, 0, parent, name)
    }

    /// The same of a request that creates something.
    pub(crate) fn named_new(
        &self,
        request: &Request,
        umask: u32,
        parent: INodeNo,
        name: &OsStr,
    ) -> (FileSystem, Caller, InodeId, Vec<u8>) {
        let (caller, name) = (
            self.creating_caller(request, umask),
            name.as_bytes().to_vec(),
        );
        (self.file_system.clone(), caller, self.inode(parent), name)
    }

    /// Runs `work` with a deadline and passes its outcome to `answer`. It runs here and now as far
    /// as it need not wait, since waking another thread costs more than a cached answer; the rest
    /// runs as a task.
    pub(crate) fn serve<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, VfsError>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let deadline = match may_wait_for_clouds(name) {
            true => self.deadline.saturating_mul(PATIENCE),
            false => self.deadline,
        };
        let grace = deadline.saturating_sub(self.deadline);
        let request = self.in_flight.enter(name, grace);
        let finish = move |outcome: Result<Result<T, VfsError>, Elapsed>| {
            answer(match outcome {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) => {
                    if error.is_alarming() {
                        tracing::warn!(request = name, %error, "a request failed");
                    }
                    Err(errno(&error))
                }
                Err(_) => {
                    tracing::warn!(request = name, ?deadline, "a request took too long");
                    Err(Errno::ETIMEDOUT)
                }
            });
            drop(request);
        };
        let _within = self.runtime.enter();
        let mut work = Box::pin(tokio::time::timeout(deadline, work));
        // No waker is needed: the next poll looks at everything anew. A panic must not end the loop
        // that reads requests; the reply is then dropped with `finish`.
        let first = catch_unwind(AssertUnwindSafe(|| {
            work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        }));
        match first {
            Ok(Poll::Ready(outcome)) => finish(outcome),
            Ok(Poll::Pending) => {
                self.runtime.spawn(async move { finish(work.await) });
            }
            Err(_) => tracing::error!(request = name, "a request panicked"),
        }
    }

    /// Runs `work`, which another process may have to end, for as long as that takes.
    pub(crate) fn serve_without_deadline<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, VfsError>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        // A panic drops the reply, which answers `EIO`.
        self.runtime.spawn(async move {
            answer(work.await.map_err(|error| {
                if error.is_alarming() {
                    tracing::warn!(request = name, %error, "a request failed");
                }
                errno(&error)
            }));
        });
    }

    /// Work that returns the inode of a name.
    pub(crate) fn entry(
        &self,
        name: &'static str,
        place: (InodeId, Vec<u8>),
        work: impl Future<Output = Result<Option<Attributes>, VfsError>> + Send + 'static,
        reply: ReplyEntry,
    ) {
        let (fs, kernel_cache, shown) = (
            self.file_system.clone(),
            self.kernel_cache.clone(),
            self.shown.clone(),
        );
        self.serve(name, work, move |outcome| match outcome {
            Ok(found) => kernel_cache.gated(|gated| {
                let valid_for = gated.entry(&fs, (place.0, &place.1), found.as_ref());
                let found = found.map_or_else(absent, |found| shown.attributes(&found));
                reply.entry_with_ttls(&valid_for.attributes, &valid_for.name, &found, GENERATION);
            }),
            Err(error) => reply.error(error),
        });
    }

    /// Work that returns an inode's attributes.
    pub(crate) fn attributes(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<Attributes, VfsError>> + Send + 'static,
        reply: ReplyAttr,
    ) {
        let (fs, kernel_cache, shown) = (
            self.file_system.clone(),
            self.kernel_cache.clone(),
            self.shown.clone(),
        );
        self.serve(name, work, move |outcome| match outcome {
            Ok(found) => kernel_cache.gated(|gated| {
                let valid_for = gated.attributes(&fs, &found);
                reply.attr(&valid_for, &shown.attributes(&found));
            }),
            Err(error) => reply.error(error),
        });
    }

    pub(crate) fn empty(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<(), VfsError>> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        self.serve(name, work, move |outcome| match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        });
    }
}
