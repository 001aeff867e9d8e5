//! Whether a history could have come from one machine that did one thing at a time.
//!
//! Every call must seem to take effect at one instant between its invocation and its answer; a
//! call without an answer at any instant after its invocation, or never. The search is Wing and
//! Gong's: of the calls that may come next (those invoked before the earliest answer that is still
//! to be explained) try each, and go back when the model refuses. Configurations that were found
//! to lead nowhere are remembered (Lowe), so that the search stays short for histories as they
//! come up; [`STEPS_MAX`] bounds it all the same.
//!
//! Answers name the sequence at which they came about. Calls that do are placed in that order, so
//! only those of one batch are tried in every order: this asks for more than linearizability
//! (versions have to agree with it) and keeps the search of one large object short.
//!
//! Linearizability is local: a history is linearizable if its part for each object is, so callers
//! split by key first ([`check_by_key`]).
//!
//! Sources: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); Lowe, "Testing for
//! Linearizability" (2017).

use crate::history::Call;
use std::collections::{BTreeMap, BTreeSet};

/// The sequential object that a history is compared with.
pub trait Model {
    /// Its state.
    type State: Clone + Ord;

    /// The state before the first call.
    fn initial(&self) -> Self::State;

    /// The states that `call` may lead to when it takes effect in `state` and is answered as it
    /// was (or, if nobody saw its answer, whatever it gave). No state means that it cannot have
    /// given this answer here; more than one that the history does not tell which.
    fn apply(&self, state: &Self::State, call: &Call) -> Vec<Self::State>;
}

/// How many configurations are looked at before giving up.
pub const STEPS_MAX: u64 = 400_000;

/// A history that no sequential run explains, or that could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no order of the calls that gives these answers.
    #[error(
        "not linearizable: of {calls} calls on one object at most {explained} can be explained; stuck at {stuck:?}"
    )]
    NotLinearizable {
        /// How many calls the object had.
        calls: usize,
        /// The most that any order explained.
        explained: usize,
        /// The call whose answer comes first among those that could not be explained then.
        stuck: Box<Call>,
    },
    /// The search was given up.
    #[error("undecided after {STEPS_MAX} steps over {calls} calls on one object")]
    Undecided {
        /// How many calls the object had.
        calls: usize,
    },
}

/// The set of calls that have been given their place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Placed(Vec<u64>);

impl Placed {
    fn new(calls: usize) -> Self {
        Self(vec![0; calls.div_ceil(64)])
    }

    fn contains(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    fn with(&self, index: usize) -> Self {
        let mut other = self.clone();
        if let Some(word) = other.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
        other
    }
}

struct Configuration<S> {
    placed: Placed,
    count: usize,
    first_open: usize,
    state: S,
}

/// Checks the calls on one object.
///
/// # Errors
/// If no order explains the answers, or if the search had to be given up.
pub fn check<M: Model>(model: &M, calls: &[&Call]) -> Result<(), Failure> {
    let mut calls: Vec<&Call> = calls.to_vec();
    calls.sort_by_key(|call| call.invoked);
    let answered = calls.iter().filter(|call| call.answer.is_some()).count();

    let mut seen = BTreeSet::new();
    let mut stack = vec![Configuration {
        placed: Placed::new(calls.len()),
        count: 0,
        first_open: 0,
        state: model.initial(),
    }];
    let mut steps = 0_u64;
    let mut best: (usize, Option<&Call>) = (0, None);
    while let Some(configuration) = stack.pop() {
        if configuration.count == answered {
            return Ok(());
        }
        steps += 1;
        if steps > STEPS_MAX {
            return Err(Failure::Undecided { calls: calls.len() });
        }
        let horizon = earliest_answer(&calls, &configuration);
        if best.1.is_none() || configuration.count > best.0 {
            best = (configuration.count, horizon.map(|(call, _)| call));
        }
        let Some((_, horizon)) = horizon else {
            continue;
        };
        let newest = newest_version(&calls, &configuration);
        let mut next = Vec::new();
        for (index, call) in calls.iter().enumerate().skip(configuration.first_open) {
            if call.invoked > horizon {
                break;
            }
            let early = call.version.is_some_and(|version| version > newest);
            if early || configuration.placed.contains(index) {
                continue;
            }
            for state in model.apply(&configuration.state, call) {
                let placed = configuration.placed.with(index);
                if !seen.insert((placed.clone(), state.clone())) {
                    continue;
                }
                let mut first_open = configuration.first_open;
                while placed.contains(first_open) {
                    first_open += 1;
                }
                let key = call.answer.as_ref().map_or(u64::MAX, |(at, _)| *at);
                let count = configuration.count + usize::from(call.answer.is_some());
                next.push((
                    key,
                    Configuration {
                        placed,
                        count,
                        first_open,
                        state,
                    },
                ));
            }
        }
        // The one that is answered first is tried first: the stack gives back what is put last.
        next.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
        stack.extend(next.into_iter().map(|(_, configuration)| configuration));
    }
    match best {
        (explained, Some(stuck)) => Err(Failure::NotLinearizable {
            calls: calls.len(),
            explained,
            stuck: Box::new(stuck.clone()),
        }),
        (_, None) => Ok(()),
    }
}

/// The version that comes next.
fn newest_version<S>(calls: &[&Call], configuration: &Configuration<S>) -> u64 {
    let open = calls.iter().enumerate().skip(configuration.first_open);
    open.filter(|(index, _)| !configuration.placed.contains(*index))
        .filter_map(|(_, call)| call.version)
        .min()
        .unwrap_or(u64::MAX)
}

fn earliest_answer<'a, S>(
    calls: &[&'a Call],
    configuration: &Configuration<S>,
) -> Option<(&'a Call, u64)> {
    let mut earliest: Option<(&Call, u64)> = None;
    for (index, call) in calls.iter().enumerate().skip(configuration.first_open) {
        if let Some((_, at)) = earliest
            && call.invoked > at
        {
            break;
        }
        if configuration.placed.contains(index) {
            continue;
        }
        if let Some((at, _)) = call.answer
            && earliest.is_none_or(|(_, best)| at < best)
        {
            earliest = Some((call, at));
        }
    }
    earliest
}

/// Splits the calls by the object that each of them is about and checks every part.
///
/// # Errors
/// As [`check`], for the first object that fails.
pub fn check_by_key<M: Model, K: Ord>(
    model: &M,
    calls: &[Call],
    key: impl Fn(&Call) -> K,
) -> Result<(), Failure> {
    let mut parts: BTreeMap<K, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        parts.entry(key(call)).or_default().push(call);
    }
    parts.values().try_for_each(|part| check(model, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;
    use bytes::Bytes;
    use proptest::prelude::*;

    /// A register: `w` and a byte writes it, `r` reads it.
    struct Register;

    impl Model for Register {
        type State = u8;
        fn initial(&self) -> u8 {
            0
        }
        fn apply(&self, state: &u8, call: &Call) -> Vec<u8> {
            match (call.operation.as_ref(), &call.answer) {
                ([b'w', value], _) => vec![*value],
                (_, Some((_, answer))) if answer.as_ref() != [*state] => vec![],
                _ => vec![*state],
            }
        }
    }

    fn write(value: u8, invoked: u64, answered: Option<u64>) -> Call {
        Call {
            client: 0,
            kind: Kind::Execute,
            operation: Bytes::copy_from_slice(&[b'w', value]),
            invoked,
            answer: answered.map(|at| (at, Bytes::new())),
            version: None,
        }
    }

    fn read(value: u8, invoked: u64, answered: u64) -> Call {
        Call {
            client: 0,
            kind: Kind::Query,
            operation: Bytes::from_static(b"r"),
            invoked,
            answer: Some((answered, Bytes::copy_from_slice(&[value]))),
            version: None,
        }
    }

    fn verdict(calls: &[Call]) -> Result<(), Failure> {
        check_by_key(&Register, calls, |_| ())
    }

    #[test]
    fn a_stale_read_is_found() {
        assert!(verdict(&[write(1, 0, Some(1)), read(0, 2, 3)]).is_err());
        assert!(verdict(&[write(1, 0, Some(3)), read(0, 2, 4)]).is_ok());
    }

    #[test]
    fn new_and_old_may_not_be_inverted() {
        let during = [write(1, 0, Some(100)), read(1, 1, 2), read(0, 3, 4)];
        assert!(verdict(&during).is_err());
    }

    #[test]
    fn versions_that_contradict_the_answers_are_found() {
        let (mut first, mut second) = (write(1, 0, Some(9)), write(2, 0, Some(9)));
        (first.version, second.version) = (Some(4), Some(5));
        assert!(verdict(&[first.clone(), second.clone(), read(2, 10, 11)]).is_ok());
        assert!(verdict(&[first, second, read(1, 10, 11)]).is_err());
    }

    #[test]
    fn a_call_without_an_answer_may_take_effect_late_or_never_but_once() {
        let pending = write(1, 0, None);
        assert!(verdict(&[pending.clone(), read(0, 5, 6)]).is_ok());
        assert!(verdict(&[pending.clone(), read(0, 5, 6), read(1, 7, 8)]).is_ok());
        let twice = [pending, read(1, 5, 6), write(2, 7, Some(8)), read(1, 9, 10)];
        assert!(verdict(&twice).is_err());
    }

    /// Runs a register one call at a time and tells each call's instant with some slack.
    fn sequential(script: &[(bool, u8, u8, u8)]) -> Vec<Call> {
        let mut value = 0;
        let mut calls = Vec::new();
        for (index, (writes, byte, before, after)) in script.iter().enumerate() {
            let at = 100 * (index as u64 + 3);
            let (invoked, answered) = (at - u64::from(*before), at + u64::from(*after));
            if *writes {
                value = *byte;
                calls.push(write(value, invoked, Some(answered)));
            } else {
                calls.push(read(value, invoked, answered));
            }
        }
        calls
    }

    proptest! {
        #[test]
        fn what_one_machine_did_is_always_accepted(
            script in prop::collection::vec((any::<bool>(), 1_u8..4, any::<u8>(), any::<u8>()), 0..60)
        ) {
            prop_assert_eq!(verdict(&sequential(&script)), Ok(()));
        }

        #[test]
        fn a_value_that_was_never_written_is_always_found(
            script in prop::collection::vec((any::<bool>(), 1_u8..4, any::<u8>(), any::<u8>()), 0..60),
            at in 0_u64..6000,
        ) {
            let mut calls = sequential(&script);
            calls.push(read(9, at, at + 50));
            prop_assert!(verdict(&calls).is_err());
        }
    }
}
