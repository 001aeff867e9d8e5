//! A recording is replayed exactly; any change in it, or in the core, is located.

use super::*;
use crate::authentication::{FakeSigner, Keyring};
use crate::key_value::{Command, KeyValue, command};
use bytes::Bytes;
use quorumfs_bft::authentication::Signer as _;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{
    ClusterId, ConnectionId, Lane, Monotonic, Nanos, ReplicaId, RequestNumber, SessionId, Time,
    View,
};
use quorumfs_bft::journal::Condition;
use quorumfs_bft::recording::{RecordingWriter, Start};
use quorumfs_bft::state::{MemoryStore, StateError, Store};
use quorumfs_bft::step::{Peer, Timer, Token};
use quorumfs_bft::wire::message::{Message, OpenSession, Request, RequestOperation};
use quorumfs_bft::wire::{Unsigned, Verified};
use std::collections::BTreeMap;

const CLIENT: Peer = Peer::Client(ConnectionId(1));

/// A file to which entries are written.
struct Notes {
    writer: RecordingWriter,
    file: Vec<u8>,
}

impl Notes {
    fn put(&mut self, entry: &Entry) {
        self.writer.put(entry);
        self.file.extend(self.writer.take());
    }
}

struct NotedRows {
    rows: MemoryStore,
    /// Fails from now on.
    broken: Rc<RefCell<bool>>,
    notes: Rc<RefCell<Notes>>,
}

impl Store for NotedRows {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let found = match *self.broken.borrow() {
            false => Ok(self.rows.get(key)?),
            true => Err("the medium is gone".to_owned()),
        };
        self.notes.borrow_mut().put(&Entry::Read {
            key: Bytes::copy_from_slice(key),
            found: found.clone(),
        });
        found.map_err(|reason| StateError::Store {
            doing: "reading a row",
            reason,
        })
    }
}

/// A replica alone in its cluster, so that all of its activity is here, and its disk.
struct Machine {
    config: Config,
    signer: FakeSigner,
    principal: FakeSigner,
    session: FakeSigner,
    rows: MemoryStore,
    journal: Vec<journal::Entry>,
    now: Now,
}

/// One process of it.
struct Life<'a> {
    machine: &'a mut Machine,
    core: Replica<KeyValue, NotedRows>,
    broken: Rc<RefCell<bool>>,
    notes: Rc<RefCell<Notes>>,
    timers: BTreeMap<Timer, Monotonic>,
    poison: Option<String>,
}

impl Machine {
    fn new() -> Self {
        let keys = Keyring::default();
        let [signer, principal, session] = [[1; 32], [2; 32], [3; 32]].map(|it| keys.generate(it));
        let model = FaultModel::new(0, 0, 1).expect("model");
        let genesis = Bytes::copy_from_slice(&principal.public_key().0);
        let mut config = Config::new(ReplicaId(0), ClusterId([8; 16]), model, genesis);
        config.checkpoint_interval = 4;
        config.leaf_bytes_max = 128;
        Self {
            config,
            signer,
            principal,
            session,
            rows: MemoryStore::new(),
            journal: Vec::new(),
            now: Now {
                clock: Time(1_000_000_000_000),
                monotonic: Monotonic(0),
            },
        }
    }

    fn live(&mut self) -> Life<'_> {
        let start = Start {
            service: "key-value".to_owned(),
            release: "test".to_owned(),
            config: self.config.clone(),
            condition: Condition::Intact,
            next: Token(0),
            now: self.now,
        };
        let (writer, file) = RecordingWriter::begin(&start);
        let notes = Rc::new(RefCell::new(Notes { writer, file }));
        for journal::Entry { token, record } in self.journal.clone() {
            notes
                .borrow_mut()
                .put(&Entry::JournalRecord { token, record });
        }
        let broken = Rc::new(RefCell::new(false));
        let rows = NotedRows {
            rows: self.rows.clone(),
            broken: broken.clone(),
            notes: notes.clone(),
        };
        let journal = Journal {
            entries: self.journal.clone(),
            ..Journal::default()
        };
        let mut effects = Effects::default();
        let config = self.config.clone();
        let core = Replica::recover(config, KeyValue, rows, journal, self.now, &mut effects);
        let mut life = Life {
            core: core.expect("recovered"),
            machine: self,
            broken,
            notes,
            timers: BTreeMap::new(),
            poison: None,
        };
        life.carry_out(effects);
        life
    }

    fn open(&self) -> Verified {
        let open = OpenSession {
            principal: self.principal.public_key(),
            session_key: self.session.public_key(),
            lanes: 1,
            time: self.now.clock,
        };
        self.verified(Message::OpenSession(open), &self.principal)
    }

    fn put(&self, number: u64, key: u8) -> Verified {
        let token = number;
        let command = command::encode(&Command::Append { key, token });
        let request = Request {
            session: SessionId(1),
            lane: Lane(0),
            number: RequestNumber(number),
            operations: vec![RequestOperation::Execute(command)],
        };
        self.verified(Message::Request(request), &self.session)
    }

    fn verified(&self, message: Message, signer: &FakeSigner) -> Verified {
        let header = self.config.context().header(View(0));
        Unsigned::new(header, message).sign(signer)
    }
}

impl Life<'_> {
    fn handle(&mut self, event: Event) {
        if self.poison.is_some() {
            return;
        }
        let now = self.machine.now;
        let noted = event.clone();
        self.notes
            .borrow_mut()
            .put(&Entry::Event { now, event: noted });
        let mut effects = Effects::default();
        self.core.step(now, event, &mut effects);
        self.carry_out(effects);
    }

    fn receive(&mut self, message: Verified) {
        let from = CLIENT;
        self.handle(Event::Received { from, message });
        self.pass(Nanos::from_millis(1));
    }

    /// Lets time pass and timers expire.
    fn pass(&mut self, length: Nanos) {
        let now = &mut self.machine.now;
        now.clock = now.clock.plus(length);
        now.monotonic = now.monotonic.plus(length);
        let due = |(timer, at): (&Timer, &Monotonic)| (*at <= now.monotonic).then_some(*timer);
        let due: Vec<Timer> = self.timers.iter().filter_map(due).collect();
        for timer in due {
            if self.timers.remove(&timer).is_some() {
                self.handle(Event::Timer { timer });
            }
        }
    }

    fn carry_out(&mut self, mut effects: Effects) {
        let marker = Marker::default();
        let marks = effects.iter().map(|effect| marker.mark(effect)).collect();
        self.notes
            .borrow_mut()
            .put(&Entry::Effects { effects: marks });
        let mut events = Vec::new();
        for effect in effects.drain() {
            match effect {
                Effect::Sign { message } => events.push(Event::Signed {
                    message: message.sign(&self.machine.signer),
                }),
                Effect::Persist { record, token } => {
                    self.machine.journal.push(journal::Entry { token, record });
                    events.push(Event::Persisted { token });
                }
                Effect::Flush { batch, root } => {
                    self.machine.rows.apply(&batch);
                    let sequence = root.sequence;
                    events.push(Event::Flushed { sequence });
                }
                Effect::TrimJournal { before } => {
                    self.machine.journal.retain(|entry| entry.token >= before);
                }
                Effect::SetTimer { timer, after } => {
                    let at = self.machine.now.monotonic.plus(after);
                    self.timers.insert(timer, at);
                }
                Effect::CancelTimer { timer } => {
                    self.timers.remove(&timer);
                }
                Effect::Poison { reason } => self.poison = Some(reason),
                _ => {}
            }
        }
        for event in events {
            self.handle(event);
        }
    }

    fn recording(self) -> Vec<u8> {
        self.notes.borrow().file.clone()
    }
}

/// A session, and operations that fill many leaves and checkpoints, one of them submitted twice.
fn first_life(machine: &mut Machine) -> Vec<u8> {
    let open = machine.open();
    let requests: Vec<Verified> = (1..=40).map(|it| machine.put(it, it as u8)).collect();
    let mut life = machine.live();
    life.receive(open);
    for (number, request) in requests.into_iter().enumerate() {
        life.receive(request.clone());
        if number == 20 {
            life.receive(request);
        }
    }
    life.pass(Nanos::from_secs(2));
    assert!(life.core.committed() >= Sequence(40), "nothing happened");
    life.recording()
}

fn again(file: &[u8], sabotage: Option<Sabotage>) -> Replayed {
    let recording = Recording::open(file).expect("a recording");
    replay(recording, KeyValue, sabotage, None)
}

#[test]
fn a_recording_is_replayed_and_so_is_the_next_process_on_its_disk() {
    let mut machine = Machine::new();
    let first = again(&first_life(&mut machine), None);
    assert_eq!(first.end, End::Same { over: None });
    assert!(first.events > 200 && first.effects > 300, "{first:?}");
    assert!(first.committed >= Sequence(40));
    // It starts from the disk now: the journal is recovered, the rows are read.
    let request = machine.put(41, 3);
    assert!(!machine.journal.is_empty());
    let mut life = machine.live();
    life.receive(request);
    assert!(life.core.committed() > first.committed);
    let second = again(&life.recording(), None);
    assert_eq!(second.end, End::Same { over: None });
    assert!(second.reads > 10, "{second:?}");
    assert!(second.committed > first.committed);
}

#[test]
fn a_core_with_a_defect_is_detected_where_it_first_matters() {
    let file = first_life(&mut Machine::new());
    let mut lines = Vec::new();
    let mut note = |line: &str| lines.push(line.to_owned());
    let recording = Recording::open(&file[..]).expect("a recording");
    let sabotage = Some(Sabotage::RetryExecutedTwice);
    let replayed = replay(recording, KeyValue, sabotage, Some(&mut note));
    let End::Different {
        place,
        what,
        before,
    } = replayed.end
    else {
        panic!("{replayed:?}");
    };
    // Forty requests were submitted, and this one twice.
    let retried = "connection 1 sends Request 21 of lane 0 of session 1";
    let mut last = before.iter().chain([&place]);
    assert!(last.any(|it| it.input == retried), "{place}: {what}");
    assert_eq!(place.event, replayed.events);
    assert!(
        lines.contains(&place.to_string()),
        "the trace has the position"
    );
}

#[test]
fn a_defect_at_the_start_is_detected_at_the_start() {
    let file = first_life(&mut Machine::new());
    let replayed = again(&file, Some(Sabotage::MissingStatus));
    match replayed.end {
        End::Different { place, what, .. } => {
            assert_eq!(place.input, description::START);
            assert!(what.contains("Send"), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_read_poisons_the_replay_in_the_same_words() {
    let mut machine = Machine::new();
    first_life(&mut machine);
    let anew = |it: u64| machine.put(it, (it - 40) as u8);
    let requests: Vec<Verified> = (41..60).map(anew).collect();
    let mut life = machine.live();
    *life.broken.borrow_mut() = true;
    for request in requests {
        life.receive(request);
    }
    let poison = life.poison.clone().expect("it has read a row");
    assert!(poison.contains("the medium is gone"), "{poison}");
    let replayed = again(&life.recording(), None);
    match replayed.end {
        End::Poisoned { reason, place } => {
            assert_eq!(reason, poison);
            assert_eq!(place.event, replayed.events);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_truncated_recording_is_replayed_to_its_end() {
    let file = first_life(&mut Machine::new());
    let whole = again(&file, None);
    let mut events = 0;
    for length in (2_000..file.len()).step_by(997) {
        let replayed = again(&file[..length], None);
        assert_eq!(replayed.end, End::Same { over: None }, "{length} bytes");
        assert!(replayed.events >= events && replayed.events <= whole.events);
        events = replayed.events;
    }
    assert!(events * 10 > whole.events * 9);
}

#[test]
fn an_omitted_event_is_detected() {
    let file = first_life(&mut Machine::new());
    let mut recording = Recording::open(&file[..]).expect("a recording");
    let (mut writer, mut without) = RecordingWriter::begin(recording.start());
    let (mut seen, mut leaving_out) = (0, false);
    while let Some(entry) = recording.next_entry().expect("whole") {
        if let Entry::Event { event, .. } = &entry {
            leaving_out = matches!(event, Event::Received { .. });
            seen += u32::from(leaving_out);
            leaving_out &= seen == 30;
        }
        if !leaving_out {
            writer.put(&entry);
        }
    }
    without.extend(writer.take());
    assert!(matches!(again(&without, None).end, End::Different { .. }));
}
