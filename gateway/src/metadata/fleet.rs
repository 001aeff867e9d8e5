//! The clouds of the volume, as the servers report them. Nothing is verified here; see `fleet` of
//! the volume.

use super::MetadataClient;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::fleet::{ChangeClouds, Fleet, SignedCloudChange};
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::operation::Operation;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, QueryResult};
use quorumfs_metadata::row::{CloudSecretRow, Drain};

impl MetadataClient {
    /// The changes of the clouds behind one, which of them take new shards, and how far the others
    /// are drained.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn cloud_changes(
        &self,
        after: u32,
    ) -> Result<(Vec<SignedCloudChange>, Fleet, Drain), VfsError> {
        const WHAT: &str = "changes of the clouds";
        let question = Question::CloudChanges { after };
        match self.ask(WHAT, self.own(), question).await? {
            QueryResult::CloudChanges {
                changes,
                fleet,
                drain,
            } => Ok((changes, fleet, drain)),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// The clouds' secrets that are wrapped for this principal.
    pub(crate) async fn wrapped_secrets(
        &self,
    ) -> Result<Vec<(CloudIndex, CloudSecretRow)>, VfsError> {
        const WHAT: &str = "the clouds' secrets";
        match self.ask(WHAT, self.own(), Question::CloudSecrets).await? {
            QueryResult::CloudSecrets(rows) => Ok(rows),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Changes the clouds. It is also a success if the same change was done already.
    pub(crate) async fn change_clouds(
        &self,
        ordered: &ChangeClouds,
        wanted: u32,
    ) -> Result<(), VfsError> {
        const WHAT: &str = "changing the clouds";
        let operation = Operation::ChangeClouds(ordered.clone());
        match self.order(WHAT, &operation).await? {
            Done::CloudsChanged { number } if number == wanted => Ok(()),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }
}
