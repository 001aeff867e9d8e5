//! Fairness, credit and bounds.

use super::{Offer, Pool};
use crate::identity::{
    ConnectionId, Lane, Monotonic, PublicKey, RequestNumber, SessionId, Signature,
};
use crate::service::Credit;
use crate::wire::frame::Header;
use crate::wire::limits::{BATCH_REQUESTS_MAX, OPENS_PER_PRINCIPAL_MAX, OPENS_WAITING_MAX};
use crate::wire::message::{CloseSession, Message, OpenSession, Operation, Request};
use crate::wire::{Envelope, Unsigned};
use bytes::Bytes;
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
        operations: vec![Operation::Execute(Bytes::from(vec![0; bytes]))],
    }))
}

fn open(principal: u16, key: u16) -> Arc<Envelope> {
    let named = |number: u16| {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        PublicKey(bytes)
    };
    signed(Message::OpenSession(OpenSession {
        principal: named(principal),
        session_key: named(key),
        lanes: 1,
        nonce: 0,
    }))
}

fn pool(sessions: u64, credit: Credit) -> Pool {
    let mut pool = Pool::default();
    for id in 1..=sessions {
        pool.session_opened(SessionId(id), &PublicKey([id as u8; 32]), credit);
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
    let batch = pool.select();
    assert_eq!(sessions_of(&batch)[..3], [1, 2, 3]);
    assert_eq!(batch.len(), 66);
    batch.iter().for_each(|body| pool.settle(body));
    assert!(pool.is_empty() && pool.bytes() == 0 && pool.oldest().is_none());
}

#[test]
fn a_batch_is_bounded_and_the_next_one_goes_on_where_it_ended() {
    let sessions = BATCH_REQUESTS_MAX as u64 + 20;
    let mut pool = pool(sessions, WIDE);
    for id in 1..=sessions {
        pool.offer(&request(id, 0, 1, 1), None, NOW);
        pool.offer(&request(id, 1, 1, 1), None, NOW);
    }
    let first = pool.select();
    assert_eq!(first.len(), BATCH_REQUESTS_MAX);
    first.iter().for_each(|body| pool.settle(body));
    let second = sessions_of(&pool.select());
    let last = sessions_of(&first)[BATCH_REQUESTS_MAX - 1];
    assert_eq!(second[0], last + 1, "who was not served comes first");
}

#[test]
fn of_a_lane_only_the_smallest_number_is_chosen() {
    let mut pool = pool(1, WIDE);
    let (first, second) = (request(1, 0, 1, 1), request(1, 0, 2, 1));
    pool.offer(&second, None, NOW);
    pool.offer(&first, None, NOW);
    assert_eq!(
        pool.offer(&request(1, 0, 3, 1), None, NOW),
        Offer::Busy,
        "two in flight"
    );
    let batch = pool.select();
    assert_eq!(
        batch.iter().map(|body| body.digest()).collect::<Vec<_>>(),
        [first.digest()]
    );
    pool.settle(&first);
    assert_eq!(pool.select()[0].digest(), second.digest());
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
fn what_was_executed_takes_its_rivals_and_predecessors_with_it() {
    let mut pool = pool(1, WIDE);
    pool.offer(&request(1, 0, 1, 10), None, NOW);
    pool.offer(&request(1, 0, 2, 10), None, NOW);
    pool.settle(&request(1, 0, 2, 99));
    assert!(pool.is_empty());
    assert_eq!((pool.bytes(), pool.select().len()), (0, 0));
}

#[test]
fn what_was_passed_over_leaves_alone() {
    let mut pool = pool(1, WIDE);
    let (first, second) = (request(1, 0, 1, 10), request(1, 0, 2, 10));
    pool.offer(&second, None, NOW);
    pool.offer(&first, None, NOW);
    pool.withdraw(&second.digest());
    assert_eq!(pool.select()[0].digest(), first.digest());
    assert_eq!((pool.len(), pool.bytes()), (1, first.frame().len()));
}

#[test]
fn openings_have_a_room_of_their_own() {
    let mut pool = pool(1, WIDE);
    let mut taken = 0;
    for principal in 0..100 {
        for key in 0..OPENS_PER_PRINCIPAL_MAX as u16 + 1 {
            let offer = pool.offer(&open(principal, principal * 100 + key), None, NOW);
            taken += usize::from(offer == Offer::New);
        }
    }
    assert_eq!(taken, OPENS_WAITING_MAX);
    assert_eq!(pool.offer(&request(1, 0, 1, 1), None, NOW), Offer::New);
    assert!(sessions_of(&pool.select()).contains(&1));
}

#[test]
fn an_opened_session_inherits_who_waits_for_it() {
    let mut pool = Pool::default();
    let body = open(1, 2);
    pool.offer(&body, Some(ConnectionId(9)), NOW);
    let Message::OpenSession(opening) = body.message() else {
        panic!("it is one")
    };
    pool.session_opened(SessionId(4), &opening.session_key, WIDE);
    assert_eq!(pool.connections(SessionId(4)), [ConnectionId(9)]);
    assert!(pool.is_empty());
}

#[test]
fn closing_comes_after_what_the_session_still_waits_for() {
    let mut pool = pool(1, WIDE);
    let close = signed(Message::CloseSession(CloseSession {
        session: SessionId(1),
    }));
    pool.offer(&close, None, NOW);
    let body = request(1, 0, 1, 1);
    pool.offer(&body, None, NOW);
    assert_eq!(pool.select().len(), 1);
    pool.settle(&body);
    assert_eq!(pool.select()[0].digest(), close.digest());
    pool.session_closed(SessionId(1));
    assert!(pool.is_empty() && pool.bytes() == 0);
}
