//! A client that observes replicas.

use super::*;
use crate::identity::{Epoch, View};
use crate::metrics::Voting;
use crate::observer::{
    NumberedReport, Observe, Observed, Report, WatchAnswer, WatchEvent, WatchId, Watched,
};
use crate::wire::limits::OBSERVED_SILENT;

const REPORT: Report = Report {
    epoch: Epoch(0),
    view: View(1),
    leader: ReplicaId(1),
    active: true,
    executed: Sequence(5),
    stable: Sequence(0),
    transfer: None,
    voting: Voting::Voting,
};

impl Desk {
    fn receive(&mut self, from: u16, message: Message) {
        self.step(Event::Received {
            from: ReplicaId(from),
            frame: crate::wire::encode(Header::default(), &message),
        });
    }

    fn standing(&mut self, from: u16, last: u64) {
        let standing = Observed::Accepted {
            applied: Sequence(last),
            last: Some(Sequence(last)),
        };
        self.receive(from, Message::Observed(standing));
    }

    fn changes(&mut self, from: u16, session: u64, sequence: u64, previous: u64) {
        let event = WatchEvent {
            session: SessionId(session),
            sequence: Sequence(sequence),
            previous: Sequence(previous),
            watches: vec![WatchId(1)],
        };
        self.receive(from, Message::WatchEvent(event));
    }

    fn asks(&mut self) -> Vec<(u16, Observe)> {
        let sent = std::mem::take(&mut self.sent).into_iter();
        let observe = |(to, frame): (ReplicaId, Bytes)| {
            let envelope = Envelope::decode(frame).unwrap();
            match envelope.message() {
                Message::Observe(observe) => Some((to.0, *observe)),
                _ => None,
            }
        };
        sent.filter_map(observe).collect()
    }

    /// Watches from the batch at 9 on.
    fn watching() -> Self {
        let mut desk = Self::open(|config| config.unordered_reads = true);
        desk.step(Event::Observe {
            reports: false,
            watches: true,
        });
        assert_eq!(desk.asks().len(), 4);
        desk.step(Event::Submit {
            ticket: Ticket(1),
            kind: OperationKind::Watch,
            operation: Bytes::from_static(b"what"),
            deadline: desk.now.plus(Nanos::from_secs(30)),
        });
        let frame = desk.sent.last().unwrap().1.clone();
        let answer = WatchAnswer::Watching {
            watch: WatchId(1),
            first: true,
            last: Sequence(9),
        };
        for from in 0..3 {
            let results = Outcome::Results(vec![Some(answer.encode())]);
            desk.reply(from, &frame, 10, results);
            desk.standing(from, 9);
        }
        assert_eq!(desk.delivered.len(), 1);
        let up_to = Sequence(9);
        let watched = std::mem::take(&mut desk.watched);
        assert_eq!(watched, [Watched::Revalidate { up_to }]);
        desk.sent.clear();
        desk
    }
}

#[test]
fn replicas_are_asked_again_after_a_reconnect_and_after_silence() {
    let mut desk = Desk::open(|_| {});
    desk.step(Event::Observe {
        reports: true,
        watches: true,
    });
    let session = Some(SessionId(7));
    let observe = Observe {
        reports: true,
        session,
    };
    let all: Vec<_> = (0..4).map(|replica| (replica, observe)).collect();
    assert_eq!(desk.asks(), all);
    let replica = ReplicaId(2);
    desk.step(Event::Disconnected { replica });
    assert_eq!(desk.asks(), []);
    desk.step(Event::Connected { replica });
    assert_eq!(desk.asks(), [(2, observe)]);
    desk.now = desk.now.plus(OBSERVED_SILENT);
    desk.standing(1, 0);
    desk.step(Event::Timer);
    assert_eq!(desk.asks(), [(0, observe), (2, observe), (3, observe)]);
}

#[test]
fn a_replica_that_reports_without_its_standing_is_asked_again() {
    let mut desk = Desk::watching();
    desk.step(Event::Observe {
        reports: true,
        watches: true,
    });
    desk.asks();
    let report = REPORT;
    for number in 1..=5 {
        desk.now = desk.now.plus(Nanos::from_secs(1));
        for from in 0..4 {
            let report = NumberedReport { number, report };
            desk.receive(from, Message::Report(report));
            if from < 3 && (from > 0 || number < 2) {
                desk.standing(from, 9);
            }
        }
        desk.step(Event::Timer);
        let asked: Vec<u16> = desk.asks().into_iter().map(|(to, _)| to).collect();
        match number {
            4.. => assert_eq!(asked, [0, 3]),
            _ => assert_eq!(asked, [3], "it has not confirmed, after {number}"),
        }
    }
    assert_eq!(desk.watched, [Watched::Blind]);
}

#[test]
fn an_event_of_another_session_or_from_a_stranger_has_no_effect() {
    let mut desk = Desk::watching();
    for from in 0..3 {
        desk.changes(from, 8, 12, 9);
    }
    let replica = ReplicaId(3);
    desk.step(Event::Disconnected { replica });
    desk.changes(3, 7, 12, 9);
    desk.changes(0, 7, 12, 9);
    assert_eq!(desk.watched, []);
    desk.changes(1, 7, 12, 9);
    assert_eq!(desk.watched.len(), 1);
}

#[test]
fn a_client_notified_of_a_change_reads_no_older_state() {
    use crate::wire::message::{AnswerBody, Answered, ReadAnswer};
    let mut desk = Desk::watching();
    desk.changes(0, 7, 12, 9);
    desk.changes(1, 7, 12, 9);
    assert_eq!(desk.watched.len(), 1);
    desk.step(Event::Submit {
        ticket: Ticket(2),
        kind: OperationKind::Read,
        operation: Bytes::from_static(b"query"),
        deadline: desk.now.plus(Nanos::from_secs(30)),
    });
    let frame = desk.sent.last().unwrap().1.clone();
    let nonce = match Envelope::decode(frame).unwrap().message() {
        Message::Read(read) => read.nonce,
        other => panic!("{other:?}"),
    };
    let answer = |desk: &mut Desk, from, applied| {
        let answered = Answered {
            version: Sequence(5),
            body: AnswerBody::Bytes(Bytes::from_static(b"old")),
        };
        let answer = ReadAnswer {
            nonce,
            applied: Sequence(applied),
            answers: Some(vec![answered]),
        };
        desk.receive(from, Message::ReadAnswer(answer));
    };
    for from in 0..4 {
        answer(&mut desk, from, 11);
    }
    assert_eq!(desk.delivered.len(), 1, "a quorum that lags is no answer");
}

#[test]
fn single_reports_and_facts_of_a_quorum_are_distinguished() {
    let mut desk = Desk::open(|_| {});
    desk.step(Event::Observe {
        reports: true,
        watches: false,
    });
    let report = REPORT;
    let report = NumberedReport { number: 1, report };
    for (from, watched) in [(0, 1), (1, 4), (2, 6)] {
        desk.receive(from, Message::Report(report));
        assert_eq!(desk.observed, watched, "after {from}");
    }
}
