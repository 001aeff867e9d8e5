//! Watches: the events of a batch, their watchers, and that they follow from the order alone.

use super::*;
use crate::observer::{WatchAnswer, WatchEvent, WatchId};
use crate::wire::limits::{WATCH_PREFIXES_MAX, WATCHES_PER_SESSION_MAX};

fn watch(session: u64, lane: u16, number: u64, what: &[u8]) -> Arc<Envelope> {
    let what = RequestOperation::Watch(Bytes::copy_from_slice(what));
    request(session, lane, number, vec![what])
}

fn unwatch(session: u64, lane: u16, number: u64, watch: u64) -> Arc<Envelope> {
    let operation = RequestOperation::Unwatch(WatchId(watch));
    request(session, lane, number, vec![operation])
}

fn count(session: u64, lane: u16, number: u64) -> Arc<Envelope> {
    request(session, lane, number, execute(8))
}

fn answers(done: &Executed) -> Vec<WatchAnswer> {
    let outcomes = results(done).into_iter();
    let answer = |outcome: &Outcome| match outcome {
        Outcome::Results(results) => WatchAnswer::decode(results[0].as_ref().unwrap()).unwrap(),
        other => panic!("{other:?}"),
    };
    outcomes.map(answer).collect()
}

fn event(session: u64, sequence: u64, previous: u64, watches: &[u64]) -> WatchEvent {
    WatchEvent {
        session: SessionId(session),
        sequence: Sequence(sequence),
        previous: Sequence(previous),
        watches: watches.iter().copied().map(WatchId).collect(),
    }
}

#[test]
fn a_change_makes_one_event_a_batch_for_each_session_with_its_predecessor() {
    let mut bench = Bench::new();
    let (one, two) = (bench.open(1), bench.open(2));
    let done = bench.run(&[watch(one, 0, 1, b"count"), watch(one, 1, 1, b"c")]);
    let answer = |watch, first| WatchAnswer::Watching {
        watch: WatchId(watch),
        first,
        last: Sequence(2),
    };
    assert_eq!(answers(&done), [answer(1, true), answer(2, false)]);
    assert_eq!(done.events, []);
    let done = bench.run(&[count(one, 0, 2), count(two, 0, 1), count(two, 0, 2)]);
    assert_eq!(done.events, [event(one, 4, 2, &[1, 2])]);
    bench.run(&[watch(two, 0, 3, b"closed"), watch(two, 1, 1, b"count")]);
    assert_eq!(bench.run(&[]).events, []);
    let done = bench.run(&[count(one, 0, 3)]);
    let expected = [event(one, 7, 4, &[1, 2]), event(two, 7, 4, &[4])];
    assert_eq!(done.events, expected);
    let session = SessionId(one);
    let last = bench.executor.last_event(&bench.space, session).unwrap();
    assert_eq!(last, Some(Sequence(7)));
}

#[test]
fn a_watch_is_notified_of_later_changes_in_its_own_batch() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    let done = bench.run(&[watch(id, 0, 1, b"count"), count(id, 1, 1)]);
    assert_eq!(done.events, [event(id, 2, 1, &[1])]);
}

#[test]
fn undone_and_private_changes_make_no_event() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    bench.run(&[watch(id, 0, 1, b"count")]);
    // A result that does not fit undoes the operation's writes.
    let too_long = request(id, 0, 2, execute(RESULTS_BYTES_MAX as u32 + 1));
    assert_eq!(bench.run(&[too_long]).events, []);
    let refused = [watch(id, 0, 3, b""), watch(id, 1, 1, b"no")];
    let done = bench.run(&refused);
    assert_eq!(answers(&done), [WatchAnswer::Refused; 2]);
    assert_eq!(done.events, []);
}

#[test]
fn a_watch_ends_by_its_owners_wish_or_with_its_session() {
    let mut bench = Bench::new();
    let (one, two) = (bench.open(1), bench.open(2));
    bench.run(&[watch(one, 0, 1, b"count"), watch(two, 0, 1, b"count")]);
    let done = bench.run(&[unwatch(two, 0, 2, 1), unwatch(one, 0, 2, 1)]);
    assert_eq!(answers(&done), [WatchAnswer::Unknown, WatchAnswer::Ended]);
    assert_eq!(bench.run(&[count(one, 0, 3)]).events.len(), 1);
    let close = signed(Message::CloseSession(CloseSession {
        session: SessionId(two),
    }));
    bench.run(&[close]);
    assert_eq!(bench.run(&[count(one, 0, 4)]).events, []);
    assert_eq!(bench.executor.applied(&bench.space).unwrap().watches, 0);
    // A later watch is another one, and its chain begins there.
    let done = bench.run(&[watch(one, 0, 5, b"count"), count(one, 1, 1)]);
    assert_eq!(done.events, [event(one, 8, 7, &[3])]);
}

#[test]
fn the_number_of_watches_is_bounded() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    let mut number = 0;
    for _ in 0..WATCHES_PER_SESSION_MAX {
        number += 1;
        let done = bench.run(&[watch(id, 0, number, b"count")]);
        assert!(matches!(answers(&done)[0], WatchAnswer::Watching { .. }));
    }
    let done = bench.run(&[watch(id, 0, number + 1, b"count")]);
    assert_eq!(answers(&done), [WatchAnswer::TooMany]);
    let done = bench.run(&[count(id, 1, 1)]);
    assert_eq!(done.events[0].watches.len(), WATCHES_PER_SESSION_MAX);
}

#[test]
fn events_follow_from_the_rows_and_not_from_the_executor() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    bench.run(&[watch(id, 0, 1, b"count"), watch(id, 1, 1, b"closed")]);
    bench.run(&[count(id, 0, 2)]);
    for (number, replace) in (3..).zip([false, true]) {
        bench.executor.settle(&mut bench.space).unwrap();
        match replace {
            false => bench.executor = Executor::new(Counter),
            true => bench.executor.state_replaced(),
        }
        let done = bench.run(&[count(id, 0, number)]);
        assert_eq!(done.events, [event(id, number + 1, number, &[1])]);
    }
}

#[test]
fn without_watches_no_change_is_noted() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    bench.run(&[count(id, 0, 1)]);
    bench.run(&[watch(id, 0, 2, b"count"), unwatch(id, 0, 3, 1)]);
    bench.run(&[count(id, 0, 4)]);
    assert!(bench.space.take_changes().is_empty());
    let mut txn = bench.space.begin(Area::Service, bench.sequence);
    txn.put(b"count", Bytes::new()).unwrap();
    txn.commit();
    assert!(bench.space.take_changes().is_empty());
}

#[test]
fn the_number_of_prefixes_is_bounded() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    for (number, count) in (1..).zip([WATCH_PREFIXES_MAX, WATCH_PREFIXES_MAX + 1]) {
        let done = bench.run(&[watch(id, 0, number, &vec![b'm'; count])]);
        let allowed = matches!(answers(&done)[0], WatchAnswer::Watching { .. });
        assert_eq!(allowed, count <= WATCH_PREFIXES_MAX, "{count}");
    }
}
