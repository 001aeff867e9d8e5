//! Asking whether other sessions have changed anything, and invalidating the kernel's caches then.
//!
//! While a mount is used, it asks the servers twice a second how often other sessions have changed
//! the realm ([`validity`](super::validity)). The kernel may cache entries for as long as
//! [`FileSystem::may_cache`] allows, and the FUSE layer watches [`FileSystem::invalidations`]: when
//! that moves, all of them have to go, either because another session changed something, or because
//! no count arrived for [`LAPSE`]. So changes by other sessions are visible within about a second.
//! A mount that gets no answer uses no entry for longer than two, as long as the servers may be
//! reachable: once fewer are connected than any answer takes, it uses their last answers
//! ([`validity`](super::validity)).
//!
//! An unused mount asks nothing: some time after the kernel last cached something, its entries
//! expire. The next call asks first, once, and if nothing has changed all entries are valid again.

use super::cache::Known;
use super::file_system::{FileSystem, FileSystemCore};
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::validity::VALID_FOR;

/// How often to ask.
const EVERY: Duration = Duration::from_millis(450);
/// How long a call waits for the count, before it sends its own query instead.
const WAIT: Duration = Duration::from_millis(300);
/// When no count arrived for so long, the kernel's entries are invalidated.
const LAPSE: Duration = Duration::from_millis(1_500);
/// How long the kernel may cache an entry, unless it is invalidated.
pub const CACHED_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct RevalidationState {
    /// When the kernel last cached something, or a call used the count.
    used: Option<Instant>,
    /// When the count was last asked for, with or without an answer.
    last_attempt: Option<Instant>,
    /// When it last arrived.
    last_answer: Option<Instant>,
    /// The kernel may have entries that were not invalidated.
    handed_out: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Revalidation {
    state: Mutex<RevalidationState>,
    /// Held while asking.
    turn: tokio::sync::Mutex<()>,
    wake: Arc<Notify>,
    invalidations: watch::Sender<u64>,
}

impl Default for Revalidation {
    fn default() -> Self {
        Self {
            state: Mutex::new(RevalidationState {
                used: None,
                last_attempt: None,
                last_answer: None,
                handed_out: false,
            }),
            turn: tokio::sync::Mutex::default(),
            wake: Arc::default(),
            invalidations: watch::Sender::new(0),
        }
    }
}

impl Revalidation {
    fn state(&self) -> MutexGuard<'_, RevalidationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The count is being used.
    fn note_use(&self, handed_out: bool) {
        let mut state = self.state();
        let now = Instant::now();
        let asleep = state.used.is_none_or(|used| now - used >= CACHED_FOR);
        state.used = Some(now);
        state.handed_out |= handed_out;
        if asleep {
            self.wake.notify_one();
        }
    }

    fn is_used(&self) -> bool {
        self.state()
            .used
            .is_some_and(|used| used.elapsed() < CACHED_FOR)
    }

    /// Invalidates all entries of the kernel.
    fn invalidate(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.handed_out) {
            self.invalidations
                .send_modify(|invalidations| *invalidations = invalidations.wrapping_add(1));
        }
    }

    fn has_lapsed(&self) -> bool {
        let state = self.state();
        state.handed_out
            && state
                .last_answer
                .is_none_or(|last_answer| last_answer.elapsed() >= LAPSE)
    }
}

impl FileSystem {
    /// Whether the kernel may cache attributes that were just shown for [`CACHED_FOR`] without
    /// asking again, unless [`FileSystem::invalidations`] moves.
    #[must_use]
    pub fn may_cache(&self, shown: &Attributes) -> bool {
        let inner = &self.inner;
        // A pending commit changes attributes without a call.
        let settled = inner
            .node(shown.inode)
            .is_none_or(|node| !node.state().is_waiting());
        let cacheable = settled && inner.cache.attributes_are_revalidated(shown);
        if cacheable {
            inner.revalidation.note_use(true);
        }
        cacheable
    }

    /// Whether the kernel may cache the result of a lookup, found or not, as long.
    #[must_use]
    pub fn may_cache_name(&self, directory: InodeId, name: &[u8], leads: Option<InodeId>) -> bool {
        let known = leads.map_or(Known::Absent, Known::Entry);
        let cacheable = self.inner.cache.name_is_revalidated(directory, name, known);
        if cacheable {
            self.inner.revalidation.note_use(true);
        }
        cacheable
    }

    /// Moves whenever all entries that [`FileSystem::may_cache`] allowed to be cached have to go.
    #[must_use]
    pub fn invalidations(&self) -> watch::Receiver<u64> {
        self.inner.revalidation.invalidations.subscribe()
    }
}

impl FileSystemCore {
    /// Revalidates the cache, if that is worth while: the caller is about to look something up.
    pub(crate) async fn revalidate(&self) {
        if self.cache.has_fresh_count() || !self.metadata.is_mounted() {
            return;
        }
        let revalidation = &self.revalidation;
        revalidation.note_use(false);
        let last_attempt = revalidation.state().last_attempt;
        if last_attempt.is_some_and(|last_attempt| last_attempt.elapsed() < VALID_FOR) {
            return;
        }
        // If it fails, the caller sends its own query.
        let _ = tokio::time::timeout(WAIT, self.ask_for_changes()).await;
        self.check_servers();
    }

    /// Finds out whether the servers are gone, if no count has arrived.
    fn check_servers(&self) {
        if !self.cache.has_fresh_count() {
            self.cache.set_servers_gone(self.metadata.is_cut_off());
        }
    }

    /// Asks how often other sessions have changed the realm, unless another task has just done so.
    async fn ask_for_changes(&self) {
        let revalidation = &self.revalidation;
        let asked = Instant::now();
        let _turn = revalidation.turn.lock().await;
        if revalidation
            .state()
            .last_answer
            .is_some_and(|last_answer| last_answer > asked)
        {
            return;
        }
        let sent = Instant::now();
        revalidation.state().last_attempt = Some(sent);
        match self.metadata.changes_by_others().await {
            Ok(Some(others)) => {
                let changed = self.cache.learn_change_count(others, sent);
                revalidation.state().last_answer = Some(Instant::now());
                if changed {
                    revalidation.invalidate();
                }
            }
            // The mount is not ours any more.
            Ok(None) => {
                self.cache.end_validity();
                revalidation.invalidate();
            }
            Err(error) => tracing::debug!(%error, "changes by other sessions are unknown"),
        }
        if self.metadata.is_fenced() {
            self.cache.end_validity();
            revalidation.invalidate();
        }
    }
}

/// Runs until the file system is shut down or dropped.
pub(crate) fn spawn(inner: &Arc<FileSystemCore>) {
    let (weak, wake) = (Arc::downgrade(inner), inner.revalidation.wake.clone());
    tokio::spawn(async move {
        while round(&weak).await {
            let used = weak.upgrade().is_some_and(|it| it.revalidation.is_used());
            if used {
                tokio::time::sleep(EVERY).await;
            } else {
                // The file system may be dropped meanwhile, with no wake-up.
                let _ = tokio::time::timeout(CACHED_FOR, wake.notified()).await;
            }
        }
    });
}

async fn round(weak: &Weak<FileSystemCore>) -> bool {
    let Some(inner) = weak.upgrade() else {
        return false;
    };
    if inner.stopped.load(Ordering::Acquire) {
        return false;
    }
    let revalidation = &inner.revalidation;
    if revalidation.is_used() && inner.metadata.is_mounted() {
        // A later answer confirms nothing.
        let _ = tokio::time::timeout(VALID_FOR, inner.ask_for_changes()).await;
        inner.check_servers();
        if revalidation.has_lapsed() {
            revalidation.invalidate();
        }
    }
    true
}
