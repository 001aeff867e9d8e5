//! Whether this mount acts as alone, and when it asks the servers for another standing.
//!
//! A mount that is alone asks nothing at an `open`, and lets the kernel cache for longer: no other
//! mount can change anything. When one wants to, the servers *recall* this one, which then shares;
//! and when the others have gone for [`ALONE_AFTER`], this one is alone again.
//!
//! ```text
//!            news: recalled ──► acts as shared ──► `share` is ordered ──► the other one begins
//!   alone ◄──────────────────────────────────────────────────────────────── shared
//!            `be alone` is ordered, and granted ◄── news: no others, for half a minute
//! ```
//!
//! * A recall lasts until the mount shares, and every answer about news tells of it. So an answer
//!   without one proves that there was none when the question was *sent*. The mount acts as alone
//!   for [`ACTS_ALONE_FOR`] after that; the servers fence it later, when it has stopped by itself.
//! * What was sent before the servers made it alone proves nothing: another mount may have changed
//!   something and gone in between.
//! * A mount that hears nothing acts as if there were others, and goes on in that way when its
//!   `share` is not answered.
//! * Time in which the machine sleeps counts, though the clock of this process stands still.
//!
//! What can go wrong: a mount that is suspended, or cut off from the servers, for longer than a
//! recall lasts is fenced. In an outage of the servers none is: no other one can begin either, and
//! the clock of the recall stands still.

use super::coherence::Changed;
use super::owner::KnownMetadata;
use crate::error::VfsError;
use crate::metadata::Standing;
use async_trait::async_trait;
use quorumfs_metadata::limits::ACTS_ALONE_FOR;
use quorumfs_metadata::row::MountMode;
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// How long there have to be no others until this mount asks to be alone.
const ALONE_AFTER: Duration = Duration::from_secs(30);

/// A moment on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    pub(super) at: Instant,
    /// How long the machine has slept until then, which is not counted in `at`.
    pub(super) slept: Duration,
}

impl Moment {
    pub(super) fn now() -> Self {
        let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
        let slept = read(ClockId::Boottime).saturating_sub(read(ClockId::Monotonic));
        Self {
            at: Instant::now(),
            slept,
        }
    }

    fn since(&self, earlier: &Self) -> Duration {
        let slept = self.slept.saturating_sub(earlier.slept);
        let awake = self.at.saturating_duration_since(earlier.at);
        awake.saturating_add(slept)
    }
}

/// What to ask the servers for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NewStanding {
    /// To share, as another mount waits for.
    Shared,
    /// To be alone, since there are no others.
    Alone,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Recalls {
    /// When the last question was sent whose answer told of no recall.
    clean: Option<Moment>,
    /// The last answer told of a recall.
    recalled: bool,
    /// Since when answers have told of no others.
    without_others: Option<Instant>,
}

impl Recalls {
    /// News arrived at `now`, as the answer to a question that was sent at `sent`.
    pub(super) fn learn(&mut self, (others, recalled): (bool, bool), sent: Moment, now: Instant) {
        self.recalled = recalled;
        self.clean = (!recalled).then_some(sent);
        self.without_others = match others {
            true => None,
            false => self.without_others.or(Some(now)),
        };
    }

    /// Whether another mount waits for this one to share.
    pub(super) const fn is_recalled(&self) -> bool {
        self.recalled
    }

    /// The servers were asked for another standing, and have answered.
    pub(super) const fn settled(&mut self, asked: NewStanding) {
        match asked {
            NewStanding::Shared => self.recalled = false,
            // Another one may have begun at the same moment; then it is tried again much later.
            NewStanding::Alone => self.without_others = None,
        }
    }

    /// Whether a mount that has been alone `since` then acts as if there were no others.
    fn acts_alone(&self, since: Instant, now: &Moment) -> bool {
        let acts_for = Duration::from_nanos(ACTS_ALONE_FOR.0);
        self.clean
            .is_some_and(|sent| sent.at >= since && now.since(&sent) < acts_for)
    }

    /// What to ask the servers for now.
    pub(super) fn due(
        &self,
        standing: Standing,
        would_be_alone: bool,
        now: Instant,
    ) -> Option<NewStanding> {
        let deserted = |since: Instant| now.saturating_duration_since(since) >= ALONE_AFTER;
        if self.recalled {
            return Some(NewStanding::Shared);
        }
        let alone = standing == Standing::Shared
            && would_be_alone
            && self.without_others.is_some_and(deserted);
        alone.then_some(NewStanding::Alone)
    }
}

/// What stands above the cache and has something to do before another mount is let in.
#[async_trait]
pub(in crate::vfs) trait BeforeSharing: Send + Sync + 'static {
    /// Does it, when this mount acts as one that shares already.
    ///
    /// # Errors
    /// If it could not be done. The other mount waits, and it is tried again.
    async fn before_sharing(self: Arc<Self>) -> Result<(), VfsError>;
}

impl KnownMetadata {
    fn recalls(&self) -> MutexGuard<'_, Recalls> {
        let recalls = self.revalidation.recalls.lock();
        recalls.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether other mounts may change something.
    pub(in crate::vfs) fn is_shared(&self) -> bool {
        match self.coherence.standing() {
            Standing::Exclusive => false,
            Standing::Shared => true,
            Standing::Alone(since) => !self.recalls().acts_alone(since, &Moment::now()),
        }
    }

    /// How the mount stands towards others; `None` if there is none.
    pub(in crate::vfs) fn mode(&self) -> Option<MountMode> {
        let mode = match self.coherence.standing() {
            Standing::Exclusive => MountMode::Exclusive,
            Standing::Shared => MountMode::Shared,
            Standing::Alone(_) => MountMode::Alone,
        };
        self.coherence.is_told().then_some(mode)
    }

    /// How long ago news were asked for that have arrived.
    pub(in crate::vfs) fn heard(&self) -> Option<Duration> {
        let last_answer = self.revalidation.last_answer();
        last_answer.map(|last_answer| last_answer.elapsed())
    }

    /// Whether others are let in, be there any or not.
    pub(in crate::vfs) fn may_be_shared(&self) -> bool {
        self.coherence.standing() != Standing::Exclusive
    }

    /// News arrived, as the answer to a question that was sent then.
    pub(super) fn learn_recall(&self, (others, recalled): (bool, bool), sent: Moment) {
        let mut recalls = self.recalls();
        let is_new = recalled && !recalls.is_recalled();
        recalls.learn((others, recalled), sent, Instant::now());
        if is_new {
            // A call may have asked; it is the task that shares.
            self.revalidation.wake_up();
        }
    }

    /// Asks the servers for another standing if that is due. Another mount may wait for it.
    pub(super) async fn settle(&self) {
        let coherence = &self.coherence;
        let (standing, would_be_alone) = (coherence.standing(), coherence.would_be_alone());
        let due = self.recalls().due(standing, would_be_alone, Instant::now());
        let Some(asked) = due else {
            return;
        };
        let answered = match asked {
            NewStanding::Shared => self.share().await,
            NewStanding::Alone => coherence.be_alone().await,
        };
        match answered {
            Ok(()) => {
                self.recalls().settled(asked);
                tracing::info!(standing = ?coherence.standing(), "this mount stands otherwise");
            }
            Err(error) => tracing::warn!(%error, ?asked, "could not be asked for; trying again"),
        }
        if asked == NewStanding::Shared {
            // The kernel has entries for half a minute, and what is open may have to be claimed.
            self.revalidation.tell(Changed::Anything);
        }
    }

    /// Lets another mount in.
    async fn share(&self) -> Result<(), VfsError> {
        self.coherence.stop_being_alone();
        if let Some(others) = self.before_sharing.get().and_then(Weak::upgrade) {
            others.before_sharing().await?;
        }
        self.coherence.share().await
    }

    /// What is to be done before another mount is let in.
    pub(in crate::vfs) fn before_sharing<T: BeforeSharing>(&self, by: &Arc<T>) {
        let by: Weak<T> = Arc::downgrade(by);
        // There is one.
        let _ = self.before_sharing.set(by);
    }

    /// Whether it has to hear of a recall, though it may not be used.
    pub(super) fn is_watching_for_recalls(&self) -> bool {
        matches!(self.coherence.standing(), Standing::Alone(_)) || self.recalls().is_recalled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTS_FOR: Duration = Duration::from_nanos(ACTS_ALONE_FOR.0);
    const CLEAN: (bool, bool) = (false, false);

    const fn awake(at: Instant) -> Moment {
        Moment {
            at,
            slept: Duration::ZERO,
        }
    }

    #[test]
    fn it_acts_as_alone_as_long_as_questions_sent_since_then_tell_of_no_recall() {
        let (mut recalls, since) = (Recalls::default(), Instant::now());
        let acts = |recalls: &Recalls, at| recalls.acts_alone(since, &awake(at));
        assert!(!acts(&recalls, since), "it has not asked yet");
        let early = since.checked_sub(Duration::from_millis(1)).unwrap();
        recalls.learn(CLEAN, awake(early), since);
        assert!(!acts(&recalls, since), "sent before the grant");
        let answered = since + ACTS_FOR / 2;
        recalls.learn(CLEAN, awake(since), answered);
        assert!(acts(&recalls, answered));
        let last = since + ACTS_FOR - Duration::from_nanos(1);
        assert!(acts(&recalls, last));
        assert!(
            !acts(&recalls, since + ACTS_FOR),
            "counted from when it was sent"
        );
        let woken = Moment {
            at: answered,
            slept: ACTS_FOR / 2,
        };
        assert!(!recalls.acts_alone(since, &woken), "sleep counts");
        recalls.learn((false, true), awake(answered), answered);
        assert!(!acts(&recalls, answered), "recalled");
    }

    #[test]
    fn it_shares_until_that_is_answered_and_is_alone_when_the_others_have_been_away() {
        let (mut recalls, start) = (Recalls::default(), Instant::now());
        let (alone, shared) = (Standing::Alone(start), Standing::Shared);
        assert_eq!(recalls.due(shared, true, start), None, "nothing is known");
        recalls.learn((false, true), awake(start), start);
        for standing in [alone, shared] {
            let due = recalls.due(standing, true, start);
            assert_eq!(due, Some(NewStanding::Shared), "not answered yet");
        }
        recalls.settled(NewStanding::Shared);
        assert_eq!(recalls.due(shared, true, start), None);
        recalls.learn((true, false), awake(start), start);
        let gone = start + ALONE_AFTER;
        recalls.learn(CLEAN, awake(gone), gone);
        assert_eq!(recalls.due(shared, true, gone), None);
        let (later, long_gone) = (gone + ALONE_AFTER / 2, gone + ALONE_AFTER);
        recalls.learn(CLEAN, awake(later), later);
        let due = recalls.due(shared, true, long_gone);
        assert_eq!(due, Some(NewStanding::Alone));
        assert_eq!(recalls.due(shared, false, long_gone), None, "not wanted");
        assert_eq!(recalls.due(alone, true, long_gone), None, "it is");
        recalls.settled(NewStanding::Alone);
        assert_eq!(recalls.due(shared, true, long_gone), None, "not at once");
        recalls.learn((true, false), awake(long_gone), long_gone);
        let due = recalls.due(shared, true, long_gone + ALONE_AFTER);
        assert_eq!(due, None, "another one has come");
    }
}
