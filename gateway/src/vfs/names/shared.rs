//! `Shared with me`: listing it, and where its links lead.
//!
//! A link leads to the path that its share has, as long as that leads to what is shared. If it was
//! renamed in its directory, and that may be listed, the link leads to the new name. Otherwise it
//! leads nowhere, and `share ls` says so.

use super::directory::Listed;
use crate::error::VfsError;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::files::{DirectoryHandle, HandleId};
use crate::vfs::known::DirectoryEntry;
use crate::vfs::shared::{
    NOT_SHARED, READ_ONLY, SHARED_DIRECTORY, SHARED_NAME, SharedLink, SharedPlace,
};
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::{Cookie, InodeId};
use quorumfs_metadata::limits::DIRECTORY_PAGE_MAX;
use rustix::io::Errno;

/// Pages of a directory in which a renamed inode is looked for.
const PAGES_SEARCHED: usize = 8;

impl FileSystem {
    pub(super) async fn open_shared(&self, inode: InodeId) -> Result<HandleId, VfsError> {
        if inode != SHARED_DIRECTORY {
            return Err(VfsError::refused("opendir", Errno::NOTDIR));
        }
        let listing = tokio::sync::Mutex::default();
        let directory = inode;
        let handle = DirectoryHandle { directory, listing };
        Ok(self.inner.files.handles.add_directory(handle))
    }

    /// Where something is that was shared, as far as this principal can see; `None` if it was
    /// moved.
    ///
    /// # Errors
    /// If the servers do not answer.
    pub async fn find_shared(
        &self,
        inode: InodeId,
        place: &SharedPlace,
    ) -> Result<Option<Vec<u8>>, VfsError> {
        self.inner.path_of_shared(inode, place).await
    }
}

impl FileSystemCore {
    /// The directory, if the root shows it: something is shared, and no entry has its name.
    pub(super) async fn shown_shared(&self) -> Option<Attributes> {
        if self.shared.links().await.is_empty() {
            return None;
        }
        let (own, root) = (|| self.services.metadata.own(), self.services.volume.root());
        let taken = self.find(own, root, SHARED_NAME).await;
        match taken {
            Ok(None) => Some(self.shared.directory().await),
            _ => None,
        }
    }

    /// Refuses a change of the directory's own name.
    pub(super) async fn refuse_shared(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<(), VfsError> {
        let is_shown = self.shared.may_be(directory, name) && self.shown_shared().await.is_some();
        match is_shown {
            true => Err(READ_ONLY),
            false => Ok(()),
        }
    }

    /// Entries of the directory after an offset.
    pub(super) async fn shared_entries(
        &self,
        directory: InodeId,
        offset: Cookie,
        limit: usize,
    ) -> Result<Vec<Listed>, VfsError> {
        let entry = |attributes: Attributes, cookie, name: &[u8]| {
            let entry = DirectoryEntry {
                inode: attributes.inode,
                file_type: attributes.file_type(),
                cookie,
                name: name.to_vec(),
            };
            (entry, Some(attributes))
        };
        let own = self.shared.attributes(directory).await.ok_or(NOT_SHARED)?;
        let mut found = Vec::new();
        if offset < Cookie(1) {
            found.push(entry(own, Cookie(1), b"."));
        }
        if offset < Cookie::PARENT {
            let root = self.files.attributes(self.services.volume.root()).await?;
            found.push(entry(root, Cookie::PARENT, b".."));
        }
        let links = self.shared.links().await;
        let behind = links.iter().filter(|link| link.cookie() > offset);
        found.extend(behind.map(|link| {
            let attributes = self.shared.of_link(link);
            entry(attributes, link.cookie(), &link.name)
        }));
        found.truncate(limit);
        Ok(found)
    }

    /// Where a link leads.
    pub(super) async fn shared_target(&self, inode: InodeId) -> Result<Vec<u8>, VfsError> {
        let link = self.shared.link(inode).await.ok_or(NOT_SHARED)?;
        let found = self.path_of_shared(link.leads_to, &link.place).await;
        let path = found?.unwrap_or(link.place.path);
        Ok(SharedLink::target(&path))
    }

    async fn path_of_shared(
        &self,
        inode: InodeId,
        place: &SharedPlace,
    ) -> Result<Option<Vec<u8>>, VfsError> {
        let root = self.services.volume.root();
        let names: Vec<&[u8]> = place.names().collect();
        let Some((_, above)) = names.split_last() else {
            return Ok((inode == root).then(Vec::new));
        };
        let (mut here, mut parent) = (root, root);
        for (index, name) in names.iter().enumerate() {
            if index == above.len() {
                parent = here;
            }
            let own = || self.services.metadata.own();
            match self.find(own, here, name).await {
                Ok(Some(found)) => here = found.inode,
                Ok(None) if index == above.len() => break,
                Ok(None) => return Ok(None),
                Err(error) if is_closed(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if here == inode {
            return Ok(Some(place.path.clone()));
        }
        if parent != place.parent {
            return Ok(None);
        }
        let name = self.name_in(parent, inode).await?;
        Ok(name.map(|name| [above, &[name.as_slice()]].concat().join(&b'/')))
    }

    /// The name of an inode in a directory, if this principal may list that and it is not large.
    async fn name_in(
        &self,
        directory: InodeId,
        inode: InodeId,
    ) -> Result<Option<Vec<u8>>, VfsError> {
        let mut after = Cookie::START;
        for _ in 0..PAGES_SEARCHED {
            let metadata = &self.services.metadata;
            let page = match metadata.list(directory, after, DIRECTORY_PAGE_MAX).await {
                Err(error) if is_closed(&error) => return Ok(None),
                page => page?,
            };
            let mut entries = page.entries.iter();
            if let Some(entry) = entries.find(|entry| entry.inode.inode == inode) {
                let names = self
                    .plain_names(directory, std::slice::from_ref(entry))
                    .await;
                return Ok(names.into_iter().next());
            }
            match page.entries.last() {
                Some(last) if page.more => after = last.cookie,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// Whether something is out of this principal's reach, or gone.
fn is_closed(error: &VfsError) -> bool {
    let refused = matches!(error, VfsError::Refused { .. });
    let closed = [
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOENT,
        Errno::STALE,
        Errno::NOTDIR,
    ];
    refused && closed.contains(&error.errno())
}
