//! Histories of a register: which are accepted, which are refused, and that neither a hint nor the
//! search's shortcuts change that.

use super::*;
use crate::history::OperationKind;
use bytes::Bytes;
use proptest::prelude::*;
use quorumfs_bft::identity::SessionId;

/// A register: `w` and a byte writes it, `a` and a byte adds to it, `d` doubles it, `r` reads it.
struct Register;

impl Model for Register {
    type State = u8;
    fn initial(&self) -> u8 {
        0
    }
    fn apply(&self, state: &u8, call: &Call) -> Vec<u8> {
        match (call.operation.as_ref(), &call.answer) {
            ([b'w', value], _) => vec![*value],
            ([b'a', value], _) => vec![state.wrapping_add(*value)],
            ([b'd'], _) => vec![state.wrapping_mul(2)],
            (_, Some((_, answer))) if answer.as_ref() != [*state] => vec![],
            _ => vec![*state],
        }
    }
}

fn write(value: u8, invoked: u64, answered: Option<u64>) -> Call {
    Call {
        client: 0,
        session: SessionId(1),
        kind: OperationKind::Execute,
        operation: Bytes::copy_from_slice(&[b'w', value]),
        invoked,
        answer: answered.map(|at| (at, Bytes::new())),
        version: None,
    }
}

fn read(value: u8, invoked: u64, answered: u64) -> Call {
    Call {
        client: 0,
        session: SessionId(1),
        kind: OperationKind::Query,
        operation: Bytes::from_static(b"r"),
        invoked,
        answer: Some((answered, Bytes::copy_from_slice(&[value]))),
        version: None,
    }
}

fn history(calls: &[Call], order: &[usize]) -> History {
    History {
        calls: calls.to_vec(),
        order: order.to_vec(),
        ..History::default()
    }
}

/// The verdict of the search without a useful hint.
fn verdict(calls: &[Call]) -> Result<(), Failure> {
    check(&Register, &history(calls, &[]))
}

#[test]
fn a_stale_read_is_detected() {
    assert!(verdict(&[write(1, 0, Some(1)), read(0, 2, 3)]).is_err());
    assert!(verdict(&[write(1, 0, Some(3)), read(0, 2, 4)]).is_ok());
}

#[test]
fn new_and_old_may_not_be_inverted() {
    let during = [write(1, 0, Some(100)), read(1, 1, 2), read(0, 3, 4)];
    assert!(verdict(&during).is_err());
}

#[test]
fn versions_that_contradict_the_answers_are_detected() {
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

/// Runs a register one call at a time and gives each call's instant some slack.
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
    fn a_sequential_history_is_always_accepted(
        script in prop::collection::vec(
            (any::<bool>(), 1_u8..4, any::<u8>(), any::<u8>()),
            0..60,
        )
    ) {
        prop_assert_eq!(verdict(&sequential(&script)), Ok(()));
    }

    #[test]
    fn a_value_that_was_never_written_is_always_detected(
        script in prop::collection::vec(
            (any::<bool>(), 1_u8..4, any::<u8>(), any::<u8>()),
            0..60,
        ),
        at in 0_u64..6000,
    ) {
        let mut calls = sequential(&script);
        calls.push(read(9, at, at + 50));
        prop_assert!(verdict(&calls).is_err());
    }

    /// The search skips orders that it need not try. Trying all of them gives the same verdict.
    #[test]
    fn skipped_orders_do_not_change_the_verdict(script in any_history()) {
        let calls = script;
        prop_assert_eq!(verdict(&calls).is_ok(), exhaustive_search(&calls));
    }

    /// A hint may be anything: it never changes the verdict.
    #[test]
    fn no_hint_changes_the_verdict(
        calls in any_history(),
        hint in prop::collection::vec(0_usize..8, 0..8),
    ) {
        let hinted = check(&Register, &history(&calls, &hint)).is_ok();
        prop_assert_eq!(hinted, exhaustive_search(&calls));
    }
}

/// A few overlapping calls, with any answers or none.
fn any_history() -> impl Strategy<Value = Vec<Call>> {
    let call = (0_u8..4, 0_u8..3, 0_u64..12, 0_u64..6, 0_u8..4);
    prop::collection::vec(call, 0..7).prop_map(|script| {
        let calls = script.iter();
        calls
            .map(|(what, value, invoked, length, fate)| {
                let answered = (*fate > 0).then_some(invoked + length);
                match what {
                    0 => write(*value, *invoked, answered),
                    1 => Call {
                        operation: Bytes::copy_from_slice(&[b'a', *value]),
                        ..write(*value, *invoked, answered)
                    },
                    _ => Call {
                        answer: answered.map(|at| (at, Bytes::copy_from_slice(&[*value]))),
                        ..read(*value, *invoked, 0)
                    },
                }
            })
            .collect()
    })
}

/// Tries every order of every choice of the calls, without any shortcut.
fn exhaustive_search(calls: &[Call]) -> bool {
    fn go(calls: &[Call], order: &mut Vec<usize>) -> bool {
        let all: Vec<&Call> = calls.iter().collect();
        if witness::explains(&Register, &all, order) {
            return true;
        }
        (0..calls.len()).any(|index| {
            if order.contains(&index) {
                return false;
            }
            order.push(index);
            let found = go(calls, order);
            order.pop();
            found
        })
    }
    go(calls, &mut Vec::new())
}

#[test]
fn a_true_hint_is_a_proof_and_a_false_one_is_none() {
    let (old, new) = (write(1, 0, Some(9)), write(2, 0, Some(9)));
    let calls = [old, new, read(2, 10, 11), read(0, 0, 1)];
    let all: Vec<&Call> = calls.iter().collect();
    let proves = |order: &[usize]| witness::explains(&Register, &all, order);
    assert!(proves(&[3, 0, 1, 2]));
    assert!(!proves(&[3, 1, 0, 2]), "the model refuses it");
    assert!(!proves(&[0, 1, 2]), "an answered call is missing");
    assert!(!proves(&[3, 0, 1, 2, 2]), "a call is done twice");
    assert!(!proves(&[3, 0, 1, 2, 7]), "a call that does not exist");
    let late = [write(1, 0, Some(1)), write(2, 5, Some(6)), read(1, 7, 8)];
    let late: Vec<&Call> = late.iter().collect();
    assert!(
        !witness::explains(&Register, &late, &[1, 0, 2]),
        "real time"
    );
}

#[test]
fn a_true_hint_decides_a_history_that_no_search_could() {
    // Forty writes with an unknown outcome, and reads that return one after the other.
    let mut calls: Vec<Call> = (1..=40).map(|value| write(value, 0, None)).collect();
    let reads = (1..=40).map(|value| {
        let at = 100 * u64::from(value);
        read(value, at, at + 1)
    });
    calls.extend(reads);
    let order: Vec<usize> = (0..40).flat_map(|value| [value, 40 + value]).collect();
    assert_eq!(check(&Register, &history(&calls, &order)), Ok(()));
    calls.push(read(41, 9000, 9001));
    assert!(check(&Register, &history(&calls, &order)).is_err());
}

#[test]
fn many_queries_that_overlap_are_decided_without_a_hint() {
    // Forty values are written during one long moment, and each is read twice meanwhile.
    let mut calls = Vec::new();
    for value in 1..=40 {
        let version = Some(u64::from(value));
        calls.push(Call {
            version,
            ..write(value, 0, Some(900))
        });
        calls.extend([read(value, 0, 900), read(value, 1, 901)]);
    }
    assert_eq!(verdict(&calls), Ok(()));
    calls.push(read(7, 902, 903));
    let refused = verdict(&calls);
    assert!(matches!(refused, Err(Failure::NotLinearizable { .. })));
}

#[test]
fn several_unanswered_calls_may_take_effect_one_after_the_other() {
    let add = |value| Call {
        operation: Bytes::copy_from_slice(&[b'a', value]),
        ..write(value, 0, None)
    };
    let calls = |sum| [add(1), add(2), add(4), read(0, 5, 6), read(sum, 7, 8)];
    for sum in 0..8 {
        assert_eq!(verdict(&calls(sum)), Ok(()));
    }
    assert!(verdict(&calls(8)).is_err());
    // A call that has taken effect cannot take effect again.
    let mut twice = calls(4).to_vec();
    twice.push(read(8, 9, 10));
    assert!(verdict(&twice).is_err());
}

#[test]
fn a_call_without_an_answer_may_have_to_come_before_one_with_an_answer() {
    let add = Call {
        operation: Bytes::from_static(b"a\x01"),
        ..write(0, 0, None)
    };
    let double = Call {
        operation: Bytes::from_static(b"d"),
        ..write(0, 5, Some(6))
    };
    let calls = |shown| {
        [
            add.clone(),
            write(1, 0, Some(1)),
            double.clone(),
            read(shown, 7, 8),
        ]
    };
    // Doubled without it, before it, and after it.
    for shown in [2, 3, 4] {
        assert_eq!(verdict(&calls(shown)), Ok(()));
    }
    assert!(verdict(&calls(5)).is_err());
}
