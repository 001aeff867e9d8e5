//! What the kernel may cache of what it was shown, and for how long.
//!
//! The kernel may cache entries for as long as these calls allow, and the FUSE layer follows
//! [`FileSystem::invalidations`]: what these name has to go.

use super::file_system::FileSystem;
use super::files::HandleId;
use super::known::{Invalidations, Known};
use super::shared::{SHARED_NAME, is_shared};
use crate::error::VfsError;
use quorumfs_metadata::attributes::Attributes;
use quorumfs_metadata::identity::{Cookie, InodeId};
use std::time::Duration;

impl FileSystem {
    /// Whether other mounts may change something.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.known.is_shared()
    }

    /// Whether other mounts are let in, be there any or not.
    #[must_use]
    pub fn may_be_shared(&self) -> bool {
        self.inner.known.may_be_shared()
    }

    /// For how long the kernel may cache what the calls below allow, without asking again:
    /// [`CACHED_FOR`](super::CACHED_FOR) at most, and less while others may mount the volume.
    #[must_use]
    pub fn cached_for(&self) -> Duration {
        self.inner.known.cached_for()
    }

    /// Whether the kernel may cache attributes that were just shown.
    #[must_use]
    pub fn may_cache(&self, shown: &Attributes) -> bool {
        let inner = &self.inner;
        if is_shared(shown.inode) {
            return false;
        }
        // A pending commit changes attributes without a call.
        let settled = inner
            .files
            .node(shown.inode)
            .is_none_or(|node| !node.state().is_waiting());
        settled && inner.known.may_cache(shown)
    }

    /// Whether the kernel may cache the result of a lookup, found or not.
    #[must_use]
    pub fn may_cache_name(&self, directory: InodeId, name: &[u8], leads: Option<InodeId>) -> bool {
        if is_shared(directory) || self.inner.shared.may_be(directory, name) {
            return false;
        }
        let known = leads.map_or(Known::Absent, Known::Entry);
        self.inner.known.may_cache_name(directory, name, known)
    }

    /// Whether a file is open.
    #[must_use]
    pub fn is_open(&self, inode: InodeId) -> bool {
        let node = self.inner.files.node(inode);
        node.is_some_and(|node| node.state().handles > 0)
    }

    /// Whether an open file ends here or before, as far as is known now.
    ///
    /// # Errors
    /// If the handle is no file's.
    pub fn ends_at(&self, handle: HandleId, end: u64) -> Result<bool, VfsError> {
        let file = self.inner.files.handles.file(handle)?;
        let size = file.node.state().size();
        Ok(size <= end)
    }

    /// The number of the last invalidation that was announced: see [`Invalidations::last`].
    #[must_use]
    pub fn announced(&self) -> u64 {
        self.inner.known.announced()
    }

    /// What the kernel has to drop, from now on, of what these calls allowed to be cached.
    #[must_use]
    pub fn invalidations(&self) -> Invalidations {
        self.inner.known.invalidations()
    }

    /// Whether a process that has listed a directory may cache the listing as long as its
    /// attributes, and use it again. Only a listing of a single page: the kernel finds its position
    /// in its cache by the last entry, which may be missing in a later listing.
    #[must_use]
    pub fn may_cache_listing(&self, directory: InodeId) -> bool {
        let inner = &self.inner;
        if is_shared(directory) || inner.shared.may_be(directory, SHARED_NAME) {
            return false;
        }
        let page = inner.known.page(directory, Cookie::START);
        page.is_some_and(|page| !page.more && inner.known.may_cache_page(&page))
    }
}
