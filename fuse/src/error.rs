//! Why something cannot be mounted or unmounted, and what to do about it.

use quorumfs_gateway::vfs::VfsError;
use std::io;
use std::path::PathBuf;

/// A mount that did not work.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is nothing at the mount point.
    #[error("the mount point {path} does not exist: create it with `mkdir -p {path}`")]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// The mount point is something else than a directory.
    #[error("the mount point {path} is not a directory: name an empty directory")]
    NotADirectory {
        /// Where.
        path: PathBuf,
    },
    /// Something is mounted there.
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
    /// A mount whose process has died is in the way.
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
    /// The kernel's FUSE device is there, and not for the caller.
    #[error(
        "this user may not open /dev/fuse ({reason}): it usually has the mode 0666; set that with \
         `chmod 666 /dev/fuse` as root, for good with a rule of udev, or run as a user of its group"
    )]
    DeviceDenied {
        /// What the system said.
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
        /// What the system said.
        reason: String,
    },
    /// Something still uses the mount.
    #[error(
        "{path} is in use: end what has files or its working directory there (`fuser -vm {path}` \
         lists it), then try again"
    )]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// What was written could not all be committed; it stays mounted.
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
        /// What was being done.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
