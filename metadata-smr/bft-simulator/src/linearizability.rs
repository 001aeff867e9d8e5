//! Whether one machine that did one thing at a time could have produced a history.
//!
//! Every call must seem to take effect at one instant between its invocation and its answer; a
//! call without an answer at any instant after its invocation, or never. Two methods decide:
//!
//! * A *witness*: one order of the calls that is a proof if it is valid. The order in which the
//!   replicas claim to have executed is tried, for it is valid whenever they are right. The claim
//!   itself counts for nothing: each call's place in real time and each answer are checked against
//!   the clients' history and the model, so a wrong hint only costs the time to refuse it.
//! * A *search* for such an order, if the hint is not one. It is Wing and Gong's: of the calls that
//!   may come next (those invoked before the earliest answer that is still to be explained) try
//!   each, and backtrack when the model refuses. Configurations that turned out to be dead ends are
//!   remembered (Lowe), a call without an answer is placed as late as possible, and a query as soon
//!   as the state explains it.
//!   [`STEPS_MAX`] bounds it: a history that is undecided by then has failed.
//!
//! An answer may name the sequence at which it was given. Such calls are placed in that order, so
//! only those of one batch are tried in every order: this demands more than linearizability
//! (versions have to agree with it) and keeps the search of one large object short.
//!
//! Linearizability is local: a history is linearizable if its part for each object is, so callers
//! split by key first ([`check_by_key`]).
//!
//! Sources: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); Lowe, "Testing for
//! Linearizability" (2017); for the late placement Godefroid's sleep sets, "Partial-Order Methods
//! for the Verification of Concurrent Systems" (1996).

mod search;
mod session;
#[cfg(test)]
mod tests;
mod witness;

pub use session::check_sessions;

use crate::history::{Call, History};
use std::collections::BTreeMap;

/// The sequential object that a history is compared with.
pub trait Model {
    /// Its state.
    type State: Clone + Ord;

    /// The state before the first call.
    fn initial(&self) -> Self::State;

    /// The states that `call` may lead to when it takes effect in `state` and has the answer in the
    /// history (or any answer, if there is none). No state means that it cannot have given this
    /// answer here; more than one that the history does not determine which.
    ///
    /// A query changes nothing. It may determine a state more precisely than was known, and so lead
    /// to another one; but the first state has to explain everything that follows in a true
    /// history.
    fn apply(&self, state: &Self::State, call: &Call) -> Vec<Self::State>;
}

/// How many configurations are examined before giving up.
pub const STEPS_MAX: u64 = 100_000;

/// A history that no sequential run explains, or that could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no order of the calls that gives these answers.
    #[error(
        "not linearizable: of {calls} calls on one object at most {explained} can be explained; \
         stuck at {stuck:?}"
    )]
    NotLinearizable {
        /// How many calls the object had.
        calls: usize,
        /// The most that any order explained.
        explained: usize,
        /// The call with the earliest answer among those that it could not explain.
        stuck: Box<Call>,
    },
    /// The search was given up.
    #[error("undecided after {STEPS_MAX} steps over {calls} calls on one object")]
    Undecided {
        /// How many calls the object had.
        calls: usize,
    },
}

/// The calls on one object, by their invocation, and the hint: indices of `calls`.
#[derive(Default)]
struct ObjectCalls<'a> {
    calls: Vec<&'a Call>,
    order: Vec<usize>,
}

/// Checks the calls on one object.
///
/// # Errors
/// If no order explains the answers, or if the search had to be given up.
pub fn check<M: Model>(model: &M, history: &History) -> Result<(), Failure> {
    check_by_key(model, history, |_| ())
}

/// Splits the calls by their object and checks every part.
///
/// # Errors
/// Like [`check`], for the first object that fails.
pub fn check_by_key<M: Model, K: Ord>(
    model: &M,
    history: &History,
    key: impl Fn(&Call) -> K,
) -> Result<(), Failure> {
    let parts = split(history, key);
    parts.iter().try_for_each(|part| {
        if witness::explains(model, &part.calls, &part.order) {
            return Ok(());
        }
        search::search(model, &part.calls)
    })
}

fn split<K: Ord>(history: &History, key: impl Fn(&Call) -> K) -> Vec<ObjectCalls<'_>> {
    let mut by_invocation: Vec<(usize, &Call)> = history.calls.iter().enumerate().collect();
    by_invocation.sort_by_key(|(_, call)| call.invoked);
    let mut parts: BTreeMap<K, ObjectCalls<'_>> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (index, call) in by_invocation {
        let part = parts.entry(key(call)).or_default();
        places.insert(index, part.calls.len());
        part.calls.push(call);
    }
    for index in &history.order {
        if let (Some(call), Some(place)) = (history.calls.get(*index), places.get(index)) {
            parts.entry(key(call)).or_default().order.push(*place);
        }
    }
    parts.into_values().collect()
}
