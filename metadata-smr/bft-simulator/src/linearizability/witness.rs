//! One order of the calls, checked to be a proof.
//!
//! A call may be omitted only if it was never answered. If the model does not know which of several
//! states a call led to (because it was never answered), all of them are followed.

use super::Model;
use crate::history::Call;

/// Whether executing the calls one after the other in this order gives the observed answers, at
/// times at which they can have been given.
pub(super) fn explains<M: Model>(model: &M, calls: &[&Call], order: &[usize]) -> bool {
    let mut placed = vec![false; calls.len()];
    let mut states = vec![model.initial()];
    let mut invoked = 0;
    let mut version = 0;
    for index in order {
        let (Some(call), Some(placed)) = (calls.get(*index), placed.get_mut(*index)) else {
            return false;
        };
        if std::mem::replace(placed, true) {
            return false;
        }
        // It must not have been answered before an earlier one in this order was invoked.
        invoked = call.invoked.max(invoked);
        if call.answer.as_ref().is_some_and(|(at, _)| *at < invoked) {
            return false;
        }
        if call.version.is_some_and(|named| named < version) {
            return false;
        }
        version = call.version.unwrap_or(version);
        states = states
            .iter()
            .flat_map(|state| model.apply(state, call))
            .collect();
        states.sort_unstable();
        states.dedup();
        if states.is_empty() {
            return false;
        }
    }
    let mut calls = calls.iter().zip(&placed);
    calls.all(|(call, placed)| *placed || call.answer.is_none())
}
