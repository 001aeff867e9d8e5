//! Written bytes that do not fit a quota.
//!
//! ```text
//!   write ──► dirty ──► commit ──refused──► full ──┬── space was freed: committed
//!                ▲                          │      ├── the last writer closed: given up
//!                └──────── pending again ◄──┘      └── memory is short: given up, and reported
//! ```
//!
//! Only the servers know what fits, for only they know the old extents of a commit's runs. So bytes
//! are taken in first, and a commit finds out. After a refusal the file is *full*: its bytes are
//! pending as after any failure, and are committed as soon as there is more free space than there
//! was. Until then
//! * `write`, `close` and `fsync` of the file return the quota's errno, after checking for more
//!   free space: one query, and no upload in vain.
//! * No more bytes are taken in, so pending data does not grow.
//! * The background checks as well, after pauses that become longer.
//!
//! That must not hold memory for ever. Once the last descriptor that could write is closed, and its
//! close has failed, the bytes are given up, as a local file system never had them. When memory is
//! short they are given up while the file is open, and every later call reports it.
//!
//! **At tiers that promise before the commit** a close could promise bytes that a quota refuses
//! later. So there a close asks whether the owner and the realm have space for all pending data of
//! this mount, and waits for the commit if that is not certain. Promised bytes are not given up,
//! and none are added to them unless they fit for certain.

use super::owner::Writeback;
use crate::error::VfsError;
use crate::vfs::files::{Node, NodeState};
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::row::{Limit, RealmQuota, Resource, UserQuota};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// For how long known free space can be used, as long as it covers all writes.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// How long a close at a tier that promises early waits for the servers' free space.
const ASK_FOR: Duration = Duration::from_secs(2);
/// Users whose free space is cached; beyond it all are asked again.
const KNOWN_MAX: usize = 1024;

/// Known free space of a user.
#[derive(Clone, Copy, Debug)]
struct KnownSpace {
    /// Bytes.
    free: u64,
    at: Instant,
    /// Pending bytes when it was asked for.
    waited: u64,
    /// All bytes that were ever written when it was asked for.
    written: u64,
}

/// Free space of users, and how much was written.
#[derive(Debug, Default)]
pub(in crate::vfs) struct FreeSpaceCache {
    users: Mutex<HashMap<Uid, KnownSpace>>,
    written: AtomicU64,
}

impl FreeSpaceCache {
    fn users(&self) -> MutexGuard<'_, HashMap<Uid, KnownSpace>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many bytes were taken in.
    pub(in crate::vfs) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
    }

    fn learn(&self, uid: Uid, known: KnownSpace) {
        let mut users = self.users();
        if users.len() >= KNOWN_MAX {
            users.clear();
        }
        users.insert(uid, known);
    }

    /// Whether all pending bytes, all bytes written since, and `more` fit, whatever part of them
    /// was committed meanwhile.
    fn covers(&self, known: &KnownSpace, more: u64) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let since = written.saturating_sub(known.written);
        let all = known.waited.saturating_add(since).saturating_add(more);
        known.free == u64::MAX || all <= known.free
    }
}

/// A user's free space: by the user's own limit, and by the realm's.
fn free_space_of(uid: Uid, realm: &RealmQuota, user: &UserQuota, of: Resource) -> (u64, u64) {
    let limit = match uid {
        Uid::ROOT => Limit::default(),
        _ => user.limit.unwrap_or(realm.default),
    };
    (
        limit.remaining(of, &user.used),
        realm.limit.remaining(of, &realm.used),
    )
}

impl Writeback {
    /// Whether all pending bytes and `more` fit for certain, even if all were this user's.
    pub(in crate::vfs) async fn surely_fits(&self, uid: Uid, more: u64) -> bool {
        let last = self.free_space.users().get(&uid).copied();
        if let Some(known) = last
            && known.at.elapsed() < KNOWN_FOR
            && self.free_space.covers(&known, more)
        {
            return true;
        }
        // Before the query: bytes committed while it is answered count twice at worst.
        let written = self.free_space.written.load(Ordering::Acquire);
        let waited = self.budget.used();
        let asked = self.services.metadata.quota(uid);
        let known = match tokio::time::timeout(ASK_FOR, asked).await {
            Ok(Ok((realm, user))) => {
                let (own, of_all) = free_space_of(uid, &realm, &user, Resource::Bytes);
                KnownSpace {
                    free: own.min(of_all),
                    at: Instant::now(),
                    waited,
                    written,
                }
            }
            // A principal that may not ask about this user learns it from the commit.
            Ok(Err(VfsError::Refused { .. })) => return false,
            // The servers are unreachable, for which such tiers exist. Their last answer counts,
            // and they are not asked again at every close.
            Ok(Err(_)) | Err(_) => KnownSpace {
                at: Instant::now(),
                ..last.unwrap_or(KnownSpace {
                    free: u64::MAX,
                    at: Instant::now(),
                    waited,
                    written,
                })
            },
        };
        self.free_space.learn(uid, known);
        self.free_space.covers(&known, more)
    }

    /// Why the file's pending data cannot be committed, if a quota refused it and there is no more
    /// space since. A commit finds out about any other change.
    pub(in crate::vfs) async fn still_full(&self, node: &Node) -> Option<VfsError> {
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
        let uid = full.uid.unwrap_or_else(|| self.services.metadata.own().uid);
        let (realm, user) = match self.services.metadata.quota(uid).await {
            Ok(quota) => quota,
            Err(VfsError::Refused { .. }) => return None,
            Err(error) => return Some(error),
        };
        let (own, of_all) = free_space_of(uid, &realm, &user, full.of);
        let free = if full.uid.is_some() { own } else { of_all };
        (free <= full.free).then_some(full.error)
    }

    /// A commit failed; if a quota refused it, the file is full. The caller has put back the
    /// uncommitted data.
    pub(in crate::vfs) fn note_full(&self, node: &Node, state: &mut NodeState, error: &VfsError) {
        state.note_full(error, self.services.options.commit_after);
        if state.is_abandoned() {
            self.give_up_full(node, state);
        }
    }

    /// The last writer may have closed. Data of a commit under way is left to it.
    pub(in crate::vfs) fn give_up_if_abandoned(&self, node: &Node, state: &mut NodeState) {
        if state.is_abandoned() && state.frozen.is_empty() {
            self.give_up_full(node, state);
        }
    }

    /// Memory is short, and other files need it more than data that does not fit.
    pub(in crate::vfs) fn give_up_under_pressure(&self, node: &Node) {
        let mut state = node.state();
        if state.full.is_some() && !state.promised && state.frozen.is_empty() {
            self.give_up_full(node, &mut state);
        }
    }

    fn give_up_full(&self, node: &Node, state: &mut NodeState) {
        let Some(full) = state.full.take() else {
            return;
        };
        let (inode, error) = (node.inode, full.error);
        tracing::warn!(%inode, %error, "written data that does not fit a quota is given up");
        self.files_lost.fetch_add(1, Ordering::Relaxed);
        self.drop_journalled(node, state);
        // Writers get the error at every call; it concerns no other process.
        let lost = (state.writers > 0).then(|| VfsError::Lost {
            errno: error.errno(),
            reason: error.to_string(),
        });
        state.give_up(lost);
        // The kernel may have pages of it.
        self.known.last_open().forget(inode);
        self.book(state);
    }

    /// Refuses a write to a full file; and adds bytes to promised ones only if they fit for
    /// certain.
    pub(in crate::vfs) async fn takes_more(
        self: &Arc<Self>,
        node: &Arc<Node>,
        bytes: u64,
    ) -> Result<(), VfsError> {
        let (full, promised, owner) = {
            let state = node.state();
            (state.full.is_some(), state.promised, state.base.uid)
        };
        if full || (promised && !self.surely_fits(owner, bytes).await) {
            self.flush_file(node).await?;
        }
        Ok(())
    }
}
