//! Asking whether others have changed anything, and invalidating the kernel's caches then.
//!
//! While a mount is used, it asks the servers twice a second how often other sessions have changed
//! the realm ([`Coherence`](super::coherence), [`validity`](super::validity)). The kernel may cache
//! entries for as long as [`KnownMetadata::may_cache`] allows, and the FUSE layer watches
//! [`KnownMetadata::invalidations`]: when that moves, all of them have to go, either because
//! another session changed something, or because no count arrived for [`LAPSE`]. So changes by
//! other sessions are visible within about a second. A mount that gets no answer uses no entry for
//! longer than two, as long as the servers may be reachable: once fewer are connected than any
//! answer takes, it uses their last answers ([`validity`](super::validity)).
//!
//! An unused mount asks nothing: some time after the kernel last cached something, its entries
//! expire. The next call asks first, once, and if nothing has changed all entries are valid again.

use super::cache::Known;
use super::coherence::News;
use super::owner::KnownMetadata;
use super::validity::VALID_FOR;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

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
pub(in crate::vfs) struct Revalidation {
    state: Mutex<RevalidationState>,
    /// Held while asking.
    turn: tokio::sync::Mutex<()>,
    wake: Arc<Notify>,
    invalidations: watch::Sender<u64>,
    stopped: AtomicBool,
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
            stopped: AtomicBool::new(false),
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

impl KnownMetadata {
    /// Whether the kernel may cache these attributes, which were just shown, for [`CACHED_FOR`].
    pub(in crate::vfs) fn may_cache(&self, shown: &Attributes) -> bool {
        let cacheable = self.attributes_are_revalidated(shown);
        if cacheable {
            self.revalidation.note_use(true);
        }
        cacheable
    }

    /// Whether the kernel may cache where a name leads, as long.
    pub(in crate::vfs) fn may_cache_name(
        &self,
        directory: InodeId,
        name: &[u8],
        leads: Known,
    ) -> bool {
        let cacheable = self.name_is_revalidated(directory, name, leads);
        if cacheable {
            self.revalidation.note_use(true);
        }
        cacheable
    }

    /// Moves whenever all entries that the kernel may have cached have to go.
    pub(in crate::vfs) fn invalidations(&self) -> watch::Receiver<u64> {
        self.revalidation.invalidations.subscribe()
    }

    /// Ends the task.
    pub(in crate::vfs) fn stop(&self) {
        self.revalidation.stopped.store(true, Ordering::Release);
    }

    /// Revalidates the cache, if that is worth while: the caller is about to look something up.
    pub(in crate::vfs) async fn revalidate(&self) {
        if self.has_fresh_count() || !self.coherence.is_told() {
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
        if !self.has_fresh_count() {
            self.set_servers_gone(self.coherence.is_cut_off());
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
        match self.coherence.news().await {
            Ok(News::Count(others)) => {
                let changed = self.learn_change_count(others, sent);
                revalidation.state().last_answer = Some(Instant::now());
                if changed {
                    revalidation.invalidate();
                }
            }
            Ok(News::Ended) => {
                self.end_validity();
                revalidation.invalidate();
            }
            Err(error) => tracing::debug!(%error, "changes by other sessions are unknown"),
        }
        if self.coherence.is_fenced() {
            self.end_validity();
            revalidation.invalidate();
        }
    }
}

/// Runs until the file system is shut down or dropped.
pub(in crate::vfs) fn spawn(known: &Arc<KnownMetadata>) {
    let (weak, wake) = (Arc::downgrade(known), known.revalidation.wake.clone());
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

async fn round(weak: &Weak<KnownMetadata>) -> bool {
    let Some(known) = weak.upgrade() else {
        return false;
    };
    if known.revalidation.stopped.load(Ordering::Acquire) {
        return false;
    }
    let revalidation = &known.revalidation;
    if revalidation.is_used() && known.coherence.is_told() {
        // A later answer confirms nothing.
        let _ = tokio::time::timeout(VALID_FOR, known.ask_for_changes()).await;
        known.check_servers();
        if revalidation.has_lapsed() {
            revalidation.invalidate();
        }
    }
    true
}
