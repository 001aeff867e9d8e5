//! The realm's key epochs, as the servers report them. Nothing is verified here; see `keyring`.

use super::MetadataClient;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::{
    CloudIndex, Cookie, Home, InodeId, PrincipalId, RealmEpoch, SliceId,
};
use quorumfs_metadata::limits::{
    DIRECTORY_PAGE_MAX, EPOCHS_PAGE_MAX, INODES_LOOKED_AT_MAX, SLICES_COUNTED_MAX,
};
use quorumfs_metadata::operation::{
    BeginEpoch, DirectoryNames, NewObject, Operation, ResealNames, ResealSlices, ResealedSlice,
};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, OldName, OldNames, OldSlice, QueryResult, SealedUnder};
use quorumfs_metadata::row::{CloudSecretRow, Epoch, Member};
use quorumfs_metadata::statement::WrappedSecret;
use quorumfs_metadata::succession::{SignedSuccession, Succeed};
use std::collections::BTreeMap;

/// Rows of epochs, by number.
pub(crate) type Epochs = BTreeMap<RealmEpoch, Epoch>;

impl MetadataClient {
    /// The realm's epoch, the rows of it and some before it, and this principal's membership.
    pub async fn newest_epoch(&self) -> Result<(RealmEpoch, Epochs, Option<Member>), VfsError> {
        let question = Question::Realm(self.realm());
        match self.ask("key epochs", self.own(), question).await? {
            QueryResult::Realm {
                realm,
                epochs,
                member,
                ..
            } if realm.is_known() => Ok((realm.epoch, epochs.into_iter().collect(), member)),
            QueryResult::Realm { .. } => {
                let reason = "the realm has properties that this program does not know: update it";
                Err(self.unusable_answer("key epochs", reason.to_owned()))
            }
            other => Err(self.mismatch("key epochs", &other)),
        }
    }

    /// Key epochs just before one, as many as an answer holds.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn epochs_before(&self, before: RealmEpoch) -> Result<Epochs, VfsError> {
        let question = Question::Epochs {
            realm: self.realm(),
            before,
            limit: EPOCHS_PAGE_MAX,
        };
        match self.ask("key epochs", self.own(), question).await? {
            QueryResult::Epochs { epochs } => Ok(epochs.into_iter().collect()),
            other => Err(self.mismatch("key epochs", &other)),
        }
    }

    /// The members of the realm.
    pub(crate) async fn members(&self) -> Result<Vec<(PrincipalId, Member)>, VfsError> {
        let question = Question::Members(self.realm());
        match self.ask("members", self.own(), question).await? {
            QueryResult::Members(members) => Ok(members),
            other => Err(self.mismatch("members", &other)),
        }
    }

    /// The successions of principals, in order.
    pub(crate) async fn successions(&self) -> Result<Vec<SignedSuccession>, VfsError> {
        let question = Question::Successions;
        match self.ask("successions", self.own(), question).await? {
            QueryResult::Successions(all) => Ok(all),
            other => Err(self.mismatch("successions", &other)),
        }
    }

    /// The clouds' secrets that the servers hold for this principal, wrapped. Nothing opens them:
    /// the principal's statement has them under a signature.
    ///
    /// # Errors
    /// If the servers gave no usable answer, or a secret that an administrator signed: those of
    /// clouds that were added later, which are verified with the change that added them.
    #[boxed]
    pub async fn cloud_secrets(&self) -> Result<Vec<WrappedSecret>, VfsError> {
        const WHAT: &str = "the clouds' secrets";
        let question = Question::CloudSecrets;
        let rows = match self.ask(WHAT, self.own(), question).await? {
            QueryResult::CloudSecrets(rows) => rows,
            other => return Err(self.mismatch(WHAT, &other)),
        };
        let known = |(cloud, row): (CloudIndex, CloudSecretRow)| match row.signed {
            None => Ok(WrappedSecret {
                cloud,
                bytes: row.bytes,
            }),
            Some(signed) => Err(self.mismatch(WHAT, &signed)),
        };
        rows.into_iter().map(known).collect()
    }

    /// Replaces a principal. It is also a success if the same replacement was done already.
    pub(crate) async fn succeed(&self, succeed: &Succeed, wanted: u32) -> Result<(), VfsError> {
        const WHAT: &str = "replacing a principal";
        let operation = Operation::Succeed(succeed.clone());
        match self.order(WHAT, &operation).await? {
            Done::Succeeded { number } if number == wanted => Ok(()),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Begins a key epoch. It is also a success if the same one was begun already.
    pub(crate) async fn begin_epoch(&self, begin: &BeginEpoch) -> Result<(), VfsError> {
        const WHAT: &str = "beginning a key epoch";
        let operation = Operation::BeginEpoch(begin.clone());
        match self.order(WHAT, &operation).await? {
            Done::EpochBegun { number } if number == begin.number => Ok(()),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Looks at a piece of all inodes for directories with names under older key epochs than the
    /// newest; returns where to continue.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn old_names(
        &self,
        after: Option<InodeId>,
    ) -> Result<(Vec<OldNames>, Option<InodeId>), VfsError> {
        let question = Question::NamesByEpoch {
            realm: self.realm(),
            after,
            limit: INODES_LOOKED_AT_MAX,
        };
        match self.ask("old names", self.own(), question).await? {
            QueryResult::NamesByEpoch { directories, next } => Ok((directories, next)),
            other => Err(self.mismatch("old names", &other)),
        }
    }

    /// A page of a directory's names that are under older key epochs, and where to continue.
    pub(crate) async fn names_to_reseal(
        &self,
        directory: InodeId,
        after: Cookie,
    ) -> Result<(Vec<OldName>, Option<Cookie>), VfsError> {
        let question = Question::NamesToReseal {
            directory,
            after,
            limit: DIRECTORY_PAGE_MAX,
        };
        match self.ask("old names", self.own(), question).await? {
            QueryResult::NamesToReseal { names, next } => Ok((names, next)),
            other => Err(self.mismatch("old names", &other)),
        }
    }

    /// Reseals names; returns how many, and how many directories have no older ones any more.
    pub(crate) async fn reseal_names(
        &self,
        directories: Vec<DirectoryNames>,
    ) -> Result<(u32, u32), VfsError> {
        const WHAT: &str = "resealing names";
        let realm = self.realm();
        let operation = Operation::ResealNames(ResealNames { realm, directories });
        match self.order(WHAT, &operation).await? {
            Done::NamesResealed { names, directories } => Ok((names, directories)),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Slices that are sealed under older key epochs, and where to continue.
    pub(crate) async fn slices_to_reseal(
        &self,
        after: Option<(Home, SliceId)>,
    ) -> Result<(Vec<OldSlice>, Option<(Home, SliceId)>), VfsError> {
        let question = Question::SlicesToReseal {
            realm: self.realm(),
            after,
            limit: SLICES_COUNTED_MAX,
        };
        match self.ask("old slices", self.own(), question).await? {
            QueryResult::SlicesToReseal { slices, next } => Ok((slices, next)),
            other => Err(self.mismatch("old slices", &other)),
        }
    }

    /// Reseals slices; returns how many were where they were seen.
    pub(crate) async fn reseal_slices(
        &self,
        objects: Vec<NewObject>,
        slices: Vec<ResealedSlice>,
    ) -> Result<u32, VfsError> {
        const WHAT: &str = "resealing content";
        let operation = Operation::ResealSlices(ResealSlices {
            realm: self.realm(),
            objects,
            slices,
        });
        match self.order(WHAT, &operation).await? {
            Done::SlicesResealed { slices } => Ok(slices),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Counts a piece of all slices by their key epochs; returns where to continue.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn count_by_epoch(
        &self,
        after: Option<(Home, SliceId)>,
    ) -> Result<(Vec<SealedUnder>, Option<(Home, SliceId)>), VfsError> {
        let limit = SLICES_COUNTED_MAX;
        let question = Question::SlicesByEpoch { after, limit };
        match self.ask("counting", self.own(), question).await? {
            QueryResult::SlicesByEpoch { epochs, next } => Ok((epochs, next)),
            other => Err(self.mismatch("counting", &other)),
        }
    }
}
