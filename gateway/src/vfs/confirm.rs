//! Asking whether others have changed anything, and telling the kernel's side when they have.
//!
//! While a mount is used, the servers are asked twice a second how often others have changed the
//! realm (`belief`). Whoever may keep things without asking us (the kernel) is told for how long by
//! [`FileSystem::keeps`], and watches [`FileSystem::doubts`]: when that moves, all of it has to go,
//! be it that somebody changed something, or that nothing was heard for [`LAPSE`]. So what others
//! change is seen within about a second. A mount that hears nothing of the servers shows nothing
//! for longer than two, as long as it may hear of them: once fewer are connected than any answer
//! takes, it shows what they said last (`belief`).
//!
//! A mount that nobody uses asks nothing: a while after the last thing was given out to keep,
//! nothing of that is kept any more. The next call asks first, once, and if nothing has changed all
//! that is known is good again.

use super::cache::Known;
use super::file_system::{FileSystem, Inner};
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::InodeId;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::belief::VALID_FOR;

/// How often to ask.
const EVERY: Duration = Duration::from_millis(450);
/// How long a call waits for the count, before it asks for what it needs instead.
const WAIT: Duration = Duration::from_millis(300);
/// Nothing was heard for so long: what was given out to keep is taken back.
const LAPSE: Duration = Duration::from_millis(1_500);
/// For how long something may be kept without asking us, if it is not taken back.
pub const KEPT_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct State {
    /// When something was last given out to keep, or a call wanted to know.
    used: Option<Instant>,
    /// When the count was last asked for, whatever came of it.
    tried: Option<Instant>,
    /// When it was last heard.
    heard: Option<Instant>,
    /// Something may be kept that has not been taken back.
    given: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Confirming {
    state: Mutex<State>,
    /// Held by whoever asks.
    turn: tokio::sync::Mutex<()>,
    wake: Arc<Notify>,
    doubts: watch::Sender<u64>,
}

impl Default for Confirming {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                used: None,
                tried: None,
                heard: None,
                given: false,
            }),
            turn: tokio::sync::Mutex::default(),
            wake: Arc::default(),
            doubts: watch::Sender::new(0),
        }
    }
}

impl Confirming {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody relies on the count.
    fn used(&self, given: bool) {
        let mut state = self.state();
        let now = Instant::now();
        let asleep = state.used.is_none_or(|used| now - used >= KEPT_FOR);
        state.used = Some(now);
        state.given |= given;
        if asleep {
            self.wake.notify_one();
        }
    }

    fn is_used(&self) -> bool {
        self.state()
            .used
            .is_some_and(|used| used.elapsed() < KEPT_FOR)
    }

    /// All that was given out to keep has to go.
    fn doubt(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.given) {
            self.doubts
                .send_modify(|doubts| *doubts = doubts.wrapping_add(1));
        }
    }

    fn has_lapsed(&self) -> bool {
        let state = self.state();
        state.given && state.heard.is_none_or(|heard| heard.elapsed() >= LAPSE)
    }
}

impl FileSystem {
    /// Whether attributes that were just shown may be kept for [`KEPT_FOR`] without asking again,
    /// unless [`FileSystem::doubts`] moves.
    #[must_use]
    pub fn keeps(&self, shown: &Attributes) -> bool {
        let inner = &self.inner;
        // What waits to be committed changes without a call.
        let settled = inner
            .node(shown.inode)
            .is_none_or(|node| !node.state().is_waiting());
        let keeps = settled && inner.cache.keeps_attributes(shown);
        if keeps {
            inner.confirming.used(true);
        }
        keeps
    }

    /// Whether what a name was just found to lead to, if anywhere, may be kept as long.
    #[must_use]
    pub fn keeps_name(&self, directory: InodeId, name: &[u8], leads: Option<InodeId>) -> bool {
        let known = leads.map_or(Known::Absent, Known::Entry);
        let keeps = self.inner.cache.keeps_name(directory, name, known);
        if keeps {
            self.inner.confirming.used(true);
        }
        keeps
    }

    /// Moves whenever whatever [`FileSystem::keeps`] allowed to be kept has to go.
    #[must_use]
    pub fn doubts(&self) -> watch::Receiver<u64> {
        self.inner.confirming.doubts.subscribe()
    }
}

impl Inner {
    /// Has what is known confirmed, if that is worth while: whoever is about to look something up
    /// may then find it.
    pub(crate) async fn confirm(&self) {
        if self.cache.is_confirmed() || !self.metadata.is_mounted() {
            return;
        }
        let confirming = &self.confirming;
        confirming.used(false);
        let tried = confirming.state().tried;
        if tried.is_some_and(|tried| tried.elapsed() < VALID_FOR) {
            return;
        }
        // Whatever goes wrong, the caller asks for what it needs.
        let _ = tokio::time::timeout(WAIT, self.hear_of_others()).await;
        self.look_for_servers();
    }

    /// Finds out whether the servers are gone, if they have not been heard.
    fn look_for_servers(&self) {
        if !self.cache.is_confirmed() {
            self.cache.servers_are(self.metadata.is_cut_off());
        }
    }

    /// Asks how often others have changed the realm, unless somebody has just done so.
    async fn hear_of_others(&self) {
        let confirming = &self.confirming;
        let asked = Instant::now();
        let _turn = confirming.turn.lock().await;
        if confirming.state().heard.is_some_and(|heard| heard > asked) {
            return;
        }
        let sent = Instant::now();
        confirming.state().tried = Some(sent);
        match self.metadata.changes_by_others().await {
            Ok(Some(others)) => {
                let changed = self.cache.hear(others, sent);
                confirming.state().heard = Some(Instant::now());
                if changed {
                    confirming.doubt();
                }
            }
            // Not ours any more.
            Ok(None) => {
                self.cache.end_belief();
                confirming.doubt();
            }
            Err(error) => tracing::debug!(%error, "whether others changed something is not known"),
        }
        if self.metadata.is_fenced() {
            self.cache.end_belief();
            confirming.doubt();
        }
    }
}

/// Runs until the file system is shut down or dropped.
pub(crate) fn spawn(inner: &Arc<Inner>) {
    let (weak, wake) = (Arc::downgrade(inner), inner.confirming.wake.clone());
    tokio::spawn(async move {
        while round(&weak).await {
            let used = weak.upgrade().is_some_and(|it| it.confirming.is_used());
            if used {
                tokio::time::sleep(EVERY).await;
            } else {
                // The file system may be dropped meanwhile, and nobody be left to wake us.
                let _ = tokio::time::timeout(KEPT_FOR, wake.notified()).await;
            }
        }
    });
}

async fn round(weak: &Weak<Inner>) -> bool {
    let Some(inner) = weak.upgrade() else {
        return false;
    };
    if inner.stopped.load(Ordering::Acquire) {
        return false;
    }
    let confirming = &inner.confirming;
    if confirming.is_used() && inner.metadata.is_mounted() {
        // An answer that comes later confirms nothing.
        let _ = tokio::time::timeout(VALID_FOR, inner.hear_of_others()).await;
        inner.look_for_servers();
        if confirming.has_lapsed() {
            confirming.doubt();
        }
    }
    true
}
