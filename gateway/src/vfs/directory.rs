//! Reading directories.
//!
//! An entry's place is its cookie, a keyed hash of its name: stable over everything that happens
//! to other entries, so a listing goes on where it was, whoever creates or removes meanwhile. The
//! kernel asks for small pieces; an open directory keeps the page that it got from the servers.
//!
//! The kernel takes what it is shown as the truth for a while, names and attributes alike. So a
//! page is used no longer than anything else is believed, nor beyond a change that we made to the
//! directory, and of what is known of an entry's inode the newest is shown. Pages are kept for
//! whoever lists the same directory next ([`KeptPages`]), for their names: attributes change
//! without their directory, so they have to be known apart from a page that is not new.

use super::VfsError;
use super::belief::VALID_FOR;
use super::cache::{Known, Stamp};
use super::caller::Caller;
use super::file_system::{FileSystem, Inner};
use super::generations::Generations;
use super::handle::{DirectoryHandle, HandleId};
use super::names::WHOLE_DIRECTORY;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, Detail, FileType};
use quorumfs_metadata::identity::{Cookie, InodeId};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

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

type Listed = (DirectoryEntry, Option<Attributes>);

/// The page that an open directory has at hand.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    page: Option<Arc<Page>>,
    /// The attributes that came with it, entry by entry, and when; none if it was kept.
    attributes: Vec<Attributes>,
    came: Option<Instant>,
}

#[derive(Debug)]
struct Page {
    after: Cookie,
    entries: Vec<DirectoryEntry>,
    directory: Attributes,
    more: bool,
    /// What the directory was when it was asked about.
    stamp: Stamp,
}

type Pages = Generations<(InodeId, Cookie), Arc<Page>>;

/// Pages of directories that were listed lately; bounded by their entries.
#[derive(Debug)]
pub(crate) struct KeptPages(Mutex<Pages>);

impl KeptPages {
    /// With at most so many entries.
    pub(crate) fn new(most: usize) -> Self {
        Self(Mutex::new(Generations::new(most)))
    }

    fn kept(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, directory: InodeId, after: Cookie) -> Option<Arc<Page>> {
        self.kept().get(&(directory, after)).cloned()
    }

    fn keep(&self, page: &Arc<Page>) {
        // A page takes room even if there is nothing on it.
        let room = page.entries.len().saturating_add(1);
        let place = (page.directory.inode, page.after);
        self.kept().insert_weighing(room, place, page.clone());
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.kept().clear();
    }
}

impl Page {
    /// Whether what follows `after` is on this page.
    fn has(&self, after: Cookie) -> bool {
        let last = self.entries.last().map_or(self.after, |entry| entry.cookie);
        let after = after.max(Cookie::PARENT);
        after >= self.after && (after < last || !self.more)
    }

    /// How many entries are not behind `after`.
    fn up_to(&self, after: Cookie) -> usize {
        self.entries.partition_point(|entry| entry.cookie <= after)
    }
}

impl FileSystem {
    /// Opens a directory. One that went lately can be opened as what a process still works in, and
    /// is empty. `keep_atime`: listing it moves no time of access.
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
        let _not_removed = self.inner.namespace_lock(inode).read().await;
        let attributes = self.getattr(inode).await?;
        if attributes.file_type() != FileType::Directory {
            return Err(VfsError::refused("opendir", Errno::NOTDIR));
        }
        if !keep_atime && self.inner.gone.get(inode).is_none() {
            self.inner.access_times.note(&attributes);
        }
        let listing = tokio::sync::Mutex::default();
        Ok(self.inner.handles.add_directory(DirectoryHandle {
            directory: inode,
            listing,
        }))
    }

    /// Whether whoever has listed a directory may keep the listing for as long as its attributes,
    /// and show it again. Only one that is a single page: the kernel finds its place in what it
    /// keeps by the last entry, which may be gone from a later listing.
    #[must_use]
    pub fn keeps_listing(&self, directory: InodeId) -> bool {
        let inner = &self.inner;
        let page = inner.pages.get(directory, Cookie::START);
        page.is_some_and(|page| {
            !page.more && inner.cache.keeps(page.stamp.asked) && inner.believes(&page)
        })
    }

    /// Entries behind `offset` (0: from the beginning), at most `limit`; none at the end.
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
        let listed = self.list(handle, offset, limit, false).await?;
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
        let listed = self.list(handle, offset, limit, true).await?;
        let both = |(entry, attributes): Listed| Some((entry, attributes?));
        Ok(listed.into_iter().filter_map(both).collect())
    }

    /// `exact`: with the newest attributes there are.
    async fn list(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
        exact: bool,
    ) -> Result<Vec<Listed>, VfsError> {
        let inner = &self.inner;
        let handle = inner.handles.directory(handle)?;
        let directory = handle.directory;
        if inner.gone.get(directory).is_some() {
            return Ok(Vec::new());
        }
        let mut listing = handle.listing.lock().await;
        let offset = Cookie(offset);
        if offset == Cookie::START {
            // Whoever starts over wants to see what is there now.
            *listing = Listing::default();
            inner.confirm().await;
        }
        let place = if offset <= Cookie::PARENT {
            Cookie::START
        } else {
            offset
        };
        let kept = inner.pages.get(directory, place);
        let mut kept = kept.filter(|page| inner.cache.is_settled(page.stamp.asked));
        for _ in 0..LISTINGS {
            if let Some(page) = &listing.page
                && page.has(offset)
                && inner.believes(page)
                && let Some(found) = inner.shown(&listing, page, offset, limit, exact).await?
            {
                return Ok(found);
            }
            *listing = match kept.take() {
                Some(page) => Listing {
                    page: Some(page),
                    ..Listing::default()
                },
                None => inner.page(directory, place).await?,
            };
        }
        // The directory is changed faster than it can be listed.
        let Some(page) = &listing.page else {
            return Ok(Vec::new());
        };
        let found = inner.shown(&listing, page, offset, limit, exact).await?;
        Ok(found.unwrap_or_default())
    }

    /// Closes a directory. One that lost its name goes with the last close; if the servers do not
    /// hear of that, they are told again later.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn releasedir(&self, handle: HandleId) -> Result<(), VfsError> {
        match self.inner.handles.remove_directory(handle) {
            Some(unlinked) => self.inner.release_orphan(unlinked).await,
            None => Ok(()),
        }
    }

    /// The same for who cannot wait: if it lost its name, it is found among the orphans.
    pub fn leave_directory(&self, handle: HandleId) {
        self.inner.handles.remove_directory(handle);
    }
}

impl Inner {
    /// Whether a page still shows what is there, as far as we know.
    fn believes(&self, page: &Page) -> bool {
        self.cache.stands(page.directory.inode, page.stamp)
    }

    /// Whether we know that there is no such name.
    fn is_gone(&self, directory: InodeId, name: &[u8]) -> bool {
        self.cache.name(directory, name) == Some(Known::Absent)
    }

    /// Entries of a page behind `offset`; nothing if their attributes have to be exact and are not
    /// known any more.
    async fn shown(
        &self,
        listing: &Listing,
        page: &Page,
        offset: Cookie,
        limit: usize,
        exact: bool,
    ) -> Result<Option<Vec<Listed>>, VfsError> {
        let directory = page.directory.inode;
        let settled = self.believes(page);
        let new = listing.came.is_some_and(|came| came.elapsed() < VALID_FOR);
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
            if !settled && self.is_gone(directory, &entry.name) {
                continue;
            }
            let attributes = match (exact, listing.attributes.get(at)) {
                (false, _) => None,
                (true, Some(listed)) if new => Some(self.seen(listed)),
                (true, _) => match self.cache.attributes(entry.inode) {
                    Some(known) => Some(self.seen(&known)),
                    None => return Ok(None),
                },
            };
            found.push((entry.clone(), attributes));
        }
        Ok(Some(found))
    }

    /// Asks for what is listed behind `after`.
    async fn page(&self, directory: InodeId, after: Cookie) -> Result<Listing, VfsError> {
        let stamp = self.cache.stamp(directory);
        let page = self
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
        let kept = Arc::new(Page {
            after,
            entries: entries.collect(),
            directory: page.directory,
            more: page.more,
            stamp,
        });
        self.pages.keep(&kept);
        Ok(Listing {
            page: Some(kept),
            attributes: page.entries.iter().map(|entry| entry.inode).collect(),
            came: Some(Instant::now()),
        })
    }

    /// `.` or `..`.
    async fn dot(
        &self,
        directory: &Attributes,
        cookie: Cookie,
    ) -> Result<(DirectoryEntry, Attributes), VfsError> {
        // It may have been moved since the page came, and where it was be gone.
        let directory = &self.newest(directory);
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
