//! What a mount may show of one thing that changes: a value that was current at most a bound ago,
//! and none older than what it showed before.
//!
//! ```text
//!   changes    0 ────► 1 ────► 2 ────► 3          each since it was acknowledged
//!                          ▲ horizon       ▲ the call begins
//!   allowed            1 .. 3                     unless the mount showed 2 already: 2 .. 3
//! ```
//!
//! The horizon is the beginning of the call, less the bound; for close-to-open it is the beginning
//! itself, which leaves the last change alone. A mount shows its own change at once. A value that
//! occurs several times counts as the oldest change that it may be: if any reading of what was seen
//! keeps the promise, it is kept.
//!
//! Of an inode, each attribute is a thing of its own. Two of them that two mounts changed within
//! the bound may be shown in a mixture that was never there as a whole.

use rustix::io::Errno;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How old a name or an attribute may be that a mount shows, unless the run says otherwise.
pub const BOUND: Duration = Duration::from_secs(2);
/// Changes that were followed by another one so long ago are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(180);
/// How many steps are kept, and how many of those on a path are shown.
const LINES_MAX: usize = 20_000;
const LINES_SHOWN: usize = 16;

/// A promise that was broken.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenPromise {
    /// Which one.
    pub promise: String,
    /// The mount that broke it.
    pub mount: usize,
    /// The step.
    pub step: usize,
    /// The seed of the run.
    pub seed: u64,
    /// The path.
    pub path: String,
    /// What was expected.
    pub expected: String,
    /// What was seen.
    pub seen: String,
    /// The last steps on that path.
    pub steps: Vec<String>,
    /// The error of a call that has to succeed.
    #[serde(skip)]
    pub(super) failure: Option<Errno>,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, mount, .. } = self;
        writeln!(f, "mount {mount} broke a promise: {promise}")?;
        writeln!(f, "  seed {}, step {}: {}", self.seed, self.step, self.path)?;
        writeln!(f, "  expected: {}", self.expected)?;
        writeln!(f, "  seen:     {}", self.seen)?;
        writeln!(f, "  the last steps on that path:")?;
        self.steps
            .iter()
            .try_for_each(|step| writeln!(f, "    {step}"))
    }
}

/// A result, unless a promise was broken.
pub(super) type Kept<T = ()> = Result<T, Box<BrokenPromise>>;

/// How a mount was asked for a name. A listing may lag behind a lookup, and the other way round.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// By `stat` or `open`.
    Lookup,
    /// By `readdir`.
    Listing,
}

/// The values of one thing, and what each mount has shown of them.
#[derive(Clone, Debug)]
pub(super) struct History<T> {
    changes: Vec<(Instant, T)>,
    /// For each mount and way the oldest change that it may still show.
    shown: Vec<[usize; 2]>,
}

impl<T: Clone + PartialEq + Debug> History<T> {
    /// A thing that has a value, which no mount has shown.
    pub(super) fn new(mounts: usize, value: T) -> Self {
        Self {
            changes: vec![(Instant::now(), value)],
            shown: vec![[0; 2]; mounts],
        }
    }

    /// The last value.
    pub(super) fn now(&self) -> &T {
        &self.changes[self.last()].1
    }

    fn last(&self) -> usize {
        self.changes.len() - 1
    }

    /// A change was acknowledged; the mount that made it shows it from now on.
    pub(super) fn change(&mut self, by: Option<usize>, value: T) {
        let now = Instant::now();
        if *self.now() != value {
            self.changes.push((now, value));
        }
        if let Some(mount) = by {
            self.shown[mount] = [self.last(); 2];
        }
        while self.changes.len() > 1 && now.duration_since(self.changes[1].0) > FORGOTTEN_AFTER {
            self.changes.remove(0);
            for shown in self.shown.iter_mut().flatten() {
                *shown = shown.saturating_sub(1);
            }
        }
    }

    fn first(&self, mount: usize, way: Way, horizon: Instant) -> usize {
        // The last change that was acknowledged by then was current at the horizon.
        let by_then = self.changes.partition_point(|(at, _)| *at <= horizon);
        by_then
            .saturating_sub(1)
            .max(self.shown[mount][way as usize])
    }

    /// The values that a mount may show, the oldest first.
    pub(super) fn allowed(&self, mount: usize, horizon: Instant) -> impl Iterator<Item = &T> {
        let first = self.first(mount, Way::Lookup, horizon);
        self.changes[first..].iter().map(|(_, value)| value)
    }

    /// A mount has shown a value: whether it is the last one.
    ///
    /// # Errors
    /// What it might have shown, if it may not show this.
    pub(super) fn show(
        &mut self,
        mount: usize,
        way: Way,
        horizon: Instant,
        seen: &T,
    ) -> Result<bool, String> {
        let first = self.first(mount, way, horizon);
        let mut allowed = self.changes[first..].iter();
        match allowed.position(|(_, value)| value == seen) {
            Some(at) => {
                self.shown[mount][way as usize] = first + at;
                Ok(seen == self.now())
            }
            None => Err(self.describe(mount, way, first, seen)),
        }
    }

    fn describe(&self, mount: usize, way: Way, first: usize, seen: &T) -> String {
        let values: Vec<_> = self.changes[first..].iter().map(|it| &it.1).collect();
        let expected = match &values[..] {
            [one] => format!("{one:?}"),
            several => format!("one of {several:?}"),
        };
        let Some(was) = self.changes.iter().rposition(|(_, value)| value == seen) else {
            return format!("{expected}; it never was what was seen");
        };
        let out = self.changes[was + 1].0.elapsed().as_millis();
        match was < self.shown[mount][way as usize] {
            true => format!(
                "{expected}; this mount showed a later state already, and what was seen is out of \
                 date for {out} ms"
            ),
            false => format!("{expected}; what was seen is out of date for {out} ms"),
        }
    }
}

/// The bytes of a file, which are described shortly.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct FileBytes(pub(super) Arc<Vec<u8>>);

impl FileBytes {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
    }

    pub(super) fn length(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = blake3::hash(&self.0).to_hex();
        write!(f, "{} bytes {}", self.0.len(), &digest[..8])
    }
}

/// Where bytes differ first, for the description of a fault.
pub(super) fn first_difference(left: &[u8], right: &[u8]) -> String {
    let at = left
        .iter()
        .zip(right)
        .position(|(left, right)| left != right);
    let at = at.unwrap_or_else(|| left.len().min(right.len()));
    let show = |bytes: &[u8]| {
        let end = bytes.len().min(at + 8);
        format!("{:02x?}", &bytes[at.min(end)..end])
    };
    format!("from byte {at}: {} instead of {}", show(right), show(left))
}

/// Whether what was seen is a mixture of two states of a file: of the length of one of them, and
/// each byte from one of them. Beyond its end, a state counts as zeros.
pub(super) fn is_mixture(states: &[&[u8]], seen: &[u8]) -> bool {
    let byte = |state: &[u8], at: usize| state.get(at).copied().unwrap_or(0);
    let mut bytes = seen.iter().enumerate();
    states.iter().any(|state| state.len() == seen.len())
        && bytes.all(|(at, seen)| states.iter().any(|state| byte(state, at) == *seen))
}

/// How long others took to see changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Delays(Vec<Duration>);

/// The distribution of delays, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DelaySummary {
    /// How many were measured.
    pub count: usize,
    /// Half of them were no longer.
    pub median_ms: f64,
    /// 99 of 100 were no longer.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Delays {
    pub(super) fn add(&mut self, delay: Duration) {
        self.0.push(delay);
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(super) fn summary(&mut self) -> DelaySummary {
        self.0.sort_unstable();
        let count = self.0.len();
        let part = |percent: usize| {
            let place = (count * percent).div_ceil(100).max(1) - 1;
            let delay = self.0.get(place).copied().unwrap_or_default();
            (delay.as_secs_f64() * 10_000.0).round() / 10.0
        };
        DelaySummary {
            count,
            median_ms: part(50),
            p99_ms: part(99),
            max_ms: part(100),
        }
    }
}

/// The steps so far, for the description of a fault.
#[derive(Clone, Debug)]
pub(super) struct StepRecord {
    pub(super) seed: u64,
    pub(super) step: usize,
    lines: VecDeque<(Vec<String>, String)>,
}

impl StepRecord {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            step: 0,
            lines: VecDeque::new(),
        }
    }

    /// Notes what is about to be done on these paths.
    pub(super) fn note(&mut self, mount: usize, what: &str, paths: &[&str]) {
        let line = format!("step {} on mount {mount}: {what} {paths:?}", self.step);
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        self.lines.push_back((paths, line));
        if self.lines.len() > LINES_MAX {
            self.lines.pop_front();
        }
    }

    /// Describes a broken promise.
    pub(super) fn broken(
        &self,
        mount: usize,
        promise: impl Into<String>,
        path: &str,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Box<BrokenPromise> {
        let lines = self.lines.iter().rev();
        let on_path =
            lines.filter(|(paths, _)| path.is_empty() || paths.iter().any(|it| it == path));
        let mut steps: Vec<_> = on_path.take(LINES_SHOWN).map(|it| it.1.clone()).collect();
        steps.reverse();
        Box::new(BrokenPromise {
            promise: promise.into(),
            mount,
            step: self.step,
            seed: self.seed,
            path: path.to_owned(),
            expected: expected.into(),
            seen: seen.into(),
            steps,
            failure: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn a_mount_shows_its_own_change_at_once_and_others_within_the_bound() {
        let mut history = History::new(2, 'a');
        history.change(Some(0), 'b');
        let now = Instant::now();
        let within = now - LATE;
        assert_eq!(history.show(1, Way::Lookup, within, &'a'), Ok(false));
        assert!(history.show(0, Way::Lookup, within, &'a').is_err());
        assert!(history.show(1, Way::Lookup, now, &'a').is_err());
        assert_eq!(history.show(1, Way::Lookup, now, &'b'), Ok(true));
        assert!(history.show(1, Way::Lookup, within, &'c').is_err());
    }

    #[test]
    fn a_mount_never_goes_back_unless_another_reading_is_possible() {
        let mut history = History::new(1, 'a');
        for value in ['b', 'a', 'c'] {
            history.change(None, value);
        }
        let within = Instant::now() - LATE;
        let mut see = |value| history.show(0, Way::Lookup, within, &value);
        assert_eq!(see('b'), Ok(false));
        assert_eq!(see('a'), Ok(false));
        assert!(see('b').is_err());
        assert_eq!(see('c'), Ok(true));
        assert!(see('a').unwrap_err().contains("showed a later state"));
        assert_eq!(history.show(0, Way::Listing, within, &'b'), Ok(false));
    }

    #[test]
    fn a_mixture_has_bytes_of_both_and_the_length_of_one() {
        let states: [&[u8]; 2] = [b"aaaa", b"bb"];
        for seen in [&b"aaaa"[..], b"bb", b"ab", b"ba\0a", b"aaa\0"] {
            assert!(is_mixture(&states, seen), "{seen:?}");
        }
        for seen in [&b"aaa"[..], b"aacb", b""] {
            assert!(!is_mixture(&states, seen), "{seen:?}");
        }
    }
}
