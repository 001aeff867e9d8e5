//! Sharing with a person of the volume: access control lists over a tree, and taking them back.
//!
//! The [share](quorumfs_metadata::row::Share) is ordered first. It says what was begun, so that
//! whatever happens it can be taken back. What a person is to have of an inode follows from all
//! shares with it that have not ended; so one walk sets lists, changes them and takes them back:
//!
//! ```text
//!             shares with the person that have not ended
//!                   │ which cover this inode, or need it to pass
//!   each inode ──► what is to be ──► the lists that it has? ──no──► set, 32 in an operation
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | this | the calls: share, end, list |
//! | `grants` | what a person is to have of which inode |
//! | `lists` | lists with and without a person |
//! | `settle` | the walk |
//! | `passing` | the directories above |
//! | `taking_back` | what has ended |
//!
//! What always holds:
//! * **A directory's lists are set before what is in it is looked at**, so that nothing is made in
//!   between without them.
//! * **A list is set only if its inode is still as it was read.**
//! * **No list is set through a symbolic link**, nor on one.
//! * **Bounded**: a page of each directory from the top to where the walk is.
//!
//! Failure modes: *the process dies*: the same walk again finds what is left. *An inode is another
//! user's*: it is reported, and a directory with all that is below it is left out. *A file is moved
//! in later*: it keeps its lists until the walk is repeated.

mod grants;
mod lists;
mod passing;
mod settle;
mod taking_back;

pub use grants::Grants;
pub use passing::Passage;
pub use settle::{Settled, Settling};

use super::file_system::FileSystem;
use super::services::Caller;
use super::shared::SharedPlace;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::{InodeId, PrincipalNumber, ShareId};
use quorumfs_metadata::operation::{ChangeShare, NewShare, NewShareWith};
use quorumfs_metadata::query::SharesOf;
use quorumfs_metadata::reply::ListedShare;
use quorumfs_metadata::row::Share;

/// The context of a token's hash.
const TOKEN_CONTEXT: &str = "quorumfs 2026 share token";

/// A share, with what only clients can read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownShare {
    /// Its number.
    pub id: ShareId,
    /// What the servers know of it.
    pub share: Share,
    /// Whether what is shared exists, outside of the trash.
    pub exists: bool,
    /// Where it was when it was shared; `None` if this caller may not know, or it does not decrypt.
    pub place: Option<SharedPlace>,
}

/// What is to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSharing {
    /// The file or directory.
    pub inode: InodeId,
    /// Where it is.
    pub place: SharedPlace,
    /// With whom.
    pub with: NewShareWith,
    /// When it ends by itself.
    pub expires: Option<Time>,
}

impl FileSystem {
    /// Orders a share. Lists are set by [`settle`](Self::settle).
    ///
    /// # Errors
    /// `EPERM` if the caller does not own it; if there is no such person, or too many shares; or
    /// the servers do not answer.
    #[boxed]
    pub async fn share(&self, caller: &Caller, new: NewSharing) -> Result<ShareId, VfsError> {
        let services = &self.inner.services;
        let place = new.place.seal(services, new.inode)?;
        let new = NewShare {
            credentials: services.credentials(caller),
            inode: new.inode,
            with: new.with,
            expires: new.expires,
            place,
        };
        services.metadata.share(new).await
    }

    /// Ends a share: a link at once; of a person the lists are still to be taken back. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// `EPERM` if it is not the caller's to end, or the servers do not answer.
    #[boxed]
    pub async fn end_share(&self, caller: &Caller, id: ShareId) -> Result<bool, VfsError> {
        let services = &self.inner.services;
        let credentials = services.credentials(caller);
        services
            .metadata
            .end_share(ChangeShare { credentials, id })
            .await
    }

    async fn forget_share(&self, caller: &Caller, id: ShareId) -> Result<(), VfsError> {
        let services = &self.inner.services;
        let credentials = services.credentials(caller);
        services
            .metadata
            .forget_share(ChangeShare { credentials, id })
            .await
    }

    /// Shares, in the order of their numbers.
    ///
    /// # Errors
    /// `EPERM` if not all are the caller's to know, or the servers do not answer.
    #[boxed]
    pub async fn shares(&self, caller: &Caller, of: SharesOf) -> Result<Vec<KnownShare>, VfsError> {
        let services = &self.inner.services;
        let credentials = services.credentials(caller);
        let mut all = Vec::new();
        for listed in services.metadata.shares(credentials, of).await? {
            all.push(self.known_share(listed).await);
        }
        Ok(all)
    }

    /// The share of a link by its secret token, unless it has ended.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn share_of_token(&self, token: &[u8]) -> Result<Option<KnownShare>, VfsError> {
        let metadata = &self.inner.services.metadata;
        match metadata.share_of_token(Self::hash_of_token(token)).await? {
            Some(listed) => Ok(Some(self.known_share(listed).await)),
            None => Ok(None),
        }
    }

    /// What the servers know of a link's secret token.
    #[must_use]
    pub fn hash_of_token(token: &[u8]) -> [u8; 32] {
        blake3::derive_key(TOKEN_CONTEXT, token)
    }

    /// The number of this process's principal, by which shares name it.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn own_number(&self) -> Result<PrincipalNumber, VfsError> {
        self.inner.services.metadata.own_number().await
    }

    /// Whether an inode is `Shared with me`, or in it: neither is in the volume.
    #[must_use]
    pub fn is_of_shared_with_me(&self, inode: InodeId) -> bool {
        super::shared::is_shared(inode)
    }

    async fn known_share(&self, listed: ListedShare) -> KnownShare {
        let ListedShare { id, share, exists } = listed;
        let place = match share.place.bytes.is_empty() {
            true => None,
            false => {
                let opened = self.inner.shared.open(share.inode, &share.place).await;
                opened.ok()
            }
        };
        KnownShare {
            id,
            share,
            exists,
            place,
        }
    }
}
