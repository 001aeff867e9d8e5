//! A recording is read as it was written, up to where it is cut; damage is detected.

use super::*;
use crate::fault_model::FaultModel;
use crate::identity::{
    ClusterId, ConnectionId, Digest, Lane, Monotonic, ReplicaId, RequestNumber, Sequence,
    SessionId, Signature, Time, View,
};
use crate::step::{Destination, Effect, Peer, Timer};
use crate::wire::message::StrayRequest;
use crate::wire::message::{Ballot, Bodies, CloseSession, Message, Request, RequestOperation};
use crate::wire::{Envelope, Unsigned, Verified};
use proptest::prelude::*;
use std::sync::Arc;

fn at(nanos: u64) -> Now {
    Now {
        clock: Time(1_700_000_000_000_000_000 + nanos),
        monotonic: Monotonic(nanos),
    }
}

fn start() -> Start {
    let model = FaultModel::new(1, 1, 4).expect("model");
    let genesis = Bytes::from_static(b"genesis");
    let mut config = Config::new(ReplicaId(2), ClusterId([7; 16]), model, genesis);
    config.checkpoint_interval = 32;
    config.leaf_bytes_max = 300;
    config.detects_rollback = !config.detects_rollback;
    Start {
        service: "counter".to_owned(),
        release: "1.2.3".to_owned(),
        config,
        condition: Condition::Lost {
            reason: "it fell".to_owned(),
        },
        next: Token(17),
        now: at(5),
    }
}

fn signed(message: Message) -> Verified {
    let header = start().config.context().header(View(3));
    Unsigned::new(header, message).with_signature(Signature([9; 64]))
}

fn request(session: u64) -> Verified {
    signed(Message::Request(Request {
        session: SessionId(session),
        lane: Lane(1),
        number: RequestNumber(4),
        operations: vec![RequestOperation::Execute(Bytes::from_static(b"add"))],
    }))
}

fn stray(message: &Verified) -> Verified {
    let stray = StrayRequest::of(message.message()).expect("a session signs it");
    let envelope = Envelope::clone(message.envelope());
    Verified::trusted(Arc::new(envelope.into_stray(stray)))
}

/// Of three bodies one was left out when the frame was verified.
fn bodies_but_one() -> Verified {
    let header = start().config.context().header(View(3));
    let requests = [1, 2, 3].map(|it| request(it).envelope().clone()).to_vec();
    let envelope = Envelope::unsigned(header, Message::Bodies(Bodies { requests }));
    let kept = [1, 3].map(|it| request(it).envelope().clone()).to_vec();
    Verified::trusted(Arc::new(envelope.with_bodies(kept)))
}

fn event_entry(nanos: u64, event: Event) -> Entry {
    let now = at(nanos);
    Entry::Event { now, event }
}

fn received(from: Peer, message: Verified) -> Event {
    Event::Received { from, message }
}

fn entries() -> Vec<Entry> {
    let ballot = Ballot {
        sequence: Sequence(8),
        digest: Digest([3; 32]),
        signer: ReplicaId(1),
    };
    let close = signed(Message::CloseSession(CloseSession {
        session: SessionId(6),
    }));
    let (replica, client) = (
        Peer::Replica(ReplicaId(1)),
        Peer::Client(ConnectionId(1 << 40)),
    );
    let token = Token(3);
    let key = Bytes::from_static(b"key");
    let read = |found| Entry::Read {
        key: key.clone(),
        found,
    };
    vec![
        Entry::JournalRecord {
            token,
            record: Bytes::from_static(b"a record"),
        },
        read(Ok(None)),
        read(Ok(Some(Bytes::from_static(b"value")))),
        read(Err("no medium".to_owned())),
        Entry::Effects { effects: vec![] },
        event_entry(10, received(replica, signed(Message::Commit(ballot)))),
        event_entry(11, received(client, request(5))),
        event_entry(12, received(client, stray(&request(5)))),
        event_entry(13, received(client, stray(&close))),
        event_entry(14, received(replica, bodies_but_one())),
        event_entry(
            15,
            Event::Signed {
                message: request(1),
            },
        ),
        event_entry(16, Event::Persisted { token }),
        event_entry(
            17,
            Event::Flushed {
                sequence: Sequence(9),
            },
        ),
        event_entry(
            18,
            Event::Timer {
                timer: Timer::Batch,
            },
        ),
        event_entry(
            19,
            Event::Connected {
                replica: ReplicaId(3),
            },
        ),
        event_entry(
            20,
            Event::Disconnected {
                connection: ConnectionId(7),
            },
        ),
        Entry::Effects {
            effects: vec![Mark(1), Mark(u64::MAX)],
        },
        Entry::End {
            why: "enough".to_owned(),
        },
    ]
}

/// The recording, in blocks of `together` entries, and where each block ends.
fn written(together: usize) -> (Vec<u8>, Vec<usize>) {
    let (mut writer, mut file) = RecordingWriter::begin(&start());
    let mut ends = vec![file.len()];
    for entries in entries().chunks(together) {
        entries.iter().for_each(|entry| writer.put(entry));
        file.extend(writer.take());
        assert_eq!(writer.written(), file.len() as u64);
        ends.push(file.len());
    }
    (file, ends)
}

fn read(file: &[u8]) -> Result<(Vec<String>, bool), Unreadable> {
    let mut recording = Recording::open(file)?;
    let mut read = vec![format!("{:?}", recording.start())];
    while let Some(entry) = recording.next_entry()? {
        read.push(format!("{entry:?}"));
    }
    Ok((read, recording.torn()))
}

/// The entries that should be read of it; a frame with bodies is another one, which the core
/// ignores.
fn wanted() -> Vec<String> {
    let frame = |entry: &Entry| match entry {
        Entry::Event {
            event: Event::Received { message, .. },
            ..
        } if matches!(message.message(), Message::Bodies(_)) => {
            let (header, message) = (*message.header(), message.message().clone());
            let whole = Envelope::unsigned(header, message);
            let from = Peer::Replica(ReplicaId(1));
            event_entry(14, received(from, Verified::trusted(Arc::new(whole))))
        }
        other => other.clone(),
    };
    let start = std::iter::once(format!("{:?}", start()));
    let rest = entries();
    start
        .chain(rest.iter().map(|entry| format!("{:?}", frame(entry))))
        .collect()
}

#[test]
fn a_recording_is_read_as_it_was_written() {
    for together in [1, 4, 100] {
        let (file, _) = written(together);
        assert_eq!(read(&file), Ok((wanted(), false)));
    }
}

#[test]
fn an_unfinished_block_at_the_end_is_left_out_and_the_rest_is_read() {
    let (file, ends) = written(3);
    for length in ends[0]..file.len() {
        let whole = ends.iter().filter(|end| **end <= length).count();
        let on_border = ends.contains(&length);
        let expected = wanted()[..1 + (whole - 1) * 3].to_vec();
        assert_eq!(read(&file[..length]), Ok((expected.clone(), !on_border)));
        // A file system that knew the length before it had the bytes.
        if on_border {
            let zeros = [&file[..length], &[0; 5000]].concat();
            assert_eq!(read(&zeros), Ok((expected, true)));
        }
    }
    for length in 0..ends[0] {
        assert!(
            read(&file[..length]).is_err(),
            "{length} bytes are a record"
        );
    }
}

#[test]
fn a_gap_of_zeros_is_no_end() {
    let (file, ends) = written(3);
    let mut gap = file.clone();
    gap[ends[1]..ends[2]].fill(0);
    let damaged = Unreadable::Damaged {
        at: ends[1] as u64,
        what: "a block's header does not verify".to_owned(),
    };
    assert_eq!(read(&gap), Err(damaged));
}

#[test]
fn a_block_in_another_place_does_not_hold() {
    let (file, ends) = written(1);
    let twice = [&file[..ends[2]], &file[ends[1]..]].concat();
    assert!(matches!(read(&twice), Err(Unreadable::Damaged { at, .. }) if at == ends[2] as u64));
}

#[test]
fn another_format_is_named() {
    let (mut file, _) = written(1);
    file[6] = 9;
    assert_eq!(read(&file), Err(Unreadable::Newer { version: 9 }));
    assert_eq!(read(b"something else"), Err(Unreadable::NoRecording));
}

#[test]
fn every_flipped_bit_is_noticed_where_it_is() {
    let (file, ends) = written(3);
    for place in 0..file.len() {
        for bit in 0..8 {
            let mut flipped = file.clone();
            flipped[place] ^= 1 << bit;
            match read(&flipped) {
                Err(Unreadable::Damaged { at, .. }) => {
                    let at = usize::try_from(at).expect("small");
                    let end = ends.iter().find(|end| **end > at).expect("a block");
                    assert!(
                        (at..*end).contains(&place),
                        "byte {place} was found at {at}"
                    );
                }
                Err(_) => assert!(place < 8, "byte {place} is not in the head"),
                Ok(_) => panic!("byte {place} may be anything"),
            }
        }
    }
}

#[test]
fn effects_that_differ_in_anything_have_different_marks() {
    let send = |to, frame: &'static [u8], after| Effect::Send {
        to,
        frame: Bytes::from_static(frame),
        after,
    };
    let all = Destination::Replicas;
    let different = [
        send(all, b"frame", None),
        send(all, b"frames", None),
        send(all, b"frame", Some(Token(0))),
        send(all, b"frame", Some(Token(1))),
        send(Destination::Replica(ReplicaId(1)), b"frame", None),
        send(Destination::Client(ConnectionId(1)), b"frame", None),
        Effect::Alarm {
            reason: "frame".to_owned(),
        },
        Effect::Poison {
            reason: "frame".to_owned(),
        },
    ];
    let marker = Marker::default();
    for (one, left) in different.iter().enumerate() {
        let mark = marker.mark(left);
        assert!(format!("{left:?}").starts_with(mark.kind()));
        for (other, right) in different.iter().enumerate() {
            assert_eq!(
                marker.mark(right) == mark,
                one == other,
                "{left:?} {right:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, cut: usize, tail: Vec<u8>) {
        let _ = read(&bytes);
        let (file, _) = written(4);
        let _ = read(&[&file[..cut % file.len()], &tail[..]].concat());
    }

    /// Any bytes in a block whose checks verify.
    #[test]
    fn no_entry_makes_the_reader_panic(place: usize, byte: u8, cut: usize) {
        let mut content = Vec::new();
        for entry in entries() {
            entry.encode(&mut content);
        }
        let place = place % content.len();
        content[place] = byte;
        content.truncate(content.len() - cut % 8);
        let _ = Entry::all_in(&content.into());
    }
}
