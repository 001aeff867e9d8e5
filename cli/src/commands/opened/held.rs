//! Mounts that others keep out, and mounts that may keep no other out.

use super::{Access, Configured, known_people};
use crate::commands::ago::seconds_ago;
use crate::commands::mounts::host_name;
use crate::exit::Exit;
use crate::explain::{vfs_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::metadata::{MetadataClient, MountMode};
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

/// Learns who the principals are, and how this one may go on. One that may only read mounts with
/// others, and keeps none of them out.
pub(super) async fn allowed(
    configured: &Configured,
    metadata: &MetadataClient,
    access: Access,
) -> CommandResult<Access> {
    let volume = &configured.volume;
    let learned = volume.learn_people(metadata).await;
    learned.map_err(|error| volume_failure(&error))?;
    metadata.act_as(volume.own_credentials());
    if !configured.is_guest {
        known_people::keep_learned(&configured.state, volume);
    }
    let Access::Mount { takeover, mode } = access else {
        return Ok(access);
    };
    if !volume.is_reader() {
        return Ok(access);
    }
    if takeover.is_some() || mode == MountMode::Exclusive {
        let message = "you may only read this volume, and so keep no other mount out of it";
        return Err(Failure::new(Exit::Usage, message).hint(
            "mount it without `--exclusive` and `--takeover`; `quorumfs people ls` shows what you \
             may do",
        ));
    }
    let mode = MountMode::Shared;
    Ok(Access::Mount { takeover, mode })
}
