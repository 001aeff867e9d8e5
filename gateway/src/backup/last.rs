//! What this machine has published last, and how far its copy was read since.
//!
//! If nothing but bookkeeping has changed, such as sessions, no point is published; but the copy of
//! the servers' rows goes on, and keeps its last two states alone. So those few rows are kept here
//! and go with the next point. Without these files the next backup writes all rows.

use super::RecoveryError;
use super::point::RecoveryPoint;
use super::rows::{self, PartWriter};
use crate::keys::KeyFile;
use bytes::Bytes;
use quorumfs_bft::identity::{Digest, Sequence};
use quorumfs_bft::state::ChangedRow;
use std::collections::BTreeMap;
use std::path::Path;

/// The file of the last point.
const POINT: &str = "last-point";
/// The file of the rows that go with the next one.
const PENDING: &str = "pending-rows";
/// Rows that may be kept for the next point; more are published.
pub(super) const PENDING_MAX: usize = 4096;

/// Rows by their keys.
pub(super) type PendingRows = BTreeMap<Bytes, ChangedRow>;

/// The last point, and the state that the copy was read at since.
#[derive(Clone, Debug)]
pub(super) struct Last {
    pub(super) point: RecoveryPoint,
    /// The digest of the state that was read.
    pub(super) read: Digest,
    /// What has changed from the point to that state.
    pub(super) pending: PendingRows,
}

impl Last {
    /// A point that was published just now.
    pub(super) fn published(point: RecoveryPoint) -> Self {
        Self {
            read: point.root,
            point,
            pending: PendingRows::new(),
        }
    }

    /// The last point of this machine, if it is there and opens.
    pub(super) fn load(directory: &Path, key: &KeyFile) -> Option<Self> {
        let body = std::fs::read(directory.join(POINT)).ok()?;
        let (point, _) = RecoveryPoint::open(&body, key).ok()?;
        let mut last = Self::published(point);
        let stored = std::fs::read(directory.join(PENDING)).unwrap_or_default();
        if let Some((read, pending)) = parse(&stored, last.point.sequence) {
            (last.read, last.pending) = (read, pending);
        }
        Some(last)
    }

    /// Stores a point that was published, in these bytes.
    pub(super) fn keep_point(directory: &Path, body: &[u8]) -> Result<(), RecoveryError> {
        replace(directory, POINT, body)
    }

    /// Stores how far the copy was read.
    pub(super) fn keep_pending(&self, directory: &Path) -> Result<(), RecoveryError> {
        let mut bytes = self.point.sequence.0.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.read.0);
        let mut writer = PartWriter::default();
        for row in self.pending.values() {
            bytes.extend(writer.push(row).into_iter().flatten());
        }
        bytes.extend(writer.finish().into_iter().flatten());
        replace(directory, PENDING, &bytes)
    }
}

/// The state and the rows in a file that belongs to the point of this sequence.
fn parse(stored: &[u8], sequence: Sequence) -> Option<(Digest, PendingRows)> {
    let (of, rest) = stored.split_first_chunk::<8>()?;
    let (read, rest) = rest.split_first_chunk::<32>()?;
    if u64::from_le_bytes(*of) != sequence.0 {
        return None;
    }
    let mut rest = Bytes::copy_from_slice(rest);
    let mut pending = PendingRows::new();
    while let Some(row) = rows::next(&mut rest) {
        let row = row.ok()?;
        pending.insert(row.key.clone(), row);
    }
    Some((Digest(*read), pending))
}

fn replace(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), RecoveryError> {
    let (path, aside) = (
        directory.join(name),
        directory.join(format!("{name}.partial")),
    );
    let written = std::fs::write(&aside, bytes).and_then(|()| std::fs::rename(&aside, &path));
    written.map_err(|error| RecoveryError::file(&path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::state::Born;

    #[test]
    fn pending_rows_are_those_of_their_point_alone() {
        let row = |key: &'static [u8], now: Option<&'static [u8]>| ChangedRow {
            key: Bytes::from_static(key),
            now: now.map(|value| Born {
                birth: Sequence(3),
                value: Bytes::from_static(value),
            }),
        };
        let rows = [row(b"N/1", Some(b"session")), row(b"N/2", None)];
        let pending: PendingRows = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let mut writer = PartWriter::default();
        for row in pending.values() {
            assert!(writer.push(row).is_none());
        }
        let head = [&7_u64.to_le_bytes()[..], &[9; 32]].concat();
        let stored = [&head[..], &writer.finish().unwrap()].concat();
        assert_eq!(
            parse(&stored, Sequence(7)),
            Some((Digest([9; 32]), pending))
        );
        assert_eq!(parse(&stored, Sequence(8)), None);
        assert_eq!(parse(&stored[..39], Sequence(7)), None);
        assert_eq!(parse(&stored[..stored.len() - 1], Sequence(7)), None);
    }
}
