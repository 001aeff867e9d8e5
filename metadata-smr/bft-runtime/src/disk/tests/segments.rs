//! Segments that grow, are filled, are reused, and are damaged.

use super::*;
use crate::disk::segment::{FIRST_GROUP, header_of};
use crate::disk::spare::SEGMENT_BYTES;
use proptest::prelude::*;
use quorumfs_bft::journal::framing::{FRAME_HEADER_BYTES, PAGE_BYTES};
use quorumfs_bft::journal::{Framing, SegmentIdentity};

/// Writes one group.
fn write(appender: &mut Appender, tokens: std::ops::RangeInclusive<u64>) {
    let lengths = tokens.clone().map(|token| body(token).len());
    appender.begin_group(lengths).expect("enough space");
    for token in tokens {
        appender.put(Token(token), &body(token)).expect("in turn");
    }
    appender.write_group().expect("written");
    appender.sync().expect("synced");
}

/// Fills every segment in advance with the bytes of complete records under these tokens.
fn fill_with_old_records(path: &Path, tokens: std::ops::RangeInclusive<u64>) -> Spares {
    let framing = Framing::new(SegmentIdentity([9; 16]));
    let journal = path.join("journal");
    let mut bytes = header_of(
        Token(*tokens.start()),
        SegmentIdentity([9; 16]),
        SEGMENT_BYTES,
    );
    for token in tokens {
        framing.put_record(Token(token), Token(token), &body(token), &mut bytes);
        bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    }
    bytes.resize(usize::try_from(SEGMENT_BYTES).expect("small"), 0);
    fs::write(journal.join("0.spare"), &bytes).expect("written");
    Spares::open(&journal).expect("a journal")
}

#[test]
fn a_long_segment_is_followed_by_another() {
    let directory = created();
    let mut appender = appender(directory.path(), 1);
    for first in [1, 4, 7, 10_u64] {
        write(&mut appender, first..=first);
        write(&mut appender, first + 1..=first + 2);
        appender.grow_old();
    }
    assert_eq!(segments(directory.path()).len(), 4);
    assert!(matches!(
        appender.put(Token(14), b""),
        Err(DiskError::OutOfTurn {
            found: 14,
            expected: 13
        })
    ));
    assert_eq!(recovered(directory.path()), expected(1..=12));
}

/// Has written its first record, to a segment that grew, and takes a spare for the second.
fn old_appender(path: &Path) -> Appender {
    let mut appender = appender(path, 1);
    write(&mut appender, 1..=1);
    appender.grow_old();
    appender
}

fn lengths(path: &Path) -> Vec<u64> {
    let length = |path: &PathBuf| fs::metadata(path).expect("there").len();
    segments(path).iter().map(length).collect()
}

#[test]
fn a_process_that_writes_little_uses_no_spare() {
    let directory = created();
    drop(fill_with_old_records(directory.path(), 1..=2));
    let spare = directory.path().join("journal/0.spare");
    for first in 1..=5_u64 {
        let mut appender = appender(directory.path(), first);
        write(&mut appender, first..=first);
        assert!(spare.exists(), "it was taken");
    }
    assert!(lengths(directory.path()).iter().all(|it| *it < 65_536));
    assert_eq!(recovered(directory.path()), expected(1..=5));
}

#[test]
fn a_spare_that_is_short_or_gone_is_no_segment() {
    for gone in [true, false] {
        let directory = created();
        let mut appender = {
            drop(fill_with_old_records(directory.path(), 1..=2));
            old_appender(directory.path())
        };
        let spare = directory.path().join("journal/0.spare");
        match gone {
            true => fs::remove_file(&spare).expect("there"),
            false => fs::write(&spare, "short").expect("there"),
        }
        write(&mut appender, 2..=3);
        assert_eq!(recovered(directory.path()), expected(1..=3), "gone: {gone}");
    }
    let directory = created();
    fs::write(directory.path().join("journal/0.spare"), "short").expect("written");
    let spares = Spares::open(&directory.path().join("journal")).expect("a journal");
    assert!(!spares.is_ready());
}

#[test]
fn old_records_in_a_reused_segment_are_never_read() {
    for old in [2..=20, 4..=20, 6..=9_u64] {
        let directory = created();
        drop(fill_with_old_records(directory.path(), old));
        let mut appender = old_appender(directory.path());
        write(&mut appender, 2..=3);
        assert_eq!(lengths(directory.path())[1], SEGMENT_BYTES);
        write(&mut appender, 4..=5);
        // The process dies before the seal, or after it.
        assert_eq!(recovered(directory.path()), expected(1..=5));
        appender.seal().expect("sealed");
        assert_eq!(recovered(directory.path()), expected(1..=5));
    }
}

#[test]
fn a_given_up_segment_is_reused_and_a_spare_is_kept_ready() {
    let directory = created();
    let spares = Arc::new(fill_with_old_records(directory.path(), 1..=2));
    let journal = directory.path().join("journal");
    let mut appender = Appender::create(&journal, Token(1), Arc::clone(&spares)).expect("created");
    let thread = writer::spares(Arc::clone(&spares)).expect("started");
    let await_spare = || {
        let begun = std::time::Instant::now();
        while !spares.is_ready() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no spare is prepared"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for first in [1, 4, 7, 10_u64] {
        // The first existed; the others have been prepared by then.
        await_spare();
        write(&mut appender, first..=first + 2);
        appender.seal().expect("sealed");
        appender.trim(Token(first)).expect("trimmed");
        appender.grow_old();
    }
    assert_eq!(
        lengths(directory.path()),
        [SEGMENT_BYTES],
        "the others were given up"
    );
    spares.close();
    thread.join().expect("ended");
    let left = fs::read_dir(&journal)
        .expect("a journal")
        .map(|entry| entry.expect("an entry"));
    let lengths: Vec<_> = left
        .map(|entry| entry.metadata().expect("there").len())
        .collect();
    assert!(
        lengths.iter().all(|length| *length == SEGMENT_BYTES),
        "{lengths:?}"
    );
    assert!((2..=5).contains(&lengths.len()), "{lengths:?}");
    assert_eq!(recovered(directory.path()), expected(10..=12));
}

#[test]
fn a_group_that_fits_no_segment_has_one_of_its_own() {
    let directory = created();
    drop(fill_with_old_records(directory.path(), 1..=2));
    let mut appender = appender(directory.path(), 1);
    write(&mut appender, 1..=1);
    let long = vec![7; 6 << 20];
    appender
        .begin_group([long.len(); 3].into_iter())
        .expect("enough space");
    for token in 2..=4 {
        appender.put(Token(token), &long).expect("in turn");
    }
    appender.write_group().expect("written");
    write(&mut appender, 5..=5);
    assert_eq!(segments(directory.path()).len(), 3);
    let records = recovered(directory.path());
    assert_eq!(records.len(), 5);
    assert!(records[1..4].iter().all(|(_, record)| *record == long));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_flipped_bit_in_persisted_records_loses_the_journal_for_good(
        place in any::<prop::sample::Index>(),
    ) {
        let directory = created();
        write_and_die(directory.path(), Durability::Os, 1..=6);
        let path = segments(directory.path()).pop().expect("a segment");
        let mut bytes = fs::read(&path).expect("readable");
        // The header, or the bytes of a record.
        let header = usize::try_from(FIRST_GROUP).expect("small");
        let whole = body(6);
        let last = bytes.windows(whole.len()).rposition(|found| found == whole).expect("there");
        let at = place.index(header + FRAME_HEADER_BYTES + whole.len());
        let at = if at < header { at } else { last - FRAME_HEADER_BYTES + at - header };
        bytes[at] ^= 1;
        fs::write(&path, &bytes).expect("writable");
        prop_assert!(is_lost(directory.path()).is_some());
        let again = is_lost(directory.path());
        prop_assert!(again.is_some(), "the verdict stays");
        prop_assert!(directory.path().join("journal.lost").is_dir());
    }

    #[test]
    fn a_truncated_growing_segment_drops_the_truncated_records_and_appending_continues(
        place in any::<prop::sample::Index>(),
    ) {
        let directory = created();
        write_and_die(directory.path(), Durability::Os, 1..=6);
        let path = segments(directory.path()).pop().expect("a segment");
        let bytes = fs::read(&path).expect("readable");
        let header = usize::try_from(FIRST_GROUP).expect("small");
        let end = bytes.windows(body(6).len()).rposition(|found| found == body(6)).expect("there");
        let at = header + place.index(end + body(6).len() - header);
        fs::write(&path, &bytes[..at]).expect("writable");
        let records = recovered(directory.path());
        prop_assert!(records.len() < 6);
        prop_assert_eq!(&records, &expected(1..=records.len() as u64));
        // Both parts are read.
        let next = records.len() as u64 + 1;
        write_and_die(directory.path(), Durability::Os, next..=next + 3);
        prop_assert_eq!(recovered(directory.path()), expected(1..=next + 3));
    }
}

#[test]
fn a_filled_segment_that_became_shorter_is_a_lost_journal() {
    let directory = created();
    drop(fill_with_old_records(directory.path(), 1..=2));
    let mut appender = old_appender(directory.path());
    write(&mut appender, 2..=2);
    let path = segments(directory.path()).remove(1);
    let file = fs::File::options().write(true).open(&path).expect("there");
    file.set_len(SEGMENT_BYTES - 1).expect("cut");
    assert!(
        is_lost(directory.path())
            .expect("lost")
            .contains("truncated")
    );
}
