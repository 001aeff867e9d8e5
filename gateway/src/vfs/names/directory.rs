//! Reading directories.
//!
//! An entry's position is its cookie, a keyed hash of its name. It does not depend on other
//! entries, so a listing continues correctly even if entries are created or removed meanwhile. The
//! kernel asks for small pieces; an open directory holds the page that came from the servers.
//!
//! The kernel caches names and attributes that it is shown. So a page is used no longer than any
//! cached entry, and not after a change that this mount made to the directory; and the newest known
//! attributes of an inode are shown. Pages are cached for the next listing of the same directory
//! ([`Page`]), but only for their names: attributes change without their directory, so for
//! a cached page they have to be known separately.

use super::lookup::WHOLE_DIRECTORY;
use crate::error::VfsError;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::files::{DirectoryHandle, HandleId, Listing};
use crate::vfs::known::{DirectoryEntry, Known, Page, VALID_FOR};
use crate::vfs::services::Caller;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, Detail, FileType};
use quorumfs_metadata::identity::{Cookie, InodeId};
use rustix::io::Errno;
use std::sync::Arc;
use tokio::time::Instant;

/// How often to list anew while the directory changes under the listing.
const LISTINGS: u32 = 3;

type Listed = (DirectoryEntry, Option<Attributes>);

/// What a listing shows of each entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Its name.
    Name,
    /// The newest attributes there are as well.
    Newest,
    /// Attributes that came with the page, even if others have changed them since.
    Received,
}

impl FileSystem {
    /// Opens a directory. A recently removed one can be opened, because a process may still work in
    /// it, and is empty. `keep_atime`: listing it moves no time of access.
    ///
    /// # Errors
    /// If it is none or is gone.
    #[boxed]
    pub async fn opendir(
        &self,
        _caller: &Caller,
        inode: InodeId,
        keep_atime: bool,
    ) -> Result<HandleId, VfsError> {
        let _not_removed = self.inner.files.namespace_lock(inode).read().await;
        let attributes = self.getattr(inode).await?;
        if attributes.file_type() != FileType::Directory {
            return Err(VfsError::refused("opendir", Errno::NOTDIR));
        }
        if attributes.links > 0 {
            // It may have come back from the trash.
            self.inner.files.gone.forget(inode);
        }
        if !keep_atime && self.inner.files.gone.get(inode).is_none() {
            self.inner.files.access_times.note(&attributes);
        }
        let listing = tokio::sync::Mutex::default();
        Ok(self.inner.files.handles.add_directory(DirectoryHandle {
            directory: inode,
            listing,
        }))
    }

    /// Entries after `offset` (0: from the beginning), at most `limit`; none at the end.
    ///
    /// # Errors
    /// If the handle is no open directory, or the servers do not answer.
    #[boxed]
    pub async fn readdir(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>, VfsError> {
        let listed = self.list(handle, offset, limit, Shown::Name).await?;
        Ok(listed.into_iter().map(|(entry, _)| entry).collect())
    }

    /// As [`FileSystem::readdir`], with attributes.
    ///
    /// # Errors
    /// As [`FileSystem::readdir`].
    #[boxed]
    pub async fn readdir_plus(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<(DirectoryEntry, Attributes)>, VfsError> {
        let listed = self.list(handle, offset, limit, Shown::Newest).await?;
        let both = |(entry, attributes): Listed| Some((entry, attributes?));
        Ok(listed.into_iter().filter_map(both).collect())
    }

    async fn list(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
        shown: Shown,
    ) -> Result<Vec<Listed>, VfsError> {
        let inner = &self.inner;
        let handle = inner.files.handles.directory(handle)?;
        let directory = handle.directory;
        if inner.files.gone.get(directory).is_some() {
            return Ok(Vec::new());
        }
        let mut listing = handle.listing.lock().await;
        let offset = Cookie(offset);
        if offset == Cookie::START {
            // A new listing shows what is there now.
            *listing = Listing::default();
            inner.known.revalidate().await;
        }
        let place = if offset <= Cookie::PARENT {
            Cookie::START
        } else {
            offset
        };
        let cached = inner.known.page(directory, place);
        let mut cached = cached.filter(|page| inner.known.is_usable(directory, page.stamp.asked));
        for _ in 0..LISTINGS {
            if let Some(page) = &listing.page
                && page.covers(offset)
                && inner.page_is_current(page)
                && let Some(found) = inner
                    .entries_after(&listing, page, offset, limit, shown)
                    .await?
            {
                return Ok(found);
            }
            *listing = match cached.take() {
                Some(page) => Listing {
                    page: Some(page),
                    ..Listing::default()
                },
                None => inner.page(directory, place).await?,
            };
        }
        // The directory changes faster than it can be listed.
        let Some(page) = &listing.page else {
            return Ok(Vec::new());
        };
        let shown = match shown {
            Shown::Name => Shown::Name,
            Shown::Newest | Shown::Received => Shown::Received,
        };
        let found = inner
            .entries_after(&listing, page, offset, limit, shown)
            .await?;
        Ok(found.unwrap_or_default())
    }

    /// Closes a directory. A directory without a name goes with the last close; if the servers do
    /// not get that request, it is sent again later.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn releasedir(&self, handle: HandleId) -> Result<(), VfsError> {
        match self.inner.files.handles.remove_directory(handle) {
            Some(unlinked) => self.inner.release_orphan(unlinked).await,
            None => Ok(()),
        }
    }

    /// The same without waiting: if it lost its name, it is found among the orphans.
    pub fn leave_directory(&self, handle: HandleId) {
        self.inner.files.handles.remove_directory(handle);
    }
}

impl FileSystemCore {
    /// Whether a page still shows the directory's entries, as far as is known.
    pub(in crate::vfs) fn page_is_current(&self, page: &Page) -> bool {
        self.known.is_current(page.directory.inode, page.stamp)
    }

    /// Whether there is known to be no such name.
    fn is_absent(&self, directory: InodeId, name: &[u8]) -> bool {
        self.known.name(directory, name) == Some(Known::Absent)
    }

    /// Entries of a page after `offset`; `None` if their attributes have to be the newest and are
    /// not known any more.
    async fn entries_after(
        &self,
        listing: &Listing,
        page: &Page,
        offset: Cookie,
        limit: usize,
        shown: Shown,
    ) -> Result<Option<Vec<Listed>>, VfsError> {
        let directory = page.directory.inode;
        let settled = self.page_is_current(page);
        let new = listing
            .received
            .is_some_and(|received| received.elapsed() < VALID_FOR);
        let (mut found, mut position) = (Vec::new(), offset);
        while position < Cookie::PARENT && found.len() < limit {
            position = Cookie(position.0.saturating_add(1));
            let (entry, attributes) = self.dot(&page.directory, position).await?;
            found.push((entry, Some(attributes)));
        }
        let passed = page.up_to(offset);
        for (at, entry) in page.entries.iter().enumerate().skip(passed) {
            if found.len() >= limit {
                break;
            }
            if !settled && self.is_absent(directory, &entry.name) {
                continue;
            }
            let received = listing.attributes.get(at).filter(|_| new);
            let outdated = || self.known.is_outdated(entry.inode, page.stamp.asked);
            let attributes = match received {
                _ if shown == Shown::Name => None,
                Some(received) if shown == Shown::Received || !outdated() => {
                    Some(self.files.seen(received))
                }
                _ => match self.known.attributes(entry.inode) {
                    Some(known) => Some(self.files.seen(&known)),
                    None => return Ok(None),
                },
            };
            found.push((entry.clone(), attributes));
        }
        Ok(Some(found))
    }

    /// Asks for the page after `after`.
    async fn page(&self, directory: InodeId, after: Cookie) -> Result<Listing, VfsError> {
        let stamp = self.known.stamp(directory);
        let page = self
            .services
            .metadata
            .list(directory, after, WHOLE_DIRECTORY)
            .await?;
        let names = self.plain_names(directory, &page.entries).await;
        let whole = after == Cookie::START && !page.more;
        self.learn_page(&page, &names, whole, stamp);
        let entries = names.into_iter().zip(&page.entries);
        let entries = entries.map(|(name, entry)| DirectoryEntry {
            inode: entry.inode.inode,
            file_type: entry.inode.file_type(),
            cookie: entry.cookie,
            name,
        });
        let cached = Arc::new(Page {
            after,
            entries: entries.collect(),
            directory: page.directory,
            more: page.more,
            stamp,
        });
        self.known.learn_page(&cached);
        Ok(Listing {
            page: Some(cached),
            attributes: page.entries.iter().map(|entry| entry.inode).collect(),
            received: Some(Instant::now()),
        })
    }

    /// `.` or `..`.
    async fn dot(
        &self,
        directory: &Attributes,
        cookie: Cookie,
    ) -> Result<(DirectoryEntry, Attributes), VfsError> {
        // It may have been moved since the page came, and its old parent may be gone.
        let directory = &self.files.newest(directory);
        let (name, attributes) = match directory.detail {
            Detail::Directory { parent, .. } if cookie == Cookie::PARENT => {
                let known = parent == directory.inode;
                let parent = if known {
                    *directory
                } else {
                    self.files.attributes(parent).await?
                };
                (b"..".to_vec(), parent)
            }
            _ => (b".".to_vec(), *directory),
        };
        let attributes = self.files.seen(&attributes);
        let inode = attributes.inode;
        let entry = DirectoryEntry {
            inode,
            file_type: FileType::Directory,
            cookie,
            name,
        };
        Ok((entry, attributes))
    }
}
