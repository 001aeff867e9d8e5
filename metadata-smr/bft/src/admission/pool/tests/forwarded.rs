//! Requests that peers forward.

use super::{NOW, WIDE, open, pool, request, sessions_of};
use crate::admission::pool::{Offer, Pool};
use crate::identity::{Monotonic, ReplicaId};
use crate::service::Credit;
use crate::wire::limits::{FORWARDED_BYTES_MAX, STRANGER_INTERVAL};
use std::collections::BTreeSet;

#[test]
fn a_forwarded_request_has_its_own_place_and_takes_its_sessions_turn() {
    let credit = Credit {
        lanes: 4,
        bytes: 600 << 10,
    };
    let mut pool = pool(2, credit);
    let (own, other) = (request(1, 0, 1, 500 << 10), request(2, 0, 1, 10));
    let forwarded = request(1, 1, 1, 200 << 10);
    let contradiction = request(1, 0, 1, 300 << 10);
    let (peer, another) = (ReplicaId(3), ReplicaId(2));
    assert_eq!(pool.offer(&own, None, NOW), Offer::New);
    assert_eq!(pool.offer(&other, None, NOW), Offer::New);
    assert_eq!(pool.offer(&forwarded, None, NOW), Offer::Busy);
    assert_eq!(pool.offer_forwarded(&forwarded, peer, NOW), Offer::New);
    assert_eq!(pool.offer_forwarded(&forwarded, another, NOW), Offer::Known);
    assert_eq!(pool.offer(&contradiction, None, NOW), Offer::Conflict);
    assert_eq!(
        pool.offer_forwarded(&contradiction, another, NOW),
        Offer::New
    );
    let bytes = pool.bytes();
    // Another one that the same peer forwards in the same session replaces it.
    let later = request(1, 2, 1, 200 << 10);
    assert_eq!(pool.offer_forwarded(&later, peer, NOW), Offer::New);
    assert_eq!((pool.bytes(), pool.len()), (bytes, 4));
    // One of them in each batch, in its session's turn.
    let mut batches = || {
        let batch = pool.select(NOW);
        let digests: Vec<_> = batch.iter().map(|body| body.digest()).collect();
        (sessions_of(&batch), digests)
    };
    assert_eq!(
        batches(),
        (vec![1, 2], vec![contradiction.digest(), other.digest()])
    );
    assert_eq!(batches().1, [later.digest()]);
    assert_eq!(batches().1, [own.digest()]);
    assert!(batches().1.is_empty());
    pool.release_proposed();
    assert_eq!(pool.select(NOW).len(), 2);
    pool.settle(&own);
    assert!(pool.get(contradiction.digest_ref()).is_none());
    pool.withdraw(later.digest_ref());
    pool.settle(&other);
    assert_eq!((pool.bytes(), pool.len()), (0, 0));
}

#[test]
fn forwarded_requests_are_bounded_for_each_peer_and_end_with_the_view() {
    let credit = Credit { lanes: 4, bytes: 0 };
    let mut pool = pool(64, credit);
    let length = 400 << 10;
    let bodies: Vec<_> = (1..=64).map(|id| request(id, 0, 1, length)).collect();
    let offer_all = |pool: &mut Pool, peer| {
        let offers = bodies
            .iter()
            .map(|it| pool.offer_forwarded(it, ReplicaId(peer), NOW));
        offers.filter(|offer| *offer == Offer::New).count()
    };
    let taken = offer_all(&mut pool, 1);
    assert!(taken >= 8 && pool.bytes() <= FORWARDED_BYTES_MAX, "{taken}");
    assert_eq!(offer_all(&mut pool, 2), taken, "another peer has as much");
    let opening = open(9, 9);
    assert_eq!(
        pool.offer_forwarded(&opening, ReplicaId(3), NOW),
        Offer::New
    );
    assert_eq!(pool.select(NOW)[0].digest(), opening.digest());
    pool.clear_forwarded();
    assert_eq!((pool.bytes(), pool.len()), (0, 0));
    assert_eq!(offer_all(&mut pool, 1), taken);
}

#[test]
fn a_request_that_was_forwarded_and_sent_stays_pending_when_forwarded_ones_are_cleared() {
    let mut pool = pool(1, WIDE);
    let twice = request(1, 0, 1, 10);
    assert_eq!(pool.offer_forwarded(&twice, ReplicaId(2), NOW), Offer::New);
    assert_eq!(pool.offer(&twice, None, NOW), Offer::New);
    pool.clear_forwarded();
    assert_eq!((pool.len(), pool.bytes()), (1, twice.frame().len()));
    assert_eq!(pool.offer(&twice, None, NOW), Offer::Known);
    assert_eq!(pool.select(NOW).len(), 1);
    assert!(pool.select(NOW).is_empty(), "it is proposed");
    pool.settle(&twice);
    assert!(pool.is_empty() && pool.bytes() == 0);
    // It also stays when its peer forwards another request.
    let (again, instead) = (request(1, 0, 2, 10), request(1, 1, 1, 10));
    assert_eq!(pool.offer_forwarded(&again, ReplicaId(2), NOW), Offer::New);
    assert_eq!(pool.offer(&again, None, NOW), Offer::New);
    assert_eq!(
        pool.offer_forwarded(&instead, ReplicaId(2), NOW),
        Offer::New
    );
    assert_eq!(pool.offer(&again, None, NOW), Offer::Known);
    let all: BTreeSet<_> = (0..2)
        .flat_map(|_| pool.select(NOW))
        .map(|it| it.digest())
        .collect();
    assert_eq!(all, BTreeSet::from([again.digest(), instead.digest()]));
}

#[test]
fn a_request_with_two_places_is_in_a_batch_once() {
    let mut pool = pool(1, WIDE);
    let (twice, other) = (request(1, 0, 1, 10), request(1, 1, 1, 10));
    assert_eq!(pool.offer_forwarded(&twice, ReplicaId(2), NOW), Offer::New);
    assert_eq!(pool.offer(&other, None, NOW), Offer::New);
    assert_eq!(pool.offer(&twice, None, NOW), Offer::New);
    let opening = open(9, 9);
    assert_eq!(
        pool.offer_forwarded(&opening, ReplicaId(2), NOW),
        Offer::New
    );
    assert_eq!(pool.offer(&opening, None, NOW), Offer::New);
    for _ in 0..2 {
        let batch = pool.select(NOW);
        let chosen: Vec<_> = batch.iter().map(|it| it.digest()).collect();
        let all = [&opening, &twice, &other].map(|it| it.digest());
        assert_eq!(chosen, all);
        assert!(pool.select(NOW).is_empty());
        pool.release_proposed();
    }
}

#[test]
fn a_forwarded_opening_keeps_its_own_place_when_forwarded_ones_are_cleared() {
    let mut pool = Pool::default();
    let (stranger, next) = (open(9, 9), open(10, 10));
    assert_eq!(
        pool.offer_forwarded(&stranger, ReplicaId(2), NOW),
        Offer::New
    );
    for body in [&stranger, &next] {
        assert_eq!(pool.offer_stranger(body, None, NOW), Offer::New);
    }
    pool.clear_forwarded();
    assert_eq!(pool.offer_stranger(&stranger, None, NOW), Offer::Known);
    for (body, round) in [&stranger, &next].into_iter().zip(0..) {
        let now = Monotonic(NOW.0 + round * STRANGER_INTERVAL.0);
        assert_eq!(pool.select(now)[0].digest(), body.digest());
        pool.settle(body);
    }
    assert_eq!((pool.len(), pool.bytes()), (0, 0));
}

#[test]
fn a_forwarded_request_that_gives_way_in_its_lane_stays_and_blocks_no_other() {
    let credit = Credit {
        lanes: 2,
        bytes: 2_000,
    };
    let mut pool = pool(1, credit);
    let (later, first) = (request(1, 0, 2, 500), request(1, 0, 1, 1_500));
    assert_eq!(pool.offer_forwarded(&later, ReplicaId(1), NOW), Offer::New);
    assert_eq!(pool.offer(&later, None, NOW), Offer::New);
    assert_eq!(pool.offer(&first, None, NOW), Offer::New);
    let forwarded = request(1, 1, 1, 1_500);
    assert_eq!(
        pool.offer_forwarded(&forwarded, ReplicaId(2), NOW),
        Offer::New
    );
    let batches = (0..3).map(|_| pool.select(NOW)[0].digest());
    let all = [&later, &forwarded, &first].map(|it| it.digest());
    assert_eq!(batches.collect::<Vec<_>>(), all);
    pool.settle(&later);
    pool.settle(&forwarded);
    assert_eq!((pool.len(), pool.bytes()), (0, 0));
}
