//! The known content of a file: where each committed run of bytes lies.
//!
//! The map is a cache of extents that the servers hold, filled page by page as needed and tagged
//! with the inode's version: entries of another version are dropped. Bytes that no extent covers
//! read as zeros.

use crate::slices::StoredSlice;
use bytes::Bytes;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeVersion;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Extents cached for one file; beyond this the map starts anew.
const EXTENTS_MAX: usize = 1 << 16;

/// A run of a file within a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::vfs) struct Piece {
    pub(in crate::vfs) stored: Arc<StoredSlice>,
    /// Where in the slice's plaintext it begins.
    pub(in crate::vfs) slice_offset: u32,
    pub(in crate::vfs) length: u32,
}

/// Where a range of a file is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::vfs) enum ReadSource {
    /// Nothing was ever written there.
    Hole(Range<u64>),
    /// In the inode itself.
    Inline(Range<u64>, Bytes),
    /// In a slice, from this offset in its plaintext.
    Slice(Range<u64>, Arc<StoredSlice>, u32),
}

/// The committed content of one file at one version of its inode.
#[derive(Clone, Debug)]
pub(in crate::vfs) struct ContentMap {
    version: InodeVersion,
    kind: ContentKind,
}

#[derive(Clone, Debug)]
enum ContentKind {
    /// Nothing is known.
    Unknown,
    /// All bytes.
    Inline(Bytes),
    Extents {
        pieces: BTreeMap<u64, Piece>,
        known: BTreeMap<u64, u64>,
    },
}

fn end_of(start: u64, length: u32) -> u64 {
    start.saturating_add(u64::from(length))
}

impl ContentMap {
    /// The known content of a file that was just made.
    pub(in crate::vfs) fn fresh(attributes: &Attributes) -> Self {
        if attributes.size == 0 && attributes.allocated == 0 {
            Self::empty(attributes.version)
        } else {
            Self::unknown(attributes.version)
        }
    }

    /// A file of which nothing is known.
    pub(in crate::vfs) fn unknown(version: InodeVersion) -> Self {
        Self {
            version,
            kind: ContentKind::Unknown,
        }
    }

    /// A file that has no bytes.
    pub(in crate::vfs) fn empty(version: InodeVersion) -> Self {
        let known = BTreeMap::from([(0, u64::MAX)]);
        Self {
            version,
            kind: ContentKind::Extents {
                pieces: BTreeMap::new(),
                known,
            },
        }
    }

    /// A file whose bytes lie in its inode.
    pub(in crate::vfs) fn inline(version: InodeVersion, plain: Bytes) -> Self {
        Self {
            version,
            kind: ContentKind::Inline(plain),
        }
    }

    /// The version of the map.
    pub(in crate::vfs) fn version(&self) -> InodeVersion {
        self.version
    }

    /// Whether not even the kind of content is known.
    pub(in crate::vfs) fn is_unknown(&self) -> bool {
        matches!(self.kind, ContentKind::Unknown)
    }

    /// How many separate runs are known.
    pub(in crate::vfs) fn pieces(&self) -> usize {
        match &self.kind {
            ContentKind::Extents { pieces, .. } => pieces.len(),
            ContentKind::Unknown | ContentKind::Inline(_) => 0,
        }
    }

    /// The bytes in the inode, if they lie there.
    pub(in crate::vfs) fn inline_bytes(&self) -> Option<&Bytes> {
        match &self.kind {
            ContentKind::Inline(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Whether there are no bytes.
    pub(in crate::vfs) fn is_empty(&self) -> bool {
        match &self.kind {
            ContentKind::Unknown => false,
            ContentKind::Inline(bytes) => bytes.is_empty(),
            ContentKind::Extents { pieces, known } => {
                pieces.is_empty() && known.get(&0) == Some(&u64::MAX)
            }
        }
    }

    /// Enters a page of extents: all that touch `covered`.
    pub(in crate::vfs) fn learn(
        &mut self,
        covered: Range<u64>,
        page: impl Iterator<Item = (u64, Piece)>,
    ) {
        let (mut pieces, mut known) = match std::mem::replace(&mut self.kind, ContentKind::Unknown)
        {
            ContentKind::Extents { pieces, known } if pieces.len() < EXTENTS_MAX => (pieces, known),
            _ => (BTreeMap::new(), BTreeMap::new()),
        };
        pieces.extend(page);
        insert_range(&mut known, covered);
        self.kind = ContentKind::Extents { pieces, known };
    }

    /// Our own commit changed the content: these runs lie in these slices now.
    pub(in crate::vfs) fn apply(
        &mut self,
        version: InodeVersion,
        runs: impl Iterator<Item = (u64, Piece)>,
    ) {
        self.version = version;
        if let ContentKind::Inline(_) = self.kind {
            // The commit wrote the inline bytes out as well.
            *self = Self::empty(version);
        }
        if let ContentKind::Extents { pieces, known } = &mut self.kind {
            for (start, piece) in runs {
                let covered = start..end_of(start, piece.length);
                cut(pieces, &covered);
                pieces.insert(start, piece);
                insert_range(known, covered);
            }
        }
    }

    /// Our own operation changed the inode but not its content.
    pub(in crate::vfs) fn unchanged_at(&mut self, version: InodeVersion) {
        self.version = version;
    }

    /// The end of the committed bytes that cover `at`; `None` if there is a hole. Or the offset to
    /// ask the servers about.
    pub(in crate::vfs) fn covered_until(&self, at: u64) -> Result<Option<u64>, u64> {
        match &self.kind {
            ContentKind::Unknown => Err(at),
            ContentKind::Inline(bytes) => Ok(Some(bytes.len() as u64).filter(|&end| end > at)),
            ContentKind::Extents { pieces, known } => {
                let before = pieces.range(..=at).next_back();
                let end = before
                    .map(|(&start, piece)| end_of(start, piece.length))
                    .filter(|&end| end > at);
                if end.is_none() && known_until(known, at) <= at {
                    return Err(at);
                }
                Ok(end)
            }
        }
    }

    /// The first committed byte from `at` on, searched below `before`; or the offset to ask the
    /// servers about.
    pub(in crate::vfs) fn next_byte(&self, at: u64, before: u64) -> Result<Option<u64>, u64> {
        if at >= before {
            return Ok(None);
        }
        if self.covered_until(at)?.is_some() {
            return Ok(Some(at));
        }
        let ContentKind::Extents { pieces, known } = &self.kind else {
            return Ok(None);
        };
        let until = known_until(known, at);
        match pieces.range(at..).next() {
            Some((&start, _)) if start < until => Ok(Some(start).filter(|&start| start < before)),
            _ if until < before => Err(until),
            _ => Ok(None),
        }
    }

    /// Where the bytes of `range` are, or the first offset to ask the servers about.
    pub(in crate::vfs) fn sources(&self, range: Range<u64>) -> Result<Vec<ReadSource>, u64> {
        match &self.kind {
            ContentKind::Unknown => Err(range.start),
            ContentKind::Inline(bytes) => Ok(vec![ReadSource::Inline(range, bytes.clone())]),
            ContentKind::Extents { pieces, known } => {
                let until = known_until(known, range.start);
                if until < range.end {
                    return Err(range.start.max(until));
                }
                Ok(sources_of(pieces, range))
            }
        }
    }
}

/// Up to where everything is known from `at` on; at most `at` if nothing is.
fn known_until(known: &BTreeMap<u64, u64>, at: u64) -> u64 {
    let before = known.range(..=at).next_back();
    before.map_or(0, |(_, &end)| end)
}

fn sources_of(pieces: &BTreeMap<u64, Piece>, range: Range<u64>) -> Vec<ReadSource> {
    let mut sources = Vec::new();
    let mut position = range.start;
    let first = pieces
        .range(..=range.start)
        .next_back()
        .map_or(range.start, |(&start, _)| start);
    for (&start, piece) in pieces.range(first..range.end) {
        let covered = start.max(position)..end_of(start, piece.length).min(range.end);
        if covered.is_empty() {
            continue;
        }
        if position < covered.start {
            sources.push(ReadSource::Hole(position..covered.start));
        }
        let skipped = u32::try_from(covered.start.saturating_sub(start)).unwrap_or(u32::MAX);
        let offset = piece.slice_offset.saturating_add(skipped);
        position = covered.end;
        sources.push(ReadSource::Slice(covered, piece.stored.clone(), offset));
    }
    if position < range.end {
        sources.push(ReadSource::Hole(position..range.end));
    }
    sources
}

/// Removes what `range` covers, splitting pieces that reach beyond it.
fn cut(pieces: &mut BTreeMap<u64, Piece>, range: &Range<u64>) {
    let first = pieces
        .range(..range.start)
        .next_back()
        .map_or(range.start, |(&start, _)| start);
    let touched: Vec<u64> = pieces
        .range(first..range.end)
        .map(|(&start, _)| start)
        .collect();
    for start in touched {
        let Some(piece) = pieces.remove(&start) else {
            continue;
        };
        let end = end_of(start, piece.length);
        if start < range.start {
            let keep = range.start.min(end).saturating_sub(start);
            let length = u32::try_from(keep).unwrap_or(piece.length);
            pieces.insert(
                start,
                Piece {
                    length,
                    ..piece.clone()
                },
            );
        }
        if end > range.end {
            let begin = range.end.max(start);
            let skipped = u32::try_from(begin.saturating_sub(start)).unwrap_or(0);
            pieces.insert(
                begin,
                Piece {
                    slice_offset: piece.slice_offset.saturating_add(skipped),
                    length: piece.length.saturating_sub(skipped),
                    ..piece
                },
            );
        }
    }
}

/// Adds a range to a set of disjoint ranges.
fn insert_range(ranges: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    let (mut start, mut end) = (range.start, range.end);
    if let Some((&before, &until)) = ranges.range(..=start).next_back()
        && until >= start
    {
        start = before;
        end = end.max(until);
    }
    let swallowed: Vec<u64> = ranges.range(start..=end).map(|(&begin, _)| begin).collect();
    for begin in swallowed {
        if let Some(until) = ranges.remove(&begin) {
            end = end.max(until);
        }
    }
    ranges.insert(start, end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quorumfs_bft::identity::{Sequence, SessionId, Time};
    use quorumfs_metadata::identity::{
        AllocationId, Codec, ObjectClass, ObjectId, PrincipalNumber, RealmEpoch, RealmId, SliceId,
    };
    use quorumfs_metadata::placement::Policy;
    use quorumfs_metadata::row::{Object, Slice, SliceKey, SliceSalt};

    fn stored(counter: u32) -> Arc<StoredSlice> {
        let allocation = AllocationId(1);
        Arc::new(StoredSlice {
            id: SliceId {
                allocation,
                counter,
            },
            slice: Slice {
                object: ObjectId {
                    allocation,
                    counter,
                },
                offset: 0,
                length: 1000,
                sealed_length: 1016,
                codec: Codec::NONE,
                keys: vec![SliceKey::Derived {
                    realm: RealmId::ROOT,
                    epoch: RealmEpoch(0),
                    salt: SliceSalt::default(),
                }],
                references: 1,
            },
            object: Object {
                class: ObjectClass::BLOCK,
                policy: Policy::new(4, 1, 2, 4).unwrap(),
                length: 1016,
                shard_length: 600,
                shards: vec![],
                writer: SessionId(1),
                principal: PrincipalNumber(0),
                checked: false,
                committed: Time(0),
                born: Sequence(0),
                generation: 0,
                live_bytes: 1016,
                slices: 1,
            },
        })
    }

    proptest! {
        #[test]
        fn the_newest_commit_wins_everywhere(
            commits in proptest::collection::vec((0u64..200, 1u32..60), 1..30),
            read in 0u64..250, length in 1u64..80,
        ) {
            let mut model = vec![None; 400];
            let mut map = ContentMap::empty(InodeVersion(0));
            for (number, (start, length)) in commits.into_iter().enumerate() {
                let counter = number as u32;
                for at in 0..length {
                    model[(start + u64::from(at)) as usize] = Some((counter, at));
                }
                let piece = Piece { stored: stored(counter), slice_offset: 0, length };
                map.apply(InodeVersion(number as u64), std::iter::once((start, piece)));
            }
            let mut position = read;
            for source in map.sources(read..read + length).unwrap() {
                let range = match &source {
                    ReadSource::Hole(range)
                    | ReadSource::Slice(range, ..)
                    | ReadSource::Inline(range, _) => {
                        range.clone()
                    }
                };
                prop_assert_eq!(range.start, position);
                position = range.end;
                for at in range.clone() {
                    let found = match &source {
                        ReadSource::Slice(_, stored, offset) => Some((
                            stored.id.counter,
                            offset + (at - range.start) as u32,
                        )),
                        _ => None,
                    };
                    prop_assert_eq!(found, model[at as usize]);
                }
            }
            prop_assert_eq!(position, read + length);
        }
    }

    #[test]
    fn unknown_ranges_are_not_holes() {
        let mut map = ContentMap::unknown(InodeVersion(1));
        assert_eq!(map.sources(0..10), Err(0));
        let piece = Piece {
            stored: stored(1),
            slice_offset: 0,
            length: 5,
        };
        map.learn(0..20, std::iter::once((3, piece)));
        assert_eq!(map.sources(0..20).unwrap().len(), 3);
        assert_eq!(map.sources(10..30), Err(20));
        assert_eq!(map.sources(25..30), Err(25));
        map.learn(20..u64::MAX, std::iter::empty());
        assert_eq!(map.sources(10..30).unwrap(), vec![ReadSource::Hole(10..30)]);
    }
}
