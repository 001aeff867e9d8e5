//! Whether what sessions were shown moved forward.
//!
//! What a session reads may be old, but it is a state that was: somewhere in the order of
//! execution, at or behind everything that the session had been shown when it asked, and not behind
//! what had been executed when it was answered.

use super::Model;
use crate::history::{Call, History, OperationKind, SessionRead};
use std::collections::BTreeMap;

/// What an object may be after which batch.
type Line<S> = Vec<(u64, Vec<S>)>;

/// The states that a call leads to.
fn reached<M: Model>(model: &M, before: &[M::State], call: &Call) -> Vec<M::State> {
    let states = before.iter();
    states.flat_map(|state| model.apply(state, call)).collect()
}

/// Places every read of a session as early as it can be, which leaves the most room for the next.
///
/// # Errors
/// The first read that no state explains.
pub fn check_sessions<M: Model, K: Ord>(
    model: &M,
    history: &History,
    key: impl Fn(&Call) -> K,
) -> Result<(), String> {
    let mut states: BTreeMap<K, Line<M::State>> = BTreeMap::new();
    for (index, sequence) in history.order.iter().zip(&history.sequences) {
        let Some(call) = history
            .calls
            .get(*index)
            .filter(|it| it.kind == OperationKind::Execute)
        else {
            continue;
        };
        let line = states.entry(key(call)).or_default();
        let initial = vec![model.initial()];
        let before = line.last().map_or(&initial, |(_, states)| states);
        let mut after = reached(model, before, call);
        if after.is_empty() {
            // Of two calls that ask for the same in one batch the replicas do not say which is
            // which. What they do is the same, and what they were answered others judge.
            let unseen = Call {
                answer: None,
                ..call.clone()
            };
            after = reached(model, before, &unseen);
        }
        after.sort_unstable();
        after.dedup();
        line.push((*sequence, after));
    }
    let mut placed: Vec<(&SessionRead, u64)> = Vec::new();
    for read in &history.session_reads {
        let Some((answered, _)) = read.call.answer else {
            continue;
        };
        let own = placed.iter().filter(|(other, _)| {
            let before = other.call.answer.as_ref().map(|(at, _)| *at);
            other.call.client == read.call.client
                && other.session == read.session
                && before <= Some(read.call.invoked)
        });
        let floor = own.map(|(_, at)| *at).fold(read.floor, u64::max);
        let line = states.get(&key(&read.call)).map_or(&[][..], Vec::as_slice);
        let initial = [(0, vec![model.initial()])];
        let mut spans = initial.iter().chain(line).peekable();
        let mut place = None;
        while let Some((from, states)) = spans.next() {
            let until = spans.peek().map_or(u64::MAX, |(next, _)| *next);
            let at = floor.max(*from);
            let shows = |state| !model.apply(state, &read.call).is_empty();
            // What took its place in the order was answered in the midst of a batch.
            let within = read.call.version == Some(until) && at <= until;
            if (at < until || within) && at <= read.newest && states.iter().any(shows) {
                place = Some(at);
                break;
            }
        }
        match place {
            Some(at) => placed.push((read, at)),
            None => {
                return Err(format!(
                    "session: client {} was answered {:?} at {answered} though its session had \
                     been shown {floor} and {} was the newest: {:?}",
                    read.call.client, read.call.answer, read.newest, read.call.operation
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_value::command::{Answer, Command, encode};
    use crate::key_value::model::OneKey;

    fn call(command: &Command, list: &[u64], changed: bool) -> Call {
        let answer = Answer {
            time: Some(100),
            changed,
            list: list.to_vec(),
        };
        Call {
            client: 0,
            kind: OperationKind::Execute,
            operation: encode(command),
            invoked: 0,
            answer: Some((1, encode(&answer))),
            version: Some(5),
        }
    }

    /// One batch: a look at what is there, a change, and the same look again, which the replicas'
    /// order cannot tell from the first.
    #[test]
    fn calls_that_ask_for_the_same_in_one_batch_may_be_taken_for_each_other() {
        let (get, put) = (Command::Get { key: 0 }, Command::Put { key: 0, token: 7 });
        let judge = |shown: &[u64]| {
            let mut read = call(&get, shown, false);
            read.kind = OperationKind::Query;
            let later = SessionRead {
                call: read,
                session: 0,
                floor: 5,
                newest: 5,
            };
            let history = History {
                calls: vec![
                    call(&get, &[7], false),
                    call(&put, &[7], true),
                    call(&get, &[], false),
                ],
                order: vec![0, 1, 2],
                sequences: vec![5, 5, 5],
                session_reads: vec![later],
            };
            check_sessions(&OneKey, &history, |_| ())
        };
        assert_eq!(judge(&[7]), Ok(()));
        assert!(judge(&[8]).is_err());
    }
}
