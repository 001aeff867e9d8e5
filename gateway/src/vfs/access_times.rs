//! Times of access, as Linux keeps them by default (`relatime`).
//!
//! Opening a file or directory for reading counts as reading it, for what the kernel then reads of
//! its own pages nobody here hears of; so does asking for a link's target. A time moves on if it
//! is not after the last change of the inode, or a day old: so it tells whether something was read
//! since it was written, and a file that is read again and again costs nothing.
//!
//! Everybody on this mount sees the new time at once. The servers are told many at a time, some
//! time later, and only of times that move forward; a crash loses what they were not told yet.
//! What waits is bounded: beyond that a time does not move before some have left.
//!
//! Source: Linux, `fs/inode.c` (`relatime_need_update`).

use super::file_system::{FileSystem, Inner};
use super::{VfsError, clock};
use quorumfs_metadata::attributes::{Attributes, Timestamp};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::ACCESSED_MAX;
use quorumfs_metadata::operation::{Accessed, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Times that may wait.
const WAITING_MAX: usize = 32 * ACCESSED_MAX;
/// After so many seconds a time moves on even if nothing changed.
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// How long to try to tell the servers at the end.
const LAST_TRY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Waiting {
    times: BTreeMap<InodeId, Timestamp>,
    /// Since when something waits, or when it was last tried.
    since: Option<Instant>,
}

/// Times that the servers have not been told of.
#[derive(Debug, Default)]
pub(crate) struct AccessTimes {
    waiting: Mutex<Waiting>,
    /// Held by whoever tells them.
    telling: tokio::sync::Mutex<()>,
}

/// The time of access that reading at `now` leaves behind; `None`: the one that is there.
fn moved(attributes: &Attributes, now: Timestamp) -> Option<Timestamp> {
    let Attributes {
        atime,
        mtime,
        ctime,
        ..
    } = *attributes;
    let old = now.seconds.saturating_sub(atime.seconds) >= DAY_SECONDS;
    if atime > mtime && atime > ctime && !old {
        return None;
    }
    // The servers' clock, of which ctime is, may be ahead of ours.
    let after_change = Timestamp {
        seconds: ctime.seconds,
        nanos: ctime.nanos.saturating_add(1).min(999_999_999),
    };
    Some(now.max(after_change)).filter(|time| *time > atime)
}

impl AccessTimes {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An inode of these attributes, as callers see them, is read.
    pub(crate) fn note(&self, attributes: &Attributes) {
        let Some(time) = moved(attributes, clock::now()) else {
            return;
        };
        let mut waiting = self.waiting();
        let known = waiting.times.contains_key(&attributes.inode);
        if known || waiting.times.len() < WAITING_MAX {
            waiting.times.insert(attributes.inode, time);
            waiting.since.get_or_insert_with(Instant::now);
        }
    }

    /// Attributes with the time that waits.
    pub(crate) fn shown(&self, mut attributes: Attributes) -> Attributes {
        if let Some(time) = self.waiting().times.get(&attributes.inode) {
            attributes.atime = attributes.atime.max(*time);
        }
        attributes
    }

    /// Somebody sets an inode's time of access: what waits for it is void, and nothing that is on
    /// its way arrives later.
    pub(crate) async fn set_aside(&self, inode: InodeId) {
        let _told = self.telling.lock().await;
        self.waiting().times.remove(&inode);
    }

    /// Some of what waits, to be told now.
    fn some(&self) -> Vec<Accessed> {
        let waiting = self.waiting();
        let some = waiting.times.iter().take(ACCESSED_MAX);
        some.map(|(inode, time)| Accessed {
            inode: *inode,
            time: *time,
        })
        .collect()
    }

    /// These were told.
    fn told(&self, told: &[Accessed]) {
        let mut waiting = self.waiting();
        for accessed in told {
            if waiting.times.get(&accessed.inode) == Some(&accessed.time) {
                waiting.times.remove(&accessed.inode);
            }
        }
        waiting.since = (!waiting.times.is_empty()).then(Instant::now);
    }

    fn are_due(&self, after: Duration) -> bool {
        let waiting = self.waiting();
        let full = waiting.times.len() >= WAITING_MAX / 2;
        let since = waiting.since.map(|since| since.elapsed());
        since.is_some_and(|since| full || since >= after)
    }

    /// Tried in vain: not again for a while.
    fn later(&self) {
        let mut waiting = self.waiting();
        waiting.since = waiting.since.map(|_| Instant::now());
    }
}

impl Inner {
    /// Tells the servers if something waited long enough, beside everything else.
    pub(crate) fn tell_access_times_if_due(self: &Arc<Self>) {
        let busy = self.access_times.telling.try_lock().is_err();
        if busy || !self.access_times.are_due(self.options.access_times_after) {
            return;
        }
        self.access_times.later();
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = inner.tell_access_times().await {
                tracing::debug!(%error, "times of access could not be told");
            }
        });
    }

    async fn tell_access_times(&self) -> Result<(), VfsError> {
        let _telling = self.access_times.telling.lock().await;
        // As much as waits now; what comes meanwhile waits for the next time.
        for _ in 0..WAITING_MAX.div_ceil(ACCESSED_MAX) {
            let some = self.access_times.some();
            if some.is_empty() {
                break;
            }
            let (own, step) = (self.metadata.own(), Step::Accessed(some.clone()));
            let told = self.metadata.step("read", own, clock::now(), step).await;
            if let Err(error) = told {
                self.access_times.later();
                return Err(error);
            }
            for accessed in &some {
                self.cache.accessed(accessed.inode, accessed.time);
                if let Some(node) = self.node(accessed.inode) {
                    let base = &mut node.state().base;
                    base.atime = base.atime.max(accessed.time);
                }
            }
            self.access_times.told(&some);
        }
        Ok(())
    }
}

impl FileSystem {
    /// Tells the servers at the end of the session, if they listen.
    pub(crate) async fn tell_last_access_times(&self) {
        let telling = self.inner.tell_access_times();
        match tokio::time::timeout(LAST_TRY, telling).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "times of access are lost"),
            Err(_) => tracing::debug!("times of access are lost: no answer in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Detail;
    use quorumfs_metadata::attributes::{AclKinds, Extended, Mode};
    use quorumfs_metadata::identity::{Gid, InodeVersion, RealmId, Uid};

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 7 }
    }

    fn file(inode: u64, atime: i64, mtime: i64, ctime: i64) -> Attributes {
        Attributes {
            inode: InodeId(inode),
            realm: RealmId::ROOT,
            mode: Mode(0o644),
            uid: Uid(0),
            gid: Gid(0),
            links: 1,
            size: 0,
            allocated: 0,
            atime: at(atime),
            mtime: at(mtime),
            ctime: at(ctime),
            created: at(0),
            version: InodeVersion(1),
            acl: AclKinds::default(),
            extended: Extended::default(),
            detail: Detail::File,
        }
    }

    #[test]
    fn a_time_moves_if_it_is_not_after_the_last_change_or_a_day_old() {
        let now = at(1_000_000);
        let moves = |atime, mtime, ctime| moved(&file(1, atime, mtime, ctime), now);
        assert_eq!(moves(999_000, 998_000, 998_500), None);
        assert_eq!(moves(999_000, 999_000, 998_500), Some(now));
        assert_eq!(moves(999_000, 998_000, 999_500), Some(now));
        assert_eq!(moves(1_000_000 - DAY_SECONDS, 0, 0), Some(now));
        assert_eq!(moves(1_000_001 - DAY_SECONDS, 0, 0), None);
        // Set by hand, or by a clock that is ahead.
        assert_eq!(moves(2_000_000, 3_000_000, 0), None);
        let ahead = moves(999_000, 998_000, 1_000_010).unwrap();
        assert!(ahead > at(1_000_010), "or it would move each time");
    }

    #[test]
    fn what_waits_is_bounded() {
        let times = AccessTimes::default();
        for inode in 0..WAITING_MAX as u64 + 10 {
            times.note(&file(inode, 0, 1, 1));
        }
        assert_eq!(times.waiting().times.len(), WAITING_MAX);
        let some = times.some();
        assert_eq!(some.len(), ACCESSED_MAX);
        times.told(&some);
        assert_eq!(times.waiting().times.len(), WAITING_MAX - ACCESSED_MAX);
    }
}
