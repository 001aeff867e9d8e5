//! The error of a mount that another one keeps out.

use crate::commands::ago::seconds_ago;
use crate::commands::mounts::host_name;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::Failure;
use quorumfs_gateway::metadata::MountMode;
use quorumfs_gateway::vfs::VfsError;
use quorumfs_metadata::row::Mount;
use rustix::io::Errno;

/// Why the realm could not be mounted in this way, when there were these mounts.
pub(super) fn not_mounted(error: &VfsError, mode: MountMode, mounts: &[Mount]) -> Failure {
    match error {
        VfsError::Refused {
            errno: Errno::BUSY, ..
        } => {
            let modes = |mount: &Mount| [mode, mount.mode];
            let blocks = |mount: &&Mount| modes(mount).contains(&MountMode::Exclusive);
            let blocker = mounts.iter().find(blocks).or(mounts.first());
            let by = blocker.and_then(|mount| {
                let since = seconds_ago(mount.since.0 / 1_000_000_000);
                host_name(&mount.label).map(|host| format!("on {host}, {since}"))
            });
            let by = by.unwrap_or_else(|| "by another process or machine".to_owned());
            let message = format!("the volume is mounted already, {by}");
            Failure::new(Exit::Held, message).hint(
                "unmount it there, or mount it without `--exclusive` both there and here; if that \
                 mount is gone for good, `quorumfs mount --takeover` ends its session",
            )
        }
        _ => vfs_failure(error),
    }
}
