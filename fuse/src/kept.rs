//! What the kernel was told it may keep.
//!
//! Usually the kernel believes an answer for [`VALID_FOR`]. What the gateway keeps up to date in
//! any case ([`FileSystem::may_cache`]) it may keep for [`CACHED_FOR`]; so `find` and `git status`
//! over a large tree are the kernel's business alone the second time. In return all of it is taken
//! back when others have changed something, or when nothing is heard of the servers
//! ([`FileSystem::invalidations`]): every inode and every name that was given out is invalidated,
//! one by one, since the kernel has no other way that is as old as it needs to be.
//!
//! * What was given out stands in a table, in two generations: after [`CACHED_FOR`] the kernel asks
//!   anyway, and the older generation is dropped. The table is bounded; when it is full, answers
//!   last for [`VALID_FOR`].
//! * A reply is written, and noted, within the *gate*, and only after it was asked within the gate
//!   whether it may be kept. Whoever takes everything back closes the gate in between: so no reply
//!   that rests on what is not so any more comes after its invalidation. The kernel does the same
//!   on its side: an invalidation of attributes outdates requests that are under way, and one of a
//!   name waits for whoever looks something up in the directory. That is why it is done by a thread
//!   of its own, with the gate open again.
//! * The root's attributes are never kept: whoever wants to know whether a mount is dead looks at
//!   them, be it to mount again.
//! * Names of directories are never kept: taking one back unhashes it, and whoever works in the
//!   directory would find it deleted. Their attributes are.

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

/// Bytes that the table may take for each inode whose attributes the gateway keeps: the kernel may
/// keep several times as many.
const BYTES_PER_INODE: usize = 192;
/// What an inode takes in its set, about.
const INODE_BYTES: usize = 24;
/// What a name takes beside its bytes, about.
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
    /// Bytes that both may take.
    most: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    tables: Mutex<Tables>,
    gate: RwLock<()>,
}

/// For how long the kernel may keep an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lasts {
    pub(crate) attributes: Duration,
    pub(crate) name: Duration,
}

impl Kept {
    /// For a gateway that keeps attributes of so many inodes.
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

    /// Has `reply` written, which is told for how long what `answer` asks about may be kept.
    pub(crate) fn giving<T>(&self, reply: impl FnOnce(&Giving<'_>) -> T) -> T {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        reply(&Giving { kept: self })
    }

    /// All that may be kept by now, to be taken back.
    fn take(&self) -> [Generation; 2] {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.tables();
        let young = std::mem::take(&mut tables.young);
        [young, std::mem::take(&mut tables.old)]
    }
}

/// A reply that is about to be written.
pub(crate) struct Giving<'k> {
    kept: &'k Kept,
}

impl Giving<'_> {
    /// For how long attributes that are about to be shown last.
    pub(crate) fn attributes(&self, fs: &FileSystem, shown: &Attributes) -> Duration {
        if shown.inode != fs.root()
            && fs.may_cache(shown)
            && self.kept.tables().note_inode(shown.inode)
        {
            CACHED_FOR
        } else {
            VALID_FOR
        }
    }

    /// For how long it lasts that `name` leads to `shown`, or nowhere.
    pub(crate) fn entry(
        &self,
        fs: &FileSystem,
        (directory, name): (InodeId, &[u8]),
        shown: Option<&Attributes>,
    ) -> Lasts {
        let attributes = shown.map_or(VALID_FOR, |shown| self.attributes(fs, shown));
        let leads = shown.map(|shown| shown.inode);
        let is_directory = shown.is_some_and(|it| it.file_type() == FileType::Directory);
        let keeps = !is_directory && fs.may_cache_name(directory, name, leads);
        let name = if keeps && self.kept.tables().note_name(directory, name) {
            CACHED_FOR
        } else {
            VALID_FOR
        };
        Lasts { attributes, name }
    }
}

impl Tables {
    /// Answers whether there is room.
    fn turn(&mut self) -> bool {
        if self.since.elapsed() >= CACHED_FOR {
            // Whatever was given out before the young generation began is asked for again by now.
            self.old = std::mem::take(&mut self.young);
            self.since = Instant::now();
        }
        self.young.bytes.saturating_add(self.old.bytes) < self.most
    }

    fn note_inode(&mut self, inode: InodeId) -> bool {
        let room = self.turn();
        let known = self.young.inodes.contains(&inode);
        if !known && room {
            self.young.inodes.insert(inode);
            self.young.bytes = self.young.bytes.saturating_add(INODE_BYTES);
        }
        known || room
    }

    fn note_name(&mut self, directory: InodeId, name: &[u8]) -> bool {
        let room = self.turn();
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

/// Takes back whatever is kept each time when the file system has doubts, until it is dropped or
/// the mount has ended.
pub(crate) fn spawn(
    fs: &FileSystem,
    kept: Arc<Kept>,
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
            let (kept, notifier) = (kept.clone(), notifier.clone());
            // It waits for whoever is at work in a directory.
            let done = tokio::task::spawn_blocking(move || take_back(&kept, &notifier, root));
            if let Err(error) = done.await {
                tracing::error!(%error, "what the kernel keeps could not be taken back");
            }
        }
    });
}

fn take_back(kept: &Kept, notifier: &Notifier, root: InodeId) {
    let start = Instant::now();
    let mut count = 0_u64;
    for generation in kept.take() {
        for (directory, names) in generation.names {
            let directory = number(directory, root);
            for name in names {
                count = count.saturating_add(1);
                // What the kernel has forgotten by itself it knows nothing of.
                let _ = notifier.inval_entry(directory, OsStr::from_bytes(&name));
            }
        }
        for inode in generation.inodes {
            count = count.saturating_add(1);
            // A negative offset: attributes alone. Pages go when a file is opened that has changed.
            let _ = notifier.inval_inode(number(inode, root), -1, 0);
        }
    }
    let took = start.elapsed();
    tracing::debug!(count, ?took, "the kernel asks anew for what it was told");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_forgets_what_the_kernel_has_forgotten() {
        let (kept, most) = (Kept::new(1000), 1000 * BYTES_PER_INODE);
        let mut given = 0;
        for number in 0..most as u64 {
            if !kept.tables().note_inode(InodeId(number)) {
                break;
            }
            given += 1;
        }
        assert_eq!(given, most / INODE_BYTES);
        assert!(
            kept.tables().note_inode(InodeId(7)),
            "that is there already"
        );
        assert!(!kept.tables().note_name(InodeId(7), b"a"));
        let Some(long_ago) = Instant::now().checked_sub(CACHED_FOR) else {
            return;
        };
        kept.tables().since = long_ago;
        // Still full of what was given out last.
        assert!(!kept.tables().note_name(InodeId(7), b"a"));
        kept.tables().since = long_ago;
        assert!(kept.tables().note_name(InodeId(7), b"a"));
        let taken = kept.take();
        assert!(taken.iter().any(|generation| !generation.names.is_empty()));
        assert!(kept.tables().young.names.is_empty());
    }
}
