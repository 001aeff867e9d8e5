//! Written bytes that a quota has no room for.
//!
//! ```text
//!   write ──► dirty ──► commit ──refused──► full ──┬── room was made: committed
//!                ▲                          │      ├── the last writer closed: given up
//!                └──────── waits again ◄────┘      └── memory is short: given up, and told
//! ```
//!
//! Only the servers know what fits, for only they know what lay where the runs of a commit go. So
//! bytes are taken in first, and a commit finds out. What a refused one leaves is *full*: it waits
//! as after any failure, and is committed as soon as there is more room than there was. Until then
//! * `write`, `close` and `fsync` of the file answer with the quota's errno, after a look whether
//!   there is more room by now: one question, and nothing is sent to the clouds in vain.
//! * Nothing more is taken in, so what waits does not grow.
//! * The background looks as well, after pauses that become longer.
//!
//! That must not hold memory for ever. Once the last descriptor that could write is closed, and its
//! close has failed, the bytes are given up, as a local file system never had them. When memory is
//! short they are given up while the file is open, and every call that asks is told.
//!
//! **At tiers that promise before the commit** a close could promise what a quota refuses later. So
//! there a close asks whether the owner and the realm have room for everything that this mount has
//! waiting, and if that is not sure it waits for the commit. What was promised stands: it is not
//! given up, and nothing is added to it without room for certain.

use super::VfsError;
use super::file_system::Inner;
use super::node::{Node, State};
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::row::{Limit, RealmQuota, Resource, UserQuota};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest pause between two looks of the background at a full file.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// For how long what is known of room is good enough, as long as it covers what is written.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// How long a close at a tier that promises early waits to hear of room.
const ASK_FOR: Duration = Duration::from_secs(2);
/// Users whose room is remembered; beyond it all are asked again.
const KNOWN_MAX: usize = 1024;

/// Why the last commit of a file was refused.
#[derive(Clone, Debug)]
pub(crate) struct Full {
    /// What was answered.
    pub(crate) error: VfsError,
    /// Whose room was too little; nobody's: the realm's.
    uid: Option<Uid>,
    of: Resource,
    /// How much there was.
    room: u64,
    /// When the background looks again.
    pub(crate) retry_at: Instant,
    pause: Duration,
}

impl State {
    /// Notes that a commit was refused for lack of room, if that is what `error` says.
    pub(crate) fn note_full(&mut self, error: &VfsError, first: Duration) {
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
            room: *room,
            retry_at: now.checked_add(pause).unwrap_or(now),
            pause,
        });
    }

    /// Whether nobody needs what a quota has no room for: who could write it was told.
    fn is_abandoned(&self) -> bool {
        self.full.is_some() && self.writers == 0 && self.told && !self.promised
    }
}

/// What a user may still take.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Bytes.
    room: u64,
    at: Instant,
    /// What waited when that was asked.
    waited: u64,
    /// All bytes that were ever written when that was asked.
    written: u64,
}

/// What is known of the room that users have, and how much was written.
#[derive(Debug, Default)]
pub(crate) struct RoomKnown {
    users: Mutex<HashMap<Uid, Known>>,
    written: AtomicU64,
}

impl RoomKnown {
    fn users(&self) -> MutexGuard<'_, HashMap<Uid, Known>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many bytes were taken in.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
    }

    fn learn(&self, uid: Uid, known: Known) {
        let mut users = self.users();
        if users.len() >= KNOWN_MAX {
            users.clear();
        }
        users.insert(uid, known);
    }

    /// Whether all that waited, all that was written since, and so much more fits, whatever of it
    /// was committed meanwhile.
    fn covers(&self, known: &Known, more: u64) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let since = written.saturating_sub(known.written);
        let all = known.waited.saturating_add(since).saturating_add(more);
        known.room == u64::MAX || all <= known.room
    }
}

/// What a user has room for: by his own limit, and by the realm's.
fn room_of(uid: Uid, realm: &RealmQuota, user: &UserQuota, of: Resource) -> (u64, u64) {
    let limit = match uid {
        Uid::ROOT => Limit::default(),
        _ => user.limit.unwrap_or(realm.default),
    };
    (
        limit.remaining(of, &user.used),
        realm.limit.remaining(of, &realm.used),
    )
}

impl Inner {
    /// Whether it is certain that all that waits and so much more fits, were it all this user's.
    pub(crate) async fn is_sure_of_room(&self, uid: Uid, more: u64) -> bool {
        let last = self.room_known.users().get(&uid).copied();
        if let Some(known) = last
            && known.at.elapsed() < KNOWN_FOR
            && self.room_known.covers(&known, more)
        {
            return true;
        }
        // Before the question: what is committed while it is answered counts twice at worst.
        let written = self.room_known.written.load(Ordering::Acquire);
        let waited = self.budget.used();
        let asked = self.metadata.quota(uid);
        let known = match tokio::time::timeout(ASK_FOR, asked).await {
            Ok(Ok((realm, user))) => {
                let (own, of_all) = room_of(uid, &realm, &user, Resource::Bytes);
                Known {
                    room: own.min(of_all),
                    at: Instant::now(),
                    waited,
                    written,
                }
            }
            // Whoever may not ask for this user learns it from the commit.
            Ok(Err(VfsError::Refused { .. })) => return false,
            // The servers are away; that is what such a tier is for. What they said last counts,
            // and is not asked for again at every close.
            Ok(Err(_)) | Err(_) => Known {
                at: Instant::now(),
                ..last.unwrap_or(Known {
                    room: u64::MAX,
                    at: Instant::now(),
                    waited,
                    written,
                })
            },
        };
        self.room_known.learn(uid, known);
        self.room_known.covers(&known, more)
    }

    /// Why what the file holds cannot be committed, if a commit of it was refused for lack of room
    /// and there is no more since. Whatever else may have changed that is for a commit to find out.
    pub(crate) async fn still_full(&self, node: &Node) -> Option<VfsError> {
        let (full, owner) = {
            let mut state = node.state();
            if !state.holds_written() {
                state.full = None;
            }
            (state.full.clone()?, state.base.uid)
        };
        if full.uid.is_some_and(|uid| uid != owner) {
            return None;
        }
        let uid = full.uid.unwrap_or_else(|| self.metadata.own().uid);
        let (realm, user) = match self.metadata.quota(uid).await {
            Ok(quota) => quota,
            Err(VfsError::Refused { .. }) => return None,
            Err(error) => return Some(error),
        };
        let (own, of_all) = room_of(uid, &realm, &user, full.of);
        let room = if full.uid.is_some() { own } else { of_all };
        (room <= full.room).then_some(full.error)
    }

    /// A commit failed; if that was for lack of room, the file is full. The caller has put back
    /// what it could not commit.
    pub(crate) fn note_full(&self, node: &Node, state: &mut State, error: &VfsError) {
        state.note_full(error, self.options.commit_after);
        if state.is_abandoned() {
            self.give_up_full(node, state);
        }
    }

    /// The last writer may have gone. What is on its way is left to the commit that has it.
    pub(crate) fn give_up_if_abandoned(&self, node: &Node, state: &mut State) {
        if state.is_abandoned() && state.frozen.is_empty() {
            self.give_up_full(node, state);
        }
    }

    /// Memory is short, and others need it more than what does not fit.
    pub(crate) fn give_up_under_pressure(&self, node: &Node) {
        let mut state = node.state();
        if state.full.is_some() && !state.promised && state.frozen.is_empty() {
            self.give_up_full(node, &mut state);
        }
    }

    fn give_up_full(&self, node: &Node, state: &mut State) {
        let Some(full) = state.full.take() else {
            return;
        };
        let (inode, error) = (node.inode, full.error);
        tracing::warn!(%inode, %error, "written data that a quota has no room for is given up");
        self.files_lost.fetch_add(1, Ordering::Relaxed);
        self.forget_kept(node, state);
        // Whoever can still write is told at every call; nobody else has anything to hear of it.
        let told = (state.writers > 0).then(|| VfsError::Lost {
            errno: error.errno(),
            reason: error.to_string(),
        });
        state.give_up(told);
        // The kernel may have pages of it.
        self.last_open.forget(inode);
        self.book(state);
    }

    /// Refuses a write to a file whose bytes do not fit; and lets none be added to what was
    /// promised unless it fits for certain.
    pub(crate) async fn takes_more(
        self: &Arc<Self>,
        node: &Arc<Node>,
        bytes: u64,
    ) -> Result<(), VfsError> {
        let (full, promised, owner) = {
            let state = node.state();
            (state.full.is_some(), state.promised, state.base.uid)
        };
        if full || (promised && !self.is_sure_of_room(owner, bytes).await) {
            self.flush_file(node).await?;
        }
        Ok(())
    }
}
