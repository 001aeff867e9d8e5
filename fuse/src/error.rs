//! Why a mount or an unmount failed, and what to do about it.

use quorumfs_gateway::vfs::VfsError;
use std::io;
use std::path::PathBuf;

/// A mount that failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point does not exist.
    #[error("the mount point {path} does not exist: create it with `mkdir -p {path}`")]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// The mount point is not a directory.
    #[error("the mount point {path} is not a directory: name an empty directory")]
    NotADirectory {
        /// Where.
        path: PathBuf,
    },
    /// Another file system is mounted there.
    #[error(
        "{source_name} ({kind}) is already mounted at {path}: unmount it with `umount {path}` or \
         name another directory"
    )]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What is mounted.
        source_name: String,
        /// Its type.
        kind: String,
    },
    /// A mount whose process has died occupies the mount point.
    #[error(
        "a mount whose process has ended is in the way at {path}: remove it with `umount -l {path}`"
    )]
    Dead {
        /// Where.
        path: PathBuf,
    },
    /// The directory has entries, which the mount would hide.
    #[error(
        "the mount point {path} is not empty and mounting would hide what is in it: name an empty \
         directory"
    )]
    NotEmpty {
        /// Where.
        path: PathBuf,
    },
    /// The kernel's FUSE device is missing.
    #[error(
        "/dev/fuse is missing: load the module with `modprobe fuse`, or start the container with \
         `--device /dev/fuse`"
    )]
    NoDevice,
    /// The kernel's FUSE device exists, but the caller may not open it.
    #[error(
        "this user may not open /dev/fuse ({reason}): its usual mode is 0666; set it with \
         `chmod 666 /dev/fuse` as root (permanently: a udev rule), or run as a user of its group"
    )]
    DeviceDenied {
        /// The system's reason.
        reason: String,
    },
    /// The caller may not mount.
    #[error(
        "not permitted to mount at {path} ({reason}): run as root, or install fuse3 for its \
         `fusermount3`"
    )]
    NotPermitted {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// A process still uses the mount.
    #[error(
        "{path} is in use: end the processes that have files or their working directory there \
         (`fuser -vm {path}` lists them), then try again"
    )]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// Not all written data could be committed; it stays mounted.
    #[error("{path} stays mounted because written data could not be committed: {error}")]
    Unflushed {
        /// Where.
        path: PathBuf,
        /// Why.
        error: VfsError,
    },
    /// Anything else.
    #[error("cannot {doing} {path}: {source}")]
    System {
        /// What failed.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
