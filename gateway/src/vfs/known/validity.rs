//! How long cached metadata is valid.
//!
//! Several sessions change a realm: its mounts, and commands on the same volume (`put`, `rm`). So
//! an entry is valid for [`VALID_FOR`], and after that only if others cannot have changed it. The
//! servers keep a log of the inodes that sessions change, and one query for the *news* of it
//! confirms all entries that they leave out, however many.
//!
//! ```text
//! news up to 7              news up to 9: inode 5           no news for a second
//!  └ entries a of inode 4    ├ a is confirmed, though        └ nothing is confirmed
//!    and b of inode 5 are    │ stamped with 7               news up to 9 again: nothing
//!    stamped with 7          └ b is invalid                  └ a is confirmed
//! ```
//!
//! An entry is *about* one inode: attributes about theirs; a name, a page of a listing and that a
//! directory is known whole about the directory. Its stamp carries the position up to which news
//! had arrived when its query was sent ([`QueryStamp`]). It is valid if that is not below the
//! position of the last change of its inode ([`ChangedInodes`]), and as long as news arrive.
//!
//! * Why that is right. Answers of one session move forward through the order, so an answer that
//!   was asked for after news up to p had arrived contains all changes up to p. Later news, up to
//!   q, list every inode that others changed between p and q; if this one is not among them, it is
//!   at q as it was at p, but for changes of this mount.
//! * Changes by this mount are entered as they happen. An entry may have been removed in between,
//!   though, while an older answer is still in flight; such an answer is stamped with no position
//!   and is never confirmed ([`Validity::note_removal`]). The same is true of what was asked for
//!   before the first news.
//! * What others have changed is invalid at once, even within [`VALID_FOR`].
//! * News with a gap may have left out any inode. So may a change that is not remembered any more:
//!   both raise the floor, below which nothing is valid.
//! * A confirmation counts from when its query was *sent*: a slow answer proves little. News that
//!   are not all that there are confirm nothing yet.
//! * When no news arrive, entries expire; when they arrive again, all that they leave out is valid
//!   again.
//! * While the servers are *gone* (fewer are connected than any answer takes) nothing better is
//!   available: entries as of the last news are used, and the kernel may not cache them.
//!
//! Without a mount there are no news, and everything is valid for [`VALID_FOR`].

use super::changed::{ChangedInodes, LastChange};
use super::coherence::Changed;
use quorumfs_metadata::identity::{InodeId, LogPosition};
use std::time::Duration;
use tokio::time::Instant;

/// How long an entry is valid without confirmation.
pub(in crate::vfs) const VALID_FOR: Duration = Duration::from_secs(1);

/// When a query was sent, and the state at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vfs) struct QueryStamp {
    at: Instant,
    position: Option<LogPosition>,
    removals: u64,
}

/// See the module.
#[derive(Debug)]
pub(in crate::vfs) struct Validity {
    /// Up to where news have arrived.
    position: Option<LogPosition>,
    /// When the query was sent whose answer confirmed that position.
    confirmed_at: Option<Instant>,
    changed: ChangedInodes,
    /// How many entries were removed.
    removals: u64,
    /// The servers cannot be reached.
    servers_gone: bool,
}

impl Validity {
    /// Remembers the changes of about so many inodes.
    pub(in crate::vfs) fn new(changes: usize) -> Self {
        Self {
            position: None,
            confirmed_at: None,
            changed: ChangedInodes::new(changes),
            removals: 0,
            servers_gone: false,
        }
    }

    /// To be taken before a query or an operation is sent.
    pub(in crate::vfs) fn query_stamp(&self, now: Instant) -> QueryStamp {
        QueryStamp {
            at: now,
            position: self.position,
            removals: self.removals,
        }
    }

    /// A stamp of no position.
    pub(in crate::vfs) const fn unconfirmed(&self, now: Instant) -> QueryStamp {
        QueryStamp {
            at: now,
            position: None,
            removals: self.removals,
        }
    }

    /// The stamp under which an answer is entered: of no position if an entry was removed since the
    /// query.
    pub(in crate::vfs) fn entry_stamp(&self, asked: QueryStamp) -> QueryStamp {
        let position = asked.position.filter(|_| asked.removals == self.removals);
        QueryStamp { position, ..asked }
    }

    /// An entry was removed.
    pub(in crate::vfs) const fn note_removal(&mut self) {
        self.removals = self.removals.wrapping_add(1);
    }

    /// Whether an entry about `inode` with this stamp is valid.
    pub(in crate::vfs) fn is_valid(&self, inode: InodeId, asked: QueryStamp, now: Instant) -> bool {
        let young = within(asked.at, now) && !self.is_outdated(inode, asked);
        young || self.is_usable(inode, asked, now)
    }

    /// Whether it is valid without another query: confirmed, or as of the last news of servers that
    /// are gone.
    pub(in crate::vfs) fn is_usable(
        &self,
        inode: InodeId,
        asked: QueryStamp,
        now: Instant,
    ) -> bool {
        let confirmed = self.servers_gone || self.has_fresh_news(now);
        confirmed && self.holds(inode, asked)
    }

    /// Sets whether the servers are known to be out of reach.
    pub(in crate::vfs) const fn set_servers_gone(&mut self, gone: bool) {
        self.servers_gone = gone;
    }

    /// Whether it is valid, and is confirmed as long as news arrive that leave it out.
    pub(in crate::vfs) fn is_revalidated(
        &self,
        inode: InodeId,
        asked: QueryStamp,
        now: Instant,
    ) -> bool {
        self.has_fresh_news(now) && self.holds(inode, asked)
    }

    /// Whether news arrived recently.
    pub(in crate::vfs) fn has_fresh_news(&self, now: Instant) -> bool {
        self.confirmed_at.is_some_and(|at| within(at, now))
    }

    /// Up to where news have arrived.
    pub(in crate::vfs) const fn position(&self) -> Option<LogPosition> {
        self.position
    }

    /// News arrived up to `position`, as the answer to a query that was sent and answered at these
    /// times; `complete` if there were no more then. Returns whether they are news: a position
    /// before one that is known proves nothing.
    pub(in crate::vfs) fn learn_news(
        &mut self,
        position: LogPosition,
        changed: &Changed,
        complete: bool,
        (sent, answered): (Instant, Instant),
    ) -> bool {
        let known = self.position;
        if known.is_some_and(|known| position < known) {
            return false;
        }
        self.position = Some(position);
        let change = LastChange {
            position,
            told: Some(answered),
        };
        match changed {
            Changed::Inodes(inodes) => {
                for inode in inodes {
                    self.changed.note(*inode, change);
                }
            }
            // These are the first, and nothing is stamped with a position yet.
            Changed::Anything if known.is_none() => {}
            Changed::Anything => self.changed.note_all(change),
        }
        if complete {
            self.confirmed_at = Some(sent);
        }
        self.servers_gone = false;
        true
    }

    /// No news will arrive any more: another session has mounted the realm.
    pub(in crate::vfs) fn end(&mut self) {
        self.position = None;
        self.confirmed_at = None;
        self.changed.note_all(LastChange {
            position: LogPosition(u64::MAX),
            told: None,
        });
    }

    /// Whether it is as it was at the position up to which news have arrived.
    fn holds(&self, inode: InodeId, asked: QueryStamp) -> bool {
        self.position.is_some()
            && asked
                .position
                .is_some_and(|position| position >= self.changed.last(inode).position)
    }

    /// Whether others are known to have changed `inode` after the query.
    pub(in crate::vfs) fn is_outdated(&self, inode: InodeId, asked: QueryStamp) -> bool {
        let last = self.changed.last(inode);
        match asked.position {
            Some(position) => position < last.position,
            None => last.told.is_some_and(|told| asked.at < told),
        }
    }
}

fn within(from: Instant, now: Instant) -> bool {
    now.saturating_duration_since(from) < VALID_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: InodeId = InodeId(4);
    const THERE: InodeId = InodeId(5);

    impl Validity {
        /// News that were asked for and arrived at this moment.
        fn learn(
            &mut self,
            position: LogPosition,
            changed: &Changed,
            complete: bool,
            at: Instant,
        ) -> bool {
            self.learn_news(position, changed, complete, (at, at))
        }
    }

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    fn quiet() -> Changed {
        Changed::Inodes(Vec::new())
    }

    /// News up to 7 have arrived at the second moment.
    fn begun() -> (Validity, Instant) {
        let (mut validity, start) = (Validity::new(100), Instant::now());
        assert!(validity.learn(LogPosition(7), &Changed::Anything, true, start));
        (validity, start)
    }

    /// The stamp of what is asked for and answered at this moment.
    fn asked(validity: &Validity, now: Instant) -> QueryStamp {
        validity.entry_stamp(validity.query_stamp(now))
    }

    #[test]
    fn an_answer_after_news_is_valid_as_long_as_news_leave_it_out() {
        let (mut validity, start) = (Validity::new(100), Instant::now());
        let early = validity.query_stamp(start);
        validity.learn(LogPosition(7), &Changed::Anything, true, after(start, 5));
        validity.learn(LogPosition(7), &quiet(), true, start);
        let asked = asked(&validity, after(start, 10));
        let young = validity.is_valid(HERE, early, after(start, 999));
        assert!(young, "the first news tell of no change");
        let late = validity.is_valid(HERE, asked, after(start, 1_010));
        assert!(!late, "not confirmed");
        validity.learn(LogPosition(7), &quiet(), true, after(start, 1_000));
        assert!(validity.is_valid(HERE, asked, after(start, 1_999)));
        let early = validity.is_valid(HERE, early, after(start, 1_999));
        assert!(!early, "of no position");
        assert!(!validity.is_valid(HERE, asked, after(start, 2_000)));
        // They arrive again after a long time.
        let others = Changed::Inodes(vec![THERE]);
        validity.learn(LogPosition(9), &others, true, after(start, 60_000));
        assert!(validity.is_valid(HERE, asked, after(start, 60_500)));
    }

    #[test]
    fn a_change_by_others_invalidates_entries_about_that_inode_at_once_and_no_other() {
        let (mut validity, start) = begun();
        let in_flight = validity.query_stamp(after(start, 1_400));
        let entered = asked(&validity, after(start, 1_400));
        let others = Changed::Inodes(vec![THERE]);
        validity.learn(LogPosition(9), &others, true, after(start, 1_500));
        let now = after(start, 1_501);
        assert!(!validity.is_valid(THERE, entered, now));
        assert!(validity.is_valid(HERE, entered, now));
        assert!(validity.is_revalidated(HERE, entered, now));
        // The answer to a query from before the news arrives late.
        let late = validity.entry_stamp(in_flight);
        assert!(!validity.is_valid(THERE, late, now));
        let next = asked(&validity, now);
        assert!(validity.is_revalidated(THERE, next, now));
        validity.learn(LogPosition(9), &quiet(), true, after(start, 2_700));
        let now = after(start, 3_000);
        assert!(validity.is_valid(THERE, next, now) && !validity.is_valid(THERE, late, now));
        validity.end();
        for inode in [HERE, THERE] {
            assert!(!validity.is_valid(inode, next, now));
            assert!(!validity.is_revalidated(inode, next, now));
        }
    }

    #[test]
    fn an_answer_without_a_position_that_was_asked_for_before_news_arrived_may_lack_their_changes()
    {
        let (mut validity, start) = begun();
        let removed = validity.query_stamp(after(start, 20));
        validity.note_removal();
        let entered = validity.entry_stamp(removed);
        // The news were asked for before it and answered after it.
        let others = Changed::Inodes(vec![THERE]);
        let times = (after(start, 10), after(start, 30));
        validity.learn_news(LogPosition(9), &others, true, times);
        assert!(!validity.is_valid(THERE, entered, after(start, 31)));
        assert!(validity.is_valid(HERE, entered, after(start, 31)));
    }

    #[test]
    fn an_answer_that_news_overtook_is_invalid_even_if_it_was_asked_for_after_theirs() {
        let (mut validity, start) = begun();
        // The query for the news is sent first, and answered last.
        let sent = after(start, 100);
        let asked = validity.query_stamp(after(start, 200));
        let others = Changed::Inodes(vec![THERE]);
        validity.learn(LogPosition(9), &others, true, sent);
        let entered = validity.entry_stamp(asked);
        assert!(!validity.is_valid(THERE, entered, after(start, 300)));
        assert!(validity.is_valid(HERE, entered, after(start, 300)));
    }

    #[test]
    fn what_was_asked_for_before_the_first_news_is_invalid_if_they_tell_of_it() {
        let (mut validity, start) = (Validity::new(100), Instant::now());
        let early = validity.query_stamp(start);
        let others = Changed::Inodes(vec![THERE]);
        validity.learn(LogPosition(7), &others, true, after(start, 10));
        assert!(!validity.is_valid(THERE, early, after(start, 20)));
        assert!(validity.is_valid(HERE, early, after(start, 20)));
        assert!(!validity.is_revalidated(HERE, early, after(start, 20)));
    }

    #[test]
    fn a_gap_invalidates_everything_from_before() {
        let (mut validity, start) = begun();
        let entered = asked(&validity, after(start, 10));
        let unconfirmed = validity.unconfirmed(after(start, 10));
        validity.learn(LogPosition(8), &Changed::Anything, true, after(start, 20));
        for inode in [HERE, THERE] {
            assert!(!validity.is_valid(inode, entered, after(start, 30)));
            assert!(!validity.is_valid(inode, unconfirmed, after(start, 30)));
        }
        let next = asked(&validity, after(start, 30));
        assert!(validity.is_revalidated(HERE, next, after(start, 40)));
    }

    #[test]
    fn a_change_that_is_not_remembered_counts_for_every_inode() {
        let (mut validity, start) = begun();
        let entered = asked(&validity, after(start, 10));
        for number in 0..1_000_u64 {
            let others = Changed::Inodes(vec![InodeId(100 + number)]);
            validity.learn(LogPosition(8 + number), &others, true, after(start, 20));
        }
        assert!(!validity.is_valid(InodeId(100), entered, after(start, 30)));
        assert!(!validity.is_valid(HERE, entered, after(start, 30)));
        let next = asked(&validity, after(start, 30));
        assert!(validity.is_revalidated(HERE, next, after(start, 40)));
    }

    #[test]
    fn news_that_are_not_all_confirm_nothing_and_are_not_forgotten() {
        let (mut validity, start) = begun();
        let entered = asked(&validity, after(start, 10));
        let others = Changed::Inodes(vec![THERE]);
        validity.learn(LogPosition(8), &others, false, after(start, 1_100));
        let now = after(start, 1_200);
        assert!(!validity.is_valid(HERE, entered, now));
        // What is asked for now contains the change.
        let next = asked(&validity, now);
        validity.learn(LogPosition(9), &quiet(), true, after(start, 1_300));
        let now = after(start, 1_400);
        assert!(validity.is_valid(HERE, entered, now));
        assert!(!validity.is_valid(THERE, entered, now));
        assert!(validity.is_revalidated(THERE, next, now));
    }

    #[test]
    fn news_from_before_others_confirm_nothing() {
        let (mut validity, start) = begun();
        let entered = asked(&validity, after(start, 10));
        assert!(!validity.learn(LogPosition(6), &quiet(), true, after(start, 1_100)));
        assert!(!validity.is_valid(HERE, entered, after(start, 1_200)));
        assert_eq!(validity.position(), Some(LogPosition(7)));
    }

    #[test]
    fn while_the_servers_are_gone_their_last_answer_is_valid_here_and_not_for_the_kernel() {
        let (mut validity, start) = (Validity::new(100), Instant::now());
        let early = validity.query_stamp(start);
        validity.learn(LogPosition(7), &Changed::Anything, true, start);
        let entered = asked(&validity, after(start, 10));
        let later = after(start, 60_000);
        assert!(!validity.is_valid(HERE, entered, later));
        validity.set_servers_gone(true);
        assert!(validity.is_valid(HERE, entered, later));
        assert!(!validity.is_revalidated(HERE, entered, later));
        assert!(!validity.is_valid(HERE, early, later), "of no position");
        // They are back, and others have changed something.
        let others = Changed::Inodes(vec![HERE]);
        validity.learn(LogPosition(8), &others, true, later);
        assert!(!validity.is_valid(HERE, entered, later));
        validity.set_servers_gone(true);
        assert!(!validity.is_valid(HERE, entered, later));
        // Gone, and back again without a change: then entries expire as ever.
        let entered = asked(&validity, later);
        validity.learn(LogPosition(8), &quiet(), true, later);
        let expired = after(start, 62_000);
        assert!(!validity.is_valid(HERE, entered, expired));
    }

    #[test]
    fn after_the_end_nothing_is_confirmed_and_answers_are_valid_for_a_second() {
        let (mut validity, start) = begun();
        let known = asked(&validity, after(start, 10));
        validity.set_servers_gone(true);
        validity.end();
        assert!(!validity.is_valid(HERE, known, after(start, 20)));
        let later = asked(&validity, after(start, 20));
        assert!(validity.is_valid(HERE, later, after(start, 1_000)));
        assert!(!validity.is_valid(HERE, later, after(start, 1_100)));
        // News that were still on their way.
        validity.learn(LogPosition(7), &quiet(), true, after(start, 30));
        assert!(!validity.is_valid(HERE, known, after(start, 40)));
    }

    #[test]
    fn an_answer_in_flight_while_an_entry_was_removed_is_not_confirmed() {
        let (mut validity, start) = begun();
        let asked = validity.query_stamp(start);
        validity.note_removal();
        let entered = validity.entry_stamp(asked);
        assert!(validity.is_valid(HERE, entered, after(start, 900)));
        validity.learn(LogPosition(7), &quiet(), true, after(start, 1_000));
        assert!(!validity.is_valid(HERE, entered, after(start, 1_100)));
    }
}
