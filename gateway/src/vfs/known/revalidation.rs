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
/// How long a call waits for news, before it sends its own query instead.
const WAIT: Duration = Duration::from_millis(300);
/// When no news arrived for so long, the kernel's entries are invalidated.
const LAPSE: Duration = Duration::from_millis(1_500);
/// How long the kernel may cache an entry, unless it is invalidated, while no other mount can
/// change anything.
pub const CACHED_FOR: Duration = Duration::from_secs(30);
/// The same while others may mount the realm. If the process of this mount is stopped, the kernel
/// shows for so long what others have changed since.
const SHARED_CACHED_FOR: Duration = Duration::from_secs(5);

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

    /// When news last arrived.
    pub(super) fn last_answer(&self) -> Option<Instant> {
        self.state().last_answer
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
        let _ = tokio::time::timeout(WAIT, self.ask_for_news()).await;
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
        if revalidation
            .state()
            .last_answer
            .is_some_and(|last_answer| last_answer > asked)
        {
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
            (EVERY, true)
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
        known.hear().await;
        known.settle().await;
        known.check_servers();
        if revalidation.has_lapsed() {
            revalidation.invalidate_all();
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::coherence::tests::Scripted;
    use super::super::owner::Scope;
    use super::*;
    use crate::metadata::Standing;
    use quorumfs_metadata::identity::LogPosition;

    const HERE: InodeId = InodeId(5);
    const THERE: Known = Known::Entry(InodeId(9));

    /// News of these changes up to this position.
    fn news(position: u64, changed: Changed) -> News {
        News::UpTo {
            position: LogPosition(position),
            changed,
            more: false,
            others: true,
            recalled: false,
        }
    }

    fn quiet(position: u64) -> News {
        news(position, Changed::Inodes(Vec::new()))
    }

    /// A name is known as of the first answer, and the kernel has cached it.
    async fn known_after(first: News, then: &[News]) -> (Arc<KnownMetadata>, Invalidations) {
        let answers = [&[first], then].concat();
        let known = KnownMetadata::new(100, Scripted::shared(answers));
        known.revalidate().await;
        known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
        assert!(known.may_cache_name(HERE, b"a", THERE));
        let kernel = known.invalidations();
        tokio::time::advance(2 * VALID_FOR).await;
        (known, kernel)
    }

    #[tokio::test(start_paused = true)]
    async fn news_of_nothing_make_everything_valid_again() {
        let (known, kernel) = known_after(quiet(7), &[quiet(7)]).await;
        assert_eq!(known.name(HERE, b"a"), None, "not confirmed");
        known.revalidate().await;
        assert_eq!(known.name(HERE, b"a"), Some(THERE));
        assert!(!kernel.is_waiting());
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_invalidates_everything_here_and_in_the_kernel() {
        let (known, mut kernel) = known_after(quiet(7), &[news(8, Changed::Anything)]).await;
        known.revalidate().await;
        assert_eq!(known.name(HERE, b"a"), None);
        assert_eq!(kernel.next().await, Some(Invalidation::Everything));
        known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
        assert!(known.may_cache_name(HERE, b"a", THERE), "as of the new one");
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_have_changed_goes_here_and_in_the_kernel_and_nothing_else() {
        let there = InodeId(6);
        let changed = Changed::Inodes(vec![HERE]);
        let (known, mut kernel) = known_after(quiet(7), &[quiet(7), news(9, changed)]).await;
        known.revalidate().await;
        known.learn_name(known.stamp(there), there, b"b", THERE);
        tokio::time::advance(VALID_FOR).await;
        known.revalidate().await;
        assert_eq!(known.name(HERE, b"a"), None);
        assert_eq!(known.name(there, b"b"), Some(THERE));
        let next = kernel.next().await;
        assert_eq!(next, Some(Invalidation::Inodes([HERE].into())));
        assert!(!kernel.is_waiting());
        assert!(known.may_cache_name(there, b"b", THERE));
    }

    #[tokio::test(start_paused = true)]
    async fn the_bell_has_news_asked_for_at_once() {
        let answers = [quiet(7), quiet(7), news(9, Changed::Inodes(vec![HERE]))];
        let known = KnownMetadata::new(100, Scripted::shared(answers.into()));
        known.revalidate().await;
        known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
        assert!(known.may_cache_name(HERE, b"a", THERE));
        let mut kernel = known.invalidations();
        spawn(&known);
        // Its first round takes no time.
        tokio::time::sleep(EVERY / 10).await;
        let rung = Instant::now();
        known.coherence.bell().notify_one();
        let next = kernel.next().await;
        assert_eq!(next, Some(Invalidation::Inodes([HERE].into())));
        assert!(rung.elapsed() < EVERY / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_log_is_read_to_its_end_before_it_confirms_anything() {
        let changed = Changed::Inodes(vec![InodeId(6)]);
        let more = News::UpTo {
            position: LogPosition(8),
            changed: changed.clone(),
            more: true,
            others: true,
            recalled: false,
        };
        let (known, mut kernel) = known_after(quiet(7), &[more.clone(), news(9, changed)]).await;
        known.revalidate().await;
        assert_eq!(known.name(HERE, b"a"), Some(THERE));
        for _ in 0..2 {
            let next = kernel.next().await;
            assert_eq!(next, Some(Invalidation::Inodes([InodeId(6)].into())));
        }
        let (known, _) = known_after(quiet(7), &[more]).await;
        known.revalidate().await;
        assert_eq!(known.name(HERE, b"a"), None, "the rest may tell of it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_is_not_ours_any_more_confirms_nothing() {
        let (known, mut kernel) = known_after(quiet(7), &[News::Ended]).await;
        known.revalidate().await;
        assert_eq!(kernel.next().await, Some(Invalidation::Everything));
        known.learn_name(known.stamp(HERE), HERE, b"a", THERE);
        assert!(!known.may_cache_name(HERE, b"a", THERE));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_invalidated_is_unknown_and_not_absent() {
        let (known, _) = known_after(quiet(7), &[quiet(7)]).await;
        known.revalidate().await;
        known.learn_directory(
            known.stamp(HERE),
            HERE,
            [(&b"b"[..], InodeId(8))].into_iter(),
        );
        assert_eq!(known.name(HERE, b"c"), Some(Known::Absent));
        known.invalidate(Scope::Name(HERE, b"b"));
        assert_eq!(
            (known.name(HERE, b"b"), known.name(HERE, b"c")),
            (None, None)
        );
        assert_eq!(known.name(HERE, b"a"), Some(THERE));
        known.invalidate(Scope::All);
        assert_eq!(known.name(HERE, b"a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_mount_that_is_alone_hears_the_bell_and_shares() {
        let recalled = News::UpTo {
            position: LogPosition(7),
            changed: Changed::Inodes(Vec::new()),
            more: false,
            others: false,
            recalled: true,
        };
        let known = KnownMetadata::new(100, Scripted::alone(vec![quiet(7), recalled]));
        let mut kernel = known.invalidations();
        spawn(&known);
        // Its first round takes no time.
        tokio::time::sleep(RECALLS_EVERY / 10).await;
        assert!(!known.is_shared() && !kernel.is_waiting());
        let rung = Instant::now();
        known.coherence.bell().notify_one();
        assert_eq!(kernel.next().await, Some(Invalidation::Everything));
        assert!(rung.elapsed() < RECALLS_EVERY / 10);
        assert_eq!(known.coherence.standing(), Standing::Shared);
    }
}
