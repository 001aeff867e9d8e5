//! A request of the kernel while it is served.
//!
//! A callback copies what it needs and answers at once what can be answered without waiting; the
//! rest it hands over to a task, so that few threads read requests while many are served. Every
//! request has a deadline and is answered with `ETIMEDOUT` when it passes; work that must not be
//! cut in the middle runs in tasks of the file system's own. A request that panics drops its reply,
//! which answers `EIO`.

use crate::convert::{absent, attributes, errno};
use crate::kept::Kept;
use crate::watchdog::InFlight;
use fuser::{
    Errno, FopenFlags, Generation, INodeNo, InitFlags, ReplyAttr, ReplyEmpty, ReplyEntry, Request,
};
use quorumfs_gateway::vfs::{Attributes, Caller, FileSystem, GroupSource, InodeId, VfsError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::error::Elapsed;

/// How long the kernel may use what it was told, unless it is kept up to date (`kept`). A realm has
/// one mount, and commands beside it may change things: a second is what both sides agree on.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(1);
/// The kernel may fill what it keeps of a directory, and list from there.
pub(crate) const KEEP_LISTING: FopenFlags =
    FopenFlags::FOPEN_CACHE_DIR.union(FopenFlags::FOPEN_KEEP_CACHE);
/// Numbers are never used twice, so there is one generation.
pub(crate) const GENERATION: Generation = Generation(0);

/// Requests that the kernel may queue in the background; the default of 16 starves readahead.
pub(crate) const BACKGROUND_MAX: u16 = 128;
/// The largest write; the kernel clips it to what it can do.
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 20;

/// What is asked of the kernel, as far as it offers it. Locks are not asked for at all: it then
/// keeps them itself, `flock` and `fcntl` apart. Nor is asynchronous direct I/O (`FUSE_ASYNC_DIO`):
/// the kernel forgets what readers cached meanwhile only after a direct write that it waits for.
pub(crate) const fn capabilities() -> [InitFlags; 10] {
    [
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_AUTO_INVAL_DATA,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        // Set-id bits are ours to take off: the kernel would have the writer change the mode,
        // who may be no owner.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // The kernel then asks for access control lists and obeys them too, and leaves the umask
        // to us, since a directory's default list stands in its place.
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_DONT_MASK,
        // It then finds inodes by their numbers when it has forgotten them, which handles of files
        // (`open_by_handle_at`) live by.
        InitFlags::FUSE_EXPORT_SUPPORT,
    ]
}

/// How many deadlines a request has that waits for content on its way to the clouds.
const PATIENCE: u32 = 20;

/// Whether a request may have to wait until what a file holds is on its clouds. What cannot go on
/// is told by the file system itself; clouds that are slow are waited for.
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
            | "setxattr"
            | "removexattr"
    )
}

pub(crate) struct Adapter {
    pub(crate) file_system: FileSystem,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) deadline: Duration,
    pub(crate) root: InodeId,
    pub(crate) kept: Arc<Kept>,
}

pub(crate) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        groups: GroupSource::Thread(request.pid()),
        umask: 0,
    }
}

/// Who makes something: the kernel leaves the umask to us, since a directory's default access
/// control list stands in its place.
pub(crate) fn maker(request: &Request, umask: u32) -> Caller {
    Caller {
        umask: u16::try_from(umask & 0o777).unwrap_or(0),
        ..caller(request)
    }
}

impl Adapter {
    pub(crate) fn inode(&self, number: INodeNo) -> InodeId {
        if number == INodeNo::ROOT {
            self.root
        } else {
            InodeId(number.0)
        }
    }

    /// Runs `work` with a deadline and gives its outcome to `answer`: here and now as far as
    /// nothing has to be waited for, since waking another thread costs more than what is known
    /// already, else as a task.
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
        // Nobody has to be woken: whoever polls next looks at everything anew. A panic must not
        // end the loop that reads requests; the reply is dropped with `finish` then.
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

    /// Work that answers where a name leads.
    pub(crate) fn entry(
        &self,
        name: &'static str,
        place: (InodeId, Vec<u8>),
        work: impl Future<Output = Result<Option<Attributes>, VfsError>> + Send + 'static,
        reply: ReplyEntry,
    ) {
        let (fs, kept, root) = (self.file_system.clone(), self.kept.clone(), self.root);
        self.serve(name, work, move |outcome| match outcome {
            Ok(found) => kept.giving(|giving| {
                let lasts = giving.entry(&fs, (place.0, &place.1), found.as_ref());
                let shown = found.map_or_else(absent, |found| attributes(&found, root));
                reply.entry_with_ttls(&lasts.attributes, &lasts.name, &shown, GENERATION);
            }),
            Err(error) => reply.error(error),
        });
    }

    /// Work that answers what an inode's attributes are.
    pub(crate) fn attributes(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<Attributes, VfsError>> + Send + 'static,
        reply: ReplyAttr,
    ) {
        let (fs, kept, root) = (self.file_system.clone(), self.kept.clone(), self.root);
        self.serve(name, work, move |outcome| match outcome {
            Ok(found) => kept.giving(|giving| {
                let lasts = giving.attributes(&fs, &found);
                reply.attr(&lasts, &attributes(&found, root));
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
