//! A commit that a quota refused: what it would take, and when to try again.

use super::node::NodeState;
use crate::error::VfsError;
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::row::Resource;
use std::time::Duration;
use tokio::time::Instant;

/// The longest pause between two checks of a full file in the background.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A refused commit of a file.
#[derive(Clone, Debug)]
pub(in crate::vfs) struct Full {
    /// The error.
    pub(in crate::vfs) error: VfsError,
    /// The user whose quota it is; `None` for the realm's.
    pub(in crate::vfs) uid: Option<Uid>,
    pub(in crate::vfs) of: Resource,
    /// How much was free.
    pub(in crate::vfs) free: u64,
    /// When the background checks again.
    pub(in crate::vfs) retry_at: Instant,
    pub(in crate::vfs) pause: Duration,
}

impl NodeState {
    /// Notes that a quota refused a commit, if `error` says so.
    pub(in crate::vfs) fn note_full(&mut self, error: &VfsError, first: Duration) {
        let VfsError::Full { uid, of, room, .. } = error else {
            return;
        };
        let last = self.full.as_ref().map(|full| full.pause);
        let pause = last.map_or(first, |pause| pause.saturating_mul(2));
        let pause = pause.clamp(first.min(PAUSE_MAX), PAUSE_MAX);
        let now = Instant::now();
        self.full = Some(Full {
            error: error.clone(),
            uid: *uid,
            of: *of,
            free: *room,
            retry_at: now.checked_add(pause).unwrap_or(now),
            pause,
        });
    }

    /// Whether pending data that does not fit can be dropped: its writers have closed, with an
    /// error.
    pub(in crate::vfs) fn is_abandoned(&self) -> bool {
        self.full.is_some() && self.writers == 0 && self.close_failed && !self.promised
    }
}
