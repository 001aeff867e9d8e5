//! The two threads: one appends to the journal with group commit, one applies flushes of the state.
//!
//! While a group is being synced the next one gathers, so a slow disk makes larger groups instead
//! of longer queues.

use super::error::failed;
use super::queue::Queue;
use super::segment;
use super::{Completion, DiskError, Durability};
use crate::store::DiskStore;
use bytes::Bytes;
use quorumfs_bft::state::{DurableRoot, WriteBatch};
use quorumfs_bft::step::Token;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// A group is closed at about this many bytes.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// What the journal's thread is asked for.
pub(super) enum JournalWrite {
    Append { token: Token, record: Bytes },
    Trim { before: Token },
}

/// What the state's thread is asked for.
pub(super) struct StateWrite {
    pub(super) batch: WriteBatch,
    pub(super) root: DurableRoot,
}

type Report<F> = Arc<F>;

pub(super) fn journal<F: Fn(Completion) + Send + Sync + 'static>(
    queue: Arc<Queue<JournalWrite>>,
    mut segments: segment::Writer,
    durability: Durability,
    report: Report<F>,
) -> Result<JoinHandle<()>, DiskError> {
    let run = move || {
        let mut frames = Vec::new();
        while let Some(group) = queue.take(GROUP_BYTES_MAX) {
            match write_group(&mut segments, group, &mut frames, durability) {
                Ok(Some(token)) => report(Completion::Persisted { token }),
                Ok(None) => {}
                Err(error) => {
                    // First the cause, then the refusals that follow from it.
                    report(Completion::Failed { error });
                    queue.fail();
                    return;
                }
            }
        }
        // A clean stop: whatever the durability, all of it is on the medium before the mark is.
        if let Err(error) = segments.sync() {
            report(Completion::Failed { error });
            queue.fail();
        }
    };
    spawn("journal", run)
}

/// Writes what came together; the last token that is now durable.
fn write_group(
    segments: &mut segment::Writer,
    group: Vec<JournalWrite>,
    frames: &mut Vec<u8>,
    durability: Durability,
) -> Result<Option<Token>, DiskError> {
    frames.clear();
    let mut last = None;
    let mut trim = None;
    for write in group {
        match write {
            JournalWrite::Append { token, record } => {
                segments.frame(token, &record, frames)?;
                last = Some(token);
            }
            JournalWrite::Trim { before } => trim = trim.max(Some(before)),
        }
    }
    if last.is_some() {
        segments.write(frames)?;
        if durability == Durability::Strict {
            segments.sync()?;
        }
        segments.roll()?;
    }
    if let Some(before) = trim {
        segments.trim(before)?;
    }
    frames.shrink_to(GROUP_BYTES_MAX);
    Ok(last)
}

pub(super) fn state<F: Fn(Completion) + Send + Sync + 'static>(
    queue: Arc<Queue<StateWrite>>,
    store: DiskStore,
    report: Report<F>,
) -> Result<JoinHandle<()>, DiskError> {
    let run = move || {
        while let Some(writes) = queue.take(1) {
            for StateWrite { batch, root } in writes {
                if let Err(error) = store.apply(&batch) {
                    report(Completion::Failed { error });
                    queue.fail();
                    return;
                }
                let sequence = root.sequence;
                report(Completion::Flushed { sequence });
            }
        }
    };
    spawn("state", run)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DiskError> {
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(failed("starting a thread for", Path::new(name)))
}
