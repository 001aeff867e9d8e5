//! The disk through stops, crashes and damage.

mod segments;

use super::appender::Appender;
use super::files::Layout;
use super::queue::Queue;
use super::segment;
use super::spare::Spares;
use super::{Completion, Disk, DiskError, Durability, Opened, writer};
use bytes::Bytes;
use quorumfs_bft::identity::{Digest, Incarnation, Sequence};
use quorumfs_bft::journal::{Condition, Record};
use quorumfs_bft::state::{DurableRoot, Store, WriteBatch};
use quorumfs_bft::step::Token;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

fn created() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    Disk::create(directory.path(), Incarnation::default()).expect("it is empty");
    directory
}

fn open(path: &Path, durability: Durability) -> (Opened, Receiver<Completion>) {
    let (report, reports) = channel();
    let opened = Disk::open(path, durability, move |completion| {
        let _ = report.send(completion);
    });
    (opened.expect("a sound disk"), reports)
}

fn await_token(reports: &Receiver<Completion>, last: Token) {
    loop {
        match reports.recv_timeout(Duration::from_secs(20)) {
            Ok(Completion::Persisted { token }) if token >= last => return,
            Ok(Completion::Persisted { .. } | Completion::Flushed { .. }) => {}
            other => panic!("waiting for {last:?}: {other:?}"),
        }
    }
}

fn close(opened: Opened) {
    let Opened { disk, store, .. } = opened;
    drop(store);
    disk.close().expect("a clean stop");
}

fn body(token: u64) -> Bytes {
    let length = usize::try_from(token * 37 % 101).expect("small");
    vec![u8::try_from(token % 251).expect("small"); length].into()
}

/// Appends records and waits for them; then the process dies (no clean stop).
fn write_and_die(path: &Path, durability: Durability, tokens: std::ops::RangeInclusive<u64>) {
    let (opened, reports) = open(path, durability);
    for token in tokens.clone() {
        opened
            .disk
            .append(Token(token), body(token))
            .expect("append");
    }
    await_token(&reports, Token(*tokens.end()));
}

fn recovered(path: &Path) -> Vec<(Token, Bytes)> {
    let journal = open(path, Durability::Strict).0.journal;
    assert!(
        !matches!(journal.condition, Condition::Lost { .. }),
        "{:?}",
        journal.condition
    );
    let entries = journal.entries.into_iter();
    entries.map(|entry| (entry.token, entry.record)).collect()
}

fn is_lost(path: &Path) -> Option<String> {
    match open(path, Durability::Strict).0.journal.condition {
        Condition::Intact | Condition::TornTail => None,
        Condition::Lost { reason } => Some(reason),
    }
}

fn expected(tokens: std::ops::RangeInclusive<u64>) -> Vec<(Token, Bytes)> {
    tokens.map(|token| (Token(token), body(token))).collect()
}

fn segments(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path.join("journal")).expect("a journal");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|it| it == "journal"))
        .collect();
    paths.sort();
    paths
}

fn appender(path: &Path, next: u64) -> Appender {
    let journal = path.join("journal");
    let spares = Arc::new(Spares::open(&journal).expect("a journal"));
    Appender::create(&journal, Token(next), spares).expect("created")
}

#[test]
fn persisted_records_survive_every_restart_and_appending_continues() {
    let directory = created();
    assert_eq!(recovered(directory.path()), []);
    write_and_die(directory.path(), Durability::Strict, 1..=50);
    assert_eq!(recovered(directory.path()), expected(1..=50));
    write_and_die(directory.path(), Durability::Strict, 51..=60);
    let (opened, reports) = open(directory.path(), Durability::Strict);
    opened.disk.append(Token(61), body(61)).expect("append");
    close(opened);
    await_token(&reports, Token(61));
    assert_eq!(recovered(directory.path()), expected(1..=61));
}

#[test]
fn trimming_removes_whole_segments_and_never_a_record_that_is_needed() {
    let directory = created();
    for first in [1, 11, 21_u64] {
        write_and_die(directory.path(), Durability::Strict, first..=first + 9);
    }
    let (opened, reports) = open(directory.path(), Durability::Strict);
    opened.disk.trim(Token(15)).expect("trim");
    opened.disk.append(Token(31), body(31)).expect("append");
    await_token(&reports, Token(31));
    close(opened);
    assert_eq!(recovered(directory.path()), expected(11..=31));
    // The last record stays although nothing follows it: the next token is derived from it.
    let (opened, _) = open(directory.path(), Durability::Strict);
    opened.disk.trim(Token(32)).expect("trim");
    close(opened);
    assert_eq!(recovered(directory.path()).last(), expected(31..=31).last());
    write_and_die(directory.path(), Durability::Strict, 32..=32);
}

#[test]
fn a_missing_segment_or_journal_is_a_lost_one() {
    for victim in [0, 1, 2, 3] {
        let directory = created();
        write_and_die(directory.path(), Durability::Strict, 1..=5);
        write_and_die(directory.path(), Durability::Strict, 6..=9);
        write_and_die(directory.path(), Durability::Strict, 10..=12);
        match victim {
            3 => fs::remove_dir_all(directory.path().join("journal")),
            _ => fs::remove_file(&segments(directory.path())[victim]),
        }
        .expect("removed");
        // The first may have been trimmed, the last never been written: the core learns it from
        // peers.
        assert_eq!(
            is_lost(directory.path()).is_some(),
            victim == 1 || victim == 3
        );
    }
}

#[test]
fn a_segment_of_another_release_is_refused_and_not_changed() {
    let directory = created();
    write_and_die(directory.path(), Durability::Strict, 1..=5);
    let path = segments(directory.path()).remove(0);
    let whole = fs::read(&path).expect("segment");
    for format in [1, 3] {
        let mut other = whole.clone();
        other[8] = format;
        let check = segment::check_of(&other[..segment::CHECKED_BYTES]);
        other[segment::CHECKED_BYTES..segment::HEADER_BYTES].copy_from_slice(&check);
        fs::write(&path, &other).expect("write");
        let opened = Disk::open(directory.path(), Durability::Strict, |_| {});
        assert!(matches!(opened, Err(DiskError::Format { .. })), "{format}");
    }
    fs::write(&path, &whole).expect("write");
    assert_eq!(
        recovered(directory.path()),
        expected(1..=5),
        "nothing was given up"
    );
}

#[test]
fn an_unsafe_durability_loses_the_journal_when_its_guarantee_ends() {
    let directory = created();
    write_and_die(directory.path(), Durability::Os, 1..=5);
    assert_eq!(
        recovered(directory.path()),
        expected(1..=5),
        "the machine has not rebooted"
    );
    write_and_die(directory.path(), Durability::Os, 6..=7);
    let run = directory.path().join("run");
    let text = fs::read_to_string(&run).expect("a mark");
    let boot = text.split(' ').nth(1).expect("a boot id");
    fs::write(&run, text.replace(boot, "another-boot")).expect("writable");
    assert!(is_lost(directory.path()).expect("lost").contains("booted"));

    let directory = created();
    let (opened, _) = open(directory.path(), Durability::Os);
    opened.disk.append(Token(1), body(1)).expect("append");
    close(opened);
    let run = directory.path().join("run");
    let text = fs::read_to_string(&run).expect("a mark");
    let boot = text.split(' ').nth(1).expect("a boot id");
    fs::write(&run, text.replace(boot, "another-boot")).expect("writable");
    assert_eq!(
        recovered(directory.path()),
        expected(1..=1),
        "stopped cleanly"
    );

    let directory = created();
    let (opened, _) = open(directory.path(), Durability::None);
    assert_eq!(
        opened.journal.condition,
        Condition::Intact,
        "never started before"
    );
    close(opened);
    assert!(is_lost(directory.path()).is_some());
}

#[test]
fn a_flush_of_the_state_is_whole_and_durable_when_it_is_reported() {
    let directory = created();
    let (opened, reports) = open(directory.path(), Durability::Strict);
    let row = |value: &'static str| (Bytes::from_static(b"row"), Some(Bytes::from(value)));
    let root = |sequence| DurableRoot {
        sequence: Sequence(sequence),
        digest: Digest([0; 32]),
    };
    for sequence in 1..=3 {
        let entries = vec![row("old"), row("new")];
        opened
            .disk
            .flush(WriteBatch { entries }, root(sequence))
            .expect("flush");
    }
    for due in 1..=3 {
        match reports.recv_timeout(Duration::from_secs(20)) {
            Ok(Completion::Flushed { sequence }) => assert_eq!(sequence, Sequence(due)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(opened.store.get(b"row"), Ok(Some(Bytes::from("new"))));
    drop(opened);
    let (opened, _) = open(directory.path(), Durability::Strict);
    assert_eq!(opened.store.get(b"row"), Ok(Some(Bytes::from("new"))));
    assert_eq!(opened.store.get(b"none"), Ok(None));
}

#[test]
fn a_full_disk_stops_everything_and_reports_nothing_as_persisted() {
    let directory = created();
    let mut full = appender(directory.path(), 1);
    full.fill_up();
    let queue = Arc::new(Queue::new(1 << 20));
    let (report, reports) = channel();
    let report = Arc::new(move |completion| {
        let _ = report.send(completion);
    });
    let thread = writer::journal(Arc::clone(&queue), full, Durability::Strict, report);
    let write = |token| writer::JournalWrite::Append {
        token: Token(token),
        record: body(token),
    };
    queue.push(write(1), 10).expect("not failed yet");
    queue.wake(0);
    match reports.recv_timeout(Duration::from_secs(20)) {
        Ok(Completion::Failed {
            error: error @ DiskError::Full { .. },
        }) => {
            assert!(error.to_string().contains("no space is left"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The cause is reported first, and then everything is refused: a write in between is lost and
    // not reported.
    thread.expect("started").join().expect("ended");
    assert!(matches!(queue.push(write(2), 10), Err(DiskError::Stopped)));
    assert!(
        reports.recv().is_err(),
        "nothing was reported after the failure"
    );
}

#[test]
fn a_directory_that_is_not_this_replicas_is_refused_with_a_hint() {
    let empty = tempfile::tempdir().expect("a directory");
    let refused = |path: &Path| match Disk::open(path, Durability::Strict, |_| {}) {
        Err(error) => error,
        Ok(_) => panic!("{} was opened", path.display()),
    };
    assert!(matches!(
        refused(empty.path()),
        DiskError::NotInitialised { .. }
    ));
    assert!(matches!(
        refused(&empty.path().join("missing")),
        DiskError::NotInitialised { .. }
    ));

    let directory = created();
    assert!(matches!(
        Disk::create(directory.path(), Incarnation::default()),
        Err(DiskError::AlreadyInitialised { .. })
    ));
    let first = open(directory.path(), Durability::Strict);
    assert!(matches!(
        refused(directory.path()),
        DiskError::Locked { .. }
    ));
    drop(first);
    fs::write(
        directory.path().join("format"),
        "quorumfs replica data, format 3\n",
    )
    .expect("write");
    assert!(matches!(
        refused(directory.path()),
        DiskError::Format { .. }
    ));
}

#[test]
fn items_wait_for_a_wake_or_a_full_queue() {
    let queue = Arc::new(Queue::new(10));
    let (taken, seen) = channel();
    let writer = queue.clone();
    let thread = std::thread::spawn(move || {
        while let Some(group) = writer.take(1 << 20) {
            taken.send(group).expect("the test waits");
        }
    });
    let pause = Duration::from_millis(50);
    std::thread::sleep(pause);
    queue.push(1, 4).expect("open");
    queue.push(2, 4).expect("open");
    queue.wake(100);
    assert!(seen.recv_timeout(pause).is_err(), "not woken yet");
    queue.wake(8);
    assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok(vec![1, 2]));
    std::thread::sleep(pause);
    queue.push(3, 8).expect("open");
    queue.push(4, 8).expect("space was freed");
    assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok(vec![3]));
    queue.close();
    assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok(vec![4]));
    thread.join().expect("ended");
}

#[test]
fn items_added_while_the_writer_is_busy_wait_for_a_wake_as_well() {
    let queue = Arc::new(Queue::new(100));
    queue.push(1, 4).expect("open");
    queue.wake(0);
    assert_eq!(queue.take(1 << 20), Some(vec![1]));
    // Nothing waits for this one: it would be a sync of its own.
    queue.push(2, 4).expect("open");
    let (taken, seen) = channel();
    let writer = queue.clone();
    let thread = std::thread::spawn(move || taken.send(writer.take(1 << 20)));
    assert!(seen.recv_timeout(Duration::from_millis(50)).is_err());
    queue.push(3, 4).expect("open");
    queue.wake(0);
    let both = seen.recv_timeout(Duration::from_secs(20));
    assert_eq!(both, Ok(Some(vec![2, 3])));
    thread.join().expect("ended").expect("the test waits");
}

#[test]
fn a_lost_journal_is_lost_until_another_one_has_begun_and_then_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = Incarnation([0xa7; 16]);
    Disk::create(directory.path(), first).expect("it is empty");
    write_and_die(directory.path(), Durability::Strict, 1..=9);
    for (round, last) in [(1, 2), (2, 3)] {
        let newest = segments(directory.path()).pop().expect("a segment");
        fs::remove_file(newest).expect("removed");
        let others = segments(directory.path());
        others
            .iter()
            .for_each(|path| fs::remove_file(path).expect("removed"));
        let (opened, reports) = open(directory.path(), Durability::Strict);
        assert_eq!(opened.incarnation, first);
        let lost = matches!(opened.journal.condition, Condition::Lost { .. });
        assert!(lost, "round {round}");
        // Until it contains such a record it counts as no replacement.
        opened.disk.append(Token(1), body(1)).expect("append");
        await_token(&reports, Token(1));
        drop((opened, reports));
        assert!(is_lost(directory.path()).is_some(), "round {round}");
        let (opened, reports) = open(directory.path(), Durability::Strict);
        let mark = Record::Incarnation(Incarnation([round; 16])).encode();
        opened.disk.append(Token(1), mark).expect("append");
        for token in 2..=last {
            opened
                .disk
                .append(Token(token), body(token))
                .expect("append");
        }
        await_token(&reports, Token(last));
        drop((opened, reports));
        let found = recovered(directory.path());
        assert_eq!(found.len() as u64, last, "round {round}");
        assert!(!directory.path().join("lost").exists());
        assert_eq!(recovered(directory.path()), found, "round {round}");
    }
}

#[test]
fn a_journal_that_is_lost_a_second_time_is_removed_as_a_whole() {
    let directory = created();
    write_and_die(directory.path(), Durability::Strict, 1..=9);
    fs::write(segments(directory.path()).remove(0), "rubbish").expect("written");
    assert!(is_lost(directory.path()).is_some());
    let (opened, reports) = open(directory.path(), Durability::Strict);
    let mark = Record::Incarnation(Incarnation([1; 16])).encode();
    opened.disk.append(Token(1), mark).expect("append");
    await_token(&reports, Token(1));
    drop((opened, reports));
    write_and_die(directory.path(), Durability::Strict, 2..=3);
    write_and_die(directory.path(), Durability::Strict, 4..=5);
    fs::write(directory.path().join("journal/0.spare"), "").expect("written");
    // As far as it gets with a verdict of its own, if it is killed before the removal.
    let names = |path: PathBuf| {
        let entries = fs::read_dir(path).expect("there");
        let mut names: Vec<_> = entries.map(|it| it.expect("one").file_name()).collect();
        names.sort();
        names
    };
    let before = segments(directory.path());
    fs::write(directory.path().join("lost"), "a test says so").expect("written");
    let layout = Layout::new(directory.path());
    layout.set_journal_aside().expect("renamed");
    let discarded = directory.path().join("journal.discarded");
    let names_before: Vec<_> = before.iter().filter_map(|it| it.file_name()).collect();
    assert_eq!(names(discarded.clone()), names_before);
    assert!(segments(directory.path()).is_empty());
    // Half of it is removed when it is killed again.
    fs::remove_file(discarded.join(names_before[0])).expect("removed");
    assert!(is_lost(directory.path()).is_some());
    assert!(!discarded.exists(), "it was removed");
    assert!(directory.path().join("journal.lost").is_dir());
}

#[test]
fn a_disk_without_a_name_is_refused() {
    let directory = created();
    let path = directory.path().join("incarnation");
    fs::remove_file(&path).expect("there is one");
    for name in [
        None,
        Some(""),
        Some("12"),
        Some("1111111111111111111111111111111g"),
    ] {
        if let Some(name) = name {
            fs::write(&path, name).expect("written");
        }
        let opened = Disk::open(directory.path(), Durability::Strict, |_| {});
        assert!(
            matches!(opened, Err(DiskError::Nameless { .. })),
            "{name:?}"
        );
    }
}
