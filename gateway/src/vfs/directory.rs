//! Reading directories.
//!
//! An entry's place is its cookie, a keyed hash of its name: stable over everything that happens
//! to other entries, so a listing goes on where it was, whoever creates or removes meanwhile. The
//! kernel asks for small pieces; an open directory keeps the page that it got from the servers.
//!
//! The kernel takes what it is shown as the truth for a second, names and attributes alike. So a
//! page is not kept for longer than anything else is believed, nor beyond a change that we made to
//! the directory, and of what is known of an entry's inode the newest is shown.

use super::VfsError;
use super::cache::{Known, Stamp, VALID_FOR};
use super::caller::Caller;
use super::file_system::{FileSystem, Inner};
use super::handle::{DirectoryHandle, HandleId};
use super::names::WHOLE_DIRECTORY;
use quorumfs_metadata::attributes::{Attributes, Detail, FileType};
use quorumfs_metadata::identity::{Cookie, InodeId};
use rustix::io::Errno;
use std::time::Instant;

/// How often to list anew while the directory is being changed under the listing.
const LISTINGS: u32 = 3;

/// An entry as `readdir` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The inode that it leads to.
    pub inode: InodeId,
    /// What kind of inode.
    pub file_type: FileType,
    /// Its place: where the next piece goes on.
    pub cookie: Cookie,
    /// Its name.
    pub name: Vec<u8>,
}

/// The page that an open directory has at hand.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    page: Option<Page>,
}

#[derive(Debug)]
struct Page {
    after: Cookie,
    entries: Vec<(DirectoryEntry, Attributes)>,
    directory: Attributes,
    more: bool,
    /// What the directory was when it was asked about, and when that was.
    stamp: Stamp,
    asked: Instant,
}

impl Page {
    /// Whether what follows `after` is on this page.
    fn has(&self, after: Cookie) -> bool {
        let last = self
            .entries
            .last()
            .map_or(self.after, |(entry, _)| entry.cookie);
        after >= self.after && (after < last || !self.more)
    }
}

impl FileSystem {
    /// Opens a directory.
    ///
    /// # Errors
    /// If it is none or is gone.
    pub async fn opendir(&self, _caller: &Caller, inode: InodeId) -> Result<HandleId, VfsError> {
        let attributes = self.inner.attributes(inode).await?;
        if attributes.file_type() != FileType::Directory {
            return Err(VfsError::refused("opendir", Errno::NOTDIR));
        }
        self.inner.access_times.note(&attributes);
        let listing = tokio::sync::Mutex::default();
        Ok(self.inner.handles.add_directory(DirectoryHandle {
            directory: inode,
            listing,
        }))
    }

    /// Entries behind `offset` (0: from the beginning), at most `limit`; none at the end.
    ///
    /// # Errors
    /// If the handle is no open directory, or the servers do not answer.
    pub async fn readdir(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>, VfsError> {
        let entries = self.readdir_plus(handle, offset, limit).await?;
        Ok(entries.into_iter().map(|(entry, _)| entry).collect())
    }

    /// As [`FileSystem::readdir`], with attributes.
    ///
    /// # Errors
    /// As [`FileSystem::readdir`].
    pub async fn readdir_plus(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<(DirectoryEntry, Attributes)>, VfsError> {
        let handle = self.inner.handles.directory(handle)?;
        let mut listing = handle.listing.lock().await;
        let mut found = Vec::new();
        let mut position = Cookie(offset);
        if position == Cookie::START {
            // Whoever starts over wants to see what is there now.
            listing.page = None;
        }
        let after = Cookie(offset.max(Cookie::PARENT.0));
        for _ in 0..LISTINGS {
            let page = listing.page.as_ref();
            if page.is_some_and(|page| page.has(after) && self.inner.believes(page)) {
                break;
            }
            listing.page = Some(self.inner.page(handle.directory, after).await?);
        }
        let Some(page) = &listing.page else {
            return Ok(found);
        };
        let settled = self.inner.believes(page);
        while position < Cookie::PARENT && found.len() < limit {
            position = Cookie(position.0.saturating_add(1));
            found.push(self.inner.dot(&page.directory, position).await?);
        }
        let rest = limit.saturating_sub(found.len());
        let behind = page
            .entries
            .iter()
            .filter(|(entry, _)| entry.cookie > after)
            .filter(|(entry, _)| settled || !self.inner.is_gone(handle.directory, &entry.name))
            .take(rest);
        found
            .extend(behind.map(|(entry, attributes)| (entry.clone(), self.inner.seen(attributes))));
        Ok(found)
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: HandleId) {
        self.inner.handles.remove_directory(handle);
    }
}

impl Inner {
    /// Whether a page still shows what is there, as far as we know.
    fn believes(&self, page: &Page) -> bool {
        let unchanged = self.cache.stamp(page.directory.inode) == page.stamp;
        unchanged && page.asked.elapsed() < VALID_FOR
    }

    /// Whether we know that there is no such name.
    fn is_gone(&self, directory: InodeId, name: &[u8]) -> bool {
        self.cache.name(directory, name) == Some(Known::Absent)
    }

    async fn page(&self, directory: InodeId, after: Cookie) -> Result<Page, VfsError> {
        let (stamp, asked) = (self.cache.stamp(directory), Instant::now());
        let start = if after <= Cookie::PARENT {
            Cookie::START
        } else {
            after
        };
        let page = self
            .metadata
            .list(directory, start, WHOLE_DIRECTORY)
            .await?;
        let names = self.plain_names(directory, &page.entries).await;
        let whole = start == Cookie::START && !page.more;
        self.learn_page(&page, &names, whole, stamp, asked);
        let entries = names.into_iter().zip(&page.entries).map(|(name, entry)| {
            let listed = DirectoryEntry {
                inode: entry.inode.inode,
                file_type: entry.inode.file_type(),
                cookie: entry.cookie,
                name,
            };
            (listed, entry.inode)
        });
        let entries = entries.collect();
        Ok(Page {
            after,
            entries,
            directory: page.directory,
            more: page.more,
            stamp,
            asked,
        })
    }

    /// `.` or `..`.
    async fn dot(
        &self,
        directory: &Attributes,
        cookie: Cookie,
    ) -> Result<(DirectoryEntry, Attributes), VfsError> {
        let (name, attributes) = match directory.detail {
            Detail::Directory { parent, .. } if cookie == Cookie::PARENT => {
                let known = parent == directory.inode;
                let parent = if known {
                    *directory
                } else {
                    self.attributes(parent).await?
                };
                (b"..".to_vec(), parent)
            }
            _ => (b".".to_vec(), *directory),
        };
        let attributes = self.seen(&attributes);
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
