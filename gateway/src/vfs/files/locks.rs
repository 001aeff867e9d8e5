//! Locks that keep an `open` (read) and an `unlink` (write) of the same inode apart.

use quorumfs_metadata::identity::InodeId;
use tokio::sync::RwLock;

/// So many inodes can be opened or unlinked without waiting for each other, at most.
const STRIPES: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct NamespaceLocks(Vec<RwLock<()>>);

impl Default for NamespaceLocks {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| RwLock::new(())).collect())
    }
}

impl NamespaceLocks {
    /// The lock of an inode, which it may share with others.
    pub(super) fn of(&self, inode: InodeId) -> &RwLock<()> {
        static FALLBACK: RwLock<()> = RwLock::const_new(());
        let at = usize::try_from(inode.0 % STRIPES as u64).unwrap_or(0);
        self.0.get(at).unwrap_or(&FALLBACK)
    }
}
