//! Queries out of order, and what writers wait for because of them.

use super::*;
use crate::wire::message::{AnswerBody, Answered, Read, ReadAnswer};
use crate::wire::signed_bytes::answer_digest;

fn reading(config: &mut ClientConfig) {
    config.unordered_reads = true;
}

const LONG: &[u8] = &[7; 100];

impl Desk {
    fn ask(&mut self, ticket: u64, kind: OperationKind) {
        self.step(Event::Submit {
            ticket: Ticket(ticket),
            kind,
            operation: Bytes::from_static(b"query"),
            deadline: self.now.plus(Nanos::from_secs(30)),
        });
    }

    /// The replicas that were asked last, and the query.
    fn asked(&mut self) -> (Vec<u16>, Read) {
        let sent = std::mem::take(&mut self.sent);
        let frame = sent.last().expect("something was sent").1.clone();
        let to = sent.iter().filter(|(_, it)| *it == frame);
        let to = to.map(|(to, _)| to.0).collect();
        match Envelope::decode(frame).unwrap().message() {
            Message::Read(read) => (to, read.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, from: u16, nonce: u64, state: (u64, u64), body: &[u8], in_full: bool) {
        let (applied, version) = state;
        let body = if in_full {
            AnswerBody::Bytes(Bytes::copy_from_slice(body))
        } else {
            AnswerBody::Digest(answer_digest(body))
        };
        let answered = Answered {
            version: Sequence(version),
            body,
        };
        self.tell(from, nonce, applied, Some(vec![answered]));
    }

    fn tell(&mut self, from: u16, nonce: u64, applied: u64, answers: Option<Vec<Answered>>) {
        let answer = ReadAnswer {
            nonce,
            applied: Sequence(applied),
            answers,
        };
        self.step(Event::Received {
            from: ReplicaId(from),
            frame: crate::wire::encode(Header::default(), &Message::ReadAnswer(answer)),
        });
    }

    fn later(&mut self, milliseconds: u64) {
        self.now = self.now.plus(Nanos::from_millis(milliseconds));
        self.step(Event::Timer);
    }
}

#[test]
fn a_query_is_asked_of_a_quorum_and_one_gives_all_of_the_answer() {
    let mut desk = Desk::open(reading);
    desk.ask(1, OperationKind::Read);
    let (to, read) = desk.asked();
    assert_eq!((to.len(), read.queries.len()), (3, 1));
    assert!(
        to.contains(&read.full.0),
        "one of the replicas that are asked"
    );
    for (count, from) in (1..).zip(&to) {
        assert_eq!(desk.delivered.len(), 0, "after {}", count - 1);
        desk.answer(*from, read.nonce, (9, 5), LONG, *from == read.full.0);
    }
    assert_eq!(desk.delivered, [(1, Bytes::from_static(LONG))]);
    assert_eq!(desk.client.reads(), (1, 0));
}

#[test]
fn equal_bytes_of_different_versions_do_not_vouch_for_each_other() {
    let mut desk = Desk::open(reading);
    desk.ask(1, OperationKind::Read);
    let (to, read) = desk.asked();
    desk.answer(to[0], read.nonce, (9, 5), b"x", true);
    desk.answer(to[1], read.nonce, (9, 5), b"x", true);
    // A row that has changed back since then.
    desk.answer(to[2], read.nonce, (9, 8), b"x", true);
    assert_eq!(desk.delivered, []);
    let (all_replicas, again) = desk.asked();
    assert_eq!((all_replicas.len(), again.full), (4, Read::ALL));
    assert_ne!(again.nonce, read.nonce);
    // A second answer of the same replica does not count, nor does one from the future.
    desk.answer(to[0], read.nonce, (9, 8), b"x", true);
    desk.answer(0, again.nonce, (9, 8), b"x", true);
    desk.answer(0, again.nonce, (9, 8), b"x", true);
    desk.answer(1, again.nonce, (7, 8), b"x", true);
    desk.answer(2, again.nonce, (9, 8), b"x", true);
    assert_eq!(desk.delivered, []);
    desk.answer(3, again.nonce, (8, 8), b"x", true);
    assert_eq!(desk.delivered.len(), 1);
}

#[test]
fn a_query_without_matching_answers_is_ordered() {
    let mut desk = Desk::open(reading);
    desk.ask(1, OperationKind::Read);
    let (to, _) = desk.asked();
    desk.later(49);
    assert_eq!(desk.sent.len(), 0);
    desk.later(2);
    let (all_replicas, read) = desk.asked();
    assert_eq!((to.len(), all_replicas.len()), (3, 4), "hedged");
    for from in 0..4 {
        desk.answer(from, read.nonce, (9, u64::from(from)), b"x", true);
    }
    let (_, read) = desk.asked();
    for from in 0..4 {
        desk.tell(from, read.nonce, 9, None);
    }
    let frame = desk.last();
    let Message::Request(request) = Envelope::decode(frame.clone()).unwrap().message().clone()
    else {
        panic!("it is in the order");
    };
    let query = Bytes::from_static(b"query");
    assert_eq!(
        request.operations,
        [crate::wire::message::RequestOperation::Query(query)]
    );
    for from in 0..3 {
        desk.reply(from, &frame, 9, desk.results(&["answer"]));
    }
    assert_eq!(desk.delivered, [(1, Bytes::from_static(b"answer"))]);
    assert_eq!(desk.client.reads(), (0, 1));
}

#[test]
fn a_session_is_never_shown_less_than_it_has_seen() {
    let mut desk = Desk::open(reading);
    desk.submit(1);
    let frame = desk.last();
    for from in 0..3 {
        desk.reply(from, &frame, 20, desk.results(&["done"]));
    }
    desk.sent.clear();
    let old = desk.delivered.len();
    desk.ask(2, OperationKind::SessionRead);
    let (to, read) = desk.asked();
    assert_eq!(to.len(), 2, "one more than may lie");
    desk.answer(to[0], read.nonce, (19, 4), b"x", true);
    desk.answer(to[1], read.nonce, (20, 4), b"x", true);
    assert_eq!(
        desk.delivered.len(),
        old,
        "one of them is older than a state that was seen"
    );
    let (_, read) = desk.asked();
    desk.answer(to[1], read.nonce, (30, 4), b"x", true);
    assert_eq!(desk.delivered.len(), old, "the same replica twice");
    desk.answer(3, read.nonce, (25, 4), b"x", true);
    assert_eq!(desk.delivered.len(), old + 1);
    // The smaller claim is the bound now.
    desk.ask(3, OperationKind::SessionRead);
    let (to, read) = desk.asked();
    desk.answer(to[0], read.nonce, (24, 4), b"x", true);
    desk.answer(to[1], read.nonce, (26, 4), b"x", true);
    assert_eq!(desk.delivered.len(), old + 1);
    let (_, read) = desk.asked();
    desk.answer(2, read.nonce, (25, 4), b"x", true);
    desk.answer(3, read.nonce, (26, 4), b"x", true);
    assert_eq!(desk.delivered.len(), old + 2);
}

/// One of the two that showed it in session may lie, and say later that it knows nothing of it.
#[test]
fn what_was_seen_in_session_is_seen_by_later_queries() {
    let mut desk = Desk::open(reading);
    desk.ask(1, OperationKind::SessionRead);
    let (to, read) = desk.asked();
    for from in to {
        desk.answer(from, read.nonce, (30, 20), b"new", true);
    }
    assert_eq!(desk.delivered, [(1, Bytes::from_static(b"new"))]);
    desk.ask(2, OperationKind::Read);
    let (to, read) = desk.asked();
    for from in &to {
        desk.answer(*from, read.nonce, (19, 4), b"old", true);
    }
    assert_eq!(desk.delivered.len(), 1, "it would go back");
    let (to, read) = desk.asked();
    for from in &to[..3] {
        desk.answer(*from, read.nonce, (20, 20), b"new", true);
    }
    assert_eq!(desk.delivered[1], (2, Bytes::from_static(b"new")));
}

/// Otherwise the wait would be as long as the nearest take to refuse, and where the quorum needs a
/// replica that is far away, each query would be ordered.
#[test]
fn a_replica_that_refuses_is_waited_for_no_more_and_measures_nothing() {
    let mut desk = Desk::open(reading);
    for ticket in 0..20 {
        desk.ask(ticket, OperationKind::Read);
        let mut answers: Vec<(u64, u16, u64)> = Vec::new();
        for millisecond in 0..600 {
            let sent = std::mem::take(&mut desk.sent);
            for (to, frame) in sent {
                if let Message::Read(read) = Envelope::decode(frame).unwrap().message() {
                    let trip = [5, 10, 15, 300][usize::from(to.0)];
                    answers.push((millisecond + trip, to.0, read.nonce));
                }
            }
            let (now, later) = answers.into_iter().partition(|it| it.0 <= millisecond);
            answers = later;
            let now: Vec<(u64, u16, u64)> = now;
            for (_, from, nonce) in now {
                match from {
                    1 => desk.tell(from, nonce, 9, None),
                    _ => desk.answer(from, nonce, (9, 5), b"x", true),
                }
            }
            desk.later(1);
        }
    }
    let (accepted, ordered) = desk.client.reads();
    assert!(accepted >= 17 && ordered <= 3, "{accepted} {ordered}");
    desk.ask(100, OperationKind::Read);
    let (to, _) = desk.asked();
    assert!([0, 2, 3].iter().all(|it| to.contains(it)), "{to:?}");
}

#[test]
fn the_two_kinds_of_queries_are_measured_apart() {
    let mut desk = Desk::open(reading);
    let mut ask = |ticket, kind, took| {
        desk.ask(ticket, kind);
        let (to, read) = desk.asked();
        desk.later(took);
        let again = !desk.sent.is_empty();
        for from in to {
            desk.answer(from, read.nonce, (9, 5), b"x", true);
        }
        desk.sent.clear();
        again
    };
    for ticket in 0..40 {
        ask(2 * ticket, OperationKind::SessionRead, 10);
        ask(2 * ticket + 1, OperationKind::Read, 90);
    }
    assert!(!ask(100, OperationKind::Read, 90), "it is usual");
    assert!(ask(101, OperationKind::SessionRead, 30), "it is late");
}

#[test]
fn queries_waiting_for_a_frame_are_sent_together() {
    let mut desk = Desk::open(reading);
    for ticket in 1..=9 {
        desk.ask(ticket, OperationKind::Read);
    }
    let (to, second) = desk.asked();
    assert_eq!((second.nonce, second.queries.len()), (2, 1));
    for from in &to {
        desk.answer(*from, 1, (9, 5), b"x", true);
    }
    let (_, bundle) = desk.asked();
    assert_eq!(bundle.queries.len(), 7);
}

/// The flaw of reads that rely on more replicas than writers wait for.
#[test]
fn an_operation_took_effect_when_a_quorum_says_so_and_laggards_are_helped() {
    let mut desk = Desk::open(reading);
    desk.submit(1);
    let frame = desk.last();
    for from in 0..2 {
        desk.reply(from, &frame, 9, desk.results(&["done"]));
    }
    assert_eq!(desk.delivered, [], "a reader might not find either of them");
    desk.sent.clear();
    desk.later(1000);
    assert_eq!(
        desk.sent.len(),
        4,
        "replicas that have executed it hand it to those that have not"
    );
    desk.reply(3, &frame, 9, desk.results(&["done"]));
    assert_eq!(desk.delivered.len(), 1);

    let mut desk = Desk::open(|_| {});
    desk.ask(1, OperationKind::Read);
    let frame = desk.last();
    assert!(matches!(
        Envelope::decode(frame.clone()).unwrap().message(),
        Message::Request(_)
    ));
    for from in 0..2 {
        desk.reply(from, &frame, 9, desk.results(&["answer"]));
    }
    assert_eq!(
        desk.delivered.len(),
        1,
        "where no client reads out of order, fewer suffice"
    );
}

/// A retry is asked under another number, and answers to the earlier number were dropped: where the
/// needed number of answers takes longer than the first wait, none ever counted.
#[test]
fn answers_to_earlier_tries_count_and_the_next_query_waits_for_as_long() {
    let mut desk = Desk::open(reading);
    desk.ask(1, OperationKind::Read);
    let (to, first) = desk.asked();
    desk.later(50);
    let (_, second) = desk.asked();
    desk.later(50);
    let (_, third) = desk.asked();
    assert!(first.nonce < second.nonce && second.nonce < third.nonce);
    desk.later(20);
    for from in &to {
        let in_full = *from == first.full.0;
        desk.answer(*from, first.nonce, (9, 5), LONG, in_full);
    }
    assert_eq!(desk.delivered, [(1, Bytes::from_static(LONG))]);
    for ticket in 2..5 {
        desk.sent.clear();
        desk.ask(ticket, OperationKind::Read);
        let (to, read) = desk.asked();
        desk.later(130);
        assert_eq!(desk.sent.len(), 0, "no others are asked");
        for from in &to {
            desk.answer(*from, read.nonce, (9, 5), b"x", true);
        }
        assert_eq!(desk.delivered.len() as u64, ticket);
    }
    assert_eq!(desk.client.reads(), (4, 0));
}

#[test]
fn a_query_that_was_ordered_measures_how_far_the_replicas_are() {
    let mut desk = Desk::open(reading);
    desk.ask(1, OperationKind::Read);
    let (to, first) = desk.asked();
    for _ in 0..3 {
        desk.later(50);
    }
    assert_eq!(desk.client.reads(), (0, 1));
    let frame = desk.last();
    desk.later(240);
    for from in &to {
        desk.answer(*from, first.nonce, (9, 5), b"x", true);
    }
    assert_eq!(desk.delivered, [], "its place in the order is what counts");
    for from in &to {
        desk.reply(*from, &frame, 9, desk.results(&["x"]));
    }
    assert_eq!(desk.delivered.len(), 1);
    desk.sent.clear();
    desk.ask(2, OperationKind::Read);
    let (to, read) = desk.asked();
    desk.later(420);
    assert_eq!(desk.sent.len(), 0, "no others are asked");
    for from in &to {
        desk.answer(*from, read.nonce, (9, 5), b"x", true);
    }
    assert_eq!(desk.delivered.len(), 2);
    assert_eq!(desk.client.reads(), (1, 1));
}

#[test]
fn a_replica_counts_once_whichever_tries_it_answers() {
    let mut desk = Desk::open(reading);
    for (ticket, place) in [(1, 0), (2, 1)] {
        desk.ask(ticket, OperationKind::Read);
        let (to, first) = desk.asked();
        desk.later(50);
        let (_, second) = desk.asked();
        desk.answer(to[place], first.nonce, (9, 5), b"x", true);
        desk.answer(to[place], second.nonce, (9, 5), b"x", true);
        let others = (0..4).filter(|it| *it != to[place]);
        let others: Vec<u16> = others.collect();
        desk.answer(others[0], second.nonce, (9, 5), b"x", true);
        assert_eq!(desk.delivered.len() as u64, ticket - 1);
        desk.answer(others[1], second.nonce, (9, 5), b"x", true);
        assert_eq!(desk.delivered.len() as u64, ticket);
        desk.sent.clear();
    }
}

#[test]
fn the_first_try_waits_for_as_long_as_the_session_took_to_be_opened() {
    let mut desk = Desk::new(reading);
    desk.step(Event::Open {
        session_key: PublicKey([2; 32]),
        time: Time(1),
    });
    let frame = desk.last();
    desk.now = desk.now.plus(Nanos::from_millis(300));
    for replica in [0, 1] {
        let outcome = Outcome::SessionOpened {
            session: SessionId(7),
            credit: CREDIT,
        };
        desk.reply(replica, &frame, 3, outcome);
    }
    desk.sent.clear();
    desk.ask(1, OperationKind::Read);
    let _ = desk.asked();
    desk.later(299);
    assert_eq!(desk.sent.len(), 0);
    desk.later(2);
    assert_eq!(desk.asked().0.len(), 4);
}

/// A frame that is sent again has only the unsettled queries, in other positions than before.
#[test]
fn answers_to_every_try_are_for_the_queries_of_that_try() {
    let mut desk = Desk::open(|config| {
        reading(config);
        config.bundle_max = 2;
    });
    for ticket in 1..=4 {
        desk.ask(ticket, OperationKind::Read);
    }
    let (to, _) = desk.asked();
    let all = |body: &'static [u8], version: u64| Answered {
        version: Sequence(version),
        body: AnswerBody::Bytes(Bytes::from_static(body)),
    };
    for nonce in [1, 2] {
        for from in &to {
            desk.tell(*from, nonce, 9, Some(vec![all(b"x", 5)]));
        }
    }
    let (to, both) = desk.asked();
    assert_eq!((both.queries.len(), desk.delivered.len()), (2, 2));
    let late = to[2];
    for from in &to[..2] {
        desk.tell(*from, both.nonce, 9, Some(vec![all(b"a", 5), all(b"b", 6)]));
    }
    desk.later(50);
    let (_, again) = desk.asked();
    desk.tell(3, again.nonce, 9, Some(vec![all(b"a", 5), all(b"b", 7)]));
    assert_eq!(desk.delivered.len(), 3);
    desk.later(50);
    let (_, last) = desk.asked();
    assert_eq!(last.queries.len(), 1);
    desk.tell(3, last.nonce, 9, Some(vec![all(b"b", 7)]));
    desk.tell(to[0], last.nonce, 9, Some(vec![all(b"b", 7)]));
    assert_eq!(desk.delivered.len(), 3);
    desk.tell(late, both.nonce, 9, Some(vec![all(b"a", 5), all(b"b", 6)]));
    assert_eq!(desk.delivered.last(), Some(&(4, Bytes::from_static(b"b"))));
}

/// A replica that is far is left in peace, and its distance is looked at again at times.
#[test]
fn queries_go_to_the_nearest_replicas() {
    let mut desk = Desk::open(reading);
    let distance = |replica: u16| [150, 1, 25, 90][usize::from(replica)];
    let mut far = 0;
    for ticket in 1..200 {
        desk.ask(ticket, OperationKind::Read);
        let (mut to, read) = desk.asked();
        to.sort_by_key(|replica| distance(*replica));
        let mut waited = 0;
        far += u32::from(ticket > 8 && to.contains(&0));
        for replica in to {
            desk.now = desk
                .now
                .plus(Nanos::from_millis(distance(replica) - waited));
            waited = distance(replica);
            desk.answer(replica, read.nonce, (9, 5), b"x", true);
        }
    }
    assert_eq!(desk.delivered.len(), 199);
    assert!((1..12).contains(&far), "{far}");
    // Near reads ask two.
    desk.ask(200, OperationKind::SessionRead);
    let (to, _) = desk.asked();
    assert!(to.starts_with(&[1, 2]), "{to:?}");
}

/// Answers that differ come before that of a replica that is only probed: it is not late for that.
#[test]
fn a_replica_that_is_probed_is_not_late_when_the_others_differ() {
    let mut desk = Desk::open(reading);
    let mut answered = |ticket: u64, differ: bool| {
        desk.ask(ticket, OperationKind::Read);
        let (to, mut read) = desk.asked();
        desk.later(1);
        if differ {
            for (version, from) in (1..).zip(&to[..3]) {
                desk.answer(*from, read.nonce, (9, version), b"x", true);
            }
            read = desk.asked().1;
            desk.later(1);
        }
        for from in [3, 0, 1, 2] {
            desk.answer(from, read.nonce, (9, 5), b"x", true);
        }
        to
    };
    let first = answered(1, false);
    let probing = answered(2, true);
    assert_eq!((first, probing), (vec![0, 1, 2], vec![0, 1, 2, 3]));
    assert_eq!(answered(3, false), [1, 2, 3], "another one is asked");
}
