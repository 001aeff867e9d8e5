//! Where a name leads: as is known, or as the servers say.

use crate::error::VfsError;
use crate::vfs::file_system::FileSystemCore;
use crate::vfs::known::{Known, Scope, Stamp};
use quorumfs_metadata::attributes::{Attributes, Credentials};
use quorumfs_metadata::identity::{Cookie, InodeId};
use quorumfs_metadata::reply::DirectoryPage;
use rustix::io::Errno;

/// Entries asked for when a whole directory is wanted.
pub(in crate::vfs) const WHOLE_DIRECTORY: u32 = 512;

impl FileSystemCore {
    /// After a failure the state of a name is unknown.
    pub(super) fn invalidate_name(
        &self,
        directory: InodeId,
        name: &[u8],
        error: VfsError,
    ) -> VfsError {
        self.known.invalidate(Scope::Name(directory, name));
        self.known.invalidate(Scope::Inode(directory));
        error
    }

    /// Enters a page of a directory into the cache.
    pub(in crate::vfs) fn learn_page(
        &self,
        page: &DirectoryPage,
        names: &[Vec<u8>],
        whole: bool,
        stamp: Stamp,
    ) {
        let directory = page.directory.inode;
        self.files.learn(&page.directory, stamp.asked);
        for entry in &page.entries {
            self.files.learn(&entry.inode, stamp.asked);
        }
        let known = names
            .iter()
            .zip(&page.entries)
            .map(|(name, entry)| (name.as_slice(), entry.inode.inode));
        if whole {
            self.known.learn_directory(stamp, directory, known);
        } else {
            for (name, inode) in known {
                self.known
                    .learn_name(stamp, directory, name, Known::Entry(inode));
            }
        }
    }

    /// The inode that `name` leads to, from the cache or by a query.
    pub(in crate::vfs) async fn find(
        &self,
        credentials: impl Fn() -> Credentials,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<Attributes>, VfsError> {
        self.known.revalidate().await;
        for _ in 0..2 {
            match self.known.name(directory, name) {
                Some(Known::Absent) => return Ok(None),
                Some(Known::Entry(inode)) => match self.files.attributes(inode).await {
                    Ok(attributes) => return Ok(Some(attributes)),
                    // The cache is out of date: another client removed it.
                    Err(VfsError::Refused {
                        errno: Errno::STALE | Errno::NOENT,
                        ..
                    }) => {
                        self.known.invalidate(Scope::Name(directory, name));
                    }
                    Err(error) => return Err(error),
                },
                None => {
                    if !self.known.lookups().wants_whole(directory) {
                        break;
                    }
                    if !self.learn_whole(directory).await? {
                        break;
                    }
                }
            }
        }
        let ask = || self.ask_for(credentials(), directory, name);
        self.with_retries(ask).await
    }

    async fn ask_for(
        &self,
        credentials: Credentials,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<Attributes>, VfsError> {
        let stamp = self.known.stamp(directory);
        let place = self.place(directory, name).await?;
        let found = self.services.metadata.lookup(credentials, place).await;
        if let Err(VfsError::OtherKeys { .. }) = found {
            self.known.invalidate(Scope::Inode(directory));
        }
        if let Some((attributes, parent)) = found? {
            self.files.learn(&parent, stamp.asked);
            self.files.learn(&attributes, stamp.asked);
            let known = Known::Entry(attributes.inode);
            self.known.learn_name(stamp, directory, name, known);
            return Ok(Some(self.files.seen(&attributes)));
        }
        if let Some(entry) = self.stands_for(directory, name).await? {
            self.files.learn(&entry.inode, stamp.asked);
            return Ok(Some(self.files.seen(&entry.inode)));
        }
        self.known.learn_name(stamp, directory, name, Known::Absent);
        Ok(None)
    }

    /// Lists a directory with many lookups; returns whether it is known completely now.
    async fn learn_whole(&self, directory: InodeId) -> Result<bool, VfsError> {
        let _one_at_a_time = self.known.lookups().listing(directory).await;
        let stamp = self.known.stamp(directory);
        if !self.known.lookups().wants_whole(directory) {
            // Another task has just done it.
            return Ok(true);
        }
        let page = self
            .services
            .metadata
            .list(directory, Cookie::START, WHOLE_DIRECTORY)
            .await?;
        let names = self.plain_names(directory, &page.entries).await;
        let whole = !page.more;
        self.learn_page(&page, &names, whole, stamp);
        self.known.lookups().listed(directory, whole);
        Ok(whole)
    }
}
