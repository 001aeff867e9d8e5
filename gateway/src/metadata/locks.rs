//! Locks, as the servers keep them for all mounts.

use super::MetadataClient;
use crate::error::VfsError;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::locks::{LockKind, LockRange};
use quorumfs_metadata::operation::{LockRequest, Operation, StopWaiting};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, LockBlocker, QueryResult};
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
}
