//! Finds a short trace that still shows a difference.
//!
//! The trace is run on fresh directories without one part after the other, first halves and finally
//! single steps. The steps that matter remain. Differences that depend on timing may not be
//! reproduced; then only the last steps can be shown.

use super::step::Step;
use std::time::{Duration, Instant};

/// Shrinking ends after this time.
const SHRINK_WITHIN: Duration = Duration::from_secs(240);

/// A shortened trace, if the difference was reproduced.
#[derive(Debug)]
pub struct Shrunk {
    /// The remaining steps.
    pub steps: Vec<Step>,
    /// The difference that it shows; `None` if it was not reproduced.
    pub shows: Option<String>,
}

/// Leaves steps out while `fails` still returns a difference. The last step is the one that showed
/// it.
pub fn shrink(trace: &[Step], mut fails: impl FnMut(&[Step]) -> Option<String>) -> Shrunk {
    let began = Instant::now();
    let Some((mut steps, mut shows)) = suffix(trace, &mut fails) else {
        return Shrunk {
            steps: trace.to_vec(),
            shows: None,
        };
    };
    let mut part = steps.len().div_ceil(2);
    while part > 0 && began.elapsed() < SHRINK_WITHIN {
        let (before, mut start) = (steps.len(), 0);
        while start < steps.len() && began.elapsed() < SHRINK_WITHIN {
            let end = (start + part).min(steps.len());
            let less = [&steps[..start], &steps[end..]].concat();
            match fails(&less) {
                Some(again) => (steps, shows) = (less, again),
                None => start = end,
            }
        }
        // Single steps are tried repeatedly, until none can be left out.
        part = match part {
            1 if steps.len() < before => 1,
            part => part / 2,
        };
    }
    Shrunk {
        steps,
        shows: Some(shows),
    }
}

/// The last steps may be enough, and are quick to run.
fn suffix(
    trace: &[Step],
    fails: &mut impl FnMut(&[Step]) -> Option<String>,
) -> Option<(Vec<Step>, String)> {
    let lengths = [30, 150, 600, trace.len()];
    let lengths = lengths.into_iter().filter(|length| *length <= trace.len());
    lengths.into_iter().find_map(|length| {
        let steps = &trace[trace.len() - length..];
        fails(steps).map(|shows| (steps.to_vec(), shows))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_cause_a_difference_remain() {
        let trace: Vec<_> = (0..500).map(Step::Wait).collect();
        let needed = [Step::Wait(3), Step::Wait(77), Step::Wait(499)];
        let mut runs = 0;
        let shrunk = shrink(&trace, |steps| {
            runs += 1;
            let all = needed.iter().all(|step| steps.contains(step));
            all.then(|| "it".to_owned())
        });
        assert_eq!(shrunk.steps, needed);
        assert_eq!(shrunk.shows.as_deref(), Some("it"));
        assert!(runs < 150, "{runs} runs");
    }

    #[test]
    fn a_difference_that_is_not_reproduced_leaves_the_trace_whole() {
        let trace: Vec<_> = (0..50).map(Step::Wait).collect();
        let shrunk = shrink(&trace, |_| None);
        assert_eq!((shrunk.steps, shrunk.shows), (trace, None));
    }
}
