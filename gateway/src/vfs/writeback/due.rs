//! Which files the background commits now: those that have waited long enough, and the oldest when
//! memory runs short.
//!
//! Small files are committed in batches, so that they share objects, and one batch follows the
//! other. Large ones are committed in parallel to them: over a slow link one takes minutes, and
//! nothing waits for it.

use super::owner::Writeback;
use crate::vfs::files::Node;
use quorumfs_metadata::identity::InodeId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// After a failed commit the next try waits for so long.
const PAUSE: Duration = Duration::from_millis(500);
/// Files that are flushed at once, whatever they hold.
const AT_ONCE: usize = 4;
/// A file that holds more, in bytes, is large: it does not delay the others.
const LARGE_FROM_BYTES: u64 = 4 << 20;
/// Small files that are flushed at once: they share objects.
const SMALL_AT_ONCE: usize = 512;
/// The bytes that the small ones may hold together.
const SMALL_BYTES_MAX: u64 = 16 << 20;

/// Large files that are being flushed.
pub(in crate::vfs) type Large = BTreeMap<InodeId, JoinHandle<()>>;

fn is_large(node: &Node) -> bool {
    let state = node.state();
    let ahead = state.early_uploads.runs().bytes();
    state.dirty.cost().saturating_add(ahead) > LARGE_FROM_BYTES
}

impl Writeback {
    /// Begins to flush what is due, and waits for the small files of it. Returns whether there were
    /// any.
    pub(in crate::vfs) async fn flush_due(self: &Arc<Self>, large: &mut Large) -> bool {
        large.retain(|_, flush| !flush.is_finished());
        let due = self.due(large);
        if due.is_empty() {
            return false;
        }
        let mut flushes = tokio::task::JoinSet::new();
        for node in due {
            let (inode, flush) = (node.inode, Arc::clone(self).flush_one(node.clone()));
            if is_large(&node) {
                large.insert(inode, tokio::spawn(flush));
            } else {
                flushes.spawn(flush);
            }
        }
        while flushes.join_next().await.is_some() {}
        true
    }

    async fn flush_one(self: Arc<Self>, node: Arc<Node>) {
        if let Err(error) = self.flush(&node).await {
            tracing::warn!(inode = %node.inode, %error, "a background commit failed");
            // A failed commit is retried after a pause, not in a tight loop.
            tokio::time::sleep(PAUSE).await;
        }
        self.files.retire(&node);
    }

    /// What to commit now: everything that has waited long enough; under pressure the oldest as
    /// well.
    fn due(&self, large: &Large) -> Vec<Arc<Node>> {
        let now = Instant::now();
        let since = |node: &Arc<Node>| Some((node.state().waiting_since?, node.clone()));
        let mut waiting: Vec<(Instant, Arc<Node>)> = self.files.collect(since);
        waiting.sort_by_key(|(since, _)| *since);
        let pressed = self.budget.is_pressed() || self.journal_is_pressed();
        waiting.retain(|(_, node)| {
            let full = node.state().full.as_ref().map(|full| full.retry_at);
            if full.is_some() && pressed {
                self.give_up_under_pressure(node);
                self.files.retire(node);
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
                now.duration_since(*since) >= self.services.options.commit_after
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
}
