//! The search for an order that explains a history.

use super::{Failure, Model, STEPS_MAX};
use crate::history::{Call, OperationKind};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The set of calls that have been placed.
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

struct Configuration<'a, S> {
    placed: Placed,
    /// How many answered calls are among them.
    count: usize,
    first_open: usize,
    state: Rc<S>,
    /// The call that was placed last, if it has no answer, and the state before it.
    guess: Option<(&'a Call, Rc<S>)>,
}

/// Searches for an order of `calls`, which are sorted by invocation.
pub(super) fn search<M: Model>(model: &M, calls: &[&Call]) -> Result<(), Failure> {
    // A query without an answer explains nothing, wherever it is placed.
    let silent = |call: &&&Call| call.kind == OperationKind::Query && call.answer.is_none();
    let total = calls.len();
    let calls: Vec<&Call> = calls.iter().filter(|call| !silent(call)).copied().collect();
    let answered = calls.iter().filter(|call| call.answer.is_some()).count();

    let mut seen = BTreeSet::new();
    let mut first = Configuration {
        placed: Placed::new(calls.len()),
        count: 0,
        first_open: 0,
        state: Rc::new(model.initial()),
        guess: None,
    };
    place_queries(model, &calls, &mut first);
    let mut stack = vec![first];
    let mut steps = 0_u64;
    let mut best: (usize, Option<&Call>) = (0, None);
    while let Some(configuration) = stack.pop() {
        if configuration.count == answered {
            return Ok(());
        }
        steps += 1;
        if steps > STEPS_MAX {
            return Err(Failure::Undecided { calls: total });
        }
        let horizon = earliest_answer(&calls, &configuration);
        if best.1.is_none() || configuration.count > best.0 {
            best = (configuration.count, horizon.map(|(call, _)| call));
        }
        let Some((_, horizon)) = horizon else {
            continue;
        };
        let mut next = Vec::new();
        for (index, call) in candidates(&calls, &configuration, horizon) {
            for state in model.apply(&configuration.state, call) {
                if redundant(model, &configuration, call, &state) {
                    continue;
                }
                let placed = configuration.placed.with(index);
                let (key, mut then) = follow(&configuration, call, placed, Rc::new(state));
                place_queries(model, &calls, &mut then);
                if seen.insert((then.placed.clone(), Rc::clone(&then.state))) {
                    next.push((key, then));
                }
            }
        }
        // The one with the earliest answer is tried first: the stack returns the last entry first.
        next.sort_by_key(|(key, _)| std::cmp::Reverse(*key));
        stack.extend(next.into_iter().map(|(_, configuration)| configuration));
    }
    match best {
        (explained, Some(stuck)) => Err(Failure::NotLinearizable {
            calls: total,
            explained,
            stuck: Box::new(stuck.clone()),
        }),
        (_, None) => Ok(()),
    }
}

/// The unplaced calls that were invoked before any other unplaced call was answered.
fn candidates<'a, S>(
    calls: &[&'a Call],
    configuration: &Configuration<'_, S>,
    horizon: u64,
) -> Vec<(usize, &'a Call)> {
    let newest = next_version(calls, configuration);
    let open = calls.iter().enumerate().skip(configuration.first_open);
    open.take_while(|(_, call)| call.invoked <= horizon)
        .filter(|(index, call)| {
            let early = call.version.is_some_and(|version| version > newest);
            !early && !configuration.placed.contains(*index)
        })
        .map(|(index, call)| (index, *call))
        .collect()
}

/// Places the queries that the current state explains. They do not change it, and exclude nothing:
/// every continuation is possible after them too. So they need not be tried anywhere else, and many
/// overlapping queries have one order instead of all.
fn place_queries<M: Model>(
    model: &M,
    calls: &[&Call],
    configuration: &mut Configuration<'_, M::State>,
) {
    while let Some((_, horizon)) = earliest_answer(calls, configuration) {
        let explained = |call: &Call| {
            call.kind == OperationKind::Query
                && call.answer.is_some()
                && model.apply(&configuration.state, call) == [(*configuration.state).clone()]
        };
        let next = candidates(calls, configuration, horizon);
        let now: Vec<usize> = next
            .into_iter()
            .filter(|(_, call)| explained(call))
            .map(|(index, _)| index)
            .collect();
        if now.is_empty() {
            return;
        }
        for index in now {
            configuration.placed = configuration.placed.with(index);
            configuration.count += 1;
        }
        while configuration.placed.contains(configuration.first_open) {
            configuration.first_open += 1;
        }
        // Without the guess they would have been explained before it.
        configuration.guess = None;
    }
}

/// The configuration after `call`, and its sort key.
fn follow<'a, S>(
    from: &Configuration<'a, S>,
    call: &'a Call,
    placed: Placed,
    state: Rc<S>,
) -> (u64, Configuration<'a, S>) {
    let mut first_open = from.first_open;
    while placed.contains(first_open) {
        first_open += 1;
    }
    let answered = call.answer.is_some();
    let key = call.answer.as_ref().map_or(u64::MAX, |(at, _)| *at);
    let next = Configuration {
        placed,
        count: from.count + usize::from(answered),
        first_open,
        state,
        guess: (!answered).then(|| (call, Rc::clone(&from.state))),
    };
    (key, next)
}

/// Whether the result of `call` is reached, or surpassed, in another way.
///
/// A call without an answer may always come later. So it need not be placed where it changes
/// nothing (it would only be used up), and an answered call need not follow it if the two give the
/// same result in the other order: that order is tried anyway.
fn redundant<M: Model>(
    model: &M,
    from: &Configuration<'_, M::State>,
    call: &Call,
    state: &M::State,
) -> bool {
    match (&call.answer, &from.guess) {
        (None, _) => *state == *from.state,
        (Some(_), Some((guess, before))) => model
            .apply(before, call)
            .iter()
            .any(|between| model.apply(between, guess).contains(state)),
        (Some(_), None) => false,
    }
}

/// The version to place next.
fn next_version<S>(calls: &[&Call], configuration: &Configuration<'_, S>) -> u64 {
    let open = calls.iter().enumerate().skip(configuration.first_open);
    open.filter(|(index, _)| !configuration.placed.contains(*index))
        .filter_map(|(_, call)| call.version)
        .min()
        .unwrap_or(u64::MAX)
}

fn earliest_answer<'a, S>(
    calls: &[&'a Call],
    configuration: &Configuration<'_, S>,
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
