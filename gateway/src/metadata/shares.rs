//! Shares of files and directories.

use super::MetadataClient;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::{PrincipalNumber, ShareId};
use quorumfs_metadata::limits::SHARE_PAGE_MAX;
use quorumfs_metadata::operation::{ChangeShare, NewShare, Operation};
use quorumfs_metadata::query::{Question, SharesOf};
use quorumfs_metadata::reply::{Done, ListedShare, QueryResult};
use quorumfs_metadata::row::Numbered;
use rustix::io::Errno;

const WHAT: &str = "shares";

/// `None` in place of a refusal that there is none.
fn if_any<T>(outcome: Result<T, VfsError>) -> Result<Option<T>, VfsError> {
    match outcome {
        Err(VfsError::Refused {
            errno: Errno::NOENT,
            ..
        }) => Ok(None),
        outcome => outcome.map(Some),
    }
}

impl MetadataClient {
    /// Shares something, or changes how it is shared.
    pub(crate) async fn share(&self, new: NewShare) -> Result<ShareId, VfsError> {
        match self.order("share", &Operation::Share(new)).await? {
            Done::Shared { id } => Ok(id),
            other => Err(self.mismatch("share", &other)),
        }
    }

    /// Ends a share; returns whether there was one.
    pub(crate) async fn end_share(&self, asked: ChangeShare) -> Result<bool, VfsError> {
        let ordered = self.order("end a share", &Operation::EndShare(asked)).await;
        match if_any(ordered)? {
            Some(Done::ShareEnded) => Ok(true),
            None => Ok(false),
            Some(other) => Err(self.mismatch("end a share", &other)),
        }
    }

    /// Removes what the servers know of a share that has ended, if there is something left.
    pub(crate) async fn forget_share(&self, asked: ChangeShare) -> Result<(), VfsError> {
        let operation = Operation::ForgetShare(asked);
        match if_any(self.order("forget a share", &operation).await)? {
            Some(Done::ShareForgotten) | None => Ok(()),
            Some(other) => Err(self.mismatch("forget a share", &other)),
        }
    }

    /// All shares of some kind, in the order of their numbers.
    #[boxed]
    pub(crate) async fn shares(
        &self,
        credentials: Credentials,
        of: SharesOf,
    ) -> Result<Vec<ListedShare>, VfsError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let limit = SHARE_PAGE_MAX;
            let question = Question::Shares { of, after, limit };
            let asked = self.ask(WHAT, credentials.clone(), question).await?;
            let QueryResult::Shares { shares, next } = asked else {
                return Err(self.mismatch(WHAT, &asked));
            };
            all.extend(shares);
            match next {
                None => return Ok(all),
                Some(next) if after.is_none_or(|after| after < next) => after = Some(next),
                Some(next) => {
                    let reason = format!("share {next} is shown behind share {after:?}");
                    return Err(self.unusable_answer(WHAT, reason));
                }
            }
        }
    }

    /// The share of a link by the hash of its token, unless it has ended.
    pub(crate) async fn share_of_token(
        &self,
        token: [u8; 32],
    ) -> Result<Option<ListedShare>, VfsError> {
        let question = Question::ShareOfToken(token);
        match if_any(self.ask(WHAT, self.own(), question).await)? {
            Some(QueryResult::Share(found)) => Ok(Some(found)),
            None => Ok(None),
            Some(other) => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// The number of this session's principal.
    pub(crate) async fn own_number(&self) -> Result<PrincipalNumber, VfsError> {
        match self.ask_about_volume(WHAT, Question::WhoAmI).await? {
            QueryResult::WhoAmI { rights, .. } => Ok(rights.number),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// The key of the principal that has or had a number.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn numbered(&self, number: PrincipalNumber) -> Result<Option<Numbered>, VfsError> {
        let asked = self.ask_about_volume(WHAT, Question::Principal(number));
        match if_any(asked.await)? {
            Some(QueryResult::Principal(found)) => Ok(Some(found)),
            None => Ok(None),
            Some(other) => Err(self.mismatch(WHAT, &other)),
        }
    }
}
