//! Reading the copy of the servers' rows into parts: all rows, or those that changed.
//!
//! It runs on a thread for blocking work, and waits there while parts are put: at most a few wait.

use super::RecoveryError;
use super::last::{PENDING_MAX, PendingRows};
use super::rows::PartWriter;
use bytes::Bytes;
use quorumfs_bft::identity::Digest;
use quorumfs_bft::state::{ChangedRow, Changes};
use quorumfs_bft_runtime::state_copy::{CopyView, StateCopy};
use tokio::sync::mpsc;

/// Rows that are read from the copy at a time.
const PAGE: usize = 4096;

/// Tags of rows that change without any change of the volume.
const BOOKKEEPING: [&[u8]; 7] = [b"N/", b"NA/", b"RX/", b"JB/", b"RT/", b"P/", b"G/counters"];

/// What was read.
#[derive(Debug)]
pub(super) enum Read {
    /// Parts were sent.
    Rows {
        /// Whether they are all rows, and not changes alone.
        whole: bool,
        rows: u64,
        bytes: u64,
    },
    /// Nothing but bookkeeping has changed: these rows, since the last point. Nothing was sent.
    Bookkeeping(PendingRows),
}

/// Sends the rows that changed since a state, together with those that waited, or all rows.
pub(super) fn read_rows(
    copy: &StateCopy,
    since: Option<(Digest, PendingRows)>,
    parts: &mpsc::Sender<Bytes>,
) -> Result<Read, RecoveryError> {
    let view = copy.read();
    if let Some((root, pending)) = since
        && let Some(changes) = view.changes_since(&root)?
    {
        return changed(changes, pending, parts);
    }
    let mut sender = Sender::new(parts);
    all(&view, &mut sender)?;
    sender.finish(true)
}

fn all(view: &CopyView<'_>, sender: &mut Sender<'_>) -> Result<(), RecoveryError> {
    let mut from = Vec::new();
    loop {
        let rows = view.rows(&from, PAGE)?;
        let Some((last, _)) = rows.last() else {
            return Ok(());
        };
        from = last.to_vec();
        from.push(0);
        for (key, born) in rows {
            let now = Some(born);
            sender.push(&ChangedRow { key, now })?;
        }
    }
}

fn is_bookkeeping(row: &ChangedRow) -> bool {
    BOOKKEEPING.iter().any(|tag| row.key.starts_with(tag))
}

/// The changes, and before each the pending rows that come before it. Of a row that has changed
/// again the later change counts.
fn changed(
    mut changes: Changes<'_>,
    pending: PendingRows,
    parts: &mpsc::Sender<Bytes>,
) -> Result<Read, RecoveryError> {
    let mut held = pending;
    // Until something else has changed, nothing is sent.
    let first = loop {
        match changes.next()? {
            None => return Ok(Read::Bookkeeping(held)),
            Some(row) if is_bookkeeping(&row) && held.len() < PENDING_MAX => {
                held.insert(row.key.clone(), row);
            }
            Some(row) => break row,
        }
    };
    let mut sender = Sender::new(parts);
    let mut next = Some(first);
    while let Some(row) = next {
        while let Some(entry) = held.first_entry() {
            if *entry.key() > row.key {
                break;
            }
            let earlier = entry.remove();
            if earlier.key < row.key {
                sender.push(&earlier)?;
            }
        }
        sender.push(&row)?;
        next = changes.next()?;
    }
    for row in held.values() {
        sender.push(row)?;
    }
    sender.finish(false)
}

struct Sender<'a> {
    parts: &'a mpsc::Sender<Bytes>,
    writer: PartWriter,
    rows: u64,
    bytes: u64,
}

impl<'a> Sender<'a> {
    fn new(parts: &'a mpsc::Sender<Bytes>) -> Self {
        Self {
            parts,
            writer: PartWriter::default(),
            rows: 0,
            bytes: 0,
        }
    }

    fn push(&mut self, row: &ChangedRow) -> Result<(), RecoveryError> {
        self.rows += 1;
        match self.writer.push(row) {
            Some(part) => self.send(part),
            None => Ok(()),
        }
    }

    fn send(&mut self, part: Bytes) -> Result<(), RecoveryError> {
        self.bytes += part.len() as u64;
        // The receiver ends early if a part could not be put, and says why.
        let stopped = |_| RecoveryError::damaged("it is not written any more");
        self.parts.blocking_send(part).map_err(stopped)
    }

    fn finish(mut self, whole: bool) -> Result<Read, RecoveryError> {
        if let Some(part) = std::mem::take(&mut self.writer).finish() {
            self.send(part)?;
        }
        Ok(Read::Rows {
            whole,
            rows: self.rows,
            bytes: self.bytes,
        })
    }
}
