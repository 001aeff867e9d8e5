//! For how long what was learned is believed.
//!
//! A realm has one mount session, but commands beside it (`put`, `rm`) open sessions of their own
//! and change things under it. So whatever is learned is believed for [`VALID_FOR`], and after that
//! only if nothing can have changed: the servers count what others change in a realm that is
//! mounted, and one question after that count *confirms* all that is known, however much it is.
//!
//! ```text
//! ask for the count ─► 7       ask ─► 7               ask ─► 8
//!                      ├ a, b…      ├ a, b confirmed       ├ nothing from before counts
//!                      └ round 1    └ for VALID_FOR        └ round 2
//! ```
//!
//! * Answers of one session move forward through the order. So what a question brings that was sent
//!   after the count was heard is at least as new as that count, and if a later count is the same,
//!   nobody else changed anything in between. What is asked before a count was heard belongs to an
//!   older *round* and is never confirmed ([`Asked`] is taken before a question is sent).
//! * What this mount changes itself is entered as it happens. Something may have been forgotten in
//!   between, though, while an older answer is still on its way; such an answer is in no round
//!   either ([`Belief::forget`]).
//! * When the count has moved, nothing that was asked for before is believed, not even for a
//!   second.
//! * A confirmation reaches from when its question was *sent*: an answer that took long says
//!   little.
//! * When the count is not heard, what is known is not believed any more; when it is heard again
//!   and stands where it stood, all of it is.
//! * While the servers are *gone* (fewer are connected than any answer takes) nothing better can be
//!   had: what was known when the count was last heard is shown, and the kernel may not keep it.
//!
//! Without a mount there is no count, no round, and everything lasts for [`VALID_FOR`].

use std::time::Duration;
use tokio::time::Instant;

/// How long anything is believed without being confirmed.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(1);

/// When a question was sent, and what was known then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    at: Instant,
    round: Option<u64>,
    forgotten: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Belief {
    round: u64,
    /// The count that was heard last.
    others: Option<u64>,
    /// When the question was sent whose answer confirmed the round.
    confirmed: Option<Instant>,
    /// How often something was forgotten.
    forgotten: u64,
    /// What was asked for before this may have been changed by others.
    doubtful: Option<Instant>,
    /// The servers cannot be asked.
    gone: bool,
}

impl Belief {
    /// To be taken before a question is sent, or an operation.
    pub(crate) fn ask(&self, now: Instant) -> Asked {
        Asked {
            at: now,
            round: self.others.map(|_| self.round),
            forgotten: self.forgotten,
        }
    }

    /// What belongs to no round.
    pub(crate) const fn unasked(&self, now: Instant) -> Asked {
        Asked {
            at: now,
            round: None,
            forgotten: self.forgotten,
        }
    }

    /// What an answer is entered as: of no round if something was forgotten since it was asked for.
    pub(crate) fn entered(&self, asked: Asked) -> Asked {
        let round = asked.round.filter(|_| asked.forgotten == self.forgotten);
        Asked { round, ..asked }
    }

    /// Something that was known is not any more.
    pub(crate) const fn forget(&mut self) {
        self.forgotten = self.forgotten.wrapping_add(1);
    }

    /// Whether what was learned then is still believed.
    pub(crate) fn holds(&self, asked: Asked, now: Instant) -> bool {
        let doubtful = self.doubtful.is_some_and(|before| asked.at < before);
        !doubtful && (within(asked.at, now) || self.is_settled(asked, now))
    }

    /// Whether it is believed without being asked for again: confirmed, or as of the last word of
    /// servers that are gone.
    pub(crate) fn is_settled(&self, asked: Asked, now: Instant) -> bool {
        let last_word = self.gone && self.others.is_some() && asked.round == Some(self.round);
        last_word || self.is_kept(asked, now)
    }

    /// Whether the servers can be asked, as far as is known.
    pub(crate) const fn servers_are(&mut self, gone: bool) {
        self.gone = gone;
    }

    /// Whether it is believed, and confirmed as long as the count is asked for.
    pub(crate) fn is_kept(&self, asked: Asked, now: Instant) -> bool {
        self.is_confirmed(now) && asked.round == Some(self.round)
    }

    /// Whether the count was heard a moment ago.
    pub(crate) fn is_confirmed(&self, now: Instant) -> bool {
        self.others.is_some() && self.confirmed.is_some_and(|at| within(at, now))
    }

    /// The count was heard, by a question that was sent at `sent`. Answers whether others have
    /// changed something since it was heard before.
    pub(crate) fn hear(&mut self, others: u64, sent: Instant) -> bool {
        let before = self.others.replace(others);
        self.confirmed = Some(sent);
        self.gone = false;
        if before == Some(others) {
            return false;
        }
        self.round = self.round.wrapping_add(1);
        if before.is_some() {
            self.doubtful = Some(sent);
        }
        before.is_some()
    }

    /// There is nothing to hear any more: somebody else has the realm mounted.
    pub(crate) const fn end(&mut self) {
        self.others = None;
        self.confirmed = None;
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
    fn what_is_asked_for_after_a_count_lasts_as_long_as_the_count() {
        let (mut belief, start) = (Belief::default(), Instant::now());
        let early = belief.ask(start);
        assert!(!belief.hear(7, start));
        let asked = belief.entered(belief.ask(after(start, 10)));
        assert!(belief.holds(early, after(start, 999)));
        assert!(!belief.holds(asked, after(start, 1_010)), "not confirmed");
        assert!(!belief.hear(7, after(start, 1_000)));
        assert!(belief.holds(asked, after(start, 1_999)));
        assert!(!belief.holds(early, after(start, 1_999)), "of no round");
        assert!(!belief.holds(asked, after(start, 2_000)));
        // Heard again after long, and nothing has changed.
        assert!(!belief.hear(7, after(start, 60_000)));
        assert!(belief.holds(asked, after(start, 60_500)));
    }

    #[test]
    fn while_the_servers_are_gone_their_last_word_is_believed_and_not_given_out_to_keep() {
        let (mut belief, start) = (Belief::default(), Instant::now());
        let early = belief.ask(start);
        belief.hear(7, start);
        let asked = belief.entered(belief.ask(after(start, 10)));
        let later = after(start, 60_000);
        assert!(!belief.holds(asked, later));
        belief.servers_are(true);
        assert!(belief.holds(asked, later) && !belief.is_kept(asked, later));
        assert!(!belief.holds(early, later), "of no round");
        // They are back, and others have changed something.
        assert!(belief.hear(8, later));
        assert!(!belief.holds(asked, later));
        belief.servers_are(true);
        assert!(!belief.holds(asked, later));
        let mut taken_over = belief;
        let known = taken_over.ask(later);
        taken_over.end();
        assert!(!taken_over.holds(known, after(start, 62_000)));
    }

    #[test]
    fn a_change_by_others_ends_the_round_and_what_was_asked_for_in_it() {
        let (mut belief, start) = (Belief::default(), Instant::now());
        belief.hear(7, start);
        let asked = belief.ask(start);
        let another = belief.entered(belief.ask(after(start, 1_400)));
        assert!(belief.holds(another, after(start, 1_500)));
        assert!(belief.hear(8, after(start, 1_500)));
        assert!(
            !belief.holds(another, after(start, 1_501)),
            "it is doubtful"
        );
        // Its answer comes late.
        let entered = belief.entered(asked);
        assert!(!belief.holds(entered, after(start, 1_600)));
        let next = belief.entered(belief.ask(after(start, 1_600)));
        assert!(!belief.hear(8, after(start, 2_700)));
        assert!(belief.holds(next, after(start, 3_000)));
        assert!(!belief.holds(entered, after(start, 3_000)));
        belief.end();
        assert!(!belief.holds(next, after(start, 3_000)));
        assert!(!belief.is_kept(next, after(start, 3_000)));
    }

    #[test]
    fn an_answer_that_was_on_its_way_while_something_was_forgotten_is_not_confirmed() {
        let (mut belief, start) = (Belief::default(), Instant::now());
        belief.hear(7, start);
        let asked = belief.ask(start);
        belief.forget();
        let entered = belief.entered(asked);
        assert!(belief.holds(entered, after(start, 900)));
        belief.hear(7, after(start, 1_000));
        assert!(!belief.holds(entered, after(start, 1_100)));
    }
}
