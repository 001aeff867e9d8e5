//! What is written beside what it will replace, in the volume, and what of that a killed command left.
//!
//! A copy has a name of its own until it is whole, so that under the name that the user gave there is
//! what was there or all that is new, and never a part. A command that is killed cannot remove such
//! an entry. So before it makes one it says so in a file of the state directory, which it holds
//! locked as long as it lives:
//!
//! ```text
//! copies/ID      a line for each directory of the volume with entries `.quorumfs-ID-N`: its inode
//! ```
//!
//! The next command that copies into the volume from this state directory takes up each of these
//! files that nobody holds, removes what is left of those entries, and then the file. Entries of
//! commands on other machines are theirs.

use super::caller;
use crate::directory::{StateDirectory, create_private};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_gateway::vfs::{FileSystem, InodeId, VfsError};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

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
        let failed = |error| Failure::file("write", &path, &error);
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        quorumfs_gateway::lock::take(&file).map_err(failed)?;
        Ok(Self {
            id,
            said: Mutex::new(Said {
                file,
                directories: BTreeSet::new(),
            }),
            path,
            next: AtomicU64::new(0),
        })
    }

    /// A name that nothing has, for an entry of `directory`. It is said before it is used.
    pub(super) fn name(&self, directory: InodeId) -> Outcome<Vec<u8>> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.directories.insert(directory.0) {
            let line = format!("{}\n", directory.0);
            said.file
                .write_all(line.as_bytes())
                .map_err(|error| Failure::file("write", &self.path, &error))?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(format!("{}{number}", prefix(&self.id)).into_bytes())
    }

    /// Ends: removes whatever is left, of copies that failed or were stopped.
    pub(super) async fn end(&self, fs: &FileSystem) -> Outcome<()> {
        let directories = {
            let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.directories.clone()
        };
        remove(fs, &self.id, directories).await?;
        fs::remove_file(&self.path).map_err(|error| Failure::file("remove", &self.path, &error))
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
        let said =
            fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
        let directories = said.lines().filter_map(|line| line.parse().ok()).collect();
        remove(fs, &id, directories).await?;
        fs::remove_file(&path).map_err(|error| Failure::file("remove", &path, &error))?;
    }
    Ok(())
}

/// Removes the entries of one command in these directories, as far as they are still there.
async fn remove(fs: &FileSystem, id: &str, directories: BTreeSet<u64>) -> Outcome<()> {
    for directory in directories {
        match remove_in(fs, InodeId(directory), prefix(id).as_bytes()).await {
            Ok(()) => {}
            // The directory itself was removed, or is no longer this user's.
            Err(VfsError::Refused {
                errno: Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::ACCESS | Errno::PERM,
                ..
            }) => {}
            Err(error) => {
                let failure = super::refused(Path::new("/"), &error);
                let message = format!("what a copy left cannot be removed: {}", failure.message);
                return Err(Failure { message, ..failure });
            }
        }
    }
    Ok(())
}

async fn remove_in(fs: &FileSystem, directory: InodeId, prefix: &[u8]) -> Result<(), VfsError> {
    let handle = fs.opendir(&caller(), directory).await?;
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
    for name in left {
        match fs.unlink(&caller(), directory, &name).await {
            Ok(()) => {}
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
