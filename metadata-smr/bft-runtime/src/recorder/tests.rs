//! A recording ends where it has to and is complete up to there; recordings share a directory.

use super::writing::{Recording, remove_oldest};
use super::*;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Monotonic, ReplicaId, Time};
use quorumfs_bft::journal::{Condition, Entry as Found};
use quorumfs_bft::replica::Config;
use quorumfs_bft::step::{Destination, Token};
use std::io::{self, Write};

fn at(nanos: u64) -> Now {
    Now {
        clock: Time(1_700_000_000_000_000_000 + nanos),
        monotonic: Monotonic(nanos),
    }
}

fn start() -> recording::Start {
    let model = FaultModel::new(1, 1, 4).expect("model");
    recording::Start {
        service: "nothing".to_owned(),
        release: "test".to_owned(),
        config: Config::new(ReplicaId(2), ClusterId([7; 16]), model, Bytes::new()),
        condition: Condition::Intact,
        next: Token(1),
        now: at(0),
    }
}

/// A disk with space for so many bytes.
struct BoundedWriter<'a> {
    bytes: &'a mut Vec<u8>,
    full: usize,
}

impl Write for BoundedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fit = bytes.len().min(self.full - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..fit]);
        match fit {
            0 => Err(io::ErrorKind::StorageFull.into()),
            fit => Ok(fit),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn recorder() -> Recorder {
    Recorder(Arc::new(RecorderShared::default()))
}

fn record_events(recorder: &Recorder, events: u64) {
    for number in 1..=events {
        let sequence = Sequence(number);
        recorder.record_event(at(number), &Event::Flushed { sequence });
        let to = Destination::Replicas;
        recorder.record_effects(
            [Effect::Send {
                to,
                frame: Bytes::from_static(b"frame"),
                after: None,
            }]
            .iter(),
        );
    }
}

/// The readable part: how many events, how it ends, and whether an entry is incomplete.
fn read(bytes: &[u8]) -> (u64, Option<String>, bool) {
    let mut recording = recording::Recording::open(bytes).expect("a recording");
    let (mut events, mut end) = (0, None);
    while let Some(entry) = recording.next_entry().expect("sound") {
        assert!(end.is_none(), "it goes on after its end");
        match entry {
            Entry::Event { now, .. } => {
                events += 1;
                assert_eq!(now, at(events), "there is a gap");
            }
            Entry::Effects { effects } => assert_eq!(effects.len(), 1),
            Entry::End { why } => end = Some(why),
            Entry::JournalRecord { .. } | Entry::Read { .. } => {}
        }
    }
    (events, end, recording.torn())
}

/// The content of the disk after the replica has ended.
fn record(recorder: &Recorder, full: usize, bytes_max: u64) -> Vec<u8> {
    recorder.0.end(&mut recorder.0.queue(), "the replica ended");
    let mut bytes = Vec::new();
    let disk = BoundedWriter {
        bytes: &mut bytes,
        full,
    };
    let Ok(recording) = Recording::begin(disk, bytes_max, &start(), &[]) else {
        panic!("it did not begin");
    };
    recording.run(&recorder.0);
    assert!(recorder.0.queue().done);
    // Nothing is recorded from then on.
    record_events(recorder, 3);
    assert!(recorder.0.queue().items.is_empty());
    bytes
}

#[test]
fn a_recording_has_all_events_and_the_reason_of_its_end() {
    let recorder = recorder();
    record_events(&recorder, 1_000);
    let bytes = record(&recorder, usize::MAX, u64::MAX);
    let end = Some("the replica ended".to_owned());
    assert_eq!(read(&bytes), (1_000, end, false));
}

#[test]
fn a_recording_ends_at_its_bound_with_that_reason() {
    let recorder = recorder();
    record_events(&recorder, 100_000);
    let bytes = record(&recorder, usize::MAX, 3 << 20);
    assert!(bytes.len() <= 3 << 20, "{} bytes", bytes.len());
    let (events, end, torn) = read(&bytes);
    assert!(events > 10_000 && events < 100_000 && !torn, "{events}");
    assert_eq!(
        end,
        Some("its bound of 3145728 bytes was reached".to_owned())
    );
}

#[test]
fn a_recording_on_a_full_disk_is_readable_up_to_there() {
    let recorder = recorder();
    record_events(&recorder, 100_000);
    let bytes = record(&recorder, 3 << 20, u64::MAX);
    assert_eq!(bytes.len(), 3 << 20);
    let (events, end, torn) = read(&bytes);
    assert!(events > 10_000 && events < 100_000 && torn && end.is_none());
}

#[test]
fn a_disk_that_does_not_keep_up_ends_a_recording_and_memory_stays_bounded() {
    let recorder = recorder();
    let events = (QUEUE_BYTES_MAX / ENTRY_BYTES) as u64;
    record_events(&recorder, events);
    let queue = recorder.0.queue();
    assert!(queue.bytes <= QUEUE_BYTES_MAX + 2 * ENTRY_BYTES && queue.over.is_some());
    drop(queue);
    let bytes = record(&recorder, usize::MAX, u64::MAX);
    let (events_read, end, torn) = read(&bytes);
    assert!(
        events_read > events / 4 && events_read < events && !torn,
        "{events_read}"
    );
    assert_eq!(end, Some("the disk did not keep up".to_owned()));
}

#[test]
fn a_recording_whose_start_does_not_fit_is_not_begun() {
    let record = Bytes::from(vec![7; 100_000]);
    let token = Token(1);
    let journal = [Found { token, record }];
    let mut bytes = Vec::new();
    let disk = BoundedWriter {
        bytes: &mut bytes,
        full: usize::MAX,
    };
    assert!(Recording::begin(disk, 90_000, &start(), &journal).is_err());
}

#[test]
fn the_oldest_recordings_of_the_same_replica_are_removed_for_a_new_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let there = |name: &str| directory.path().join(name);
    let lives = ["0a-1.recording", "0a-2.recording", "0a-3.recording"];
    for name in lives.iter().chain(&["0b-1.recording", "0a-0.txt"]) {
        std::fs::write(there(name), [1; 400]).expect("written");
    }
    let free = remove_oldest(directory.path(), "0a", 1_000).expect("listed");
    assert_eq!(free, 600);
    let left = lives.map(|name| there(name).exists());
    assert_eq!(left, [false, false, true]);
    assert!(there("0b-1.recording").exists() && there("0a-0.txt").exists());
    assert_eq!(
        remove_oldest(directory.path(), "0a", 100).expect("listed"),
        100
    );
    assert!(!there(lives[2]).exists());
}
