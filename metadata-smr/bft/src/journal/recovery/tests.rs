//! Tears, damage, gaps, and old bytes.

use super::*;
use crate::journal::framing::{FRAME_HEADER_BYTES, PAGE_BYTES, end_page};
use proptest::collection::vec;
use proptest::prelude::*;

/// The unit that a medium writes entirely or not at all.
const SECTOR_BYTES: usize = 512;
const NEW: SegmentIdentity = SegmentIdentity([7; 16]);
const OLD: SegmentIdentity = SegmentIdentity([6; 16]);

type Group = Vec<Vec<u8>>;

/// Groups as they are written one after the other, and where each begins; the last position is
/// where the next one would begin.
fn image(identity: SegmentIdentity, first: u64, groups: &[Group]) -> (Vec<u8>, Vec<usize>) {
    let framing = Framing::new(identity);
    let mut token = first;
    let mut bytes = Vec::new();
    let mut starts = vec![0];
    for group in groups {
        let behind = Token(token);
        for record in group {
            framing.put_record(Token(token), behind, record, &mut bytes);
            token += 1;
        }
        end_page(&mut bytes);
        starts.push(bytes.len());
    }
    (bytes, starts)
}

fn over(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut bytes = old.to_vec();
    bytes.resize(old.len().max(new.len()), 0);
    bytes[..new.len()].copy_from_slice(new);
    bytes
}

fn sealed(mut bytes: Vec<u8>, next: u64) -> Vec<u8> {
    bytes.extend_from_slice(&Framing::new(NEW).seal(Token(next)));
    bytes
}

fn segment(first: u64, bytes: Vec<u8>) -> Segment {
    Segment {
        first: Token(first),
        identity: NEW,
        bytes: bytes.into(),
    }
}

fn records(journal: &Journal) -> Vec<Vec<u8>> {
    let records = journal.entries.iter();
    records.map(|entry| entry.record.to_vec()).collect()
}

fn is_lost(journal: &Journal) -> bool {
    matches!(journal.condition, Condition::Lost { .. })
}

fn group() -> impl Strategy<Value = Group> {
    let short = vec(any::<u8>(), 0..60);
    let long = (any::<u8>(), 900..6000_usize).prop_map(|(byte, length)| vec![byte; length]);
    vec(prop_oneof![3 => short, 1 => long], 1..5)
}

proptest! {
    #[test]
    fn whole_old_records_behind_the_tail_are_never_read(
        old in vec(group(), 0..8),
        new in vec(group(), 0..4),
        first in 1..4_u64,
        with_seal in any::<bool>(),
    ) {
        // The worst place for them: under the tokens that come next.
        let (mut bytes, _) = image(NEW, first, &new);
        let all = new.concat();
        if with_seal {
            bytes = sealed(bytes, first + all.len() as u64);
        }
        for old_first in [1, first, first + all.len() as u64] {
            let bytes = over(&image(OLD, old_first, &old).0, &bytes);
            let journal = examine(&[segment(first, bytes)]);
            prop_assert!(!is_lost(&journal), "{:?}", journal.condition);
            prop_assert_eq!(records(&journal), all.clone());
        }
    }

    #[test]
    fn a_group_of_which_any_sectors_were_written_is_dropped_and_nothing_else(
        old in vec(group(), 0..8),
        new in vec(group(), 1..5),
        written in vec(any::<bool>(), 1..40),
        after_seal in any::<bool>(),
    ) {
        let (bytes, starts) = image(NEW, 5, &new);
        let durable: Vec<_> = new[..new.len() - 1].concat();
        let start = starts[new.len() - 1];
        let mut found = bytes[..start].to_vec();
        if after_seal {
            found = sealed(found, 5 + durable.len() as u64);
        }
        found = over(&image(OLD, 5, &old).0, &found);
        found.resize(found.len().max(bytes.len()), 0);
        let sectors = (start..bytes.len()).step_by(SECTOR_BYTES);
        for (at, written) in sectors.zip(written.iter().cycle()) {
            if *written {
                found[at..at + SECTOR_BYTES].copy_from_slice(&bytes[at..at + SECTOR_BYTES]);
            }
        }
        let journal = examine(&[segment(5, found)]);
        prop_assert!(!is_lost(&journal), "{:?}", journal.condition);
        let kept = records(&journal);
        prop_assert!(kept.len() >= durable.len());
        prop_assert_eq!(&kept[..], &new.concat()[..kept.len()]);
    }

    #[test]
    fn every_cut_keeps_the_records_before_it(
        new in vec(group(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let (bytes, starts) = image(NEW, 1, &new);
        let cut = cut.index(bytes.len() + 1);
        let journal = examine(&[segment(1, bytes[..cut].to_vec())]);
        prop_assert!(!is_lost(&journal), "{:?}", journal.condition);
        let mut due = 0;
        for (group, start) in new.iter().zip(&starts) {
            let mut end = *start;
            for record in group {
                end += FRAME_HEADER_BYTES + record.len();
                due += usize::from(end <= cut);
            }
        }
        prop_assert_eq!(records(&journal), new.concat()[..due].to_vec());
    }

    #[test]
    fn a_flipped_bit_in_a_durable_record_means_lost_and_elsewhere_nothing(
        old in vec(group(), 0..8),
        new in vec(group(), 1..4),
        place in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let (bytes, starts) = image(NEW, 1, &new);
        let place = place.index(bytes.len());
        let at = starts.iter().rposition(|start| *start <= place).expect("the first is 0");
        let framed = new[at].iter().map(|record| FRAME_HEADER_BYTES + record.len());
        let in_record = place < starts[at] + framed.sum::<usize>();
        let all = new.concat();
        let mut bytes = over(&image(OLD, 1, &old).0, &sealed(bytes, 1 + all.len() as u64));
        bytes[place] ^= 1_u8 << bit;
        let journal = examine(&[segment(1, bytes)]);
        prop_assert_eq!(is_lost(&journal), in_record, "{:?}", journal.condition);
        if !in_record {
            prop_assert_eq!(records(&journal), all);
        }
    }
}

#[test]
fn a_missing_segment_means_lost() {
    let first = segment(1, image(NEW, 1, &[vec![vec![1], vec![2]]]).0);
    let third = segment(4, image(NEW, 4, &[vec![vec![4]]]).0);
    let journal = examine(&[first, third]);
    assert!(is_lost(&journal));
    assert_eq!(journal.entries.len(), 2);
}

#[test]
fn a_dropped_tail_may_be_followed_by_another_segment_but_nothing_may_be_missing() {
    let (mut torn, starts) = image(NEW, 1, &[vec![vec![1]], vec![vec![2; 9000]]]);
    torn[starts[1] + 5000] ^= 1;
    let before = segment(1, torn);
    let next = |first| segment(first, image(NEW, first, &[vec![vec![9]]]).0);
    let journal = examine(&[before.clone(), next(2)]);
    assert_eq!(journal.condition, Condition::Intact);
    assert_eq!(records(&journal), [[1], [9]]);
    assert!(is_lost(&examine(&[before.clone(), next(3)])));
    assert_eq!(examine(&[before]).condition, Condition::TornTail);
}

#[test]
fn a_segment_that_was_filled_to_its_end_is_whole() {
    let (bytes, _) = image(NEW, 1, &[vec![vec![0; PAGE_BYTES - FRAME_HEADER_BYTES]]]);
    assert_eq!(bytes.len(), PAGE_BYTES);
    let journal = examine(&[segment(1, bytes)]);
    assert_eq!(
        (journal.entries.len(), journal.condition),
        (1, Condition::Intact)
    );
}
