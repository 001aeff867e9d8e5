//! The error of a mount that another one keeps out.

use crate::commands::ago::seconds_ago;
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
            let by = match mounts.iter().find(blocks).or(mounts.first()) {
                Some(mount) if !mount.label.is_empty() => {
                    let host: String = mount.label.chars().filter(|it| !it.is_control()).collect();
                    let since = seconds_ago(mount.since.0 / 1_000_000_000);
                    format!("on {host}, {since}")
                }
                _ => "by another process or machine".to_owned(),
            };
            let message = format!("the volume is mounted already, {by}");
            Failure::new(Exit::Held, message).hint(
                "unmount it there, or mount it without `--exclusive` both there and here; if that \
                 mount is gone for good, `quorumfs mount --takeover` ends its session",
            )
        }
        _ => vfs_failure(error),
    }
}
