//! Exactly-once execution, sessions and atomicity, against a service that counts.

mod session_cache;
mod watch;

use super::{Executed, Executor, Standing};
use crate::fault_model::FaultModel;
use crate::identity::{Digest, Lane, Nanos, PublicKey, RequestNumber, Sequence, SessionId, Time};
use crate::membership::Membership;
use crate::sabotage::{Planted, Sabotage};
use crate::service::{Caller, Context, Credit, Service};
use crate::state::{Area, KeySpace, MemoryStore, StateError, Txn, View};
use crate::wire::frame::Header;
use crate::wire::limits::{
    CREDIT_FLOOR, LANE_AHEAD_MAX, OPENING_RECENT, PRINCIPAL_CREDIT_BEYOND_FLOOR,
    PRINCIPAL_SESSIONS_MAX, RESULTS_BYTES_MAX, SESSION_IDLE, SESSION_TOUCH, WINDOW,
};
use crate::wire::message::{
    Batch, CloseSession, Message, OpenSession, Outcome, Request, RequestOperation,
};
use crate::wire::{Envelope, Unsigned};
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;

/// Counts executions; an operation is the length of the answer that it wants.
struct Counter;

fn number(view: &View<'_>, key: &[u8]) -> Result<u64, StateError> {
    let bytes = view.get(key)?.unwrap_or_default();
    Ok(bytes.as_ref().try_into().map_or(0, u64::from_be_bytes))
}

impl Service for Counter {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        txn.put(b"genesis", genesis.to_vec())
    }
    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        _: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        txn.put(b"last caller", caller.principal.0.to_vec())?;
        let welcome = caller.principal.0[0] != 0xff;
        Ok(welcome.then_some(Credit {
            lanes: 2,
            bytes: 1 << 20,
        }))
    }
    fn may_open(&self, _: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        Ok(principal.0[0] != 0xff)
    }
    fn close_session(&self, txn: &mut Txn<'_>, _: &Context, _: &Caller) -> Result<(), StateError> {
        let closed = number(&txn.view(), b"closed")?;
        txn.put(b"closed", (closed + 1).to_be_bytes().to_vec())
    }
    fn execute(
        &self,
        txn: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        let count = number(&txn.view(), b"count")? + 1;
        txn.put(b"count", count.to_be_bytes().to_vec())?;
        let length = operation.try_into().map_or(8, u32::from_be_bytes) as usize;
        let mut answer = count.to_be_bytes().to_vec();
        answer.resize(length.max(8), 0);
        Ok(Bytes::from(answer))
    }
    fn read(&self, view: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
        Ok(Bytes::copy_from_slice(
            &number(view, b"count")?.to_be_bytes(),
        ))
    }
    /// `m` repeated: as many prefixes. `no` and the empty string: refused. Any other string is a
    /// prefix.
    fn watch(
        &self,
        _: &View<'_>,
        _: &Caller,
        what: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        let what = Bytes::copy_from_slice(what);
        Ok(match what.first() {
            None => Some(Vec::new()),
            Some(b'n') => None,
            Some(b'm') => Some((0..what.len()).map(|at| what.slice(..at)).collect()),
            Some(_) => Some(vec![what]),
        })
    }
}

struct Bench {
    executor: Executor<Counter>,
    space: KeySpace<MemoryStore>,
    sequence: Sequence,
    time: Time,
}

fn signed(message: Message) -> Arc<Envelope> {
    let unsigned = Unsigned::new(Header::default(), message);
    let signature = crate::identity::Signature([7; 64]);
    Arc::clone(unsigned.with_signature(signature).envelope())
}

fn request(
    session: u64,
    lane: u16,
    number: u64,
    operations: Vec<RequestOperation>,
) -> Arc<Envelope> {
    signed(Message::Request(Request {
        session: SessionId(session),
        lane: Lane(lane),
        number: RequestNumber(number),
        operations,
    }))
}

fn execute(length: u32) -> Vec<RequestOperation> {
    vec![RequestOperation::Execute(Bytes::copy_from_slice(
        &length.to_be_bytes(),
    ))]
}

fn open(principal: u8, key: u8, time: u64) -> Arc<Envelope> {
    let (principal, session_key) = (PublicKey([principal; 32]), PublicKey([key; 32]));
    signed(Message::OpenSession(OpenSession {
        principal,
        session_key,
        lanes: 8,
        time: Time(time),
    }))
}

impl Bench {
    fn new() -> Self {
        let executor = Executor::new(Counter);
        let mut space = KeySpace::open(MemoryStore::new()).expect("empty");
        let model = FaultModel::new(1, 1, 4).expect("a valid model");
        let membership = Membership::unnamed(model);
        let genesis = executor.genesis(&mut space, b"g", &membership);
        genesis.expect("memory");
        Self {
            executor,
            space,
            sequence: Sequence(0),
            time: Time(1_000_000),
        }
    }

    fn after(&mut self, length: Nanos, bodies: &[Arc<Envelope>]) -> Executed {
        self.sequence = self.sequence.next();
        self.time = self.time.plus(length);
        let batch = Batch {
            sequence: self.sequence,
            time: self.time,
            previous: Digest::default(),
            behaviour_version: 1,
            tick: false,
            requests: bodies.iter().map(|body| body.digest()).collect(),
        };
        self.executor
            .execute(&mut self.space, &batch, bodies)
            .expect("memory")
    }

    fn run(&mut self, bodies: &[Arc<Envelope>]) -> Executed {
        self.after(Nanos::from_millis(1), bodies)
    }

    fn count(&self) -> u64 {
        number(&self.space.view(Area::Service), b"count").expect("memory")
    }

    fn open(&mut self, key: u8) -> u64 {
        let done = self.run(&[open(1, key, self.time.0)]);
        match done.replies.first().map(|reply| &reply.outcome) {
            Some(Outcome::SessionOpened { session, .. }) => session.0,
            other => panic!("the session should be open: {other:?}"),
        }
    }
}

fn results(done: &Executed) -> Vec<&Outcome> {
    done.replies.iter().map(|reply| &reply.outcome).collect()
}

#[test]
fn a_request_runs_once_and_a_retry_gets_the_same_answer() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    let body = request(id, 0, 1, execute(8));
    let first = bench.run(&[Arc::clone(&body), Arc::clone(&body)]);
    assert_eq!(
        first.replies[0], first.replies[1],
        "twice in one batch is once"
    );
    let again = bench.run(std::slice::from_ref(&body));
    assert_eq!(first.replies[0], again.replies[0], "the version too");
    assert_eq!((bench.count(), again.duplicates), (1, 1));
    let standing = bench
        .executor
        .standing(&bench.space, &body, bench.time)
        .expect("memory");
    assert_eq!(standing, Standing::Settled(first.replies[0].clone()));
}

#[test]
fn two_replies_of_a_lane_are_kept_and_older_ones_are_superseded() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    let bodies: Vec<_> = (1..=3)
        .map(|number| request(id, 1, number, execute(8)))
        .collect();
    bench.run(&bodies);
    let again = bench.run(&bodies);
    assert_eq!(results(&again)[0], &Outcome::Superseded);
    assert!(matches!(results(&again)[1], Outcome::Results(_)));
    assert!(matches!(results(&again)[2], Outcome::Results(_)));
    assert_eq!(bench.count(), 3);
}

#[test]
fn another_request_under_a_used_number_is_a_conflict_and_a_skipped_number_is_passed_over() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    let done = bench.run(&[
        request(id, 0, 1, execute(8)),
        request(id, 0, 1, execute(9)),
        request(id, 0, 3, execute(8)),
        request(id, 7, 1, execute(8)),
        request(id + 1, 0, 1, execute(8)),
    ]);
    let outcomes = results(&done);
    assert!(matches!(outcomes[0], Outcome::Results(_)));
    assert_eq!(
        outcomes[1..],
        [&Outcome::Conflict, &Outcome::Conflict, &Outcome::NoSession]
    );
    assert_eq!(bench.count(), 1);
}

#[test]
fn a_number_that_no_honest_client_has_reached_is_not_accepted() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    bench.run(&[request(id, 0, 1, execute(8))]);
    let standing = |number| {
        let body = request(id, 0, number, execute(8));
        bench.executor.standing(&bench.space, &body, bench.time)
    };
    for number in 2..=1 + LANE_AHEAD_MAX {
        assert_eq!(standing(number).expect("memory"), Standing::New);
    }
    for number in [2 + LANE_AHEAD_MAX, 1 << 60, u64::MAX] {
        assert_eq!(standing(number).expect("memory"), Standing::FarAhead);
    }
    let done = bench.run(&[request(id, 0, 1 << 60, execute(8))]);
    assert_eq!((done.skipped.len(), bench.count()), (1, 1));
}

#[test]
fn opening_a_session_again_finds_it_and_a_stranger_is_refused() {
    let mut bench = Bench::new();
    let id = bench.open(5);
    let done = bench.run(&[open(1, 5, 9), open(0xff, 6, 0)]);
    let outcomes = results(&done);
    assert!(matches!(outcomes[0], Outcome::SessionOpened { session, .. } if session.0 == id));
    assert_eq!(outcomes[1], &Outcome::SessionRefused);
    assert!(done.opened.is_empty());
    assert_eq!(
        bench.executor.sessions(&bench.space).expect("memory").len(),
        1
    );
}

#[test]
fn a_principal_that_would_be_refused_is_a_stranger() {
    let bench = Bench::new();
    let standing = |body: &Envelope| bench.executor.standing(&bench.space, body, bench.time);
    assert_eq!(standing(&open(1, 5, 0)).expect("memory"), Standing::New);
    let stranger = standing(&open(0xff, 5, 0)).expect("memory");
    assert_eq!(stranger, Standing::Stranger);
}

#[test]
fn a_principal_has_its_share_of_sessions_and_of_credit() {
    let mut bench = Bench::new();
    let opening = |key: u32| {
        let mut session_key = [0; 32];
        session_key[..4].copy_from_slice(&key.to_be_bytes());
        signed(Message::OpenSession(OpenSession {
            principal: PublicKey([1; 32]),
            session_key: PublicKey(session_key),
            lanes: 8,
            time: Time(0),
        }))
    };
    let most = PRINCIPAL_SESSIONS_MAX as u32;
    let bodies: Vec<_> = (0..=most).map(opening).collect();
    let done = bench.run(&bodies);
    assert_eq!(done.opened.len(), PRINCIPAL_SESSIONS_MAX);
    assert_eq!(results(&done)[most as usize], &Outcome::SessionRefused);
    assert_eq!(
        done.opened[0].credit.bytes,
        1 << 20,
        "the credit that was wanted"
    );
    let sum: u64 = done
        .opened
        .iter()
        .map(|it| u64::from(it.credit.bytes))
        .sum();
    let floors = u64::from(most) * u64::from(CREDIT_FLOOR);
    assert!(sum > floors && sum <= floors + PRINCIPAL_CREDIT_BEYOND_FLOOR);
    let other = bench.run(&[open(2, 5, 0)]);
    assert_eq!(other.opened[0].credit.bytes, 1 << 20, "others have theirs");
    // Released credit can be granted again, and no row remains.
    for opened in done.opened.iter().chain(&other.opened) {
        let session = opened.id;
        bench.run(&[signed(Message::CloseSession(CloseSession { session }))]);
    }
    let clock = bench.executor.applied(&bench.space).expect("memory");
    assert_eq!((clock.sessions_open, clock.beyond_floor), (0, 0));
    assert!(library_rows(&bench).iter().all(|(key, _)| key[0] != b'p'));
    assert_eq!(bench.run(&[opening(most)]).opened.len(), 1);
}

#[test]
fn an_opening_is_not_used_again_after_its_session_has_ended() {
    let mut bench = Bench::new();
    let signed_at = bench.time.0;
    let opening = open(1, 5, signed_at);
    let first = bench.run(std::slice::from_ref(&opening)).opened[0].id;
    bench.run(&[signed(Message::CloseSession(CloseSession {
        session: first,
    }))]);
    let second = Nanos::from_secs(1);
    let mut outcomes = Vec::new();
    for _ in 0..=OPENING_RECENT.0 / second.0 {
        let done = bench.after(second, std::slice::from_ref(&opening));
        assert!(done.opened.is_empty());
        let settled = bench.executor.standing(&bench.space, &opening, bench.time);
        outcomes.push(done.replies[0].outcome.clone());
        match settled.expect("memory") {
            Standing::Settled(reply) => assert_eq!(reply.outcome, Outcome::SessionClosed),
            standing => assert_eq!(standing, Standing::Stranger),
        }
    }
    assert_eq!(outcomes[0], Outcome::SessionClosed);
    let time = bench.time;
    assert_eq!(outcomes.last(), Some(&Outcome::SessionStale { time }));
    let clock = bench.executor.applied(&bench.space).expect("memory");
    assert_eq!(clock.remembered, 0);
    // Signed again with that time, it opens another one.
    assert_eq!(bench.run(&[open(1, 5, time.0)]).opened.len(), 1);
}

#[test]
fn an_opening_from_another_time_gets_the_agreed_one() {
    let mut bench = Bench::new();
    bench.after(Nanos::from_secs(3600), &[]);
    let now = bench.time.plus(Nanos::from_millis(1));
    let early = now.0 - OPENING_RECENT.0;
    let late = now.0 + OPENING_RECENT.0;
    let done = bench.run(&[open(1, 1, early - 1), open(1, 2, late + 1)]);
    let stale = Outcome::SessionStale { time: now };
    assert_eq!(results(&done), [&stale, &stale]);
    assert_eq!(
        bench
            .after(Nanos(0), &[open(1, 3, early), open(1, 4, late)])
            .opened
            .len(),
        2
    );
}

#[test]
fn no_principal_can_take_the_key_of_anothers_session() {
    let mut bench = Bench::new();
    // A principal that has seen the opening of principal 2 names its key and comes first.
    let done = bench.run(&[open(1, 5, 0), open(2, 5, 0)]);
    let opened: Vec<_> = done.opened.iter().map(|it| it.principal.0[0]).collect();
    assert_eq!(opened, [1, 2], "two sessions, each under its own number");
    let [first, second] = [0, 1].map(|index| done.opened[index].id);
    assert_ne!(first, second);
    // Both are found by their own opening, and the end of one leaves the other.
    bench.run(&[signed(Message::CloseSession(CloseSession {
        session: first,
    }))]);
    let again = bench.run(&[open(2, 5, 0)]);
    assert!(matches!(
        results(&again)[0],
        Outcome::SessionOpened { session, .. } if *session == second
    ));
}

#[test]
fn the_writes_of_a_refused_session_are_undone() {
    let mut bench = Bench::new();
    bench.open(5);
    let before = bench
        .space
        .view(Area::Service)
        .get(b"last caller")
        .expect("memory");
    bench.run(&[open(0xff, 6, 0)]);
    assert_eq!(
        bench
            .space
            .view(Area::Service)
            .get(b"last caller")
            .expect("memory"),
        before
    );
}

#[test]
fn a_request_that_ran_before_is_answered_and_is_not_new() {
    let mut bench = Bench::new();
    let id = bench.open(5);
    let one = request(id, 0, 1, execute(8));
    assert_eq!(bench.run(&[Arc::clone(&one)]).ran, 1);
    let again = bench.run(&[one, request(id, 0, 9, execute(8))]);
    assert_eq!(
        (again.ran, again.duplicates, again.skipped.len()),
        (0, 1, 1)
    );
}

#[test]
fn a_closed_session_leaves_no_row_and_its_number_is_not_used_again() {
    let mut bench = Bench::new();
    bench.run(&[]);
    let empty: Vec<_> = library_rows(&bench)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    let id = bench.open(5);
    bench.run(&[request(id, 0, 1, execute(8)), request(id, 1, 1, execute(8))]);
    let close = signed(Message::CloseSession(CloseSession {
        session: SessionId(id),
    }));
    let done = bench.run(&[Arc::clone(&close), close]);
    assert_eq!(
        results(&done),
        [&Outcome::SessionClosed, &Outcome::NoSession]
    );
    // Its key stays known while a batch may name it, and no longer.
    let closed_sessions = bench.executor.closed_sessions(&bench.space).unwrap();
    assert_eq!(closed_sessions.len(), 1);
    assert_eq!(closed_sessions[0].id, SessionId(id));
    let mut forgotten = Vec::new();
    for passed in 1..=WINDOW {
        assert!(forgotten.is_empty(), "after {passed} batches");
        forgotten = bench.run(&[]).forgotten;
    }
    assert_eq!(forgotten, [SessionId(id)]);
    // Only the used opening is left, until it is too old to be used again.
    bench.after(Nanos(2 * OPENING_RECENT.0), &[]);
    let left: Vec<_> = library_rows(&bench)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(left, empty);
    assert!(bench.open(5) > id);
}

fn library_rows(bench: &Bench) -> Vec<crate::state::Row> {
    let view = bench.space.view(Area::Library);
    view.scan(&[]..&[0xff], 100).expect("memory")
}

#[test]
fn an_idle_session_is_closed_and_a_busy_one_is_not() {
    let mut bench = Bench::new();
    let (idle, busy) = (bench.open(1), bench.open(2));
    let second = Nanos::from_secs(1);
    let mut number = 0;
    let mut closed = Vec::new();
    for passed in 0..=SESSION_IDLE.0 / second.0 {
        let bodies = if passed.is_multiple_of(SESSION_TOUCH.0 / second.0) {
            number += 1;
            vec![request(busy, 0, number, execute(8))]
        } else {
            Vec::new()
        };
        closed.extend(bench.after(second, &bodies).closed);
    }
    assert_eq!(closed, [SessionId(idle)]);
    assert_eq!(number_of(&bench, b"closed"), 1, "the service was notified");
}

/// Processes crash and leave their sessions open, and there are few requests.
#[test]
fn of_as_many_sessions_as_a_principal_may_have_the_longest_idle_one_gives_way() {
    let mut bench = Bench::new();
    let opening = |bench: &Bench, key: u32| {
        let mut session_key = [0; 32];
        session_key[..4].copy_from_slice(&key.to_be_bytes());
        signed(Message::OpenSession(OpenSession {
            principal: PublicKey([1; 32]),
            session_key: PublicKey(session_key),
            lanes: 1,
            time: bench.time,
        }))
    };
    let most = PRINCIPAL_SESSIONS_MAX as u32;
    let bodies: Vec<_> = (0..most).map(|key| opening(&bench, key)).collect();
    let opened = bench.run(&bodies).opened;
    let second = Nanos::from_secs(1);
    let touch = SESSION_TOUCH.0 / second.0;
    // The request itself takes one second more.
    for passed in 0..2 * touch - 2 {
        let refused = bench.after(second, &[opening(&bench, most)]);
        assert!(
            refused.opened.is_empty(),
            "after {passed} s no session is idle"
        );
        if passed == touch + 1 {
            bench.after(second, &[request(opened[0].id.0, 0, 1, execute(8))]);
        }
    }
    let done = bench.after(second, &[opening(&bench, most)]);
    assert_eq!(done.closed, [opened[1].id], "the first one was active");
    assert_eq!(done.opened.len(), 1);
}

fn number_of(bench: &Bench, key: &[u8]) -> u64 {
    number(&bench.space.view(Area::Service), key).expect("memory")
}

#[test]
fn an_answer_that_does_not_fit_leaves_no_trace() {
    let mut bench = Bench::new();
    let id = bench.open(1);
    let most = u32::try_from(RESULTS_BYTES_MAX).expect("small");
    let operations = [most - 8, 16, 8]
        .iter()
        .flat_map(|length| execute(*length))
        .collect();
    let done = bench.run(&[request(id, 0, 1, operations)]);
    let Outcome::Results(results) = &done.replies[0].outcome else {
        panic!("it ran");
    };
    assert_eq!(
        results.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true]
    );
    assert_eq!(
        bench.count(),
        2,
        "an operation without an answer did not count"
    );
}

#[test]
fn a_sabotaged_executor_runs_a_retry_twice() {
    let planted = Planted::new(Some(Sabotage::RetryExecutedTwice));
    let mut bench = Bench::new();
    bench.executor = Executor::new(Counter).sabotaged(planted, Sequence(0));
    let id = bench.open(1);
    let body = request(id, 0, 1, execute(8));
    bench.run(&[Arc::clone(&body), body]);
    assert_eq!(bench.count(), 2);
}

proptest! {
    /// In whatever order retries, reorderings and batches come, each number runs once and in order.
    #[test]
    fn each_number_runs_once_whatever_the_order_of_retries(
        deliveries in prop::collection::vec((0..2_u16, 1..6_u64), 0..60),
        cuts in prop::collection::vec(1..5_usize, 1..40),
    ) {
        let mut bench = Bench::new();
        let id = bench.open(1);
        let mut last = [0_u64; 2];
        let mut ran = 0;
        let mut rest = deliveries.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            rest = later;
            let bodies: Vec<_> =
                now.iter().map(|(lane, number)| request(id, *lane, *number, execute(8))).collect();
            bench.run(&bodies);
            for (lane, number) in now {
                let last = &mut last[usize::from(*lane)];
                if *number == *last + 1 { *last += 1; ran += 1; }
            }
            prop_assert_eq!(bench.count(), ran);
        }
    }
}
