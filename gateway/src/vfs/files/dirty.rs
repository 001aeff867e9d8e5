//! Written bytes that are not yet committed: runs in memory, by offset.
//!
//! Invariants: runs never overlap, none is empty, none is longer than [`RUN_BYTES_MAX`]. A write
//! fills the gaps between runs and changes the rest in place, so no run is split or moved. A slice
//! is made from a run.

use crate::memory::{BLOCK_BYTES, LongBytes};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// The longest run, and so the longest slice that is written.
pub(in crate::vfs) const RUN_BYTES_MAX: usize = BLOCK_BYTES;
/// Overhead of a run in addition to its bytes, so that a million tiny runs count as what they are.
const RUN_COST_BYTES: u64 = 128;

/// Runs that are still written to.
#[derive(Debug, Default)]
pub(in crate::vfs) struct DirtyRuns {
    runs: BTreeMap<u64, LongBytes>,
    /// The memory that they take.
    bytes: u64,
}

/// Runs being uploaded: no longer written to, still read from.
#[derive(Clone, Debug, Default)]
pub(in crate::vfs) struct FrozenRuns {
    runs: BTreeMap<u64, Bytes>,
}

fn end_of(start: u64, length: usize) -> u64 {
    start.saturating_add(length as u64)
}

impl DirtyRuns {
    pub(in crate::vfs) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The memory that the runs take, overhead included, in bytes.
    pub(in crate::vfs) fn cost(&self) -> u64 {
        let overhead = (self.runs.len() as u64).saturating_mul(RUN_COST_BYTES);
        self.bytes.saturating_add(overhead)
    }

    /// The memory that the runs take without overhead: their bytes, or a little more.
    pub(in crate::vfs) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the last run ends; 0 if there is none.
    pub(in crate::vfs) fn end(&self) -> u64 {
        self.runs
            .last_key_value()
            .map_or(0, |(&start, run)| end_of(start, run.len()))
    }

    /// Takes `data` in at `offset`, over older bytes.
    pub(in crate::vfs) fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut position, mut rest) = (offset, data);
        while !rest.is_empty() {
            let before = self.runs.range_mut(..=position).next_back();
            let (taken, grown) = match before {
                Some((&start, run)) if position < end_of(start, run.len()) => {
                    let at = usize::try_from(position.saturating_sub(start)).unwrap_or(0);
                    let space = run.get_mut(at..).unwrap_or_default();
                    let taken = space.len().min(rest.len());
                    if let (Some(to), Some(from)) = (space.get_mut(..taken), rest.get(..taken)) {
                        to.copy_from_slice(from);
                    }
                    (taken, 0)
                }
                before => {
                    let extend = match before {
                        Some((&start, run))
                            if end_of(start, run.len()) == position
                                && run.len() < RUN_BYTES_MAX =>
                        {
                            Some((start, RUN_BYTES_MAX.saturating_sub(run.len())))
                        }
                        _ => None,
                    };
                    let gap =
                        self.runs
                            .range(position..)
                            .next()
                            .map_or(rest.len(), |(&next, _)| {
                                usize::try_from(next.saturating_sub(position)).unwrap_or(usize::MAX)
                            });
                    let (start, space) = extend.unwrap_or((position, RUN_BYTES_MAX));
                    let taken = rest.len().min(gap).min(space);
                    let run = self.runs.entry(start).or_default();
                    let before = run.held();
                    run.append(rest.get(..taken).unwrap_or_default(), RUN_BYTES_MAX);
                    (taken, run.held().saturating_sub(before))
                }
            };
            self.bytes = self.bytes.saturating_add(grown as u64);
            position = end_of(position, taken);
            rest = rest.get(taken..).unwrap_or_default();
        }
    }

    /// Removes and returns a run of full length, if there is one.
    pub(in crate::vfs) fn take_full(&mut self) -> Option<(u64, Bytes)> {
        let mut runs = self.runs.iter();
        let (&start, _) = runs.find(|(_, run)| run.len() >= RUN_BYTES_MAX)?;
        let run = self.runs.remove(&start)?;
        self.bytes = self.bytes.saturating_sub(run.held() as u64);
        Some((start, run.share()))
    }

    /// Whether any of so many bytes from `start` on is dirty.
    pub(in crate::vfs) fn overlaps(&self, start: u64, length: usize) -> bool {
        let before = self.runs.range(..end_of(start, length)).next_back();
        before.is_some_and(|(&first, run)| end_of(first, run.len()) > start)
    }

    /// Copies dirty bytes within `buffer`, which begins at `offset`; returns the gaps.
    pub(in crate::vfs) fn overlay(&self, offset: u64, buffer: &mut [u8]) -> Vec<Range<u64>> {
        overlay(&self.runs, offset, buffer)
    }

    /// Where the run ends that covers `at`, if there is one.
    pub(in crate::vfs) fn covered_until(&self, at: u64) -> Option<u64> {
        covered_until(&self.runs, at)
    }

    /// The first byte from `at` on that is in a run.
    pub(in crate::vfs) fn next_byte(&self, at: u64) -> Option<u64> {
        next_byte(&self.runs, at)
    }

    /// Removes and returns everything, with neighbouring runs joined.
    pub(in crate::vfs) fn freeze(&mut self) -> FrozenRuns {
        let mut frozen = BTreeMap::new();
        let mut last: Option<(u64, LongBytes)> = None;
        self.bytes = 0;
        for (start, run) in std::mem::take(&mut self.runs) {
            match &mut last {
                Some((first, joined))
                    if end_of(*first, joined.len()) == start
                        && joined.len().saturating_add(run.len()) <= RUN_BYTES_MAX =>
                {
                    joined.append(&run, RUN_BYTES_MAX);
                }
                _ => {
                    if let Some((first, joined)) = last.replace((start, run)) {
                        frozen.insert(first, joined.share());
                    }
                }
            }
        }
        if let Some((first, joined)) = last {
            frozen.insert(first, joined.share());
        }
        FrozenRuns { runs: frozen }
    }

    /// Puts back runs that could not be committed, beneath newer ones.
    pub(in crate::vfs) fn put_beneath(&mut self, older: FrozenRuns) {
        let newer = std::mem::take(self);
        for (start, run) in older.runs {
            self.write(start, &run);
        }
        for (start, run) in newer.runs {
            self.write(start, &run);
        }
    }

    /// Drops everything.
    pub(in crate::vfs) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl FrozenRuns {
    /// Adds a run where there is none.
    pub(in crate::vfs) fn insert(&mut self, start: u64, run: Bytes) {
        self.runs.insert(start, run);
    }

    /// Drops the runs that end at or before `until`.
    pub(in crate::vfs) fn remove_until(&mut self, until: u64) {
        while let Some(first) = self.runs.first_entry()
            && end_of(*first.key(), first.get().len()) <= until
        {
            first.remove();
        }
    }

    /// Bytes in all runs.
    pub(in crate::vfs) fn bytes(&self) -> u64 {
        self.runs.values().map(|run| run.len() as u64).sum()
    }

    pub(in crate::vfs) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Where the last run ends; 0 if there is none.
    pub(in crate::vfs) fn end(&self) -> u64 {
        self.runs
            .last_key_value()
            .map_or(0, |(&start, run)| end_of(start, run.len()))
    }

    /// As [`DirtyRuns::overlay`], for the ranges in `gaps` only.
    pub(in crate::vfs) fn overlay(
        &self,
        offset: u64,
        buffer: &mut [u8],
        gaps: Vec<Range<u64>>,
    ) -> Vec<Range<u64>> {
        if self.runs.is_empty() {
            return gaps;
        }
        let mut left = Vec::new();
        for gap in gaps {
            if let Some(part) = part_of(buffer, offset, &gap) {
                left.extend(overlay(&self.runs, gap.start, part));
            }
        }
        left
    }

    /// As [`DirtyRuns::covered_until`].
    pub(in crate::vfs) fn covered_until(&self, at: u64) -> Option<u64> {
        covered_until(&self.runs, at)
    }

    /// As [`DirtyRuns::next_byte`].
    pub(in crate::vfs) fn next_byte(&self, at: u64) -> Option<u64> {
        next_byte(&self.runs, at)
    }

    /// The runs, by offset.
    pub(in crate::vfs) fn iter(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.runs.iter().map(|(&start, run)| (start, run))
    }

    /// Whether a byte before the end was not written.
    pub(in crate::vfs) fn has_gaps(&self) -> bool {
        let mut end = 0;
        self.iter().any(|(offset, run)| {
            let begins_late = offset > end;
            end = offset.saturating_add(run.len() as u64);
            begins_late
        })
    }

    /// The bytes from 0 to `length`, zeros in the gaps.
    pub(in crate::vfs) fn flatten(&self, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        overlay(&self.runs, 0, &mut buffer);
        buffer
    }
}

/// The part of `buffer` (which begins at `offset`) that `range` names.
pub(in crate::vfs) fn part_of<'b>(
    buffer: &'b mut [u8],
    offset: u64,
    range: &Range<u64>,
) -> Option<&'b mut [u8]> {
    let start = usize::try_from(range.start.checked_sub(offset)?).ok()?;
    let end = usize::try_from(range.end.checked_sub(offset)?).ok()?;
    buffer.get_mut(start..end)
}

fn covered_until<R: AsRef<[u8]>>(runs: &BTreeMap<u64, R>, at: u64) -> Option<u64> {
    let (&start, run) = runs.range(..=at).next_back()?;
    Some(end_of(start, run.as_ref().len())).filter(|&end| end > at)
}

fn next_byte<R: AsRef<[u8]>>(runs: &BTreeMap<u64, R>, at: u64) -> Option<u64> {
    if covered_until(runs, at).is_some() {
        return Some(at);
    }
    runs.range(at..).next().map(|(&start, _)| start)
}

fn overlay<R: AsRef<[u8]>>(
    runs: &BTreeMap<u64, R>,
    offset: u64,
    buffer: &mut [u8],
) -> Vec<Range<u64>> {
    let end = end_of(offset, buffer.len());
    let mut gaps = Vec::new();
    let mut position = offset;
    let first = runs
        .range(..=offset)
        .next_back()
        .map_or(offset, |(&start, _)| start);
    for (&start, run) in runs.range(first..end) {
        let run = run.as_ref();
        let covered = start.max(position)..end_of(start, run.len()).min(end);
        if covered.is_empty() {
            continue;
        }
        if position < covered.start {
            gaps.push(position..covered.start);
        }
        let from = usize::try_from(covered.start.saturating_sub(start)).unwrap_or(usize::MAX);
        if let Some(to) = part_of(buffer, offset, &covered)
            && let Some(from) = run.get(from..from.saturating_add(to.len()))
        {
            to.copy_from_slice(from);
        }
        position = covered.end;
    }
    if position < end {
        gaps.push(position..end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(runs: &DirtyRuns) {
        let mut bytes = 0;
        let mut position = 0;
        for (&start, run) in &runs.runs {
            assert!(!run.is_empty() && run.len() <= RUN_BYTES_MAX && start >= position);
            position = end_of(start, run.len());
            bytes += run.len() as u64;
        }
        assert_eq!(bytes, runs.bytes);
    }

    proptest! {
        #[test]
        fn written_bytes_are_read_in_any_order_of_writes(
            writes in proptest::collection::vec((0u64..200, 1usize..60, any::<bool>()), 1..40),
            read in 0u64..200,
        ) {
            let mut model = vec![None; 300];
            let (mut dirty, mut frozen) = (DirtyRuns::default(), FrozenRuns::default());
            for (number, (offset, length, freeze)) in writes.into_iter().enumerate() {
                let byte = (number + 1) as u8;
                dirty.write(offset, &vec![byte; length]);
                model[offset as usize..offset as usize + length].fill(Some(byte));
                check(&dirty);
                if freeze && frozen.is_empty() {
                    frozen = dirty.freeze();
                } else if freeze {
                    dirty.put_beneath(std::mem::take(&mut frozen));
                    check(&dirty);
                }
            }
            let mut buffer = vec![0; 100];
            let gaps = dirty.overlay(read, &mut buffer);
            let gaps = frozen.overlay(read, &mut buffer, gaps);
            for (at, found) in buffer.iter().enumerate() {
                let place = read + at as u64;
                let in_gap = gaps.iter().any(|gap| gap.contains(&place));
                match model[place as usize] {
                    Some(byte) => prop_assert!(!in_gap && *found == byte),
                    None => prop_assert!(in_gap && *found == 0),
                }
            }
        }
    }

    #[test]
    fn appends_grow_one_run_up_to_the_length_of_a_slice() {
        let mut dirty = DirtyRuns::default();
        for number in 0..9 {
            dirty.write(number << 20, &vec![1; 1 << 20]);
        }
        let frozen = dirty.freeze();
        let lengths: Vec<_> = frozen
            .iter()
            .map(|(start, run)| (start, run.len()))
            .collect();
        assert_eq!(
            lengths,
            [(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, 1 << 20)]
        );
        assert!(dirty.is_empty());
    }

    #[test]
    fn runs_written_backwards_are_joined_when_frozen() {
        let mut dirty = DirtyRuns::default();
        for number in (0..4u64).rev() {
            dirty.write(number * 10, &[number as u8; 10]);
        }
        assert_eq!(dirty.cost(), 40 + 4 * RUN_COST_BYTES);
        let frozen = dirty.freeze();
        assert_eq!(frozen.iter().count(), 1);
        assert_eq!(frozen.flatten(45)[35..], [3, 3, 3, 3, 3, 0, 0, 0, 0, 0]);
    }
}
