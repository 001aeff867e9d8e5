//! On whose behalf a call is made.
//!
//! The kernel passes uid, gid and thread. Supplementary groups are read from the thread's status in
//! `/proc` when an operation needs them, and cached for a second, since a thread that calls a
//! thousand times does not change its groups in between.

use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::{Gid, Uid};
use quorumfs_metadata::limits::GROUPS_MAX;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long groups are cached.
const GROUPS_CACHED_FOR: Duration = Duration::from_secs(1);
/// How many threads are cached at once.
const THREADS_MAX: usize = 1024;

/// The user and group that call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user.
    pub uid: u32,
    /// File-system group.
    pub gid: u32,
    /// Where the supplementary groups come from.
    pub groups: GroupSource,
    /// Removed from the mode of new inodes, unless the directory has a default access control list;
    /// 0 if the mask was applied already.
    pub umask: u16,
}

/// Where a caller's supplementary groups come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSource {
    /// The status of this thread; none if it cannot be read.
    Thread(u32),
    /// These groups.
    Known(Vec<u32>),
}

impl Caller {
    /// A user with these groups.
    #[must_use]
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self {
            uid,
            gid,
            groups: GroupSource::Known(groups),
            umask: 0,
        }
    }

    /// The user that this process runs as, for commands that act for their caller.
    #[must_use]
    pub fn this_process() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: GroupSource::Thread(std::process::id()),
            umask: 0,
        }
    }
}

/// A thread and the user that it called as.
type Calling = (u32, u32);

/// Groups of threads that called recently, with when they were read.
#[derive(Debug, Default)]
pub(in crate::vfs) struct GroupCache {
    threads: Mutex<HashMap<Calling, (Instant, Vec<Gid>)>>,
}

impl GroupCache {
    /// The credentials of an operation on behalf of `caller`.
    pub(in crate::vfs) fn credentials(&self, caller: &Caller) -> Credentials {
        let groups = match &caller.groups {
            GroupSource::Known(groups) => groups.iter().copied().map(Gid).collect(),
            GroupSource::Thread(thread) => self.groups_of(*thread, caller.uid),
        };
        Credentials {
            uid: Uid(caller.uid),
            gid: Gid(caller.gid),
            groups,
        }
    }

    fn groups_of(&self, thread: u32, uid: u32) -> Vec<Gid> {
        let now = Instant::now();
        let key = (thread, uid);
        {
            let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, groups)) = threads.get(&key)
                && now.duration_since(*since) < GROUPS_CACHED_FOR
            {
                return groups.clone();
            }
        }
        let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
        let groups = status
            .map(|status| parse_groups(&status))
            .unwrap_or_default();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() >= THREADS_MAX {
            threads.clear();
        }
        threads.insert(key, (now, groups.clone()));
        groups
    }
}

fn parse_groups(status: &str) -> Vec<Gid> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|group| group.parse().ok().map(Gid))
        .take(GROUPS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_the_status_of_the_thread() {
        assert_eq!(
            parse_groups("Name:\tcat\nGroups:\t4 24 1000 \nNStgid:\t1\n"),
            [Gid(4), Gid(24), Gid(1000)]
        );
        assert_eq!(parse_groups("Name:\tcat\nGroups:\t\n"), []);
        assert_eq!(parse_groups(""), []);
    }

    #[test]
    fn a_thread_that_is_gone_has_no_groups() {
        let caller = Caller {
            uid: 1,
            gid: 2,
            groups: GroupSource::Thread(u32::MAX),
            umask: 0,
        };
        let credentials = GroupCache::default().credentials(&caller);
        assert_eq!(credentials, Credentials::user(Uid(1), Gid(2)));
    }
}
