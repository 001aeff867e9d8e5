//! Times of access, as Linux keeps them by default (`relatime`).
//!
//! Opening a file or directory for reading counts as reading it, because the kernel then reads its
//! own pages without telling us. Reading a link's target counts too. A time moves forward if it is
//! not after the last change of the inode, or is a day old. So it shows whether something was read
//! since it was written, and reading a file repeatedly costs nothing.
//!
//! All processes on this mount see the new time at once. The servers get many times together, some
//! time later, and only times that move forward; a crash loses the times that they do not have yet.
//! Pending times are bounded: beyond the bound a time does not move until some have been sent.
//!
//! Source: Linux, `fs/inode.c` (`relatime_need_update`).

use super::owner::Files;
use crate::clock;
use crate::error::VfsError;
use quorumfs_metadata::attributes::{Attributes, Timestamp};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::ACCESSED_MAX;
use quorumfs_metadata::operation::{Accessed, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Times that may be pending.
const PENDING_MAX: usize = 32 * ACCESSED_MAX;
/// After so many seconds a time moves forward even if nothing changed.
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// How long to try to send the rest at the end.
const LAST_TRY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct PendingTimes {
    times: BTreeMap<InodeId, Timestamp>,
    /// When the oldest became pending, or was last tried.
    since: Option<Instant>,
}

/// Times that the servers do not have yet.
#[derive(Debug, Default)]
pub(in crate::vfs) struct AccessTimes {
    pending: Mutex<PendingTimes>,
    /// Held while sending.
    sending: tokio::sync::Mutex<()>,
}

/// The time of access that reading at `now` sets; `None` if it stays.
fn updated_atime(attributes: &Attributes, now: Timestamp) -> Option<Timestamp> {
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
    // A ctime is of the servers' clock, which may be ahead of ours.
    let after_change = Timestamp {
        seconds: ctime.seconds,
        nanos: ctime.nanos.saturating_add(1).min(999_999_999),
    };
    Some(now.max(after_change)).filter(|time| *time > atime)
}

impl AccessTimes {
    fn pending(&self) -> MutexGuard<'_, PendingTimes> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An inode with these attributes, as callers see them, is read.
    pub(in crate::vfs) fn note(&self, attributes: &Attributes) {
        let Some(time) = updated_atime(attributes, clock::now()) else {
            return;
        };
        let mut pending = self.pending();
        let known = pending.times.contains_key(&attributes.inode);
        if known || pending.times.len() < PENDING_MAX {
            pending.times.insert(attributes.inode, time);
            pending.since.get_or_insert_with(Instant::now);
        }
    }

    /// Attributes with the pending time.
    pub(in crate::vfs) fn with_pending(&self, mut attributes: Attributes) -> Attributes {
        if let Some(time) = self.pending().times.get(&attributes.inode) {
            attributes.atime = attributes.atime.max(*time);
        }
        attributes
    }

    /// A caller sets an inode's time of access: the pending one is void, and one that is being sent
    /// does not arrive later.
    pub(in crate::vfs) async fn discard(&self, inode: InodeId) {
        let _sending = self.sending.lock().await;
        self.pending().times.remove(&inode);
    }

    /// The next times to send.
    fn next_batch(&self) -> Vec<Accessed> {
        let pending = self.pending();
        let some = pending.times.iter().take(ACCESSED_MAX);
        some.map(|(inode, time)| Accessed {
            inode: *inode,
            time: *time,
        })
        .collect()
    }

    /// The servers have these.
    fn acknowledge(&self, sent: &[Accessed]) {
        let mut pending = self.pending();
        for accessed in sent {
            if pending.times.get(&accessed.inode) == Some(&accessed.time) {
                pending.times.remove(&accessed.inode);
            }
        }
        pending.since = (!pending.times.is_empty()).then(Instant::now);
    }

    fn are_due(&self, after: Duration) -> bool {
        let pending = self.pending();
        let full = pending.times.len() >= PENDING_MAX / 2;
        let since = pending.since.map(|since| since.elapsed());
        since.is_some_and(|since| full || since >= after)
    }

    /// An attempt failed: no other for a while.
    fn postpone(&self) {
        let mut pending = self.pending();
        pending.since = pending.since.map(|_| Instant::now());
    }
}

impl Files {
    /// Sends pending times to the servers, in a task of its own, if they are due.
    pub(in crate::vfs) fn send_access_times_if_due(self: &Arc<Self>) {
        let busy = self.access_times.sending.try_lock().is_err();
        if busy
            || !self
                .access_times
                .are_due(self.services.options.access_times_after)
        {
            return;
        }
        self.access_times.postpone();
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = inner.send_access_times().await {
                tracing::debug!(%error, "times of access could not be sent");
            }
        });
    }

    async fn send_access_times(&self) -> Result<(), VfsError> {
        let _telling = self.access_times.sending.lock().await;
        // As many as are pending now; later ones wait for the next round.
        for _ in 0..PENDING_MAX.div_ceil(ACCESSED_MAX) {
            let some = self.access_times.next_batch();
            if some.is_empty() {
                break;
            }
            let (own, step) = (self.services.metadata.own(), Step::Accessed(some.clone()));
            let sent = self
                .services
                .metadata
                .step("read", own, clock::now(), step)
                .await;
            if let Err(error) = sent {
                self.access_times.postpone();
                return Err(error);
            }
            for accessed in &some {
                self.known.accessed(accessed.inode, accessed.time);
                if let Some(node) = self.node(accessed.inode) {
                    let base = &mut node.state().base;
                    base.atime = base.atime.max(accessed.time);
                }
            }
            self.access_times.acknowledge(&some);
        }
        Ok(())
    }

    /// Sends the rest at the end of the session, if the servers answer.
    pub(in crate::vfs) async fn send_last_access_times(&self) {
        let sending = self.send_access_times();
        match tokio::time::timeout(LAST_TRY, sending).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "times of access are lost"),
            Err(_) => tracing::debug!("times of access are lost: no answer in time"),
        }
    }
}

#[cfg(test)]
pub(in crate::vfs) mod tests {
    use super::*;
    use quorumfs_metadata::attributes::Detail;
    use quorumfs_metadata::attributes::{AclKinds, Extended, Mode};
    use quorumfs_metadata::identity::{Gid, InodeVersion, RealmId, Uid};

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 7 }
    }

    pub(in crate::vfs) fn file(inode: u64, atime: i64, mtime: i64, ctime: i64) -> Attributes {
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
        let moves = |atime, mtime, ctime| updated_atime(&file(1, atime, mtime, ctime), now);
        assert_eq!(moves(999_000, 998_000, 998_500), None);
        assert_eq!(moves(999_000, 999_000, 998_500), Some(now));
        assert_eq!(moves(999_000, 998_000, 999_500), Some(now));
        assert_eq!(moves(1_000_000 - DAY_SECONDS, 0, 0), Some(now));
        assert_eq!(moves(1_000_001 - DAY_SECONDS, 0, 0), None);
        // Set explicitly, or by a clock that is ahead.
        assert_eq!(moves(2_000_000, 3_000_000, 0), None);
        let ahead = moves(999_000, 998_000, 1_000_010).unwrap();
        assert!(ahead > at(1_000_010), "or it would move each time");
    }

    #[test]
    fn pending_times_are_bounded() {
        let times = AccessTimes::default();
        for inode in 0..PENDING_MAX as u64 + 10 {
            times.note(&file(inode, 0, 1, 1));
        }
        assert_eq!(times.pending().times.len(), PENDING_MAX);
        let some = times.next_batch();
        assert_eq!(some.len(), ACCESSED_MAX);
        times.acknowledge(&some);
        assert_eq!(times.pending().times.len(), PENDING_MAX - ACCESSED_MAX);
    }
}
