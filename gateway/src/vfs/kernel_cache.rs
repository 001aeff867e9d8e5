//! What the kernel may cache of what it was shown, and for how long.
//!
//! The kernel may cache entries for as long as these calls allow, and the FUSE layer watches
//! [`FileSystem::invalidations`]: when that moves, all of them have to go.

use super::file_system::FileSystem;
use super::known::Known;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::{Cookie, InodeId};
use tokio::sync::watch;

impl FileSystem {
    /// Whether the kernel may cache attributes that were just shown for
    /// [`CACHED_FOR`](super::CACHED_FOR) without asking again, unless
    /// [`FileSystem::invalidations`] moves.
    #[must_use]
    pub fn may_cache(&self, shown: &Attributes) -> bool {
        let inner = &self.inner;
        // A pending commit changes attributes without a call.
        let settled = inner
            .files
            .node(shown.inode)
            .is_none_or(|node| !node.state().is_waiting());
        settled && inner.known.may_cache(shown)
    }

    /// Whether the kernel may cache the result of a lookup, found or not, as long.
    #[must_use]
    pub fn may_cache_name(&self, directory: InodeId, name: &[u8], leads: Option<InodeId>) -> bool {
        let known = leads.map_or(Known::Absent, Known::Entry);
        self.inner.known.may_cache_name(directory, name, known)
    }

    /// Moves whenever all entries that [`FileSystem::may_cache`] allowed to be cached have to go.
    #[must_use]
    pub fn invalidations(&self) -> watch::Receiver<u64> {
        self.inner.known.invalidations()
    }

    /// Whether a process that has listed a directory may cache the listing as long as its
    /// attributes, and use it again. Only a listing of a single page: the kernel finds its position
    /// in its cache by the last entry, which may be missing in a later listing.
    #[must_use]
    pub fn may_cache_listing(&self, directory: InodeId) -> bool {
        let inner = &self.inner;
        let page = inner.known.page(directory, Cookie::START);
        page.is_some_and(|page| {
            !page.more
                && inner.known.is_revalidated(directory, page.stamp.asked)
                && inner.page_is_current(&page)
        })
    }
}
