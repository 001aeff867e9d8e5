//! How much a replica serves each peer.
//!
//! A request of sixty bytes may cause megabytes to be read and sent, on the thread that everything
//! else waits for. So each peer has an allowance that refills with time: a burst at once, then a
//! rate. A peer that is behind catches up from several peers, at that rate from each. A peer that
//! asks without need takes a few hundredths of a core and no more. Requests beyond the allowance
//! are not answered, and an honest peer asks the next one.

use crate::identity::{Monotonic, Sequence};
use crate::wire::limits::{
    SERVE_BURST_BYTES, SERVE_BYTES_MIN, SERVE_BYTES_PER_SECOND, SERVE_REPEAT_INTERVAL,
};

/// The allowance of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Bytes served that time has not refilled yet.
    owed: u64,
    /// The time up to which it has refilled.
    at: Monotonic,
    /// The first sequence of the peer's last request for batches, and when it came.
    asked: Option<(Sequence, Monotonic)>,
}

impl Pace {
    /// Whether the peer may be served now. Asking costs allowance even if there is nothing to
    /// serve.
    pub fn allows(&mut self, now: Monotonic) -> bool {
        let passed = u128::from(now.since(self.at).0);
        let made_up = passed * u128::from(SERVE_BYTES_PER_SECOND) / 1_000_000_000;
        let made_up = u64::try_from(made_up).unwrap_or(u64::MAX);
        self.owed = self.owed.saturating_sub(made_up);
        self.at = now;
        let allowed = self.owed < SERVE_BURST_BYTES;
        if allowed {
            self.served(0);
        }
        allowed
    }

    /// The same for batches from `from` on. The same request again means that the answer is still
    /// on its way, or that it was lost, which takes longer to find out.
    pub fn allows_from(&mut self, from: Sequence, now: Monotonic) -> bool {
        let again = |(asked, at): (Sequence, Monotonic)| {
            asked == from && now.since(at) < SERVE_REPEAT_INTERVAL
        };
        if self.asked.is_some_and(again) || !self.allows(now) {
            return false;
        }
        self.asked = Some((from, now));
        true
    }

    /// Accounts for `bytes` sent in one frame. Every frame has a minimum cost, however short it is.
    pub fn served(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.owed = self.owed.saturating_add(bytes.max(SERVE_BYTES_MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_peer_is_served_a_burst_and_then_at_a_rate() {
        let mut pace = Pace::default();
        let mut served = |from: u64, seconds: u64| {
            let mut bytes = 0;
            for millisecond in 0..seconds * 1000 {
                let now = Monotonic(from + millisecond * SECOND / 1000);
                while pace.allows(now) {
                    pace.served(1 << 20);
                    bytes += 1 << 20;
                }
            }
            bytes
        };
        let much = served(0, 10);
        let most = SERVE_BURST_BYTES + 10 * SERVE_BYTES_PER_SECOND + (1 << 20);
        assert!(much <= most && much >= most * 9 / 10, "{much} of {most}");
        assert!(served(100 * SECOND, 1) > SERVE_BYTES_PER_SECOND, "rested");
    }

    #[test]
    fn requests_without_results_are_rate_limited_as_well() {
        let mut pace = Pace::default();
        let answered = (0..100_000).filter(|_| pace.allows(Monotonic(1))).count() as u64;
        assert_eq!(answered, SERVE_BURST_BYTES / SERVE_BYTES_MIN);
    }

    #[test]
    fn the_same_question_is_answered_once_in_a_while() {
        let mut pace = Pace::default();
        assert!(pace.allows_from(Sequence(5), Monotonic(1)));
        assert!(!pace.allows_from(Sequence(5), Monotonic(2)));
        assert!(pace.allows_from(Sequence(6), Monotonic(3)));
        let later = Monotonic(3 + SERVE_REPEAT_INTERVAL.0);
        assert!(pace.allows_from(Sequence(6), later));
    }
}
