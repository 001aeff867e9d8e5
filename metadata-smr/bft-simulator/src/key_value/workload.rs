//! The operations and the judge of the key-value service.

use super::command::{Command, KeyValueAnswer, decode, encode};
use super::model::OneKey;
use super::service::KeyValue;
use crate::agenda::MILLISECOND;
use crate::history::{History, OperationKind};
use crate::linearizability::{check_by_key, check_sessions};
use crate::random::Random;
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use std::collections::BTreeMap;

/// How many keys are used: few, so that clients meet.
const KEYS: u64 = 6;

/// Random commands with unique tokens.
#[derive(Clone, Debug, Default)]
pub struct KeyValueWorkload {
    next_token: u64,
    last_seen: BTreeMap<u8, Option<u64>>,
    toggling: bool,
}

impl KeyValueWorkload {
    /// Mostly queries, of values that alternate: a replica that lags often shows a value that has
    /// become right again.
    #[must_use]
    pub fn toggling() -> Self {
        Self {
            toggling: true,
            ..Self::default()
        }
    }

    fn toggle(random: &mut Random) -> (OperationKind, Bytes) {
        let key = random.below(2) as u8;
        if random.chance(4, 5) {
            return (OperationKind::Query, encode(&Command::Get { key }));
        }
        let token = random.below(2);
        (OperationKind::Execute, encode(&Command::Put { key, token }))
    }
}

impl Workload for KeyValueWorkload {
    type Service = KeyValue;

    fn service(&self) -> KeyValue {
        KeyValue
    }

    fn genesis(&self, principals: &[PublicKey]) -> Bytes {
        let mut bytes = Vec::new();
        for principal in principals {
            bytes.extend_from_slice(&principal.0);
        }
        Bytes::from(bytes)
    }

    fn next(&mut self, _: usize, random: &mut Random) -> (OperationKind, Bytes) {
        if self.toggling {
            return Self::toggle(random);
        }
        let key = random.below(KEYS) as u8;
        self.next_token += 1;
        let token = self.next_token;
        let command = match random.below(20) {
            0..5 => return (OperationKind::Query, encode(&Command::Get { key })),
            5 => Command::Get { key },
            6..12 => Command::Append { key, token },
            12..14 => Command::Put { key, token },
            14..17 => Command::CompareAndSet {
                key,
                expected: self.last_seen.get(&key).copied().flatten(),
                token,
            },
            _ => Command::Lend {
                key,
                token,
                nanos: random.between(10, 600) * MILLISECOND,
            },
        };
        (OperationKind::Execute, encode(&command))
    }

    fn watches(&self) -> Vec<Bytes> {
        // A toggle may write the existing value, which changes nothing.
        let keys = if self.toggling { 0 } else { KEYS as u8 };
        (0..keys).map(|key| encode(&Command::Get { key })).collect()
    }

    fn answered(&mut self, _: usize, operation: &Bytes, answer: Option<&Bytes>) {
        let command = decode::<Command>(operation);
        let answer = answer.and_then(|answer| decode::<KeyValueAnswer>(answer));
        if let (Some(command), Some(answer)) = (command, answer) {
            self.last_seen
                .insert(command.key(), answer.list.last().copied());
        }
    }

    fn judge(&self, history: &History) -> Result<(), String> {
        check_by_key(&OneKey, history, |call| {
            decode::<Command>(&call.operation).map(|command| command.key())
        })
        .map_err(|failure| failure.to_string())
    }

    fn judge_sessions(&self, history: &History) -> Result<(), String> {
        check_sessions(&OneKey, history, |call| {
            decode::<Command>(&call.operation).map(|command| command.key())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Call;
    use quorumfs_bft::identity::{Sequence, SessionId, Time};
    use quorumfs_bft::service::{Caller, Context, Service as _};
    use quorumfs_bft::state::{Area, KeySpace, MemoryStore};

    /// Runs the service on its own, one call after the other; `spoil` may change an answer.
    fn run(
        seed: u64,
        spoil: impl Fn(usize, KeyValueAnswer) -> KeyValueAnswer,
    ) -> Result<(), String> {
        let mut random = Random::new(seed);
        let mut workload = KeyValueWorkload::default();
        let mut space = KeySpace::open(MemoryStore::new()).unwrap();
        let caller = Caller {
            session: SessionId(1),
            principal: PublicKey([0; 32]),
        };
        let mut history = History::default();
        let mut time = 1000;
        for index in 0..300 {
            time += random.between(1, 40) * MILLISECOND;
            let context = Context {
                sequence: Sequence(index as u64 + 1),
                time: Time(time),
                lease_clock: Time(time),
                behaviour_version: 1,
                short_of_space: false,
            };
            let (kind, operation) = workload.next(0, &mut random);
            let mut txn = space.begin(Area::Service, context.sequence);
            let due = KeyValue.next_deadline(&txn.view()).unwrap();
            if due.is_some_and(|due| due <= context.time) {
                KeyValue.tick(&mut txn, &context).unwrap();
            }
            let answer = match kind {
                OperationKind::Execute => KeyValue.execute(&mut txn, &context, &caller, &operation),
                _ => KeyValue.read_in_order(&txn.view(), &context, &caller, &operation),
            };
            txn.commit();
            let answer = encode(&spoil(index, decode(&answer.unwrap()).unwrap()));
            workload.answered(0, &operation, Some(&answer));
            history.calls.push(Call {
                client: 0,
                session: SessionId(1),
                kind,
                operation,
                invoked: time - 1,
                answer: Some((time, answer)),
                version: None,
            });
        }
        workload.judge(&history)
    }

    #[test]
    fn the_judge_accepts_the_service_run_alone() {
        for seed in 0..20 {
            run(seed, |_, answer| answer).unwrap();
        }
    }

    #[test]
    fn the_judge_finds_one_wrong_answer() {
        for seed in 0..20 {
            let verdict = run(seed, |index, mut answer| {
                if index == 150 {
                    answer.list.push(u64::MAX);
                }
                answer
            });
            assert!(verdict.is_err());
        }
    }
}
