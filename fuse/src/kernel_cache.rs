//! What the kernel may cache, and how it is invalidated.
//!
//! Usually an answer is valid for [`VALID_FOR`]; while others may mount the volume that is so of
//! directories alone, and other answers are valid for no time. For inodes and names that the
//! gateway revalidates in any case, the kernel may cache it for as long as the gateway says, half a
//! minute at most, so that a second `find` or `git status` over a large tree is answered by the
//! kernel alone. In return it is invalidated when another client has changed something: the inode's
//! attributes, its listing and the names in it that were handed out. All of it goes, for every
//! inode, if it is not known what was changed, or when the servers do not answer. That is done one
//! by one, since no other interface exists in all kernels that we support.
//!
//! * A table records what was handed out, in two generations: after [`CACHED_FOR`] the kernel asks
//!   anyway, and the older generation is dropped. The table is bounded; when it is full, answers
//!   are valid for [`VALID_FOR`].
//! * A reply is written, and recorded, within the *gate*, and only after a check within the gate
//!   that it may be cached. An invalidation closes the gate while it takes entries from the table.
//!   So a reply that rests on outdated state is never written after its invalidation. The kernel
//!   does the same on its side: an invalidation of attributes outdates requests that are under way,
//!   and one of a name waits for lookups in the directory. That is why invalidation runs in a
//!   thread of its own, with the gate open again.
//! * The first lookup of an inode is an exception. The kernel makes its inode when the process that
//!   waits for the reply runs again; an invalidation before that finds none, which is no error, and
//!   the attributes of the reply stay for their time. While others may mount the volume, that is a
//!   second: what is promised about attributes holds in this case too.
//! * While others may mount the volume, the attributes of an open file are valid for no time, and
//!   the first open drops those that the kernel has ([`KernelCache::opens`]). So the kernel asks
//!   for the length at each read, and a file grows for its readers as soon as this mount knows.
//!   They cannot be invalidated instead: the kernel ignores an answer that an invalidation has
//!   overtaken, and reads on to the old length.
//! * A read that ends at the end of the file is answered within the gate, alone, and only if the
//!   file has not grown meanwhile ([`KernelCache::ends`]). Otherwise attributes with a new length
//!   could reach the kernel before the bytes of the old one, and the rest of the page reads as
//!   zeros.
//! * The kernel takes its entry of a name along to the new name when a process renames it. So the
//!   new name is recorded with the reply. It is invalidated after the reply if others changed the
//!   directory, and always if others may mount the volume: another one may have just given the old
//!   name to another inode, which was then moved, and the kernel does not know.
//! * The root's attributes are never cached: a process that checks whether a mount is dead, perhaps
//!   to mount again, looks at them.
//! * Names of directories are never cached: invalidating one unhashes it, and a process that works
//!   in the directory would find it deleted. Their attributes are cached.
//! * The kernel caches a directory's listing as the directory's pages, and they go with it. A
//!   file's pages stay: whether they are current is decided when it is opened.

use crate::convert::number;
use crate::serve::VALID_FOR;
use fuser::Notifier;
use quorumfs_gateway::vfs::{Attributes, CACHED_FOR, FileSystem, FileType, InodeId, Invalidation};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bytes that the table may take for each inode whose attributes the gateway caches: the kernel may
/// cache several times as many.
const BYTES_PER_INODE: usize = 192;
/// Approximate size of an inode in its set.
const INODE_BYTES: usize = 24;
/// Approximate size of a name in addition to its bytes.
const NAME_BYTES: usize = 56;
/// How long a lock waits for the kernel to drop what others have changed.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(5);
/// In place of an offset: no pages go.
const ATTRIBUTES_ALONE: i64 = -1;

/// What was handed out.
#[derive(Debug, Default)]
struct Generation {
    /// Inodes whose attributes were.
    inodes: HashSet<InodeId>,
    /// Directories whose listings were.
    listings: HashSet<InodeId>,
    /// Names, by their directories.
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
    /// Once the kernel can be told something.
    notifier: OnceLock<Notifier>,
    /// The number of the last invalidation that was done.
    done: watch::Sender<u64>,
}

/// A name, and the inode that a rename has given it to.
#[derive(Debug)]
pub(crate) struct NamedPlace {
    pub(crate) directory: InodeId,
    pub(crate) name: Vec<u8>,
    pub(crate) shown: Attributes,
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
            notifier: OnceLock::new(),
            done: watch::Sender::new(0),
        }
    }

    /// A file that was not open is about to be shown as opened, and others may have changed it.
    pub(crate) fn opens(&self, fs: &FileSystem, inode: InodeId) {
        let Some(notifier) = self.notifier.get().filter(|_| fs.is_shared()) else {
            return;
        };
        self.tables().forget_inode(inode);
        // It waits for nothing, and an error says that the kernel does not know the inode.
        let _ = notifier.inval_inode(number(inode, fs.root()), ATTRIBUTES_ALONE, 0);
    }

    /// Waits until the kernel has dropped what was announced up to this number, but not for long.
    pub(crate) async fn caught_up(&self, announced: u64) {
        let mut done = self.done.subscribe();
        let done = done.wait_for(|done| *done >= announced);
        if tokio::time::timeout(CAUGHT_UP_WITHIN, done).await.is_err() {
            tracing::warn!("the kernel is slow to drop what others have changed");
        }
    }

    /// Has the kernel drop the pages and attributes of a file. It waits for pages that are being
    /// read or written, so this is never called by what these wait for.
    pub(crate) fn drop_pages(&self, inode: InodeId, root: InodeId) {
        if let Some(notifier) = self.notifier.get() {
            // An error says that the kernel does not know the inode.
            let _ = notifier.inval_inode(number(inode, root), 0, 0);
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

    /// Replies to a read that has come to the end of the file, if that is still there; returns
    /// whether it is.
    pub(crate) fn ends(&self, is_there: impl FnOnce() -> bool, reply: impl FnOnce()) -> bool {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let is_there = is_there();
        if is_there {
            reply();
        }
        is_there
    }

    /// Writes the reply to a rename, by which these inodes got these names.
    pub(crate) fn renamed(&self, fs: &FileSystem, places: Vec<NamedPlace>, reply: impl FnOnce()) {
        let unsure: Vec<NamedPlace> = self.gated(|gated| {
            let unsure = places.into_iter().filter(|place| {
                let name = (place.directory, place.name.as_slice());
                let keeps = !fs.is_shared() && gated.keeps_name(fs, name, Some(&place.shown));
                !is_directory(&place.shown) && !keeps
            });
            let unsure = unsure.collect();
            reply();
            unsure
        });
        let notifier = self.notifier.get().cloned();
        let Some(notifier) = notifier.filter(|_| !unsure.is_empty()) else {
            return;
        };
        let root = fs.root();
        // The kernel holds the directory until it has moved the name.
        drop(tokio::task::spawn_blocking(move || {
            for place in unsure {
                let name = OsStr::from_bytes(&place.name);
                let _ = notifier.inval_entry(number(place.directory, root), name);
            }
        }));
    }

    /// Takes what the kernel may have cached by now and has to drop.
    fn take(&self, what: &Invalidation) -> [Generation; 2] {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.tables();
        let Tables { young, old, .. } = &mut *tables;
        [young, old].map(|generation| match what {
            Invalidation::Everything => std::mem::take(generation),
            Invalidation::Inodes(inodes) => generation.take(inodes),
            Invalidation::Pages(_) => Generation::default(),
        })
    }
}

impl Generation {
    /// Takes what concerns these inodes.
    fn take(&mut self, inodes: &[InodeId]) -> Self {
        let mut taken = Self::default();
        for inode in inodes {
            if self.inodes.remove(inode) {
                taken.inodes.insert(*inode);
                taken.bytes = taken.bytes.saturating_add(INODE_BYTES);
            }
            if self.listings.remove(inode) {
                taken.listings.insert(*inode);
                taken.bytes = taken.bytes.saturating_add(INODE_BYTES);
            }
            if let Some(names) = self.names.remove(inode) {
                let bytes = names
                    .iter()
                    .map(|name| NAME_BYTES.saturating_add(name.len()));
                taken.bytes = bytes.fold(taken.bytes, usize::saturating_add);
                taken.names.insert(*inode, names);
            }
        }
        self.bytes = self.bytes.saturating_sub(taken.bytes);
        taken
    }
}

/// A reply that is about to be written.
pub(crate) struct GatedReply<'k> {
    kernel_cache: &'k KernelCache,
}

impl GatedReply<'_> {
    /// For how long the attributes of this reply are valid.
    pub(crate) fn attributes(&self, fs: &FileSystem, shown: &Attributes) -> Duration {
        if fs.is_shared() && fs.is_open(shown.inode) {
            return Duration::ZERO;
        }
        if shown.inode != fs.root()
            && fs.may_cache(shown)
            && self.kernel_cache.tables().note_inode(shown.inode)
        {
            fs.cached_for()
        } else {
            unsure_for(fs, Some(shown))
        }
    }

    /// Whether the kernel may cache the listing of a directory that is opened.
    pub(crate) fn listing(&self, fs: &FileSystem, directory: InodeId) -> bool {
        fs.may_cache_listing(directory) && self.kernel_cache.tables().note_listing(directory)
    }

    /// For how long it is valid that `name` leads to `shown`, or does not exist.
    pub(crate) fn entry(
        &self,
        fs: &FileSystem,
        (directory, name): (InodeId, &[u8]),
        shown: Option<&Attributes>,
    ) -> ValidFor {
        let attributes = shown.map_or(VALID_FOR, |shown| self.attributes(fs, shown));
        let name = if self.keeps_name(fs, (directory, name), shown) {
            fs.cached_for()
        } else {
            unsure_for(fs, shown)
        };
        ValidFor { attributes, name }
    }

    /// Whether the kernel may cache that `name` leads to `shown`, or does not exist.
    fn keeps_name(
        &self,
        fs: &FileSystem,
        (directory, name): (InodeId, &[u8]),
        shown: Option<&Attributes>,
    ) -> bool {
        !shown.is_some_and(is_directory)
            && fs.may_cache_name(directory, name, shown.map(|shown| shown.inode))
            && self.kernel_cache.tables().note_name(directory, name)
    }
}

/// How long the kernel may use what is not invalidated: an inode, or its name, or that there is
/// none. A process that takes a lock relies on names, and other mounts may change them.
pub(crate) fn unsure_for(fs: &FileSystem, shown: Option<&Attributes>) -> Duration {
    match fs.is_shared() && !shown.is_some_and(is_directory) {
        true => Duration::ZERO,
        false => VALID_FOR,
    }
}

fn is_directory(shown: &Attributes) -> bool {
    shown.file_type() == FileType::Directory
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

    /// The kernel is about to drop the attributes of an inode.
    fn forget_inode(&mut self, inode: InodeId) {
        for generation in [&mut self.young, &mut self.old] {
            if generation.inodes.remove(&inode) {
                generation.bytes = generation.bytes.saturating_sub(INODE_BYTES);
            }
        }
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

    fn note_listing(&mut self, directory: InodeId) -> bool {
        let room = self.rotate();
        if room && self.young.listings.insert(directory) {
            self.young.bytes = self.young.bytes.saturating_add(INODE_BYTES);
        }
        room || self.young.listings.contains(&directory)
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

/// Invalidates what the kernel has cached each time the file system asks for it, until the file
/// system is dropped or the mount has ended.
pub(crate) fn spawn(
    fs: &FileSystem,
    kernel_cache: Arc<KernelCache>,
    notifier: Notifier,
    mut ended: watch::Receiver<bool>,
) {
    let (mut invalidations, root) = (fs.invalidations(), fs.root());
    let _ = kernel_cache.notifier.set(notifier.clone());
    kernel_cache.done.send_replace(invalidations.last());
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                next = invalidations.next() => next,
            };
            let Some(what) = next else {
                return;
            };
            let (kernel_cache, notifier) = (kernel_cache.clone(), notifier.clone());
            let last = invalidations.last();
            // It waits for processes at work in a directory.
            let done = tokio::task::spawn_blocking(move || {
                if let Invalidation::Pages(inode) = what {
                    kernel_cache.drop_pages(inode, root);
                }
                let taken = kernel_cache.take(&what);
                invalidate(taken, &notifier, root);
                kernel_cache.done.send_replace(last);
            });
            if let Err(error) = done.await {
                tracing::error!(%error, "the kernel's cache could not be invalidated");
            }
        }
    });
}

/// Every error below says that the kernel has already forgotten the inode or the name.
fn invalidate(generations: [Generation; 2], notifier: &Notifier, root: InodeId) {
    let start = Instant::now();
    let mut count = 0_usize;
    for generation in generations {
        for (directory, names) in generation.names {
            count = count.saturating_add(names.len());
            let directory = number(directory, root);
            for name in names {
                let _ = notifier.inval_entry(directory, OsStr::from_bytes(&name));
            }
        }
        count = count.saturating_add(generation.inodes.len());
        for inode in generation.inodes {
            let _ = notifier.inval_inode(number(inode, root), ATTRIBUTES_ALONE, 0);
        }
        count = count.saturating_add(generation.listings.len());
        for directory in generation.listings {
            // All pages from the beginning on.
            let _ = notifier.inval_inode(number(directory, root), 0, 0);
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
        let taken = kernel_cache.take(&Invalidation::Everything);
        assert!(taken.iter().any(|generation| !generation.names.is_empty()));
        assert!(kernel_cache.tables().young.names.is_empty());
    }

    #[test]
    fn an_inode_takes_what_was_handed_out_of_it_along_and_nothing_else() {
        let kernel_cache = KernelCache::new(1000);
        let (here, there) = (InodeId(7), InodeId(8));
        let note = |kernel_cache: &KernelCache| {
            let mut tables = kernel_cache.tables();
            for inode in [here, there] {
                assert!(tables.note_inode(inode) && tables.note_listing(inode));
                assert!(tables.note_name(inode, b"a") && tables.note_name(inode, b"bc"));
            }
            tables.young.bytes
        };
        let bytes = note(&kernel_cache);
        let Some(long_ago) = Instant::now().checked_sub(CACHED_FOR) else {
            return;
        };
        kernel_cache.tables().since = long_ago;
        // Once more, in a new generation.
        note(&kernel_cache);
        let taken = kernel_cache.take(&Invalidation::Inodes([here, InodeId(9)].into()));
        for generation in &taken {
            assert_eq!(generation.inodes, HashSet::from([here]));
            assert_eq!(generation.listings, HashSet::from([here]));
            assert_eq!(generation.names.len(), 1);
            assert_eq!(generation.names.get(&here).map(HashSet::len), Some(2));
        }
        let tables = kernel_cache.tables();
        for generation in [&tables.young, &tables.old] {
            assert_eq!(generation.bytes, bytes / 2);
            assert!(generation.inodes.contains(&there) && generation.names.contains_key(&there));
        }
    }
}
