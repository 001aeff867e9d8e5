//! The trash: what was removed, with its plain name; restoring and purging it.
//!
//! A name in the trash stays sealed under the generation that its directory had. It is opened with
//! that key, and sealed anew for the directory into which its inode is restored. One inode is one
//! ordered operation: a tree is restored from its top, by a caller who can begin again at any point
//! (a directory that is back is no longer in the trash, and what is still there names it).

use crate::clock;
use crate::error::VfsError;
use crate::metadata::{TrashCursor, TrashPage};
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::known::{Known, Scope};
use crate::vfs::services::{Caller, cancel_safe};
use async_recursion::async_recursion as boxed;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::attributes::{Attributes, Detail};
use quorumfs_metadata::identity::{Cookie, InodeId, Uid};
use quorumfs_metadata::limits::{DIRECTORY_PAGE_MAX, TRASH_PURGED_MAX};
use quorumfs_metadata::operation::{Restore, Step};
use quorumfs_metadata::reply::{StepDone, TrashedEntry};

/// Inodes in the trash that can be purged in one call.
pub const PURGED_AT_ONCE: usize = TRASH_PURGED_MAX;

/// An inode in the trash.
#[derive(Clone, Debug)]
pub struct InTrash {
    /// The inode, without links.
    pub inode: Attributes,
    /// When it was removed, by the servers' clock.
    pub at: Time,
    /// Who removed it.
    pub by: Uid,
    /// The directory that it was in, which may be in the trash as well.
    pub directory: InodeId,
    /// Its name there; `None` if it does not decrypt any more.
    pub name: Option<Vec<u8>>,
}

impl FileSystem {
    /// What `caller` may see of the trash, what was removed first first: a page behind `after`, and
    /// where the next one begins, if there is one.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn trash(
        &self,
        caller: &Caller,
        after: Option<TrashCursor>,
    ) -> Result<(Vec<InTrash>, Option<TrashCursor>), VfsError> {
        let credentials = self.inner.services.credentials(caller);
        let page = self
            .inner
            .services
            .metadata
            .trash(credentials, after)
            .await?;
        Ok(self.inner.plain_trash(page).await)
    }

    /// What was removed from a directory, likewise, in no particular order. The directory may be in
    /// the trash too.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn trashed_in(
        &self,
        caller: &Caller,
        directory: InodeId,
        after: Option<TrashCursor>,
    ) -> Result<(Vec<InTrash>, Option<TrashCursor>), VfsError> {
        let credentials = self.inner.services.credentials(caller);
        let asked = self
            .inner
            .services
            .metadata
            .trashed_in(credentials, directory, after);
        Ok(self.inner.plain_trash(asked.await?).await)
    }

    /// An inode in the trash; `None` if it is not there.
    ///
    /// # Errors
    /// If the caller may not see it, or the servers do not answer.
    #[boxed]
    pub async fn in_trash(
        &self,
        caller: &Caller,
        inode: InodeId,
    ) -> Result<Option<InTrash>, VfsError> {
        let credentials = self.inner.services.credentials(caller);
        match self
            .inner
            .services
            .metadata
            .trashed(credentials, inode)
            .await?
        {
            Some(entry) => Ok(Some(self.inner.plain_entry(entry).await)),
            None => Ok(None),
        }
    }

    /// Restores an inode from the trash as `name` in a directory.
    ///
    /// # Errors
    /// `ENOENT` if it is not in the trash, or the directory was removed; `EEXIST` if the name is
    /// taken; `EPERM` if it belongs to another user, who removed it himself; and those of a
    /// creation.
    #[boxed]
    pub async fn restore(
        &self,
        caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Attributes, VfsError> {
        let (fs, caller, name) = (self.clone(), caller.clone(), name.to_vec());
        cancel_safe(async move {
            fs.inner
                .with_retries(|| fs.restore_once(&caller, inode, directory, &name))
                .await
        })
        .await
    }

    async fn restore_once(
        &self,
        caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Attributes, VfsError> {
        let inner = &self.inner;
        inner.refuse_shared(directory, name).await?;
        let credentials = inner.services.credentials(caller);
        let place = inner.new_place(&credentials, directory, name).await?;
        let step = Step::Restore(Restore { inode, place });
        let stamp = inner.known.stamp(directory);
        match inner
            .services
            .metadata
            .step("restore", credentials, clock::now(), step)
            .await
        {
            Ok(StepDone::Linked {
                inode: attributes,
                parent,
                ..
            }) => {
                inner.files.gone.forget(inode);
                inner.writeback.learn_own(&parent, stamp.asked);
                inner.writeback.learn_own(&attributes, stamp.asked);
                let known = Known::Entry(inode);
                inner.known.change_names(&[(stamp, directory, name, known)]);
                Ok(inner.files.seen(&attributes))
            }
            Ok(other) => Err(inner.services.metadata.mismatch("restore", &other)),
            Err(error) => {
                inner.known.invalidate(Scope::Name(directory, name));
                inner.known.invalidate(Scope::Inode(directory));
                Err(error)
            }
        }
    }

    /// Purges inodes in the trash for good, all or none: at most [`PURGED_AT_ONCE`]. Returns the
    /// number of those that were there.
    ///
    /// # Errors
    /// `EPERM` if one belongs to another user; `ENOTEMPTY` if something that was removed from one
    /// is still in the trash.
    #[boxed]
    pub async fn purge(&self, caller: &Caller, inodes: &[InodeId]) -> Result<u32, VfsError> {
        let metadata = &self.inner.services.metadata;
        let credentials = self.inner.services.credentials(caller);
        let step = Step::Purge(inodes.to_vec());
        match metadata
            .step("purge", credentials, clock::now(), step)
            .await?
        {
            StepDone::Purged { inodes } => Ok(inodes),
            other => Err(metadata.mismatch("purge", &other)),
        }
    }

    /// The name of a directory that is not in the trash, and the directory that it lies in; `None`
    /// for the root, and if it has lost its name meanwhile.
    ///
    /// # Errors
    /// If it is gone or no directory, or may not be listed, or the servers do not answer.
    #[boxed]
    pub async fn name_of(
        &self,
        directory: InodeId,
    ) -> Result<Option<(InodeId, Vec<u8>)>, VfsError> {
        let inner = &self.inner;
        let attributes = inner.services.metadata.attributes(directory).await?;
        let Detail::Directory { parent, .. } = attributes.detail else {
            return Ok(None);
        };
        if parent == directory {
            return Ok(None);
        }
        let mut after = Cookie::START;
        loop {
            let listed = inner
                .services
                .metadata
                .list(parent, after, DIRECTORY_PAGE_MAX);
            let page = listed.await?;
            let found = page
                .entries
                .iter()
                .find(|entry| entry.inode.inode == directory);
            if let Some(entry) = found {
                let names = inner.plain_names(parent, std::slice::from_ref(entry)).await;
                return Ok(names.into_iter().next().map(|name| (parent, name)));
            }
            match page.entries.last() {
                Some(last) if page.more => after = last.cookie,
                _ => return Ok(None),
            }
        }
    }
}

impl FileSystemCore {
    async fn plain_trash(&self, page: TrashPage) -> (Vec<InTrash>, Option<TrashCursor>) {
        let (entries, next) = page;
        let mut plain = Vec::with_capacity(entries.len());
        for entry in entries {
            plain.push(self.plain_entry(entry).await);
        }
        (plain, next)
    }

    async fn plain_entry(&self, entry: TrashedEntry) -> InTrash {
        let TrashedEntry { at, entry, inode } = entry;
        let (directory, sealed) = (entry.directory, entry.name);
        let keys = self.services.key_of(sealed.generation).await.ok();
        let name = keys.and_then(|key| {
            let keys = key.name_keys(directory);
            keys.open(&sealed.bytes, sealed.cookie).ok()
        });
        InTrash {
            inode,
            at,
            by: entry.by,
            directory,
            name,
        }
    }
}
