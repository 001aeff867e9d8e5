//! Locks, as the servers keep them for all mounts.

use super::MetadataClient;
use crate::error::VfsError;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::LOCK_PAGE_MAX;
use quorumfs_metadata::locks::{FileLock, LockKind, LockOwner, LockRange};
use quorumfs_metadata::operation::{EndLocks, LockRequest, Operation, StopWaiting};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, ListedLock, LockBlocker, QueryResult};
use quorumfs_metadata::row::key::LockPlace;
use rustix::io::Errno;

impl MetadataClient {
    /// Takes, changes or gives up a lock; returns what is in the way.
    pub(crate) async fn lock(&self, request: LockRequest) -> Result<Option<LockBlocker>, VfsError> {
        match self.order("lock", &Operation::Lock(request)).await {
            Ok(Done::Locked) => Ok(None),
            Ok(Done::Blocked(blocker)) => Ok(Some(blocker)),
            Ok(other) => Err(self.mismatch("lock", &other)),
            // It means a limit, and that is what programs know it by.
            Err(VfsError::Refused {
                what,
                errno: Errno::NOSPC,
            }) => Err(VfsError::refused(what, Errno::NOLCK)),
            Err(error) => Err(error),
        }
    }

    /// Takes all requests of an owner out of the queue of an inode and kind.
    pub(crate) async fn stop_waiting(&self, stop: StopWaiting) -> Result<(), VfsError> {
        let operation = Operation::StopWaiting(stop);
        match self.order("stop waiting", &operation).await? {
            Done::StoppedWaiting => Ok(()),
            other => Err(self.mismatch("stop waiting", &other)),
        }
    }

    /// What is in the way of a lock.
    pub(crate) async fn lock_in_the_way(
        &self,
        (inode, kind): (InodeId, LockKind),
        (owner, range, exclusive): (u64, LockRange, bool),
    ) -> Result<Option<LockBlocker>, VfsError> {
        let question = Question::Lock {
            inode,
            kind,
            owner,
            range,
            exclusive,
        };
        match self.ask("lock", self.own(), question).await? {
            QueryResult::Lock(found) => Ok(found),
            other => Err(self.mismatch("lock", &other)),
        }
    }

    /// The locks that processes on all mounts hold, a page of them, and where the next page begins.
    pub(crate) async fn locks(
        &self,
        after: Option<LockPlace>,
    ) -> Result<(Vec<ListedLock>, Option<LockPlace>), VfsError> {
        let question = Question::Locks {
            realm: self.realm(),
            after,
            limit: LOCK_PAGE_MAX,
        };
        match self.ask("locks", self.own(), question).await? {
            QueryResult::Locks { locks, next } => Ok((locks, next)),
            other => Err(self.mismatch("locks", &other)),
        }
    }

    /// The locks of an inode and kind that this session's mount holds.
    pub(crate) async fn own_locks(
        &self,
        place: (InodeId, LockKind),
    ) -> Result<Vec<FileLock>, VfsError> {
        let session = self.mount_session().await?;
        let (inode, kind) = place;
        let first = LockOwner {
            session: SessionId(0),
            number: 0,
        };
        let mut after = Some(LockPlace {
            inode,
            kind,
            start: 0,
            owner: first,
        });
        let mut own = Vec::new();
        while after.is_some_and(|after| (after.inode, after.kind) == place) {
            let (locks, next) = self.locks(after).await?;
            let here = locks.iter().filter(|it| (it.inode, it.kind) == place);
            let here = here
                .map(|it| it.lock)
                .filter(|it| it.owner.session == session);
            own.extend(here);
            after = next;
        }
        Ok(own)
    }

    /// Ends locks of an inode and kind that processes hold, of one mount or of all; their number.
    pub(crate) async fn end_locks(
        &self,
        credentials: Credentials,
        (inode, kind): (InodeId, LockKind),
        session: Option<SessionId>,
    ) -> Result<u32, VfsError> {
        let operation = Operation::EndLocks(EndLocks {
            credentials,
            inode,
            kind,
            session,
        });
        match self.order("end locks", &operation).await? {
            Done::LocksEnded { locks } => Ok(locks),
            other => Err(self.mismatch("end locks", &other)),
        }
    }
}
