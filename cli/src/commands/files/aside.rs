//! What is written beside what it will replace, in the volume, and what of that a killed command
//! left.
//!
//! A copy has a name of its own until it is whole, so that under the name that the user gave there
//! is what was there or all that is new, and never a part. A command that is killed cannot remove
//! such an entry. So before it makes one it says so in a file of the state directory, which it
//! holds locked as long as it lives:
//!
//! ```text
//! copies/ID      a line for each directory of the volume with entries `.quorumfs-ID-N`: its inode
//! ```
//!
//! The next command that copies into the volume from this state directory takes up each of these
//! files that is not locked, removes what is left of those entries, and then the file. Entries of
//! commands on other machines are theirs. What cannot be removed now does not keep anything from
//! being copied: it is logged, and tried again.

use super::caller;
use crate::directory::{StateDirectory, create_private};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_gateway::vfs::{FileSystem, InodeId, VfsError};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const DIRECTORY: &str = "copies";
/// Of entries of one directory, so many are looked at in one call.
const PAGE: usize = 512;
/// Digits of an id.
const ID_DIGITS: usize = 16;

/// The entries of this command.
#[derive(Debug)]
pub(super) struct Aside {
    id: String,
    path: PathBuf,
    said: Mutex<Said>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Said {
    file: File,
    directories: BTreeSet<u64>,
    /// Entries that were not renamed or removed yet, with their directories.
    left: BTreeMap<Vec<u8>, u64>,
}

fn prefix(id: &str) -> String {
    format!(".quorumfs-{id}-")
}

impl Aside {
    /// Begins; removes first what earlier commands left.
    pub(super) async fn begin(state: &StateDirectory, fs: &FileSystem) -> Outcome<Self> {
        let directory = state.join(DIRECTORY);
        create_private(&directory)?;
        clear(&directory, fs).await?;
        let mut bytes = [0; ID_DIGITS / 2];
        getrandom::fill(&mut bytes)
            .map_err(|error| Failure::new(Exit::Error, format!("no randomness: {error}")))?;
        let id = format!("{:016x}", u64::from_be_bytes(bytes));
        let path = directory.join(&id);
        // Under this name no other command takes it up before it is locked.
        let unlocked = path.with_extension("new");
        let failed = |error| Failure::file("write", &path, &error);
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&unlocked)
            .map_err(failed)?;
        quorumfs_gateway::lock::take(&file)
            .and_then(|()| fs::rename(&unlocked, &path))
            .map_err(failed)?;
        Ok(Self {
            id,
            said: Mutex::new(Said {
                file,
                directories: BTreeSet::new(),
                left: BTreeMap::new(),
            }),
            path,
            next: AtomicU64::new(0),
        })
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that nothing has, for an entry of `directory`. It is said before it is used.
    pub(super) fn name(&self, directory: InodeId) -> Outcome<Vec<u8>> {
        let mut said = self.said();
        if said.directories.insert(directory.0) {
            let line = format!("{}\n", directory.0);
            said.file
                .write_all(line.as_bytes())
                .map_err(|error| Failure::file("write", &self.path, &error))?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number}", prefix(&self.id)).into_bytes();
        said.left.insert(name.clone(), directory.0);
        Ok(name)
    }

    /// The entry has its own name by now, or is gone.
    pub(super) fn is_gone(&self, name: &[u8]) {
        self.said().left.remove(name);
    }

    /// Ends: removes what is left of copies that were cut off. If there is any, more of it may yet
    /// come, so that the next command looks once more.
    pub(super) async fn end(&self, fs: &FileSystem) {
        let left = std::mem::take(&mut self.said().left);
        for (name, directory) in &left {
            let _ = fs.unlink(&caller(), InodeId(*directory), name).await;
        }
        if left.is_empty() {
            forget(&self.path);
        }
    }
}

fn forget(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "it is not removed");
    }
}

/// Removes what commands left that were killed.
async fn clear(directory: &Path, fs: &FileSystem) -> Outcome<()> {
    let failed = |error| Failure::file("read", directory, &error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let id = path.file_name().unwrap_or_default().to_string_lossy();
        if id.len() != ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let Ok(file) = OpenOptions::new().append(true).open(&path) else {
            continue;
        };
        // One that is held belongs to a command that still runs.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let Ok(said) = fs::read_to_string(&path) else {
            continue;
        };
        let mut whole = true;
        for directory in said.lines().filter_map(|line| line.parse().ok()) {
            let removed = remove_in(fs, InodeId(directory), prefix(&id).as_bytes()).await;
            whole &= match removed {
                Ok(whole) => whole,
                // The directory itself was removed.
                Err(error) => matches!(error.errno(), Errno::NOENT | Errno::STALE | Errno::NOTDIR),
            };
        }
        match whole {
            true => forget(&path),
            false => tracing::warn!(id = %id, "what a copy left is not all removed"),
        }
    }
    Ok(())
}

/// Removes the entries of one command in a directory, as far as they are still there; says whether
/// nothing of its own is left. What another user gave such a name is that user's.
async fn remove_in(fs: &FileSystem, directory: InodeId, prefix: &[u8]) -> Result<bool, VfsError> {
    let handle = fs.opendir(&caller(), directory, false).await?;
    let mut offset = 0;
    let mut left = Vec::new();
    let listed = loop {
        match fs.readdir(handle, offset, PAGE).await {
            Ok(page) => {
                let Some(last) = page.last() else {
                    break Ok(());
                };
                offset = last.cookie.0;
                let ours = page.into_iter().map(|entry| entry.name);
                left.extend(ours.filter(|name| name.starts_with(prefix)));
            }
            Err(error) => break Err(error),
        }
    };
    fs.leave_directory(handle);
    listed?;
    let mut whole = true;
    for name in left {
        whole &= match fs.unlink(&caller(), directory, &name).await {
            Ok(()) => true,
            Err(error) => matches!(
                error.errno(),
                Errno::NOENT | Errno::ISDIR | Errno::PERM | Errno::ACCESS
            ),
        };
    }
    Ok(whole)
}
