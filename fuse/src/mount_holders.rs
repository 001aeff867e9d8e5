//! Processes that still hold a mount that has left this process's tree.
//!
//! A file system ends when its last mount goes. A process in a mount namespace of its own (a
//! container, `unshare --mount`) has a copy of every mount that existed when it began, and an
//! unmount need not reach it; a bind mount is another copy. Then `umount` succeeds, the mount point
//! is free, and the kernel goes on sending requests. This module detects that and names those
//! processes; [`Mounted`](crate::Mounted) commits their data and ends the connection, so that the
//! volume is free. What such a process does in its copy after that fails with an error.
//!
//! A mount that was detached from the tree while files in it are open (`umount -l`) is another
//! matter: no tree has it, and it goes on until they are closed.
//!
//! # What can go wrong
//!
//! *A process cannot be inspected*, because it ends meanwhile or is hidden (`hidepid`). Then it is
//! not named. *A process hands its copy on*: the receiver is another process in the same table.
//!
//! Source: Linux, `proc(5)` on `mountinfo`; `mount_namespaces(7)` on propagation.

use crate::mount_table;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often to check whether the mount is still in the tree.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long another process may hold it before that counts: one that is just starting closes what
/// it does not need.
pub(crate) const RELEASED_WITHIN: Duration = Duration::from_secs(2);
/// How many are named.
const NAMED_MAX: usize = 8;

/// A process that has the mount in its tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// Where it has the mount.
    pub place: PathBuf,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, pid, place) = (&self.name, self.pid, self.place.display());
        write!(f, "{name} (process {pid}) at {place}")
    }
}

/// The processes that have the file system of this device in their tree: one for each mount
/// namespace, up to a maximum.
pub(crate) fn holders(minor: u32) -> Vec<Holder> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // The first process of a namespace is the one that a person recognises.
    let numbers: BTreeSet<u32> = numbers.collect();
    let (mut namespaces, mut found) = (BTreeSet::new(), Vec::new());
    for pid in numbers {
        let process = Path::new("/proc").join(pid.to_string());
        let namespace = fs::read_link(process.join("ns/mnt")).ok();
        // Of another user's process only the table can be read.
        if namespace.is_some_and(|namespace| !namespaces.insert(namespace)) {
            continue;
        }
        let Ok(table) = fs::read(process.join("mountinfo")) else {
            continue;
        };
        let Some(place) = mount_table::place_of(&table, minor) else {
            continue;
        };
        let name = fs::read(process.join("comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim().to_owned();
        found.push(Holder { pid, name, place });
        if found.len() == NAMED_MAX {
            break;
        }
    }
    found
}

/// Resolves once the mount is no longer in this process's tree, but in another.
pub(crate) async fn held_elsewhere(minor: u32) -> Vec<Holder> {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if mount_table::is_mounted(minor) {
            continue;
        }
        tokio::time::sleep(RELEASED_WITHIN).await;
        let found = tokio::task::spawn_blocking(move || holders(minor)).await;
        let found = found.unwrap_or_default();
        if !found.is_empty() && !mount_table::is_mounted(minor) {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_what_it_has_mounted() {
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let minor = mount_table::mounted_at(Path::new("/proc")).unwrap().minor;
        assert!(mount_table::place_of(&table, minor).is_some());
        assert!(mount_table::is_mounted(minor) && !mount_table::is_mounted(u32::MAX));
        let found = holders(minor);
        assert!(!found.is_empty() && found.len() <= NAMED_MAX);
        let text = found.first().unwrap().to_string();
        assert!(
            text.contains("(process ") && text.contains(" at /"),
            "{text}"
        );
        assert!(holders(u32::MAX).is_empty());
    }
}
