//! The usage and the limits of the realm and its users.

use super::MetadataClient;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::error::Error;
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::limits::QUOTA_PAGE_MAX;
use quorumfs_metadata::operation::{Operation, QuotaOf, SetQuota};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, QueryResult};
use quorumfs_metadata::row::{Limit, RealmQuota, UserQuota};
use rustix::io::Errno;

/// A page of users, and whether there are more.
pub type QuotaPage = (RealmQuota, Vec<(Uid, UserQuota)>, bool);

/// The refusal for lack of space, if it is one.
pub(super) fn full(what: &'static str, errno: Errno, error: &Error) -> Option<VfsError> {
    let (uid, of, room) = match *error {
        Error::UserQuota { uid, of, remaining } => (Some(uid), of, remaining),
        Error::RealmQuota { of, remaining } => (None, of, remaining),
        _ => return None,
    };
    let reason = error.to_string();
    Some(VfsError::Full {
        what,
        errno,
        reason,
        uid,
        of,
        room,
    })
}

impl MetadataClient {
    /// The usage and the limits of the realm and a user.
    ///
    /// # Errors
    /// If the servers gave no usable answer, or the principal may not speak for the user.
    #[boxed]
    pub async fn quota(&self, uid: Uid) -> Result<(RealmQuota, UserQuota), VfsError> {
        let realm = self.realm();
        let question = Question::Quota { realm, uid };
        match self.ask("quota", self.own(), question).await? {
            QueryResult::Quota { realm, user } => Ok((realm, user)),
            other => Err(self.mismatch("quota", &other)),
        }
    }

    /// The usage and the limits of the realm.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn realm_quota(&self) -> Result<RealmQuota, VfsError> {
        let (realm, _) = self.quota(self.own().uid).await?;
        Ok(realm)
    }

    /// The usage and the limits of the realm and its users, a page of users behind `after`.
    ///
    /// # Errors
    /// If the servers gave no usable answer, or the principal has no right to administer.
    #[boxed]
    pub async fn quotas(&self, after: Option<Uid>) -> Result<QuotaPage, VfsError> {
        let question = Question::Quotas {
            realm: self.realm(),
            after,
            limit: QUOTA_PAGE_MAX,
        };
        match self.ask("quota", self.own(), question).await? {
            QueryResult::Quotas { realm, users, more } => Ok((realm, users, more)),
            other => Err(self.mismatch("quota", &other)),
        }
    }

    /// Sets a limit of the realm.
    ///
    /// # Errors
    /// If the servers gave no usable answer, or the principal has no right to administer.
    #[boxed]
    pub async fn set_quota(&self, of: QuotaOf, limit: Option<Limit>) -> Result<(), VfsError> {
        let realm = self.realm();
        let operation = Operation::SetQuota(SetQuota { realm, of, limit });
        match self.order("set a quota", &operation).await? {
            Done::QuotaSet => Ok(()),
            other => Err(self.mismatch("set a quota", &other)),
        }
    }
}
