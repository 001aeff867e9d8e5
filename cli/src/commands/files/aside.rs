//! Temporary entries in the volume for copies in progress, and the removal of those that a killed
//! command left.
//!
//! A copy has a temporary name until it is complete, so that the user's name leads to the old
//! content or to all of the new, and never to a part. A killed command cannot remove such an entry.
//! So before it makes one it records that in a file of the state directory, which it holds locked
//! as long as it lives:
//!
//! ```text
//! copies/ID      a line for each directory of the volume with entries `.quorumfs-ID-N`: its inode
//! ```
//!
//! The next command that copies into the volume from this state directory takes each of these files
//! that is not locked, removes the remaining entries, and then the file. Entries of commands on
//! other machines are left to those machines. A failure to remove an entry does not stop the new
//! copy: it is logged, and retried later.

use crate::directory::{StateDirectory, create_private};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{
    AttributeChange, FileSystem, FileType, InodeId, VfsError, temporary_name,
};
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
/// Entries of a directory to read in one call.
const PAGE: usize = 512;
/// Digits of an id.
const ID_DIGITS: usize = 16;

/// The temporary entries of this command.
#[derive(Debug)]
pub(in crate::commands) struct Aside {
    id: String,
    path: PathBuf,
    record: Mutex<AsideRecord>,
    next: AtomicU64,
}

#[derive(Debug)]
struct AsideRecord {
    file: File,
    directories: BTreeSet<u64>,
    /// Entries that were not renamed or removed yet, with their directories.
    left: BTreeMap<Vec<u8>, u64>,
}

fn prefix(id: &str) -> String {
    format!("{}-", temporary_name(id))
}

impl Aside {
    /// Begins; first removes the remains of earlier commands.
    pub(in crate::commands) async fn begin(
        state: &StateDirectory,
        fs: &FileSystem,
    ) -> CommandResult<Self> {
        let directory = state.join(DIRECTORY);
        create_private(&directory)?;
        clear(&directory, fs).await?;
        let mut bytes = [0; ID_DIGITS / 2];
        getrandom::fill(&mut bytes)
            .map_err(|error| Failure::new(Exit::Error, format!("no randomness: {error}")))?;
        let id = format!("{:016x}", u64::from_be_bytes(bytes));
        let path = directory.join(&id);
        // Under this name no other command takes it before it is locked.
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
            record: Mutex::new(AsideRecord {
                file,
                directories: BTreeSet::new(),
                left: BTreeMap::new(),
            }),
            path,
            next: AtomicU64::new(0),
        })
    }

    fn record(&self) -> MutexGuard<'_, AsideRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An unused name for an entry of `directory`. It is recorded before it is used.
    pub(in crate::commands) fn name(&self, directory: InodeId) -> CommandResult<Vec<u8>> {
        let mut record = self.record();
        if record.directories.insert(directory.0) {
            let line = format!("{}\n", directory.0);
            record
                .file
                .write_all(line.as_bytes())
                .map_err(|error| Failure::file("write", &self.path, &error))?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number}", prefix(&self.id)).into_bytes();
        record.left.insert(name.clone(), directory.0);
        Ok(name)
    }

    /// The entry has its final name by now, or is gone.
    pub(in crate::commands) fn is_gone(&self, name: &[u8]) {
        self.record().left.remove(name);
    }

    /// Ends: removes the remains of interrupted copies. If there are any, more may still arrive, so
    /// the next command checks again.
    pub(in crate::commands) async fn end(&self, fs: &FileSystem) {
        let left = std::mem::take(&mut self.record().left);
        for (name, directory) in &left {
            let _ = remove(fs, InodeId(*directory), name).await;
        }
        if left.is_empty() {
            forget(&self.path);
        }
    }
}

/// Removes an entry, and its content first: the trash is to keep nothing of it.
async fn remove(fs: &FileSystem, directory: InodeId, name: &[u8]) -> Result<(), VfsError> {
    let caller = fs.this_process();
    if let Some(found) = fs.lookup(&caller, directory, name).await?
        && found.file_type() == FileType::File
    {
        let empty = AttributeChange {
            size: Some(0),
            ..AttributeChange::default()
        };
        // Another user's stays.
        let _ = fs.setattr(&caller, found.inode, None, empty).await;
    }
    fs.unlink(&caller, directory, name).await
}

fn forget(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "the file cannot be removed");
    }
}

/// Removes the remains of killed commands.
async fn clear(directory: &Path, fs: &FileSystem) -> CommandResult<()> {
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
        // A locked file belongs to a command that still runs.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let Ok(record) = fs::read_to_string(&path) else {
            continue;
        };
        let mut whole = true;
        for directory in record.lines().filter_map(|line| line.parse().ok()) {
            let removed = remove_in(fs, InodeId(directory), prefix(&id).as_bytes()).await;
            whole &= match removed {
                Ok(whole) => whole,
                // The directory itself was removed.
                Err(error) => matches!(error.errno(), Errno::NOENT | Errno::STALE | Errno::NOTDIR),
            };
        }
        match whole {
            true => forget(&path),
            false => tracing::warn!(id = %id, "the remains of a copy could not all be removed"),
        }
    }
    Ok(())
}

/// Removes the remaining entries of one command in a directory; returns whether none of them is
/// left. An entry that another user gave such a name is that user's.
async fn remove_in(fs: &FileSystem, directory: InodeId, prefix: &[u8]) -> Result<bool, VfsError> {
    let handle = fs.opendir(&fs.this_process(), directory, false).await?;
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
        whole &= match remove(fs, directory, &name).await {
            Ok(()) => true,
            Err(error) => matches!(
                error.errno(),
                Errno::NOENT | Errno::ISDIR | Errno::PERM | Errno::ACCESS
            ),
        };
    }
    Ok(whole)
}
