//! Background work: committing data that has waited long enough, and the oldest when memory runs
//! short; releasing orphans that are not open; sending times of access.
//!
//! Small files are committed in batches, so that they share objects, and one batch follows the
//! other. Large ones are committed in parallel to them: over a slow link one takes minutes, and
//! nothing waits for it.

use super::file_system::FileSystemCore;
use super::files::Node;
use crate::memory::give_back_spare;
use quorumfs_metadata::identity::InodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How often to look.
const PERIOD: Duration = Duration::from_millis(500);
/// Files that are flushed at once, whatever they hold.
const AT_ONCE: usize = 4;
/// A file that holds more, in bytes, is large: it does not delay the others.
const LARGE_FROM_BYTES: u64 = 4 << 20;
/// Small files that are flushed at once: they share objects.
const SMALL_AT_ONCE: usize = 512;
/// The bytes that the small ones may hold together.
const SMALL_BYTES_MAX: u64 = 16 << 20;

/// Runs until the file system is shut down or dropped.
pub(super) fn spawn(inner: &Arc<FileSystemCore>) {
    let weak = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut swept = Instant::now();
        let mut large = Large::new();
        while let Some(()) = round(&weak, &mut swept, &mut large).await {}
    });
}

/// Releases orphans in a task of its own, if the last time was long ago.
fn sweep(inner: &Arc<FileSystemCore>, swept: &mut Instant) {
    if swept.elapsed() < inner.services.options.orphans_every {
        return;
    }
    *swept = Instant::now();
    let inner = inner.clone();
    tokio::spawn(async move {
        if let Err(error) = inner.release_orphans().await {
            tracing::debug!(%error, "the orphans could not all be released");
        }
    });
}

/// Large files that are being flushed.
type Large = BTreeMap<InodeId, JoinHandle<()>>;

async fn flush(inner: Arc<FileSystemCore>, node: Arc<Node>) {
    if let Err(error) = inner.flush(&node).await {
        tracing::warn!(inode = %node.inode, %error, "a background commit failed");
        // A failed commit is retried after a pause, not in a tight loop.
        tokio::time::sleep(PERIOD).await;
    }
    inner.files.retire(&node);
}

async fn round(weak: &Weak<FileSystemCore>, swept: &mut Instant, large: &mut Large) -> Option<()> {
    let inner = weak.upgrade()?;
    if inner.services.is_stopped() {
        return None;
    }
    sweep(&inner, swept);
    inner.services.refresh_keys_if_due();
    inner.files.send_access_times_if_due();
    give_back_spare();
    large.retain(|_, flush| !flush.is_finished());
    let due = due(&inner, large);
    if due.is_empty() {
        // Only a weak reference is held while waiting, so that dropping the last file system ends
        // this task.
        let pressure = inner.services.pressure.clone();
        drop(inner);
        // In both cases: look again.
        let _ = tokio::time::timeout(PERIOD, pressure.notified()).await;
        return Some(());
    }
    let mut flushes = tokio::task::JoinSet::new();
    for node in due {
        let inode = node.inode;
        if is_large(&node) {
            large.insert(inode, tokio::spawn(flush(inner.clone(), node)));
        } else {
            flushes.spawn(flush(inner.clone(), node));
        }
    }
    while flushes.join_next().await.is_some() {}
    Some(())
}

fn is_large(node: &Node) -> bool {
    let state = node.state();
    let ahead = state.early_uploads.runs().bytes();
    state.dirty.cost().saturating_add(ahead) > LARGE_FROM_BYTES
}

/// What to commit now: everything that has waited long enough; under pressure the oldest as well.
fn due(inner: &FileSystemCore, large: &Large) -> Vec<Arc<Node>> {
    let now = Instant::now();
    let since = |node: &Arc<Node>| Some((node.state().waiting_since?, node.clone()));
    let mut waiting: Vec<(Instant, Arc<Node>)> = inner.files.collect(since);
    waiting.sort_by_key(|(since, _)| *since);
    let pressed = inner.budget.is_pressed() || inner.journal_is_pressed();
    waiting.retain(|(_, node)| {
        let full = node.state().full.as_ref().map(|full| full.retry_at);
        if full.is_some() && pressed {
            inner.give_up_under_pressure(node);
            inner.files.retire(node);
        }
        full.is_none_or(|retry_at| retry_at <= now)
    });
    let mut places = AT_ONCE.saturating_sub(large.len());
    waiting.retain(|(_, node)| {
        // The commit under way may take long; the rest is due later.
        if large.contains_key(&node.inode) || node.content.try_lock().is_err() {
            return false;
        }
        let is_large = is_large(node);
        let fits = !is_large || places > 0;
        places = places.saturating_sub(usize::from(is_large && fits));
        fits
    });
    let mut bytes = 0_u64;
    waiting
        .into_iter()
        .enumerate()
        .filter(|(rank, (since, _))| {
            now.duration_since(*since) >= inner.services.options.commit_after
                || (pressed && *rank < AT_ONCE)
        })
        .map(|(_, (_, node))| node)
        .take(SMALL_AT_ONCE)
        .enumerate()
        .take_while(|(rank, node)| {
            bytes = bytes.saturating_add(node.state().dirty.cost());
            *rank < AT_ONCE || bytes <= SMALL_BYTES_MAX
        })
        .map(|(_, node)| node)
        .collect()
}
