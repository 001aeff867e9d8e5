//! What is done before another mount is let in.
//!
//! ```text
//!   recalled ──► acts as shared ──► locks to the servers ──► commits ──► `share` is ordered
//! ```
//!
//! * From the moment this mount acts as shared, nothing is decided here any more. So what is handed
//!   over then is all that there is.
//! * While it was alone, locks were given up, and ends of files written to, before the commit. The
//!   process that takes such a lock next may be on the other mount, so these files are committed
//!   first. Clouds may be slow, and the other mount may not have to wait for long: what has not
//!   arrived after [`COMMITS_WITHIN`] keeps the end of its file until it has, and nothing else.

use super::inode_locks::Ask;
use super::owner::{FileLocks, LockedFile, Turn};
use crate::error::VfsError;
use crate::vfs::files::Node;
use crate::vfs::known::BeforeSharing;
use async_trait::async_trait;
use futures_util::StreamExt;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long commits may hold up another mount: half of the time after which the servers fence one
/// that does not share.
const COMMITS_WITHIN: Duration = Duration::from_secs(5);
/// Files, or locks of one, that are handed over at once.
const AT_ONCE: usize = 32;

#[async_trait]
impl BeforeSharing for FileLocks {
    async fn before_sharing(self: Arc<Self>) -> Result<(), VfsError> {
        // All tries together: the servers count from the first one.
        let until = self.sharing_since() + COMMITS_WITHIN;
        self.hand_all_over().await?;
        let _ = tokio::time::timeout_at(until, self.commit_marked()).await;
        let this = &self;
        let keep = |node: Arc<Node>| async move {
            let inode = node.inode;
            tracing::warn!(%inode, "is still being committed while another mount begins");
            this.keep_end(&node).await
        };
        all_of(self.marked(), keep).await?;
        *self.sharing() = None;
        Ok(())
    }
}

impl FileLocks {
    fn sharing(&self) -> MutexGuard<'_, Option<Instant>> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sharing_since(&self) -> Instant {
        *self.sharing().get_or_insert_with(Instant::now)
    }

    async fn hand_all_over(self: &Arc<Self>) -> Result<(), VfsError> {
        let hand_over = |locked: Arc<LockedFile>| async move {
            if locked.state().at_servers {
                return Ok(());
            }
            let turn = locked.turn.lock().await;
            if locked.state().at_servers {
                return Ok(());
            }
            self.hand_over(&turn, &locked).await
        };
        all_of(self.all(), hand_over).await
    }

    /// Gives the locks and requests of an inode and kind to the servers, which decide from then on.
    pub(super) async fn hand_over(
        &self,
        turn: &Turn<'_>,
        locked: &LockedFile,
    ) -> Result<(), VfsError> {
        let (held, waiting) = {
            let mut state = locked.state();
            state.begin_handing_over();
            (state.all_held(), state.all_waiting())
        };
        // They do not conflict with each other, so their order does not matter.
        let give = |ask: Ask| async move {
            let request = ask.request(locked.place, false);
            (ask, self.services.metadata.lock(request).await)
        };
        let mut given = futures_util::stream::iter(held)
            .map(give)
            .buffer_unordered(AT_ONCE);
        let mut refused = Vec::new();
        while let Some((ask, answer)) = given.next().await {
            match answer {
                Ok(None) => {}
                Ok(Some(_)) | Err(VfsError::Refused { .. }) => refused.push(ask),
                Err(error) => return Err(error),
            }
        }
        drop(given);
        for ask in refused {
            // The owner's first loss takes its other locks along.
            if locked.state().has(&ask) {
                self.lose(turn, locked, &ask).await;
            }
        }
        for ask in waiting {
            let request = ask.request(locked.place, true);
            match self.services.metadata.lock(request).await {
                // Nothing was in its way any more. Its process asks again, and is told.
                Ok(None) => locked.state().granted(&ask),
                // It asks again, and is told why.
                Ok(Some(_)) | Err(VfsError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        locked.state().give_to_servers();
        locked.wake();
        Ok(())
    }

    /// Files with content that has to be committed before another mount is let in.
    fn marked(&self) -> Vec<Arc<Node>> {
        self.files.collect(|node| {
            let state = node.state();
            let marked = state.commits_before_sharing && state.is_waiting();
            marked.then(|| node.clone())
        })
    }

    async fn commit_marked(&self) {
        let commit = |node: Arc<Node>| async move { self.writeback.flush(&node).await };
        // Those that fail are still marked.
        let _ = all_of(self.marked(), commit).await;
    }
}

/// Does something for all, many at once; the first error, after all were tried.
async fn all_of<T, F: Future<Output = Result<(), VfsError>>>(
    of: Vec<T>,
    each: impl Fn(T) -> F,
) -> Result<(), VfsError> {
    let done = futures_util::stream::iter(of)
        .map(each)
        .buffer_unordered(AT_ONCE);
    done.fold(Ok(()), |first, next| async move { first.and(next) })
        .await
}
