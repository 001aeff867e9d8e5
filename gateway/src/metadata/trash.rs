//! The trash of the realm.

use super::MetadataClient;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::TRASH_PAGE_MAX;
use quorumfs_metadata::operation::{KeepTrash, Operation};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, QueryResult, TrashedEntry};
use quorumfs_metadata::row::Amount;
use rustix::io::Errno;

/// The last place that a page of the trash looked at.
pub type TrashCursor = (Time, InodeId);
/// A page of the trash, and where the next one begins, if there is one.
pub type TrashPage = (Vec<TrashedEntry>, Option<TrashCursor>);

impl MetadataClient {
    async fn ask_trash(
        &self,
        credentials: Credentials,
        question: Question,
    ) -> Result<TrashPage, VfsError> {
        match self.ask("trash", credentials, question).await? {
            QueryResult::Trash { entries, next } => Ok((entries, next)),
            other => Err(self.mismatch("trash", &other)),
        }
    }

    /// What the caller may see of the trash, a page behind `after`.
    pub(crate) async fn trash(
        &self,
        credentials: Credentials,
        after: Option<TrashCursor>,
    ) -> Result<TrashPage, VfsError> {
        let question = Question::Trash {
            realm: self.realm(),
            after,
            limit: TRASH_PAGE_MAX,
        };
        self.ask_trash(credentials, question).await
    }

    /// What was removed from a directory, likewise.
    pub(crate) async fn trashed_in(
        &self,
        credentials: Credentials,
        directory: InodeId,
        after: Option<TrashCursor>,
    ) -> Result<TrashPage, VfsError> {
        let question = Question::TrashedIn {
            directory,
            after: after.map(|(_, inode)| inode),
            limit: TRASH_PAGE_MAX,
        };
        self.ask_trash(credentials, question).await
    }

    /// An inode in the trash; `None` if it is not there.
    pub(crate) async fn trashed(
        &self,
        credentials: Credentials,
        inode: InodeId,
    ) -> Result<Option<TrashedEntry>, VfsError> {
        let asked = self.ask_trash(credentials, Question::Trashed(inode)).await;
        match asked {
            Ok((entries, _)) => Ok(entries.into_iter().next()),
            Err(VfsError::Refused {
                errno: Errno::NOENT,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// For how many seconds the trash is kept (0: there is none), and the size of all that is in
    /// it.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn trash_size(&self) -> Result<(u64, Amount), VfsError> {
        let question = Question::TrashSize(self.realm());
        match self.ask("trash", self.own(), question).await? {
            QueryResult::TrashSize { seconds, held } => Ok((seconds, held)),
            other => Err(self.mismatch("trash", &other)),
        }
    }

    /// Sets for how many seconds the trash is kept; 0: there is none any more.
    ///
    /// # Errors
    /// If the servers gave no usable answer, or the principal has no right to administer.
    #[boxed]
    pub async fn keep_trash(&self, seconds: u64) -> Result<(), VfsError> {
        let realm = self.realm();
        let operation = Operation::KeepTrash(KeepTrash { realm, seconds });
        match self.order("set the age of the trash", &operation).await? {
            Done::TrashKept => Ok(()),
            other => Err(self.mismatch("set the age of the trash", &other)),
        }
    }

    /// Has some of what was removed first purged, because clouds are full; returns the number of
    /// inodes.
    pub(crate) async fn relieve_trash(&self) -> Result<u32, VfsError> {
        let operation = Operation::RelieveTrash {
            realm: self.realm(),
        };
        match self.order("purge trash", &operation).await? {
            Done::TrashRelieved { inodes } => Ok(inodes),
            other => Err(self.mismatch("purge trash", &other)),
        }
    }
}
