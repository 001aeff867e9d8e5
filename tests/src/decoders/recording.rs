//! Recordings of replicas, which people exchange. After an even first byte the input is the file;
//! after an odd one it is the content of a block whose checks hold.

use super::{CLUSTER, Credulous, at, four, wire_fixtures};
use bytes::Bytes;
use quorumfs_bft::identity::{ConnectionId, Lane, ReplicaId, RequestNumber, Sequence, SessionId};
use quorumfs_bft::journal::Condition;
use quorumfs_bft::recording::{Entry, Recording, RecordingWriter, Start};
use quorumfs_bft::replica::Config;
use quorumfs_bft::step::{Event, Peer, Timer, Token};
use quorumfs_bft::wire::message::{Message, Request, RequestOperation, Suspect};
use quorumfs_bft::wire::{Header, Unsigned};

/// The length of a block's header, which precedes its content.
const BLOCK_HEADER_BYTES: usize = 20;

fn start() -> Start {
    let genesis = Bytes::from_static(b"what it begins with");
    Start {
        service: "a service".to_owned(),
        release: "1.0".to_owned(),
        config: Config::new(ReplicaId(1), CLUSTER, four(), genesis),
        condition: Condition::TornTail,
        next: Token(3),
        now: at(1),
    }
}

/// Decodes it: writing the decoded entries of a block gives the same bytes.
pub fn recording(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    if first % 2 == 0 {
        if let Ok(mut recording) = Recording::open(rest) {
            while let Ok(Some(entry)) = recording.next_entry() {
                assert!(!format!("{entry:?}").is_empty());
            }
        }
    } else if let Ok(entries) = Entry::all_in(&Bytes::copy_from_slice(rest)) {
        let (mut writer, _) = RecordingWriter::begin(&start());
        entries.iter().for_each(|entry| writer.put(entry));
        let written = writer.take();
        assert_eq!(written.get(BLOCK_HEADER_BYTES..).unwrap_or_default(), rest);
    }
}

fn entries() -> Vec<Entry> {
    let sign = |message| {
        let header = Header {
            cluster: CLUSTER,
            ..Header::default()
        };
        Unsigned::new(header, message).sign(&Credulous)
    };
    let request = sign(Message::Request(Request {
        session: SessionId(1),
        lane: Lane(0),
        number: RequestNumber(1),
        operations: vec![RequestOperation::Execute(Bytes::from_static(
            b"an operation",
        ))],
    }));
    let suspect = sign(Message::Suspect(Suspect {
        signer: ReplicaId(2),
    }));
    let events = [
        Event::Received {
            from: Peer::Client(ConnectionId(5)),
            message: request,
        },
        Event::Signed { message: suspect },
        Event::Persisted { token: Token(4) },
        Event::Flushed {
            sequence: Sequence(2),
        },
        Event::Timer {
            timer: Timer::Status,
        },
        Event::Connected {
            replica: ReplicaId(3),
        },
        Event::Disconnected {
            connection: ConnectionId(5),
        },
    ];
    let events = events.map(|event| Entry::Event { now: at(2), event });
    let key = Bytes::from_static(b"key");
    let read = |found| Entry::Read {
        key: key.clone(),
        found,
    };
    let others = [
        Entry::JournalRecord {
            token: Token(2),
            record: wire_fixtures()
                .into_iter()
                .next()
                .unwrap_or_default()
                .into(),
        },
        read(Ok(None)),
        read(Ok(Some(key.clone()))),
        read(Err("no".to_owned())),
        Entry::Effects {
            effects: Vec::new(),
        },
        Entry::End {
            why: "over".to_owned(),
        },
    ];
    others.into_iter().chain(events).collect()
}

/// A whole file, and the content of blocks: all entries together, and each entry by itself.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let (mut writer, mut file) = RecordingWriter::begin(&start());
    let mut content = |entries: &[Entry]| {
        entries.iter().for_each(|entry| writer.put(entry));
        let block = writer.take();
        let content = block.get(BLOCK_HEADER_BYTES..).unwrap_or_default();
        let seed = [&[1], content].concat();
        (seed, block)
    };
    let entries = entries();
    let (all, block) = content(&entries);
    file.extend(block);
    file.insert(0, 0);
    let alone = entries.chunks(1).map(|entry| content(entry).0);
    [file, all].into_iter().chain(alone).collect()
}
