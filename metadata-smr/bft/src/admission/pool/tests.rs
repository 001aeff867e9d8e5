//! Fairness, credit and bounds.

mod forwarded;

use super::{Offer, Pool};
use crate::execution::Opened;
use crate::identity::{
    ConnectionId, Lane, Monotonic, PublicKey, RequestNumber, Sequence, SessionId, Signature, Time,
};
use crate::service::Credit;
use crate::wire::frame::Header;
use crate::wire::limits::{
    BATCH_BYTES_MAX, BATCH_OPENS_MAX, BATCH_REQUESTS_MAX, CREDIT_FLOOR, LANE_AHEAD_MAX,
    OPENS_PER_PRINCIPAL_MAX, OPENS_STRANGERS_MAX, OPENS_WAITING_MAX, REQUEST_BYTES_MAX,
    STRANGER_INTERVAL, WINDOW,
};
use crate::wire::message::{CloseSession, Message, OpenSession, Request, RequestOperation};
use crate::wire::{Envelope, Unsigned};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn signed(message: Message) -> Arc<Envelope> {
    let unsigned = Unsigned::new(Header::default(), message);
    Arc::clone(unsigned.with_signature(Signature([7; 64])).envelope())
}

fn request(session: u64, lane: u16, number: u64, bytes: usize) -> Arc<Envelope> {
    signed(Message::Request(Request {
        session: SessionId(session),
        lane: Lane(lane),
        number: RequestNumber(number),
        operations: vec![RequestOperation::Execute(Bytes::from(vec![0; bytes]))],
    }))
}

fn named(number: u16) -> PublicKey {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    PublicKey(bytes)
}

fn opened(id: u64, principal: u16, key: u16, credit: Credit) -> Opened {
    Opened {
        id: SessionId(id),
        key: named(key),
        principal: named(principal),
        credit,
    }
}

fn open(principal: u16, key: u16) -> Arc<Envelope> {
    signed(Message::OpenSession(OpenSession {
        principal: named(principal),
        session_key: named(key),
        lanes: 1,
        time: Time(0),
    }))
}

fn pool(sessions: u64, credit: Credit) -> Pool {
    let mut pool = Pool::default();
    for id in 1..=sessions {
        pool.session_opened(&opened(id, id as u16, id as u16, credit));
    }
    pool
}

const NOW: Monotonic = Monotonic(1);
const WIDE: Credit = Credit {
    lanes: 64,
    bytes: 1 << 20,
};

fn sessions_of(batch: &[Arc<Envelope>]) -> Vec<u64> {
    let session = |body: &Arc<Envelope>| match body.message() {
        Message::Request(request) => request.session.0,
        _ => 0,
    };
    batch.iter().map(session).collect()
}

#[test]
fn sessions_are_served_in_turn_however_much_one_of_them_sends() {
    let mut pool = pool(3, WIDE);
    for lane in 0..64 {
        assert_eq!(pool.offer(&request(1, lane, 1, 1), None, NOW), Offer::New);
    }
    pool.offer(&request(2, 0, 1, 1), None, NOW);
    pool.offer(&request(3, 0, 1, 1), None, NOW);
    let batch = pool.select(NOW);
    assert_eq!(sessions_of(&batch)[..3], [1, 2, 3]);
    assert_eq!(batch.len(), 66);
    batch.iter().for_each(|body| pool.settle(body));
    assert!(pool.is_empty() && pool.bytes() == 0 && pool.oldest_ready().is_none());
}

#[test]
fn a_batch_is_bounded_and_the_next_one_goes_on_where_it_ended() {
    let sessions = BATCH_REQUESTS_MAX as u64 + 20;
    let mut pool = pool(sessions, WIDE);
    for id in 1..=sessions {
        pool.offer(&request(id, 0, 1, 1), None, NOW);
        pool.offer(&request(id, 1, 1, 1), None, NOW);
    }
    let first = pool.select(NOW);
    assert_eq!(first.len(), BATCH_REQUESTS_MAX);
    first.iter().for_each(|body| pool.settle(body));
    let second = sessions_of(&pool.select(NOW));
    let last = sessions_of(&first)[BATCH_REQUESTS_MAX - 1];
    assert_eq!(
        second[0],
        last + 1,
        "a session that was not served comes first"
    );
}

#[test]
fn every_session_is_served_within_a_round_however_much_others_send() {
    // Ten sessions refill all their 64 lanes after every batch, 1,000 have one request each.
    let mut pool = pool(1_010, WIDE);
    let mut number = 0;
    let mut refill = |pool: &mut Pool| {
        number += 1;
        for (id, lane) in (1..=10).flat_map(|id| (0..64).map(move |lane| (id, lane))) {
            pool.offer(&request(id, lane, number, 1), None, NOW);
        }
    };
    refill(&mut pool);
    (11..=1_010).for_each(|id| {
        pool.offer(&request(id, 0, 1, 1), None, NOW);
    });
    let mut batches = 0;
    let mut waiting: BTreeSet<u64> = (11..=1_010).collect();
    let mut heavy = BTreeMap::new();
    while !waiting.is_empty() {
        batches += 1;
        let batch = pool.select(NOW);
        assert_eq!(batch.len(), BATCH_REQUESTS_MAX);
        for id in sessions_of(&batch) {
            waiting.remove(&id);
            if id <= 10 {
                *heavy.entry(id).or_insert(0) += 1;
            }
        }
        batch.iter().for_each(|body| pool.settle(body));
        refill(&mut pool);
    }
    assert_eq!(batches, 2, "1,010 sessions, 512 in a batch");
    let (least, most) = (heavy.values().min(), heavy.values().max());
    assert!(most.unwrap() - least.unwrap() <= 1, "{heavy:?}");
}

#[test]
fn lanes_of_a_session_are_served_in_turn() {
    let mut pool = pool(
        1,
        Credit {
            lanes: 64,
            bytes: 64 << 20,
        },
    );
    let long = REQUEST_BYTES_MAX - 200;
    let lanes = 3 * (BATCH_BYTES_MAX / long) as u16;
    (0..lanes).for_each(|lane| {
        pool.offer(&request(1, lane, 1, long), None, NOW);
    });
    let mut seen = Vec::new();
    for number in 2..=4 {
        let batch = pool.select(NOW);
        for body in &batch {
            let Message::Request(chosen) = body.message() else {
                panic!("not a request");
            };
            seen.push(chosen.lane.0);
            pool.settle(body);
            // The lane continues at once.
            let next = request(1, chosen.lane.0, number, long);
            assert_eq!(pool.offer(&next, None, NOW), Offer::New);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), usize::from(lanes), "each was served once");
}

#[test]
fn a_request_that_was_never_decided_is_chosen_again_in_the_next_view() {
    let mut pool = pool(4, WIDE);
    (1..=3).for_each(|id| {
        pool.offer(&request(id, 0, 1, 1), None, NOW);
    });
    let close = signed(Message::CloseSession(CloseSession {
        session: SessionId(4),
    }));
    pool.offer(&close, None, NOW);
    pool.offer(&open(1, 77), None, NOW);
    for _ in 0..3 {
        assert_eq!(pool.select(NOW).len(), 5);
        assert!(pool.select(NOW).is_empty() && pool.oldest_ready().is_none());
        assert!(!pool.is_empty(), "it still has to be decided");
        pool.release_proposed();
        assert_eq!(pool.oldest_ready(), Some(NOW));
    }
    pool.session_closed(SessionId(2), Sequence(1));
    pool.withdraw(&request(3, 0, 1, 1).digest());
    pool.session_closed(SessionId(4), Sequence(1));
    pool.settle(&open(1, 77));
    assert_eq!(sessions_of(&pool.select(NOW)), [1]);
}

#[test]
fn a_lane_continues_in_the_next_batch_while_its_last_request_is_proposed() {
    let credit = Credit {
        lanes: 1,
        bytes: 4_000,
    };
    let mut pool = pool(1, credit);
    let numbered = |number| request(1, 0, number, 1_000);
    assert_eq!(pool.offer(&numbered(1), None, NOW), Offer::New);
    assert_eq!(pool.select(NOW).len(), 1);
    assert_eq!(pool.offer(&numbered(1), None, NOW), Offer::Known);
    assert_eq!(
        pool.offer(&request(1, 0, 1, 1), None, NOW),
        Offer::Conflict,
        "a proposed request keeps its number"
    );
    assert_eq!(pool.offer(&numbered(2), None, NOW), Offer::New);
    assert_eq!(pool.select(NOW)[0].digest(), numbered(2).digest());
    assert_eq!(pool.offer(&numbered(3), None, NOW), Offer::New);
    assert_eq!(
        pool.offer(&numbered(4), None, NOW),
        Offer::Busy,
        "a proposed request counts against the credit"
    );
    pool.settle(&numbered(2));
    assert_eq!((pool.len(), pool.bytes()), (1, numbered(3).frame().len()));
    assert_eq!(pool.select(NOW)[0].digest(), numbered(3).digest());
    pool.settle(&numbered(3));
    assert!(pool.is_empty() && pool.bytes() == 0);
}

#[test]
fn a_session_that_has_ended_may_be_named_for_one_window() {
    let mut pool = pool(2, WIDE);
    pool.session_closed(SessionId(1), Sequence(10));
    let last = 10 + WINDOW as u64 - 1;
    assert!(pool.admits(SessionId(1), Sequence(last)));
    assert!(!pool.admits(SessionId(1), Sequence(last + 1)));
    assert!(pool.admits(SessionId(2), Sequence(last + 1)));
    pool.session_forgotten(SessionId(1));
    assert!(!pool.admits(SessionId(1), Sequence(11)));
}

#[test]
fn of_a_lane_only_the_smallest_number_is_chosen() {
    let mut pool = pool(1, WIDE);
    let (first, second) = (request(1, 0, 1, 1), request(1, 0, 2, 1));
    pool.offer(&second, None, NOW);
    pool.offer(&first, None, NOW);
    let batch = pool.select(NOW);
    assert_eq!(
        batch.iter().map(|body| body.digest()).collect::<Vec<_>>(),
        [first.digest()]
    );
    pool.settle(&first);
    assert_eq!(pool.select(NOW)[0].digest(), second.digest());
}

#[test]
fn beyond_its_credit_a_session_is_busy_and_within_it_never() {
    let mut pool = pool(
        1,
        Credit {
            lanes: 8,
            bytes: 4_000,
        },
    );
    assert_eq!(pool.offer(&request(1, 0, 1, 1_500), None, NOW), Offer::New);
    assert_eq!(pool.offer(&request(1, 1, 1, 1_500), None, NOW), Offer::New);
    assert_eq!(pool.offer(&request(1, 2, 1, 1_500), None, NOW), Offer::Busy);
    assert_eq!(
        pool.offer(&request(1, 8, 1, 1), None, NOW),
        Offer::NoSession,
        "no such lane"
    );
    assert_eq!(
        pool.offer(&request(2, 0, 1, 1), None, NOW),
        Offer::NoSession
    );
    pool.settle(&request(1, 0, 1, 1_500));
    assert_eq!(pool.offer(&request(1, 2, 1, 1_500), None, NOW), Offer::New);
}

#[test]
fn numbers_far_ahead_give_way_to_those_that_can_run_before_them() {
    let credit = Credit {
        lanes: 8,
        bytes: 4_000,
    };
    let mut pool = pool(1, credit);
    for number in (2..=5).rev() {
        let far = request(1, 0, number << 40, 1);
        assert_eq!(pool.offer(&far, None, NOW), Offer::New);
    }
    let further = request(1, 0, 6 << 40, 1);
    assert_eq!(pool.offer(&further, None, NOW), Offer::Busy);
    let next = request(1, 0, 1, 1);
    assert_eq!(pool.offer(&next, None, NOW), Offer::New, "one gives way");
    assert_eq!(pool.len() as u64, LANE_AHEAD_MAX);
    let large = request(1, 0, 2, 3_700);
    assert_eq!(pool.offer(&large, None, NOW), Offer::New, "others do");
    assert_eq!(pool.len(), 2, "a request that runs before it stays");
    let elsewhere = request(1, 1, 1, 1_000);
    assert_eq!(pool.offer(&elsewhere, None, NOW), Offer::Busy);
    assert_eq!(
        pool.len(),
        2,
        "and so does one whose removal frees no space"
    );
    pool.settle(&next);
    pool.settle(&large);
    assert!(pool.is_empty() && pool.bytes() == 0);
}

#[test]
fn no_session_within_its_credit_is_busy_because_of_others() {
    let credit = Credit {
        lanes: 1,
        bytes: CREDIT_FLOOR,
    };
    let mut pool = pool(140, credit);
    for id in 1..=140 {
        let longest = request(id, 0, 1, REQUEST_BYTES_MAX - 200);
        assert_eq!(pool.offer(&longest, None, NOW), Offer::New, "session {id}");
    }
}

#[test]
fn the_same_again_is_known_and_another_under_its_number_a_conflict() {
    let mut pool = pool(1, WIDE);
    let body = request(1, 0, 1, 10);
    assert_eq!(pool.offer(&body, Some(ConnectionId(1)), NOW), Offer::New);
    assert_eq!(pool.offer(&body, Some(ConnectionId(2)), NOW), Offer::Known);
    assert_eq!(
        pool.offer(&request(1, 0, 1, 11), Some(ConnectionId(3)), NOW),
        Offer::Conflict
    );
    assert_eq!(
        pool.connections(SessionId(1)),
        [ConnectionId(2), ConnectionId(3)]
    );
    pool.disconnected(ConnectionId(2));
    assert_eq!(pool.connections(SessionId(1)), [ConnectionId(3)]);
    assert_eq!(pool.len(), 1);
}

#[test]
fn an_executed_request_removes_its_rivals_and_predecessors() {
    let mut pool = pool(1, WIDE);
    pool.offer(&request(1, 0, 1, 10), None, NOW);
    pool.offer(&request(1, 0, 2, 10), None, NOW);
    pool.settle(&request(1, 0, 2, 99));
    assert!(pool.is_empty());
    assert_eq!((pool.bytes(), pool.select(NOW).len()), (0, 0));
}

#[test]
fn a_request_that_was_passed_over_is_removed_alone() {
    let mut pool = pool(1, WIDE);
    let (first, second) = (request(1, 0, 1, 10), request(1, 0, 2, 10));
    pool.offer(&second, None, NOW);
    pool.offer(&first, None, NOW);
    pool.withdraw(&second.digest());
    assert_eq!(pool.select(NOW)[0].digest(), first.digest());
    assert_eq!((pool.len(), pool.bytes()), (1, first.frame().len()));
}

fn principals_of(batch: &[Arc<Envelope>]) -> Vec<PublicKey> {
    let principal = |body: &Arc<Envelope>| match body.message() {
        Message::OpenSession(open) => Some(open.principal),
        _ => None,
    };
    batch.iter().filter_map(principal).collect()
}

#[test]
fn openings_have_a_capacity_of_their_own_that_principals_share() {
    let mut pool = pool(1, WIDE);
    let crowd = (OPENS_WAITING_MAX / OPENS_PER_PRINCIPAL_MAX) as u16;
    for principal in 1..=crowd {
        for key in 0..OPENS_PER_PRINCIPAL_MAX as u16 {
            let offer = pool.offer(&open(principal, key), None, NOW);
            assert_eq!(offer, Offer::New);
        }
        assert_eq!(pool.offer(&open(principal, 99), None, NOW), Offer::Busy);
    }
    // The capacity is used up, and still a principal that has no place gets one.
    assert_eq!(pool.offer(&open(500, 1), None, NOW), Offer::New);
    assert_eq!(pool.len(), OPENS_WAITING_MAX);
    assert_eq!(pool.offer(&request(1, 0, 1, 1), None, NOW), Offer::New);
    assert!(sessions_of(&pool.select(NOW)).contains(&1));
}

#[test]
fn principals_are_let_in_in_turn_whatever_keys_they_name() {
    let mut pool = Pool::default();
    // An honest opening waits while 20 others keep their places full, always with smaller keys.
    let mut rounds = 0;
    for principal in 1..=20 {
        (0..3).for_each(|key| {
            pool.offer(&open(principal, key), None, NOW);
        });
    }
    pool.offer(&open(60_000, 60_000), None, NOW);
    loop {
        rounds += 1;
        let batch = pool.select(NOW);
        assert_eq!(batch.len(), BATCH_OPENS_MAX);
        if principals_of(&batch).contains(&named(60_000)) {
            break;
        }
        for body in &batch {
            pool.settle(body);
        }
        for principal in 1..=20 {
            pool.offer(&open(principal, 100 + rounds), None, NOW);
        }
    }
    assert_eq!(rounds, 2, "21 principals, 16 in a batch");
}

#[test]
fn strangers_wait_at_their_own_pace_and_delay_no_others() {
    let mut pool = Pool::default();
    let taken = (0..100)
        .filter(|key| pool.offer_stranger(&open(1_000 + key, *key), None, NOW) == Offer::New);
    assert_eq!(taken.count(), OPENS_STRANGERS_MAX);
    assert!(
        pool.is_empty() && pool.oldest_ready().is_none(),
        "a leader need not order strangers"
    );
    assert_eq!(pool.offer(&open(1, 1), None, NOW), Offer::New);
    let batch = pool.select(NOW);
    assert_eq!(principals_of(&batch), [named(1), named(1_000)]);
    batch.iter().for_each(|body| pool.settle(body));
    assert!(pool.select(NOW).is_empty(), "one at a time");
    let later = Monotonic(NOW.0 + STRANGER_INTERVAL.0);
    assert_eq!(principals_of(&pool.select(later)), [named(1_001)]);
    // A principal that has become known meanwhile waits no longer.
    assert_eq!(pool.offer(&open(1_005, 5), None, NOW), Offer::New);
    assert_eq!(principals_of(&pool.select(later)), [named(1_005)]);
    assert!(!pool.is_empty());
}

#[test]
fn an_opened_session_inherits_the_waiting_connections() {
    let mut pool = Pool::default();
    let body = open(1, 2);
    pool.offer(&body, Some(ConnectionId(9)), NOW);
    let squatter = open(3, 2);
    let offer = pool.offer(&squatter, Some(ConnectionId(8)), NOW);
    assert_eq!(offer, Offer::New, "the same key of another principal");
    pool.session_opened(&opened(3, 3, 2, WIDE));
    assert_eq!(pool.connections(SessionId(3)), [ConnectionId(8)]);
    pool.session_opened(&opened(4, 1, 2, WIDE));
    assert_eq!(pool.connections(SessionId(4)), [ConnectionId(9)]);
    assert!(pool.is_empty());
}

#[test]
fn closing_comes_after_the_pending_requests_of_the_session() {
    let mut pool = pool(1, WIDE);
    let close = signed(Message::CloseSession(CloseSession {
        session: SessionId(1),
    }));
    pool.offer(&close, None, NOW);
    let body = request(1, 0, 1, 1);
    pool.offer(&body, None, NOW);
    assert_eq!(pool.select(NOW).len(), 1);
    pool.settle(&body);
    assert_eq!(pool.select(NOW)[0].digest(), close.digest());
    pool.session_closed(SessionId(1), Sequence(1));
    assert!(pool.is_empty() && pool.bytes() == 0);
}
