//! How long cached metadata is valid.
//!
//! A realm has one mount session, but commands on the same volume (`put`, `rm`) open sessions of
//! their own and change metadata under it. So an entry is valid for [`VALID_FOR`], and after that
//! only if nothing can have changed: the servers count changes by other sessions in a mounted
//! realm, and one query for that count *confirms* all entries, however many.
//!
//! ```text
//! query the count ─► 7           query ─► 7               query ─► 8
//!                    ├ a, b…              ├ a, b confirmed         ├ older entries are invalid
//!                    └ round 1            └ for VALID_FOR          └ round 2
//! ```
//!
//! * Answers of one session move forward through the order. So the answer to a query that was sent
//!   after the count arrived is at least as new as that count, and if a later count is the same, no
//!   other session changed anything in between. A query sent before a count arrived belongs to an
//!   older *round* and is never confirmed ([`QueryStamp`] is taken before a query is sent).
//! * Changes by this mount are entered as they happen. An entry may have been removed in between,
//!   though, while an older answer is still in flight; such an answer belongs to no round either
//!   ([`Validity::note_removal`]).
//! * When the count has moved, older entries are invalid at once.
//! * A confirmation counts from when its query was *sent*: a slow answer proves little.
//! * When no count arrives, entries expire; when it arrives again and is unchanged, all are valid
//!   again.
//! * While the servers are *gone* (fewer are connected than any answer takes) nothing better is
//!   available: entries as of the last count are used, and the kernel may not cache them.
//!
//! Without a mount there is no count, no round, and everything is valid for [`VALID_FOR`].

use std::time::Duration;
use tokio::time::Instant;

/// How long an entry is valid without confirmation.
pub(in crate::vfs) const VALID_FOR: Duration = Duration::from_secs(1);

/// When a query was sent, and the state at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vfs) struct QueryStamp {
    at: Instant,
    round: Option<u64>,
    removals: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Validity {
    round: u64,
    /// The last count that arrived.
    change_count: Option<u64>,
    /// When the query was sent whose answer confirmed the round.
    confirmed_at: Option<Instant>,
    /// How many entries were removed.
    removals: u64,
    /// Answers to queries sent before this may have been changed by other sessions.
    invalid_before: Option<Instant>,
    /// The servers cannot be reached.
    servers_gone: bool,
}

impl Validity {
    /// To be taken before a query or an operation is sent.
    pub(in crate::vfs) fn query_stamp(&self, now: Instant) -> QueryStamp {
        QueryStamp {
            at: now,
            round: self.change_count.map(|_| self.round),
            removals: self.removals,
        }
    }

    /// A stamp that belongs to no round.
    pub(in crate::vfs) const fn unconfirmed(&self, now: Instant) -> QueryStamp {
        QueryStamp {
            at: now,
            round: None,
            removals: self.removals,
        }
    }

    /// The stamp under which an answer is entered: of no round if an entry was removed since the
    /// query.
    pub(in crate::vfs) fn entry_stamp(&self, asked: QueryStamp) -> QueryStamp {
        let round = asked.round.filter(|_| asked.removals == self.removals);
        QueryStamp { round, ..asked }
    }

    /// An entry was removed.
    pub(in crate::vfs) const fn note_removal(&mut self) {
        self.removals = self.removals.wrapping_add(1);
    }

    /// Whether an entry with this stamp is valid.
    pub(in crate::vfs) fn is_valid(&self, asked: QueryStamp, now: Instant) -> bool {
        let invalid_before = self.invalid_before.is_some_and(|before| asked.at < before);
        !invalid_before && (within(asked.at, now) || self.is_usable(asked, now))
    }

    /// Whether it is valid without another query: confirmed, or as of the last answer of servers
    /// that are gone.
    pub(in crate::vfs) fn is_usable(&self, asked: QueryStamp, now: Instant) -> bool {
        let last_word =
            self.servers_gone && self.change_count.is_some() && asked.round == Some(self.round);
        last_word || self.is_revalidated(asked, now)
    }

    /// Sets whether the servers are known to be out of reach.
    pub(in crate::vfs) const fn set_servers_gone(&mut self, gone: bool) {
        self.servers_gone = gone;
    }

    /// Whether it is valid, and is confirmed as long as the count is queried.
    pub(in crate::vfs) fn is_revalidated(&self, asked: QueryStamp, now: Instant) -> bool {
        self.has_fresh_count(now) && asked.round == Some(self.round)
    }

    /// Whether the count arrived recently.
    pub(in crate::vfs) fn has_fresh_count(&self, now: Instant) -> bool {
        self.change_count.is_some() && self.confirmed_at.is_some_and(|at| within(at, now))
    }

    /// The count arrived, as the answer to a query that was sent at `sent`. Returns whether other
    /// sessions have changed something since the count before.
    pub(in crate::vfs) fn learn_change_count(&mut self, others: u64, sent: Instant) -> bool {
        let before = self.change_count.replace(others);
        self.confirmed_at = Some(sent);
        self.servers_gone = false;
        if before == Some(others) {
            return false;
        }
        self.round = self.round.wrapping_add(1);
        if before.is_some() {
            self.invalid_before = Some(sent);
        }
        before.is_some()
    }

    /// No count will arrive any more: another session has mounted the realm.
    pub(in crate::vfs) const fn end(&mut self) {
        self.change_count = None;
        self.confirmed_at = None;
        self.round = self.round.wrapping_add(1);
    }
}

fn within(from: Instant, now: Instant) -> bool {
    now.saturating_duration_since(from) < VALID_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn an_answer_after_a_count_is_valid_as_long_as_the_count() {
        let (mut validity, start) = (Validity::default(), Instant::now());
        let early = validity.query_stamp(start);
        assert!(!validity.learn_change_count(7, start));
        let asked = validity.entry_stamp(validity.query_stamp(after(start, 10)));
        assert!(validity.is_valid(early, after(start, 999)));
        assert!(
            !validity.is_valid(asked, after(start, 1_010)),
            "not confirmed"
        );
        assert!(!validity.learn_change_count(7, after(start, 1_000)));
        assert!(validity.is_valid(asked, after(start, 1_999)));
        assert!(
            !validity.is_valid(early, after(start, 1_999)),
            "of no round"
        );
        assert!(!validity.is_valid(asked, after(start, 2_000)));
        // It arrives again after a long time, and nothing has changed.
        assert!(!validity.learn_change_count(7, after(start, 60_000)));
        assert!(validity.is_valid(asked, after(start, 60_500)));
    }

    #[test]
    fn while_the_servers_are_gone_their_last_answer_is_valid_here_and_not_for_the_kernel() {
        let (mut validity, start) = (Validity::default(), Instant::now());
        let early = validity.query_stamp(start);
        validity.learn_change_count(7, start);
        let asked = validity.entry_stamp(validity.query_stamp(after(start, 10)));
        let later = after(start, 60_000);
        assert!(!validity.is_valid(asked, later));
        validity.set_servers_gone(true);
        assert!(validity.is_valid(asked, later) && !validity.is_revalidated(asked, later));
        assert!(!validity.is_valid(early, later), "of no round");
        // They are back, and other sessions have changed something.
        assert!(validity.learn_change_count(8, later));
        assert!(!validity.is_valid(asked, later));
        validity.set_servers_gone(true);
        assert!(!validity.is_valid(asked, later));
        let mut taken_over = validity;
        let known = taken_over.query_stamp(later);
        taken_over.end();
        assert!(!taken_over.is_valid(known, after(start, 62_000)));
    }

    #[test]
    fn a_change_by_others_ends_the_round_and_invalidates_its_entries() {
        let (mut validity, start) = (Validity::default(), Instant::now());
        validity.learn_change_count(7, start);
        let asked = validity.query_stamp(start);
        let another = validity.entry_stamp(validity.query_stamp(after(start, 1_400)));
        assert!(validity.is_valid(another, after(start, 1_500)));
        assert!(validity.learn_change_count(8, after(start, 1_500)));
        assert!(
            !validity.is_valid(another, after(start, 1_501)),
            "it is invalid"
        );
        // Its answer arrives late.
        let entered = validity.entry_stamp(asked);
        assert!(!validity.is_valid(entered, after(start, 1_600)));
        let next = validity.entry_stamp(validity.query_stamp(after(start, 1_600)));
        assert!(!validity.learn_change_count(8, after(start, 2_700)));
        assert!(validity.is_valid(next, after(start, 3_000)));
        assert!(!validity.is_valid(entered, after(start, 3_000)));
        validity.end();
        assert!(!validity.is_valid(next, after(start, 3_000)));
        assert!(!validity.is_revalidated(next, after(start, 3_000)));
    }

    #[test]
    fn an_answer_in_flight_while_an_entry_was_removed_is_not_confirmed() {
        let (mut validity, start) = (Validity::default(), Instant::now());
        validity.learn_change_count(7, start);
        let asked = validity.query_stamp(start);
        validity.note_removal();
        let entered = validity.entry_stamp(asked);
        assert!(validity.is_valid(entered, after(start, 900)));
        validity.learn_change_count(7, after(start, 1_000));
        assert!(!validity.is_valid(entered, after(start, 1_100)));
    }
}
