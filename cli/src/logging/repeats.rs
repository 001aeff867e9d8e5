//! Which events are logged, which are only counted, and when the count is logged.
//!
//! An event is logged if its cause was not logged within the last [`WINDOW`]; otherwise it is
//! counted, and the count is logged with the first event of any cause after the window, or at the
//! end of the process. One place in the program has at most [`CAUSES_MAX`] causes in a window; all
//! others are one more cause together, so that memory and lines stay bounded whatever happens. The
//! module is pure: the time comes with each call.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, OccupiedEntry};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// For how long one line stands for all events of its cause.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// The most causes of one place in the program in that time.
pub(super) const CAUSES_MAX: usize = 16;
/// The text for all causes beyond.
const OTHERS: &str = "other causes";

/// The count of one cause.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repeated<S> {
    /// The place in the program.
    pub(super) site: S,
    /// Its text.
    pub(super) text: String,
    /// How often it was repeated after it was logged.
    pub(super) count: u64,
    /// The length of that time.
    pub(super) within: Duration,
}

/// What to do about an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventDecision<S> {
    /// Whether to log it.
    pub(super) is_new: bool,
    /// Counts of other causes to log before it.
    pub(super) due: Vec<Repeated<S>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    last: Instant,
    count: u64,
}

/// The causes that were logged recently.
#[derive(Debug)]
pub(super) struct Repeats<S> {
    windows: HashMap<(S, String), Window>,
    causes: HashMap<S, usize>,
    /// The earliest end of a window.
    next_end: Option<Instant>,
}

impl<S> Default for Repeats<S> {
    fn default() -> Self {
        Self {
            windows: HashMap::new(),
            causes: HashMap::new(),
            next_end: None,
        }
    }
}

impl<S: Copy + Eq + Hash> Repeats<S> {
    /// Decides on an event.
    pub(super) fn decide(&mut self, now: Instant, site: S, cause: String) -> EventDecision<S> {
        let due = match self.next_end {
            Some(end) if now >= end => self.end(now, |window| now >= window.began + WINDOW),
            _ => Vec::new(),
        };
        let causes = self.causes.entry(site).or_default();
        let mut key = (site, cause);
        if *causes >= CAUSES_MAX && !self.windows.contains_key(&key) {
            key.1 = OTHERS.to_owned();
        }
        let is_new = match self.windows.entry(key) {
            Entry::Occupied(known) => {
                count(known, now);
                false
            }
            Entry::Vacant(place) => {
                *causes += 1;
                place.insert(Window {
                    began: now,
                    last: now,
                    count: 0,
                });
                self.next_end.get_or_insert(now + WINDOW);
                true
            }
        };
        EventDecision { is_new, due }
    }

    /// The pending counts, which are reset.
    pub(super) fn finish(&mut self, now: Instant) -> Vec<Repeated<S>> {
        self.end(now, |_| true)
    }

    fn end(&mut self, now: Instant, over: impl Fn(&Window) -> bool) -> Vec<Repeated<S>> {
        let ended = self.windows.extract_if(|_, window| over(window));
        let mut due = Vec::new();
        for ((site, text), window) in ended {
            if let Some(causes) = self.causes.get_mut(&site) {
                *causes = causes.saturating_sub(1);
            }
            if window.count > 0 {
                due.push((
                    window.began,
                    Repeated {
                        site,
                        text,
                        count: window.count,
                        within: window.last.min(now).duration_since(window.began),
                    },
                ));
            }
        }
        self.next_end = self.windows.values().map(|it| it.began + WINDOW).min();
        due.sort_by_key(|(began, _)| *began);
        due.into_iter().map(|(_, repeated)| repeated).collect()
    }
}

fn count<S>(mut known: OccupiedEntry<'_, (S, String), Window>, now: Instant) {
    let window = known.get_mut();
    window.count += 1;
    window.last = now;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(repeats: &mut Repeats<u8>, now: Instant, cause: &str) -> (bool, Vec<(String, u64)>) {
        let decision = repeats.decide(now, 0, cause.to_owned());
        let due = decision.due.into_iter().map(|it| (it.text, it.count));
        (decision.is_new, due.collect())
    }

    #[test]
    fn one_cause_is_said_once_in_a_minute_and_its_repeats_are_counted() {
        let mut repeats = Repeats::default();
        let began = Instant::now();
        assert_eq!(decide(&mut repeats, began, "a"), (true, vec![]));
        for second in 0..60 {
            let now = began + Duration::from_secs(second);
            assert_eq!(decide(&mut repeats, now, "a"), (false, vec![]));
        }
        assert_eq!(decide(&mut repeats, began, "b"), (true, vec![]));
        let later = began + WINDOW;
        let counts = vec![("a".to_owned(), 60)];
        assert_eq!(decide(&mut repeats, later, "a"), (true, counts));
        assert_eq!(decide(&mut repeats, later + WINDOW, "c"), (true, vec![]));
        assert_eq!(repeats.windows.len(), 1, "ended windows are dropped");
    }

    #[test]
    fn what_is_counted_at_the_end_is_told() {
        let mut repeats = Repeats::default();
        let began = Instant::now();
        let later = began + Duration::from_secs(7);
        decide(&mut repeats, began, "a");
        decide(&mut repeats, later, "a");
        let counts = repeats.finish(later + WINDOW);
        let wanted = Repeated {
            site: 0,
            text: "a".to_owned(),
            count: 1,
            within: Duration::from_secs(7),
        };
        assert_eq!(counts, [wanted]);
        assert_eq!(repeats.finish(later), []);
    }

    #[test]
    fn a_place_with_ever_new_causes_says_a_bounded_number_of_them() {
        let mut repeats = Repeats::default();
        let began = Instant::now();
        let logged = |repeats: &mut Repeats<u8>, now| {
            let new = (0..1000).filter(|it| decide(repeats, now, &format!("cause {it}")).0);
            new.count()
        };
        assert_eq!(logged(&mut repeats, began), CAUSES_MAX + 1);
        assert_eq!(logged(&mut repeats, began + WINDOW), CAUSES_MAX + 1);
        assert!(repeats.decide(began, 1, "a".to_owned()).is_new);
    }
}
