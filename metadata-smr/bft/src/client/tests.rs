//! The client against scripted replicas.

mod observing;
mod read;

use super::*;
use crate::authentication::Signer;
use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Digest, Nanos, Sequence, SessionId, Signature};
use crate::service::Credit;
use crate::wire::message::{Message, Outcome, Reply};
use crate::wire::signed_bytes::results_digest;
use crate::wire::{Envelope, Header};

struct NoSigner;

impl Signer for NoSigner {
    fn public_key(&self) -> PublicKey {
        PublicKey([0; 32])
    }
    fn sign(&self, _: &[u8]) -> Signature {
        Signature([0; 64])
    }
}

const CREDIT: Credit = Credit {
    lanes: 2,
    bytes: 10_000,
};

/// A client with four connected replicas, and all its effects.
struct Desk {
    client: Client,
    now: Monotonic,
    sent: Vec<(ReplicaId, Bytes)>,
    delivered: Vec<(u64, Bytes)>,
    failed: Vec<(u64, Failure)>,
    ended: Vec<End>,
    watched: Vec<crate::observer::Watched>,
    observed: usize,
    opened: bool,
}

impl Desk {
    fn new(change: impl FnOnce(&mut ClientConfig)) -> Self {
        let model = FaultModel::new(1, 1, 4).unwrap();
        let mut config = ClientConfig::new(ClusterId([0; 16]), model, PublicKey([1; 32]));
        config.unordered_reads = false;
        change(&mut config);
        let mut desk = Self {
            client: Client::new(config),
            now: Monotonic(1000),
            sent: Vec::new(),
            delivered: Vec::new(),
            failed: Vec::new(),
            ended: Vec::new(),
            watched: Vec::new(),
            observed: 0,
            opened: false,
        };
        for replica in 0..4 {
            desk.step(Event::Connected {
                replica: ReplicaId(replica),
            });
        }
        desk
    }

    fn open(change: impl FnOnce(&mut ClientConfig)) -> Self {
        let mut desk = Self::new(change);
        desk.step(Event::Open {
            session_key: PublicKey([2; 32]),
            time: Time(1),
        });
        let (_, frame) = desk.sent.last().unwrap().clone();
        for replica in [0, 1] {
            let outcome = Outcome::SessionOpened {
                session: SessionId(7),
                credit: CREDIT,
            };
            desk.reply(replica, &frame, 3, outcome);
        }
        assert!(desk.opened);
        desk.sent.clear();
        desk
    }

    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        let mut effects = Effects::default();
        while let Some(event) = events.pop() {
            self.client.step(self.now, event, &mut effects);
            if events.is_empty() {
                self.client.dispatch(self.now, &mut effects);
            }
            for effect in effects.drain() {
                match effect {
                    Effect::Sign { message, .. } => events.push(Event::Signed {
                        message: message.sign(&NoSigner),
                    }),
                    Effect::Send { to, frame } => self.sent.push((to, frame)),
                    Effect::SetTimer { .. } => {}
                    Effect::Deliver { ticket, result, .. } => {
                        self.delivered.push((ticket.0, result));
                    }
                    Effect::Failed { ticket, reason } => self.failed.push((ticket.0, reason)),
                    Effect::Opened { .. } => self.opened = true,
                    Effect::Follow { .. } | Effect::NewEpoch { .. } => {}
                    Effect::Ended { end } => self.ended.push(end),
                    Effect::Observed { .. } => self.observed += 1,
                    Effect::Watched { watched } => self.watched.push(watched),
                }
            }
        }
    }

    fn opening(&self) -> (Bytes, Time) {
        let frame = self.sent.last().unwrap().1.clone();
        match Envelope::decode(frame.clone()).unwrap().message() {
            Message::OpenSession(open) => (frame, open.time),
            other => panic!("{other:?}"),
        }
    }

    fn submit(&mut self, ticket: u64) {
        let deadline = self.now.plus(Nanos::from_secs(30));
        self.submit_until(ticket, deadline);
    }

    fn submit_until(&mut self, ticket: u64, deadline: Monotonic) {
        self.step(Event::Submit {
            ticket: Ticket(ticket),
            kind: OperationKind::Execute,
            operation: Bytes::from(vec![ticket as u8; 10]),
            deadline,
        });
    }

    /// Has replica `from` answer the request in `frame`.
    fn reply(&mut self, from: u16, frame: &Bytes, version: u64, outcome: Outcome) {
        let envelope = Envelope::decode(frame.clone()).unwrap();
        let (session, lane, number) = match envelope.message() {
            Message::Request(request) => (request.session, request.lane, request.number),
            Message::CloseSession(close) => (close.session, Lane(0), RequestNumber(0)),
            _ => (SessionId(0), Lane(0), RequestNumber(0)),
        };
        let reply = Reply {
            session,
            lane,
            number,
            request: envelope.digest(),
            version: Sequence(version),
            outcome,
        };
        self.step(Event::Received {
            from: ReplicaId(from),
            frame: crate::wire::encode(Header::default(), &Message::Reply(reply)),
        });
    }

    fn results(&self, texts: &[&'static str]) -> Outcome {
        let result = |text: &&'static str| Some(Bytes::from_static(text.as_bytes()));
        Outcome::Results(texts.iter().map(result).collect())
    }

    fn last(&self) -> Bytes {
        self.sent.last().unwrap().1.clone()
    }
}

#[test]
fn a_result_counts_when_one_more_than_the_liars_agree_on_it() {
    let mut desk = Desk::open(|_| {});
    desk.submit(1);
    assert_eq!(desk.sent.len(), 4, "to every replica at once");
    let frame = desk.last();
    desk.reply(0, &frame, 9, desk.results(&["lie"]));
    desk.reply(0, &frame, 9, desk.results(&["lie"]));
    desk.reply(1, &frame, 9, desk.results(&["truth"]));
    desk.reply(2, &frame, 8, desk.results(&["truth"]));
    assert_eq!(desk.delivered, []);
    desk.reply(3, &frame, 9, desk.results(&["truth"]));
    assert_eq!(desk.delivered, [(1, Bytes::from_static(b"truth"))]);
}

#[test]
fn long_results_come_whole_from_one_replica_and_as_a_digest_from_others() {
    const LONG: &str = "so long that a digest of it is shorter than it is itself";
    let digest = || {
        let results = [Some(Bytes::from_static(LONG.as_bytes()))];
        Outcome::ResultsDigest(results_digest(&results))
    };
    let mut desk = Desk::open(|_| {});
    let whole = desk.results(&[LONG]);
    let lie = desk.results(&["so long that a digest of it is shorter, and nothing but a lie"]);
    // The full results may come first or last, and false ones do not count.
    for (ticket, last) in [(1, whole.clone()), (2, digest())] {
        desk.submit(ticket);
        let frame = desk.last();
        let first = if ticket == 1 { digest() } else { whole.clone() };
        desk.reply(0, &frame, 9, lie.clone());
        desk.reply(1, &frame, 9, first);
        assert_eq!(desk.delivered.len() as u64, ticket - 1);
        desk.reply(2, &frame, 9, last);
        let delivered = desk.delivered.last().cloned();
        assert_eq!(
            delivered,
            Some((ticket, Bytes::from_static(LONG.as_bytes())))
        );
    }
    // If they do not come, the replicas that know them are asked one after the other.
    desk.submit(3);
    let frame = desk.last();
    for replica in [1, 2, 3] {
        desk.reply(replica, &frame, 9, digest());
    }
    assert_eq!(desk.delivered.len(), 2);
    desk.sent.clear();
    for _ in 0..2 {
        desk.now = desk.now.plus(Nanos::from_secs(1));
        desk.step(Event::Timer);
    }
    let asked: Vec<ReplicaId> = desk.sent.iter().map(|(to, _)| *to).collect();
    assert_eq!(asked.len(), 2);
    assert!(asked[0] != asked[1] && !asked.contains(&ReplicaId(0)));
    desk.reply(asked[1].0, &frame, 9, whole);
    assert_eq!(desk.delivered.len(), 3);
}

#[test]
fn a_replica_that_retracts_its_reply_leaves_the_others_to_be_asked() {
    let mut desk = Desk::open(|_| {});
    desk.submit(1);
    let frame = desk.last();
    let digest = Outcome::ResultsDigest(Digest([7; 32]));
    desk.reply(0, &frame, 9, digest.clone());
    desk.reply(1, &frame, 9, digest);
    desk.reply(0, &frame, 9, desk.results(&["a lie"]));
    desk.sent.clear();
    desk.now = desk.now.plus(Nanos::from_secs(1));
    desk.step(Event::Timer);
    let asked: Vec<ReplicaId> = desk.sent.iter().map(|(to, _)| *to).collect();
    assert_eq!(asked, [ReplicaId(2), ReplicaId(3)]);
}

#[test]
fn waiting_operations_are_sent_in_one_bundle_and_never_bundled_again() {
    let mut desk = Desk::open(|config| config.lanes = 1);
    desk.submit(1);
    for ticket in 2..6 {
        desk.submit(ticket);
    }
    assert_eq!(desk.sent.len(), 4, "the lane is a closed loop");
    let first = desk.last();
    desk.now = desk.now.plus(Nanos::from_secs(1));
    desk.step(Event::Timer);
    assert_eq!(desk.sent.len(), 8);
    assert!(desk.sent.iter().all(|(_, frame)| *frame == first));
    for replica in [2, 3] {
        desk.reply(replica, &first, 9, desk.results(&["a"]));
    }
    let second = desk.last();
    let envelope = Envelope::decode(second.clone()).unwrap();
    let Message::Request(request) = envelope.message() else {
        panic!("not a request");
    };
    assert_eq!(
        (request.number, request.operations.len()),
        (RequestNumber(2), 4)
    );
    for replica in [2, 3] {
        desk.reply(replica, &second, 10, desk.results(&["b", "c", "d", "e"]));
    }
    let tickets: Vec<u64> = desk.delivered.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(tickets, [1, 2, 3, 4, 5]);
}

#[test]
fn an_answer_out_of_turn_makes_no_room_while_an_older_request_is_unanswered() {
    let mut desk = Desk::open(|config| {
        config.lanes = 1;
        config.in_flight = 2;
    });
    desk.submit(1);
    desk.submit(2);
    assert_eq!(desk.sent.len(), 8);
    let (first, second) = (desk.sent[0].1.clone(), desk.last());
    for replica in [0, 1] {
        desk.reply(replica, &second, 10, desk.results(&["b"]));
    }
    desk.submit(3);
    assert_eq!(desk.delivered.len(), 1);
    assert_eq!(
        desk.sent.len(),
        8,
        "the replicas would forget the reply to number 1"
    );
    for replica in [0, 1] {
        desk.reply(replica, &first, 9, desk.results(&["a"]));
    }
    assert_eq!(desk.sent.len(), 12);
}

#[test]
fn a_request_is_sent_again_as_soon_as_its_predecessor_is_answered() {
    for trouble in [false, true] {
        let mut desk = Desk::open(|config| {
            config.lanes = 1;
            config.in_flight = 2;
        });
        desk.submit(1);
        desk.submit(2);
        let (first, second) = (desk.sent[0].1.clone(), desk.last());
        if trouble {
            desk.now = desk.now.plus(Nanos::from_secs(1));
            desk.step(Event::Timer);
        }
        desk.sent.clear();
        for replica in [0, 1] {
            desk.reply(replica, &first, 9, desk.results(&["a"]));
        }
        let again = desk.sent.iter().filter(|(_, frame)| *frame == second);
        assert_eq!(again.count(), if trouble { 4 } else { 0 });
        assert_eq!(desk.sent.len(), if trouble { 4 } else { 0 });
    }
}

#[test]
fn a_reply_to_other_bytes_under_the_same_number_is_not_ours() {
    let mut desk = Desk::open(|_| {});
    desk.submit(1);
    let envelope = Envelope::decode(desk.last()).unwrap();
    let Message::Request(request) = envelope.message() else {
        panic!("not a request");
    };
    for from in 0..4 {
        let reply = Reply {
            session: request.session,
            lane: request.lane,
            number: request.number,
            request: Digest([9; 32]),
            version: Sequence(9),
            outcome: desk.results(&["theirs"]),
        };
        desk.step(Event::Received {
            from: ReplicaId(from),
            frame: crate::wire::encode(Header::default(), &Message::Reply(reply)),
        });
    }
    assert_eq!(desk.delivered, []);
}

#[test]
fn a_passed_deadline_answers_the_ticket_and_the_lane_goes_on() {
    let mut desk = Desk::open(|config| config.lanes = 1);
    let soon = desk.now.plus(Nanos::from_millis(10));
    desk.submit_until(1, soon);
    desk.submit_until(2, soon);
    desk.now = soon;
    desk.step(Event::Timer);
    let mut failed = desk.failed.clone();
    failed.sort_by_key(|(ticket, _)| *ticket);
    assert_eq!(
        failed,
        [(1, Failure::OutcomeUnknown), (2, Failure::Expired)]
    );
    desk.submit(3);
    assert_eq!(desk.sent.len(), 4, "number 1 is not answered yet");
    let first = desk.last();
    for replica in [0, 1] {
        desk.reply(replica, &first, 9, desk.results(&["late"]));
    }
    assert_eq!(desk.delivered, [], "its ticket has been answered");
    assert_eq!(desk.sent.len(), 8, "number 2 goes out");
}

#[test]
fn a_session_has_ended_when_one_more_than_the_liars_say_so() {
    let mut desk = Desk::open(|_| {});
    desk.submit(1);
    let frame = desk.last();
    for _ in 0..3 {
        desk.reply(0, &frame, 0, Outcome::NoSession);
    }
    assert_eq!(desk.ended, [], "one alone may lie");
    desk.reply(1, &frame, 0, Outcome::NoSession);
    assert_eq!(desk.ended, [End::Lost]);
    assert_eq!(desk.failed, [(1, Failure::OutcomeUnknown)]);
    desk.submit(2);
    assert_eq!(desk.failed.last(), Some(&(2, Failure::NoSession)));
}

#[test]
fn a_session_closes_after_everything_has_been_answered() {
    let mut desk = Desk::open(|_| {});
    desk.submit(1);
    let request = desk.last();
    desk.step(Event::Close);
    desk.submit(2);
    assert_eq!(desk.failed, [(2, Failure::NoSession)]);
    assert_eq!(desk.sent.len(), 4);
    for replica in [0, 1] {
        desk.reply(replica, &request, 9, desk.results(&["a"]));
    }
    assert_eq!(desk.sent.len(), 8);
    let close = desk.last();
    for replica in [0, 3] {
        desk.reply(replica, &close, 10, Outcome::SessionClosed);
    }
    assert_eq!(desk.ended, [End::Closed]);
}

#[test]
fn a_replica_that_comes_back_is_sent_what_it_may_have_missed() {
    let mut desk = Desk::open(|_| {});
    let replica = ReplicaId(2);
    desk.step(Event::Disconnected { replica });
    desk.submit(1);
    assert_eq!(desk.sent.len(), 3);
    desk.step(Event::Connected { replica });
    assert_eq!(desk.sent.last().unwrap().0, replica);
    assert_eq!(desk.sent.len(), 4);
}

#[test]
fn replicas_that_have_gone_back_in_time_are_refused() {
    let open_at = |found: u64| {
        let mut desk = Desk::new(|config| config.shown = Sequence(8));
        desk.step(Event::Open {
            session_key: PublicKey([2; 32]),
            time: Time(1),
        });
        let (frame, _) = desk.opening();
        for replica in [0, 3] {
            let outcome = Outcome::SessionOpened {
                session: SessionId(7),
                credit: CREDIT,
            };
            desk.reply(replica, &frame, found, outcome);
        }
        desk
    };
    for found in [1, 7, 8] {
        let desk = open_at(found);
        assert!(!desk.opened);
        let (shown, found) = (Sequence(8), Sequence(found));
        assert_eq!(desk.ended, [End::WentBack { shown, found }]);
    }
    let mut desk = open_at(9);
    assert!(desk.opened && desk.ended.is_empty());
    assert_eq!(desk.client.shown(), Sequence(9));
    desk.submit(1);
    let frame = desk.last();
    desk.reply(0, &frame, 30, desk.results(&["a"]));
    assert_eq!(desk.client.shown(), Sequence(9), "one alone may lie");
    desk.reply(1, &frame, 12, desk.results(&["a"]));
    desk.reply(2, &frame, 12, desk.results(&["a"]));
    assert_eq!(desk.client.shown(), Sequence(12));
}

#[test]
fn the_queue_is_bounded_and_reports_it() {
    let mut desk = Desk::open(|config| {
        config.operations_max = 3;
        config.lanes = 1;
    });
    for ticket in 1..5 {
        desk.submit(ticket);
    }
    assert_eq!(desk.failed, [(4, Failure::Full { operations: 3 })]);
    desk.step(Event::Submit {
        ticket: Ticket(5),
        kind: OperationKind::Query,
        operation: Bytes::from(vec![0; 20_000]),
        deadline: Monotonic(u64::MAX),
    });
    assert!(matches!(
        desk.failed.last(),
        Some((5, Failure::TooLarge { .. }))
    ));
}

#[test]
fn no_bundle_exceeds_the_credit_of_its_session() {
    let mut desk = Desk::open(|_| {});
    for ticket in 0..40 {
        desk.step(Event::Submit {
            ticket: Ticket(ticket),
            kind: OperationKind::Execute,
            operation: Bytes::from(vec![0; 900]),
            deadline: Monotonic(u64::MAX),
        });
    }
    let under_way: usize = desk
        .sent
        .iter()
        .filter(|(to, _)| *to == ReplicaId(0))
        .map(|(_, frame)| frame.len())
        .sum();
    assert!(under_way <= CREDIT.bytes as usize, "{under_way}");
    assert_eq!(desk.failed, []);
}

#[test]
fn an_opening_that_came_too_late_is_signed_again_with_the_agreed_time() {
    let mut desk = Desk::new(|_| {});
    desk.step(Event::Open {
        session_key: PublicKey([2; 32]),
        time: Time(1),
    });
    let (frame, first) = desk.opening();
    let stale = |time| Outcome::SessionStale { time: Time(time) };
    desk.reply(0, &frame, 5, stale(900));
    desk.reply(1, &frame, 6, stale(901));
    assert_eq!(
        desk.opening().1,
        first,
        "a single liar cannot set the clock"
    );
    desk.reply(2, &frame, 6, stale(901));
    let (again, second) = desk.opening();
    assert_eq!(second, Time(901));
    let opened = Outcome::SessionOpened {
        session: SessionId(7),
        credit: CREDIT,
    };
    desk.reply(0, &again, 7, opened.clone());
    desk.reply(1, &frame, 7, opened.clone());
    assert!(!desk.opened, "an answer to the first one does not count");
    desk.reply(1, &again, 7, opened);
    assert!(desk.opened);
}
