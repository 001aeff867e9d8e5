//! What the kernel may cache, and how it is invalidated.
//!
//! Usually an answer is valid for [`VALID_FOR`]. For inodes and names that the gateway revalidates
//! in any case, the kernel may cache it for [`CACHED_FOR`], so that a second `find` or `git status`
//! over a large tree is answered by the kernel alone. In return all of it is invalidated when
//! another client has changed something, or when the servers do not answer: every inode and every
//! name that was handed out, one by one, since no other interface exists in all kernels that we
//! support.
//!
//! * A table records what was handed out, in two generations: after [`CACHED_FOR`] the kernel asks
//!   anyway, and the older generation is dropped. The table is bounded; when it is full, answers
//!   are valid for [`VALID_FOR`].
//! * A reply is written, and recorded, within the *gate*, and only after a check within the gate
//!   that it may be cached. An invalidation closes the gate while it takes the table. So a reply
//!   that rests on outdated state is never written after its invalidation. The kernel does the same
//!   on its side: an invalidation of attributes outdates requests that are under way, and one of a
//!   name waits for lookups in the directory. That is why invalidation runs in a thread of its own,
//!   with the gate open again.
//! * The root's attributes are never cached: a process that checks whether a mount is dead, perhaps
//!   to mount again, looks at them.
//! * Names of directories are never cached: invalidating one unhashes it, and a process that works
//!   in the directory would find it deleted. Their attributes are cached.

use crate::convert::number;
use crate::serve::VALID_FOR;
use fuser::Notifier;
use quorumfs_gateway::vfs::{Attributes, CACHED_FOR, FileSystem, FileType, InodeId};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bytes that the table may take for each inode whose attributes the gateway caches: the kernel may
/// cache several times as many.
const BYTES_PER_INODE: usize = 192;
/// Approximate size of an inode in its set.
const INODE_BYTES: usize = 24;
/// Approximate size of a name in addition to its bytes.
const NAME_BYTES: usize = 56;

#[derive(Debug, Default)]
struct Generation {
    inodes: HashSet<InodeId>,
    names: HashMap<InodeId, HashSet<Box<[u8]>>>,
    bytes: usize,
}

#[derive(Debug)]
struct Tables {
    young: Generation,
    old: Generation,
    /// When the young generation began.
    since: Instant,
    /// The most bytes that both may take.
    most: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct KernelCache {
    tables: Mutex<Tables>,
    gate: RwLock<()>,
}

/// For how long the kernel may cache an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidFor {
    pub(crate) attributes: Duration,
    pub(crate) name: Duration,
}

impl KernelCache {
    /// For a gateway that caches the attributes of so many inodes.
    pub(crate) fn new(inodes: usize) -> Self {
        Self {
            tables: Mutex::new(Tables {
                young: Generation::default(),
                old: Generation::default(),
                since: Instant::now(),
                most: inodes.saturating_mul(BYTES_PER_INODE),
            }),
            gate: RwLock::default(),
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `reply` within the gate, in which it asks for how long its answer may be cached.
    pub(crate) fn gated<T>(&self, reply: impl FnOnce(&GatedReply<'_>) -> T) -> T {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        reply(&GatedReply { kernel_cache: self })
    }

    /// Takes all entries that the kernel may have cached by now, to be invalidated.
    fn take_entries(&self) -> [Generation; 2] {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.tables();
        let young = std::mem::take(&mut tables.young);
        [young, std::mem::take(&mut tables.old)]
    }
}

/// A reply that is about to be written.
pub(crate) struct GatedReply<'k> {
    kernel_cache: &'k KernelCache,
}

impl GatedReply<'_> {
    /// For how long the attributes of this reply are valid.
    pub(crate) fn attributes(&self, fs: &FileSystem, shown: &Attributes) -> Duration {
        if shown.inode != fs.root()
            && fs.may_cache(shown)
            && self.kernel_cache.tables().note_inode(shown.inode)
        {
            CACHED_FOR
        } else {
            VALID_FOR
        }
    }

    /// For how long it is valid that `name` leads to `shown`, or does not exist.
    pub(crate) fn entry(
        &self,
        fs: &FileSystem,
        (directory, name): (InodeId, &[u8]),
        shown: Option<&Attributes>,
    ) -> ValidFor {
        let attributes = shown.map_or(VALID_FOR, |shown| self.attributes(fs, shown));
        let leads = shown.map(|shown| shown.inode);
        let is_directory = shown.is_some_and(|it| it.file_type() == FileType::Directory);
        let keeps = !is_directory && fs.may_cache_name(directory, name, leads);
        let name = if keeps && self.kernel_cache.tables().note_name(directory, name) {
            CACHED_FOR
        } else {
            VALID_FOR
        };
        ValidFor { attributes, name }
    }
}

impl Tables {
    /// Begins a new generation when it is time, and returns whether there is capacity.
    fn rotate(&mut self) -> bool {
        if self.since.elapsed() >= CACHED_FOR {
            // The kernel asks again for every entry from before the young generation began.
            self.old = std::mem::take(&mut self.young);
            self.since = Instant::now();
        }
        self.young.bytes.saturating_add(self.old.bytes) < self.most
    }

    fn note_inode(&mut self, inode: InodeId) -> bool {
        let room = self.rotate();
        let known = self.young.inodes.contains(&inode);
        if !known && room {
            self.young.inodes.insert(inode);
            self.young.bytes = self.young.bytes.saturating_add(INODE_BYTES);
        }
        known || room
    }

    fn note_name(&mut self, directory: InodeId, name: &[u8]) -> bool {
        let room = self.rotate();
        let names = self.young.names.get(&directory);
        let known = names.is_some_and(|names| names.contains(name));
        if !known && room {
            let names = self.young.names.entry(directory).or_default();
            names.insert(name.into());
            let bytes = NAME_BYTES.saturating_add(name.len());
            self.young.bytes = self.young.bytes.saturating_add(bytes);
        }
        known || room
    }
}

/// Invalidates the kernel's cache each time the file system asks for it, until the file system is
/// dropped or the mount has ended.
pub(crate) fn spawn(
    fs: &FileSystem,
    kernel_cache: Arc<KernelCache>,
    notifier: Notifier,
    mut ended: watch::Receiver<bool>,
) {
    let (mut invalidations, root) = (fs.invalidations(), fs.root());
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                changed = invalidations.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
            let (kernel_cache, notifier) = (kernel_cache.clone(), notifier.clone());
            // It waits for processes at work in a directory.
            let done =
                tokio::task::spawn_blocking(move || invalidate_all(&kernel_cache, &notifier, root));
            if let Err(error) = done.await {
                tracing::error!(%error, "the kernel's cache could not be invalidated");
            }
        }
    });
}

fn invalidate_all(kernel_cache: &KernelCache, notifier: &Notifier, root: InodeId) {
    let start = Instant::now();
    let mut count = 0_u64;
    for generation in kernel_cache.take_entries() {
        for (directory, names) in generation.names {
            let directory = number(directory, root);
            for name in names {
                count = count.saturating_add(1);
                // An error says that the kernel has already forgotten the name.
                let _ = notifier.inval_entry(directory, OsStr::from_bytes(&name));
            }
        }
        for inode in generation.inodes {
            count = count.saturating_add(1);
            // A negative offset: attributes alone. Pages go when a changed file is opened.
            let _ = notifier.inval_inode(number(inode, root), -1, 0);
        }
    }
    let took = start.elapsed();
    tracing::debug!(count, ?took, "the kernel's cache is invalidated");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_forgets_what_the_kernel_has_forgotten() {
        let (kernel_cache, most) = (KernelCache::new(1000), 1000 * BYTES_PER_INODE);
        let mut given = 0;
        for number in 0..most as u64 {
            if !kernel_cache.tables().note_inode(InodeId(number)) {
                break;
            }
            given += 1;
        }
        assert_eq!(given, most / INODE_BYTES);
        assert!(
            kernel_cache.tables().note_inode(InodeId(7)),
            "an entry that is there already"
        );
        assert!(!kernel_cache.tables().note_name(InodeId(7), b"a"));
        let Some(long_ago) = Instant::now().checked_sub(CACHED_FOR) else {
            return;
        };
        kernel_cache.tables().since = long_ago;
        // Still full of the latest entries.
        assert!(!kernel_cache.tables().note_name(InodeId(7), b"a"));
        kernel_cache.tables().since = long_ago;
        assert!(kernel_cache.tables().note_name(InodeId(7), b"a"));
        let taken = kernel_cache.take_entries();
        assert!(taken.iter().any(|generation| !generation.names.is_empty()));
        assert!(kernel_cache.tables().young.names.is_empty());
    }
}
