//! The owner of everything that is cached of the servers' metadata.
//!
//! Invalidation has one surface, [`KnownMetadata::invalidate`]. A scope covers:
//!
//! | Cached | `Inode` | `Name` | `All` |
//! |---|---|---|---|
//! | attributes | of the inode | | all |
//! | names | | of the one name | all |
//! | that a directory is known whole | | of the directory | all |
//! | pages of listings | | of the directory: they are out of date | all |
//! | extents | by version | | all |
//! | extended attributes | by version | | all |
//!
//! *By version*: an entry belongs to one version of its inode and is found only under attributes
//! that name it; so it cannot be used once they have gone.
//!
//! Left out of `All` is what says nothing about the servers' state: how often directories were
//! looked up in (`lookups`), how far validity goes (`validity`), and of which content the kernel
//! may have pages (`last_open`), which is compared with attributes at every open.
//!
//! An answer that is on its way meanwhile was asked for before the removal. Late attributes are
//! entered under a stamp that is never confirmed ([`super::validity`]); a late name or page is
//! dropped, since its directory has changed in between.

use super::cache::CacheTables;
use super::coherence::Coherence;
use super::content::ContentMap;
use super::extended::{AttributeCache, DecryptedAttributes};
use super::extent_cache::ExtentCache;
use super::last_open::LastOpen;
use super::lookups::Lookups;
use super::pages::{ListingCache, Page};
use super::revalidation::Revalidation;
use super::standing::BeforeSharing;
use quorumfs_metadata::identity::{Cookie, InodeId, InodeVersion};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// What is not to be used any more.
#[derive(Clone, Copy, Debug)]
pub(in crate::vfs) enum Scope<'n> {
    /// An inode.
    Inode(InodeId),
    /// A name in a directory.
    Name(InodeId, &'n [u8]),
    /// Everything.
    All,
}

/// See the module.
pub(in crate::vfs) struct KnownMetadata {
    tables: Mutex<CacheTables>,
    pages: ListingCache,
    extents: ExtentCache,
    extended: AttributeCache,
    lookups: Lookups,
    last_open: LastOpen,
    pub(super) revalidation: Revalidation,
    pub(super) coherence: Box<dyn Coherence>,
    pub(super) before_sharing: OnceLock<Weak<dyn BeforeSharing>>,
}

impl KnownMetadata {
    /// Nothing is known yet. At most so many attributes and names will be.
    pub(in crate::vfs) fn new(most: usize, coherence: impl Coherence) -> Arc<Self> {
        Arc::new(Self {
            tables: Mutex::new(CacheTables::new(most)),
            pages: ListingCache::new(most),
            extents: ExtentCache::new(most / 16),
            extended: AttributeCache::default(),
            lookups: Lookups::default(),
            last_open: LastOpen::new(most),
            revalidation: Revalidation::default(),
            coherence: Box::new(coherence),
            before_sharing: OnceLock::new(),
        })
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, CacheTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what is known of `scope`.
    pub(in crate::vfs) fn invalidate(&self, scope: Scope<'_>) {
        match scope {
            Scope::Inode(inode) => self.tables().forget(inode),
            Scope::Name(directory, name) => self.tables().invalidate_name(directory, name),
            Scope::All => {
                self.tables().clear();
                self.pages.clear();
                self.extents.clear();
                self.extended.clear();
            }
        }
    }

    /// A page of a directory's listing that was cached; see [`Page::stamp`].
    pub(in crate::vfs) fn page(&self, directory: InodeId, after: Cookie) -> Option<Arc<Page>> {
        self.pages.get(directory, after)
    }

    pub(in crate::vfs) fn learn_page(&self, page: &Arc<Page>) {
        self.pages.insert(page);
    }

    /// Where the bytes of a file lie that is at this version.
    pub(in crate::vfs) fn extents(
        &self,
        inode: InodeId,
        version: InodeVersion,
    ) -> Option<ContentMap> {
        self.extents.get(inode, version)
    }

    pub(in crate::vfs) fn learn_extents(&self, inode: InodeId, content: &ContentMap) {
        self.extents.insert(inode, content);
    }

    /// An inode's extended attributes as of `changed`.
    pub(in crate::vfs) fn extended(
        &self,
        inode: InodeId,
        changed: InodeVersion,
    ) -> Option<Arc<DecryptedAttributes>> {
        self.extended.get(inode, changed)
    }

    pub(in crate::vfs) fn learn_extended(
        &self,
        inode: InodeId,
        changed: InodeVersion,
        all: DecryptedAttributes,
    ) -> Arc<DecryptedAttributes> {
        self.extended.insert(inode, changed, all)
    }

    /// Which directories are worth listing whole.
    pub(in crate::vfs) fn lookups(&self) -> &Lookups {
        &self.lookups
    }

    /// Of which content the kernel may have pages.
    pub(in crate::vfs) fn last_open(&self) -> &LastOpen {
        &self.last_open
    }
}
