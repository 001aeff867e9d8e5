//! Reading directories.
//!
//! An entry's position is its cookie, a keyed hash of its name. It does not depend on other
//! entries, so a listing continues correctly even if entries are created or removed meanwhile; and
//! if names are resealed, which moves their entries, by further passes (`files::passes`). The
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
use crate::vfs::shared::{SHARED_COOKIE, SHARED_NAME, is_shared};
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, Detail, FileType};
use quorumfs_metadata::identity::{Cookie, InodeId};
use rustix::io::Errno;
use std::sync::Arc;
use tokio::time::Instant;

/// How often to list anew while the directory changes under the listing.
const LISTINGS: u32 = 3;

pub(super) type Listed = (DirectoryEntry, Option<Attributes>);

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

/// What is asked for.
#[derive(Clone, Copy)]
struct WantedEntries {
    after: Cookie,
    limit: usize,
    shown: Shown,
}

/// Where the page with the entries after `position` begins.
fn page_place(position: Cookie) -> Cookie {
    match position {
        dots if dots <= Cookie::PARENT => Cookie::START,
        position => position,
    }
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
        if is_shared(inode) {
            return self.open_shared(inode).await;
        }
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
        let listed = self.list_all(handle, offset, limit, Shown::Name).await?;
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
        let listed = self.list_all(handle, offset, limit, Shown::Newest);
        let listed = listed.await?;
        let both = |(entry, attributes): Listed| Some((entry, attributes?));
        Ok(listed.into_iter().filter_map(both).collect())
    }

    /// Entries, with what others share with this mount's person.
    async fn list_all(
        &self,
        handle: HandleId,
        offset: u64,
        limit: usize,
        shown: Shown,
    ) -> Result<Vec<Listed>, VfsError> {
        let inner = &self.inner;
        let directory = inner.files.handles.directory(handle)?.directory;
        if is_shared(directory) {
            return inner.shared_entries(directory, Cookie(offset), limit).await;
        }
        let mut listed = self.list(handle, offset, limit, shown).await?;
        let wanted = Cookie(offset) < SHARED_COOKIE && inner.shared.may_be(directory, SHARED_NAME);
        if wanted && let Some(attributes) = inner.shown_shared().await {
            let dots = listed.partition_point(|(entry, _)| entry.cookie < SHARED_COOKIE);
            let before = listed.get(..dots).and_then(<[Listed]>::last);
            let before = before.map_or(Cookie(offset), |(entry, _)| entry.cookie);
            if before >= Cookie::PARENT && dots < limit {
                let entry = DirectoryEntry {
                    inode: attributes.inode,
                    file_type: FileType::Directory,
                    cookie: SHARED_COOKIE,
                    name: SHARED_NAME.to_vec(),
                };
                listed.insert(dots, (entry, Some(attributes)));
                listed.truncate(limit);
            }
        }
        Ok(listed)
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
        let mut held = handle.listing.lock().await;
        let (listing, passes) = &mut *held;
        // What others share comes behind `..`, and is none of the servers' entries.
        let offset = match Cookie(offset) {
            SHARED_COOKIE => Cookie::PARENT,
            offset => offset,
        };
        if offset == Cookie::START {
            // A new listing shows what is there now.
            *listing = Listing::default();
            inner.known.revalidate().await;
        }
        let mut position = passes.resume(offset);
        loop {
            inner.listed(directory, listing, position).await?;
            let Some(generations) = listing.page.as_deref().and_then(Page::generations) else {
                return Ok(Vec::new());
            };
            passes.saw(generations, (offset, position));
            let keys = match passes.generation() {
                Some(generation) => Some(inner.name_keys(directory, generation).await?),
                None => None,
            };
            let is_new = |entry: &DirectoryEntry| match &keys {
                Some(keys) => !passes.hides(keys, entry),
                None => true,
            };
            let wanted = WantedEntries {
                after: position,
                limit,
                shown,
            };
            let found = inner.shown_after(listing, &wanted, is_new).await?;
            let Some(page) = &listing.page else {
                return Ok(Vec::new());
            };
            if !found.is_empty() {
                passes.answer(found.iter().map(|(entry, _)| entry));
                return Ok(found);
            }
            match page.entries.last().filter(|_| page.more) {
                Some(last) => position = last.cookie,
                None if passes.begin_another(generations) => position = Cookie::PARENT,
                None => return Ok(found),
            }
        }
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

    /// Has a listing hold a page with the entries after `position`.
    async fn listed(
        &self,
        directory: InodeId,
        listing: &mut Listing,
        position: Cookie,
    ) -> Result<(), VfsError> {
        if let Some(page) = &listing.page
            && page.covers(position)
            && self.page_is_current(page)
        {
            return Ok(());
        }
        let place = page_place(position);
        let cached = self.known.page(directory, place);
        let cached = cached.filter(|page| self.known.is_usable(directory, page.stamp.asked));
        *listing = match cached {
            Some(page) => Listing {
                page: Some(page),
                ..Listing::default()
            },
            None => self.page(directory, place).await?,
        };
        Ok(())
    }

    /// The entries that are wanted, of the page that a listing holds, or of a newer one.
    async fn shown_after(
        &self,
        listing: &mut Listing,
        wanted: &WantedEntries,
        is_new: impl Fn(&DirectoryEntry) -> bool,
    ) -> Result<Vec<Listed>, VfsError> {
        for _ in 0..LISTINGS {
            let Some(page) = listing.page.clone() else {
                return Ok(Vec::new());
            };
            if page.covers(wanted.after)
                && self.page_is_current(&page)
                && let Some(found) = self.entries_after(listing, &page, wanted, &is_new).await?
            {
                return Ok(found);
            }
            let directory = page.directory.inode;
            *listing = self.page(directory, page_place(wanted.after)).await?;
        }
        // The directory changes faster than it can be listed.
        let Some(page) = listing.page.clone() else {
            return Ok(Vec::new());
        };
        let wanted = WantedEntries {
            shown: match wanted.shown {
                Shown::Name => Shown::Name,
                Shown::Newest | Shown::Received => Shown::Received,
            },
            ..*wanted
        };
        let found = self.entries_after(listing, &page, &wanted, &is_new).await?;
        Ok(found.unwrap_or_default())
    }

    /// Entries of a page; `None` if their attributes have to be the newest and are not known any
    /// more.
    async fn entries_after(
        &self,
        listing: &Listing,
        page: &Page,
        wanted: &WantedEntries,
        is_new: &impl Fn(&DirectoryEntry) -> bool,
    ) -> Result<Option<Vec<Listed>>, VfsError> {
        let WantedEntries {
            after,
            limit,
            shown,
        } = *wanted;
        let directory = page.directory.inode;
        let settled = self.page_is_current(page);
        let new = listing
            .received
            .is_some_and(|received| received.elapsed() < VALID_FOR);
        let (mut found, mut position) = (Vec::new(), after);
        while position < Cookie::PARENT && found.len() < limit {
            position = Cookie(position.0.saturating_add(1));
            let (entry, attributes) = self.dot(&page.directory, position).await?;
            found.push((entry, Some(attributes)));
        }
        let passed = page.up_to(after);
        for (at, entry) in page.entries.iter().enumerate().skip(passed) {
            if found.len() >= limit {
                break;
            }
            if !is_new(entry) || (!settled && self.is_absent(directory, &entry.name)) {
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
