//! The directories above what is shared: each lets the person pass, or has to.

use super::grants::Grants;
use super::lists;
use super::settle::is_gone;
use crate::error::VfsError;
use crate::vfs::file_system::FileSystem;
use crate::vfs::services::Caller;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::acl::{Acl, AclKind, permits};
use quorumfs_metadata::attributes::{Access, Credentials};
use quorumfs_metadata::identity::{InodeId, Uid};

/// The right to search.
const SEARCH: u8 = 1;

/// How a directory lets a user pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passage {
    /// As the user it is, or one of its groups, or any.
    Freely,
    /// For its name alone.
    ByName,
    /// Not at all. It belongs to this user.
    Closed(Uid),
}

impl FileSystem {
    /// How a directory lets a user pass.
    ///
    /// # Errors
    /// If it is gone, or the servers do not answer.
    #[boxed]
    pub async fn passage(
        &self,
        directory: InodeId,
        who: &Credentials,
    ) -> Result<Passage, VfsError> {
        let attributes = self.inner.files.attributes(directory).await?;
        let access = self.lists(&attributes).await?.access;
        let owner = attributes.uid;
        let passes = |acl: &Acl| {
            let mode = attributes.mode.0 & !0o777 | acl.mode();
            let of = (
                owner,
                attributes.gid,
                quorumfs_metadata::attributes::Mode(mode),
            );
            permits(of, acl.clone().beyond_mode().as_ref(), who, Access::EXECUTE)
        };
        let mut without = access.clone();
        lists::take(&mut without, who.uid);
        Ok(match (passes(&access), passes(&without)) {
            (true, true) => Passage::Freely,
            (true, false) => Passage::ByName,
            (false, _) => Passage::Closed(owner),
        })
    }

    /// Lets a user pass a directory, by an entry for its name.
    ///
    /// # Errors
    /// If the caller does not own it, or the servers do not answer.
    #[boxed]
    pub async fn let_pass(
        &self,
        caller: &Caller,
        directory: InodeId,
        uid: Uid,
    ) -> Result<(), VfsError> {
        let attributes = self.inner.files.attributes(directory).await?;
        let mut access = self.lists(&attributes).await?.access;
        let rights = lists::rights_of(&access, uid).unwrap_or(0) | SEARCH;
        lists::give(&mut access, uid, rights);
        self.set_acl(caller, directory, AclKind::Access, Some(access))
            .await
    }

    /// Takes away what [`let_pass`](Self::let_pass) gave, unless another share needs it.
    pub(super) async fn close(
        &self,
        caller: &Caller,
        directory: InodeId,
        grants: &Grants,
    ) -> Result<(), VfsError> {
        if grants.needs(directory) {
            return Ok(());
        }
        let attributes = match self.inner.files.attributes(directory).await {
            Err(error) if is_gone(&error) => return Ok(()),
            attributes => attributes?,
        };
        let may = caller.uid == Uid::ROOT.0 || caller.uid == attributes.uid.0;
        let mut access = self.lists(&attributes).await?.access;
        if !may || lists::rights_of(&access, grants.uid) != Some(SEARCH) {
            return Ok(());
        }
        lists::take(&mut access, grants.uid);
        self.set_acl(caller, directory, AclKind::Access, Some(access))
            .await
    }
}
