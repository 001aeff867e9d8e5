//! The key-value service on a single machine, for one key.
//!
//! Answers carry the agreed time, so the model also checks that time never runs backwards from call
//! to call and that a lent value disappears exactly at the end of its time, no sooner and no later.
//! The time of an unanswered call is unknown, and the model follows both possibilities.

use super::command::{Command, KeyValueAnswer, decode};
use crate::history::Call;
use crate::linearizability::Model;

/// When a value expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// Never.
    Forever,
    /// At this agreed time.
    At(u64),
    /// At some time: the call that lent it was never answered.
    Unknown,
}

/// The value under a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    list: Vec<u64>,
    until: Until,
    time: u64,
}

/// One key of a key-value service.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneKey;

impl Cell {
    fn expired(&self) -> Self {
        Self {
            list: Vec::new(),
            until: Until::Forever,
            time: self.time,
        }
    }

    /// The possible values at agreed time `time`; none if that is before the last call.
    fn at(&self, time: Option<u64>) -> Vec<Self> {
        let mut now = self.clone();
        if let Some(time) = time {
            if time < self.time {
                return Vec::new();
            }
            now.time = time;
        }
        match (self.until, time) {
            (Until::Forever, _) => vec![now],
            (Until::At(until), Some(time)) if time < until => vec![now],
            (Until::At(_), Some(_)) => vec![now.expired()],
            (Until::At(_), None) | (Until::Unknown, _) => vec![now.expired(), now],
        }
    }

    fn after(&self, command: &Command, changed: Option<Vec<u64>>, time: Option<u64>) -> Self {
        let Some(list) = changed else {
            return self.clone();
        };
        let until = match (command, time) {
            (Command::Lend { nanos, .. }, Some(time)) => Until::At(time.saturating_add(*nanos)),
            (Command::Lend { .. }, None) => Until::Unknown,
            (Command::Append { .. }, _) => self.until,
            _ => Until::Forever,
        };
        Self {
            list,
            until,
            time: self.time,
        }
    }
}

impl Model for OneKey {
    type State = Cell;

    fn initial(&self) -> Cell {
        Cell {
            list: Vec::new(),
            until: Until::Forever,
            time: 0,
        }
    }

    fn apply(&self, cell: &Cell, call: &Call) -> Vec<Cell> {
        let Some(command) = decode::<Command>(&call.operation) else {
            return Vec::new();
        };
        let answer = match &call.answer {
            None => None,
            Some((_, bytes)) => match decode::<KeyValueAnswer>(bytes) {
                Some(answer) => Some(answer),
                None => return Vec::new(),
            },
        };
        let time = answer.as_ref().and_then(|answer| answer.time);
        let mut states = Vec::new();
        for before in cell.at(time) {
            let changed = command.change(&before.list);
            let flag = changed.is_some();
            let after = before.after(&command, changed, time);
            if answer
                .as_ref()
                .is_none_or(|answer| answer.changed == flag && answer.list == after.list)
            {
                states.push(after);
            }
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::encode;
    use super::*;
    use crate::history::OperationKind;
    use quorumfs_bft::identity::SessionId;

    fn call(command: &Command, answer: Option<(u64, bool, &[u64])>) -> Call {
        let answer = answer.map(|(time, changed, list)| {
            let list = list.to_vec();
            (
                0,
                encode(&KeyValueAnswer {
                    time: Some(time),
                    changed,
                    list,
                }),
            )
        });
        Call {
            client: 0,
            session: SessionId(1),
            kind: OperationKind::Execute,
            operation: encode(command),
            invoked: 0,
            answer,
            version: None,
        }
    }

    const GET: Command = Command::Get { key: 0 };
    const LEND: Command = Command::Lend {
        key: 0,
        token: 7,
        nanos: 10,
    };

    #[test]
    fn a_lent_value_is_there_until_its_time_and_not_at_it() {
        let model = OneKey;
        let lent = model.apply(&model.initial(), &call(&LEND, Some((100, true, &[7]))));
        assert_eq!(lent.len(), 1);
        let reads = |time, list: &[u64]| {
            let read = call(&GET, Some((time, false, list)));
            model.apply(&lent[0], &read).len()
        };
        assert_eq!((reads(109, &[7]), reads(109, &[])), (1, 0));
        assert_eq!((reads(110, &[7]), reads(110, &[])), (0, 1));
        assert_eq!(reads(99, &[7]), 0, "time runs backwards");
    }

    #[test]
    fn an_unanswered_loan_may_end_at_any_time() {
        let model = OneKey;
        let lent = model.apply(&model.initial(), &call(&LEND, None));
        assert_eq!(lent.len(), 1);
        for list in [&[7][..], &[]] {
            let after = model.apply(&lent[0], &call(&GET, Some((999, false, list))));
            assert_eq!(after.len(), 1);
        }
    }
}
