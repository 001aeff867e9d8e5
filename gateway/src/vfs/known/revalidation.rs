//! Asking whether others have changed anything, and invalidating the kernel's caches then.
//!
//! While a mount is used, it asks the servers twice a second, and whenever their bell rings, what
//! other sessions have changed in the realm ([`coherence`](super::coherence),
//! [`validity`](super::validity)). The kernel may cache what [`KnownMetadata::may_cache`] allows
//! for [`KnownMetadata::cached_for`], and the FUSE layer follows
//! [`KnownMetadata::invalidations`]: what another session has changed has to go, and everything if
//! that is not known, or if no news arrived for [`LAPSE`]. So changes by other sessions are visible
//! within about a second. A mount that gets no answer uses no entry for longer than two, as long as
//! the servers may be reachable: once fewer are connected than any answer takes, it uses their last
//! answers.
//!
//! An unused mount asks nothing: some time after the kernel last cached something, its entries
//! expire. The next call asks first, once, and what others have not changed is valid again. Only a
//! mount that is alone goes on asking, seldom: another one may wait for it to share
//! ([`super::standing`]).

use super::cache::Known;
use super::coherence::{Changed, News};
use super::invalidations::{Announcements, Invalidation, Invalidations};
use super::owner::KnownMetadata;
use super::pages::Page;
use super::standing::{Moment, Recalls};
use super::validity::VALID_FOR;
use crate::error::VfsError;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often to ask.
const EVERY: Duration = Duration::from_millis(450);
/// How often an unused mount asks that another one may recall. It is woken when that happens, and
/// this is for a bell that was not heard.
const RECALLS_EVERY: Duration = Duration::from_secs(3);
/// How long a call waits for news at least, before it sends its own query instead. Where news take
/// longer than half of it, it waits twice as long as they did, but no longer than [`VALID_FOR`].
const WAIT: Duration = Duration::from_millis(300);
/// When no news arrived for so long, the kernel's entries are invalidated.
const LAPSE: Duration = Duration::from_millis(1_500);
/// How long the kernel may cache an entry, unless it is invalidated, while no other mount can
/// change anything.
pub const CACHED_FOR: Duration = Duration::from_secs(30);
/// The same while others may mount the realm: no longer than [`LAPSE`], so that what is promised
/// about names and attributes does not depend on an invalidation. If the process of this mount is
/// stopped, or an invalidation is lost, the kernel shows for so long what others have changed
/// since.
const SHARED_CACHED_FOR: Duration = Duration::from_secs(1);
const _: () = assert!(SHARED_CACHED_FOR.as_millis() <= LAPSE.as_millis());

#[derive(Debug)]
struct RevalidationState {
    /// When the kernel last cached something, or a call was about to use an entry.
    used: Option<Instant>,
    /// When news were last asked for, with or without an answer.
    last_attempt: Option<Instant>,
    /// When they last arrived.
    last_answer: Option<Instant>,
    /// When the question was sent whose answer was the last, and complete.
    answered: Option<Instant>,
    /// How long that took.
    took: Duration,
    /// The kernel may have entries that were not invalidated.
    handed_out: bool,
}

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct Revalidation {
    state: Mutex<RevalidationState>,
    pub(super) recalls: Mutex<Recalls>,
    /// Held while asking.
    turn: tokio::sync::Mutex<()>,
    wake: Arc<Notify>,
    invalidations: Announcements,
    stopped: AtomicBool,
}

impl Default for Revalidation {
    fn default() -> Self {
        Self {
            state: Mutex::new(RevalidationState {
                used: None,
                last_attempt: None,
                last_answer: None,
                answered: None,
                took: Duration::ZERO,
                handed_out: false,
            }),
            recalls: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            wake: Arc::default(),
            invalidations: Announcements::default(),
            stopped: AtomicBool::new(false),
        }
    }
}

impl Revalidation {
    fn state(&self) -> MutexGuard<'_, RevalidationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// News are being used.
    fn note_use(&self) {
        let mut state = self.state();
        let now = Instant::now();
        let asleep = state.used.is_none_or(|used| now - used >= CACHED_FOR);
        state.used = Some(now);
        if asleep {
            self.wake.notify_one();
        }
    }

    /// The kernel caches something if `check` says that it may. Returns whether it does.
    fn hand_out(&self, check: impl FnOnce() -> bool) -> bool {
        // First: what becomes invalid after the check is then announced.
        self.state().handed_out = true;
        let cacheable = check();
        if cacheable {
            self.note_use();
        }
        cacheable
    }

    fn is_used(&self) -> bool {
        self.state()
            .used
            .is_some_and(|used| used.elapsed() < CACHED_FOR)
    }

    /// Invalidates all entries of the kernel, if it has any.
    fn invalidate_all(&self) {
        let handed_out = std::mem::take(&mut self.state().handed_out);
        if handed_out {
            self.invalidations.send(Invalidation::Everything);
        }
    }

    /// Tells what others have changed, whether or not the kernel has entries of it: it also
    /// concerns what is open.
    pub(super) fn tell(&self, changed: Changed) {
        match changed {
            Changed::Anything => {
                self.state().handed_out = false;
                self.invalidations.send(Invalidation::Everything);
            }
            Changed::Inodes(inodes) if inodes.is_empty() => {}
            Changed::Inodes(inodes) => {
                self.invalidations.send(Invalidation::Inodes(inodes.into()));
            }
        }
    }

    /// Has the task look at once.
    pub(super) fn wake_up(&self) {
        self.wake.notify_one();
    }

    /// How long a call waits for news.
    fn patience(&self) -> Duration {
        self.state().took.saturating_mul(2).clamp(WAIT, VALID_FOR)
    }

    /// When news last arrived.
    pub(super) fn last_answer(&self) -> Option<Instant> {
        self.state().last_answer
    }

    /// How long until no news will have arrived for [`LAPSE`]; `None` if the kernel has no entries.
    fn until_lapse(&self) -> Option<Duration> {
        let state = self.state();
        let since = state.last_answer.map_or(LAPSE, |last| last.elapsed());
        state.handed_out.then(|| LAPSE.saturating_sub(since))
    }

    /// Invalidates all entries of the kernel, if no news have arrived for [`LAPSE`].
    fn invalidate_if_lapsed(&self) {
        if self.until_lapse() == Some(Duration::ZERO) {
            self.invalidate_all();
        }
    }

    /// Invalidates all entries of the kernel whenever no news arrive for [`LAPSE`].
    async fn watch_for_lapses(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.until_lapse().unwrap_or(LAPSE)).await;
            self.invalidate_if_lapsed();
        }
    }
}

impl KnownMetadata {
    /// How long the kernel may cache what these calls allow.
    pub(in crate::vfs) fn cached_for(&self) -> Duration {
        if self.is_shared() {
            SHARED_CACHED_FOR
        } else {
            CACHED_FOR
        }
    }

    /// Whether the kernel may cache these attributes, which were just shown.
    pub(in crate::vfs) fn may_cache(&self, shown: &Attributes) -> bool {
        self.revalidation
            .hand_out(|| self.attributes_are_revalidated(shown))
    }

    /// Whether the kernel may cache where a name leads.
    pub(in crate::vfs) fn may_cache_name(
        &self,
        directory: InodeId,
        name: &[u8],
        leads: Known,
    ) -> bool {
        self.revalidation
            .hand_out(|| self.name_is_revalidated(directory, name, leads))
    }

    /// Whether the kernel may cache this page, as the listing of its directory.
    pub(in crate::vfs) fn may_cache_page(&self, page: &Page) -> bool {
        let directory = page.directory.inode;
        self.revalidation.hand_out(|| {
            self.is_revalidated(directory, page.stamp.asked)
                && self.is_current(directory, page.stamp)
        })
    }

    /// What the kernel may not use any more, from now on.
    pub(in crate::vfs) fn invalidations(&self) -> Invalidations {
        self.revalidation.invalidations.subscribe()
    }

    /// Has the kernel drop the pages of a file.
    pub(in crate::vfs) fn drop_pages(&self, inode: InodeId) {
        self.revalidation
            .invalidations
            .send(Invalidation::Pages(inode));
    }

    /// Ends the task.
    pub(in crate::vfs) fn stop(&self) {
        self.revalidation.stopped.store(true, Ordering::Release);
    }

    /// Revalidates the cache, if that is worth while: the caller is about to look something up.
    pub(in crate::vfs) async fn revalidate(&self) {
        if self.has_fresh_news() || !self.coherence.is_told() {
            return;
        }
        let revalidation = &self.revalidation;
        revalidation.note_use();
        let last_attempt = revalidation.state().last_attempt;
        if last_attempt.is_some_and(|last_attempt| last_attempt.elapsed() < VALID_FOR) {
            return;
        }
        // If it fails, the caller sends its own query.
        let _ = tokio::time::timeout(revalidation.patience(), self.ask_for_news()).await;
        self.check_servers();
    }

    /// News are wanted, though no call may ask for them.
    pub(in crate::vfs) fn keep_hearing(&self) {
        if self.coherence.is_told() {
            self.revalidation.note_use();
        }
    }

    /// Asks for news, though nothing may be using them.
    pub(in crate::vfs) async fn hear(&self) {
        if self.coherence.is_told() {
            // A later answer confirms nothing.
            let _ = tokio::time::timeout(VALID_FOR, self.ask_for_news()).await;
        }
    }

    /// Hears of all that was acknowledged to any client before this call.
    pub(in crate::vfs) async fn hear_all(&self) -> Result<(), VfsError> {
        let revalidation = &self.revalidation;
        let asked = Instant::now();
        let is_answered = || {
            revalidation
                .state()
                .answered
                .is_some_and(|sent| sent >= asked)
        };
        let _turn = revalidation.turn.lock().await;
        if !is_answered() {
            while self.ask_for_page().await {}
        }
        match is_answered() {
            true => Ok(()),
            false if self.coherence.is_fenced() => Err(VfsError::Fenced),
            false => Err(VfsError::refused("news", Errno::TIMEDOUT)),
        }
    }

    /// The number of the last invalidation that was announced.
    pub(in crate::vfs) fn announced(&self) -> u64 {
        self.revalidation.invalidations.sent()
    }

    /// Finds out whether the servers are gone, if no news have arrived.
    fn check_servers(&self) {
        if !self.has_fresh_news() {
            self.set_servers_gone(self.coherence.is_cut_off());
        }
    }

    /// Asks what other sessions have changed, unless another task has just done so.
    async fn ask_for_news(&self) {
        let revalidation = &self.revalidation;
        let asked = Instant::now();
        let _turn = revalidation.turn.lock().await;
        // One that was sent before this call may lack what the bell has just rung for.
        let answered = revalidation.state().answered;
        if answered.is_some_and(|sent| sent > asked) {
            return;
        }
        while self.ask_for_page().await {}
        if self.coherence.is_fenced() {
            self.end_validity();
            revalidation.invalidate_all();
        }
    }

    /// How long the task pauses, and whether the bell ends that.
    fn pause(&self) -> (Duration, bool) {
        if self.revalidation.is_used() {
            let lapse = self.revalidation.until_lapse();
            (lapse.unwrap_or(EVERY).clamp(EVERY / 10, EVERY), true)
        } else if self.is_watching_for_recalls() {
            (RECALLS_EVERY, true)
        } else {
            // The file system may be dropped meanwhile, with no wake-up.
            (CACHED_FOR, false)
        }
    }

    /// Asks once; returns whether there is more.
    async fn ask_for_page(&self) -> bool {
        let revalidation = &self.revalidation;
        let asked = Moment::now();
        let sent = asked.at;
        revalidation.state().last_attempt = Some(sent);
        match self.coherence.news(self.news_position()).await {
            Ok(News::UpTo {
                position,
                changed,
                more,
                others,
                recalled,
            }) => {
                if !self.learn_news(position, &changed, !more, sent) {
                    tracing::warn!(?position, "the news of the servers went back");
                    return false;
                }
                self.learn_recall((others, recalled), asked);
                if !more {
                    let mut state = revalidation.state();
                    state.last_answer = Some(Instant::now());
                    state.answered = Some(sent);
                    state.took = sent.elapsed();
                }
                revalidation.tell(changed);
                more
            }
            Ok(News::Ended) => {
                self.end_validity();
                revalidation.invalidate_all();
                false
            }
            Err(error) => {
                tracing::debug!(%error, "changes by other sessions are unknown");
                false
            }
        }
    }
}

/// Runs until the file system is shut down or dropped.
pub(in crate::vfs) fn spawn(known: &Arc<KnownMetadata>) {
    let (weak, bell) = (Arc::downgrade(known), known.coherence.bell());
    let wake = known.revalidation.wake.clone();
    tokio::spawn(async move {
        while round(&weak).await {
            let Some((pause, hears_the_bell)) = weak.upgrade().map(|known| known.pause()) else {
                return;
            };
            tokio::select! {
                () = bell.notified(), if hears_the_bell => {}
                () = wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
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
    let asks = revalidation.is_used() || known.is_watching_for_recalls();
    if asks && known.coherence.is_told() {
        let asking = async {
            known.hear().await;
            known.settle().await;
        };
        // Both may take longer than the kernel may use what it has.
        tokio::select! {
            biased;
            () = asking => {}
            never = revalidation.watch_for_lapses() => match never {},
        }
        known.check_servers();
        revalidation.invalidate_if_lapsed();
    }
    true
}

#[cfg(test)]
mod tests;
