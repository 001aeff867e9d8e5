//! Whether the reads of each session moved forward.
//!
//! A session's read may be stale, but it must show a state that existed: somewhere in the order of
//! execution, at or after everything that the session had seen when it asked, and not after what
//! had been executed when it was answered.

use super::Model;
use crate::history::{Call, History, OperationKind, SessionRead};
use std::collections::BTreeMap;

/// The possible states of an object after each batch.
type StateTimeline<S> = Vec<(u64, Vec<S>)>;

/// The states that a call leads to.
fn reached<M: Model>(model: &M, before: &[M::State], call: &Call) -> Vec<M::State> {
    let states = before.iter();
    states.flat_map(|state| model.apply(state, call)).collect()
}

/// Places every read of a session as early as possible, which leaves the most freedom for the next.
///
/// # Errors
/// The first read that no state explains.
pub fn check_sessions<M: Model, K: Ord>(
    model: &M,
    history: &History,
    key: impl Fn(&Call) -> K,
) -> Result<(), String> {
    let mut states: BTreeMap<K, StateTimeline<M::State>> = BTreeMap::new();
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
            // Of two equal requests in one batch the replicas do not say which is which. Their
            // effect is the same, and their answers are judged elsewhere.
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
            // A read that became an ordered request was answered in the middle of a batch.
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
                     seen {floor} and {} was the newest: {:?}",
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
    use crate::key_value::command::{Command, KeyValueAnswer, encode};
    use crate::key_value::model::OneKey;
    use quorumfs_bft::identity::SessionId;

    fn call(command: &Command, list: &[u64], changed: bool) -> Call {
        let answer = KeyValueAnswer {
            time: Some(100),
            changed,
            list: list.to_vec(),
        };
        Call {
            client: 0,
            session: SessionId(1),
            kind: OperationKind::Execute,
            operation: encode(command),
            invoked: 0,
            answer: Some((1, encode(&answer))),
            version: Some(5),
        }
    }

    /// One batch: a read, a change, and the same read again, which the replicas' order cannot
    /// distinguish from the first.
    #[test]
    fn equal_calls_in_one_batch_may_be_exchanged() {
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
