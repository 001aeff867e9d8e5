//! The error of a mount that another session holds.

use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::Failure;
use quorumfs_gateway::vfs::VfsError;
use rustix::io::Errno;

/// Why the realm could not be mounted.
pub(super) fn not_mounted(error: &VfsError) -> Failure {
    match error {
        VfsError::Refused {
            errno: Errno::BUSY, ..
        } => {
            let message = "the volume is mounted already, by another process or machine";
            Failure::new(Exit::Held, message).hint(
                "unmount it there; if that one is gone for good, `quorumfs mount --takeover` \
                 ends its session",
            )
        }
        _ => vfs_failure(error),
    }
}
