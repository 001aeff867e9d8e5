//! The state directory: what a process finds again at its next start.
//!
//! `--state DIR` names it; by default it is below `$XDG_DATA_HOME/quorumfs` (`~/.local/share`). A
//! process that writes there holds a lock on it as long as it lives, so that two never do.
//!
//! ```text
//! a volume                       a replica                   the demo
//!   quorumfs.toml                  replica.toml                all of a volume's, and
//!   volume.genesis                 replica.key  (0600)         replicas/0…3  clouds/a…d
//!   principal.key  (0600)          volume.genesis              log/  mnt/
//!   recovery-kit.txt  (0600)       data/
//!   volume.successions    (if principals were replaced)
//!   volume.people    (if people were admitted)
//!   volume.clouds    (if clouds were added or replaced)
//!   join.key  (0600; a guest's, until it knows its volume)
//!   principal.key.next  (0600; while the owner's key is being replaced)
//!   host.key  (0600)  cache/  journal/
//!   clouds.shares  (0600; cached shares of the clouds, sealed)
//!   control.sock  (while mounted)
//!   mounted  shown    (sessions that mounted here; the newest state of the servers)
//!   mount.log
//!   membership    (the current replicas, if they are not the first ones)
//!   scrub.position    (the position of an interrupted scrub)
//!   usage    (requests to the clouds, by month)
//!   backup/  copies/  recovery.rows    (work that goes on where it was interrupted)
//! ```

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::hardening::refuse_open_to_others;
use rustix::fs::FlockOperation;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateDirectory(PathBuf);

impl StateDirectory {
    /// The given one, or the one called `name` below the user's data directory.
    pub(crate) fn find(named: Option<&Path>, name: &str) -> CommandResult<Self> {
        let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        let path = match (named, variable("XDG_DATA_HOME"), variable("HOME")) {
            (Some(path), _, _) => path.to_path_buf(),
            (None, Some(data), _) => Path::new(&data).join("quorumfs").join(name),
            (None, None, Some(home)) => Path::new(&home).join(".local/share/quorumfs").join(name),
            (None, None, None) => {
                return Err(Failure::new(
                    Exit::Usage,
                    "no state directory: neither --state nor XDG_DATA_HOME nor HOME is set",
                )
                .hint("name one with --state DIR"));
            }
        };
        let path = std::path::absolute(&path)
            .map_err(|error| Failure::file("use the state directory", &path, &error))?;
        refuse_open_to_others(&path)?;
        Ok(Self(path))
    }

    /// The path itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A path within; an absolute one is unchanged.
    pub(crate) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Makes it, for its owner only, if it is missing.
    pub(crate) fn create(&self) -> CommandResult<()> {
        create_private(&self.0)
    }

    /// Takes the lock for writing here, until the result is dropped.
    pub(crate) fn lock(&self, who: &str) -> CommandResult<Lock> {
        self.lock_as("lock", who)
    }

    /// Takes a lock of another name: the demo's mount holds the volume's, the demo its own.
    pub(crate) fn lock_as(&self, name: &str, who: &str) -> CommandResult<Lock> {
        let path = self.join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| Failure::file("open the lock", &path, &error))?;
        match quorumfs_gateway::lock::take(&file) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Failure::new(
                Exit::Held,
                format!("another {who} is running on {}", self.0.display()),
            )
            .hint("stop that one first, or use another directory with --state")),
            Err(error) => Err(Failure::file("lock", &path, &error)),
        }
    }
}

/// Proof that this process, and no other, writes to a state directory.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Makes a directory that only its owner can enter, unless it exists.
pub(crate) fn create_private(path: &Path) -> CommandResult<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Failure::file("create the directory", path, &error))
}

/// Writes a new file that only its owner can read, durably; an existing one is an error.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> CommandResult<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        })
        .and_then(|()| {
            path.parent()
                .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        })
        .map_err(|error| Failure::file("write", path, &error))
}

/// Waits for the lock of a file that concurrent processes of one state directory all replace. It
/// lasts as long as the result.
pub(crate) fn lock_for(path: &Path) -> CommandResult<File> {
    let path = path.with_extension("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .and_then(|file| {
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
    file.map_err(|error| Failure::file("lock", &path, &error))
}

/// Replaces a file's content atomically and durably.
pub(crate) fn replace(path: &Path, content: &[u8]) -> CommandResult<()> {
    replace_by(path, |_| Ok(content))
}

/// The same with content that depends on the new file.
pub(crate) fn replace_by<C: AsRef<[u8]>>(
    path: &Path,
    content: impl FnOnce(&File) -> std::io::Result<C>,
) -> CommandResult<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let next = path.with_file_name(name);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)
        .and_then(|mut file| {
            let content = content(&file)?;
            file.write_all(content.as_ref())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&next, path))
        .and_then(|()| {
            path.parent()
                .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
        });
    written.map_err(|error| {
        let _ = fs::remove_file(&next);
        Failure::file("write", path, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_named_directory_is_taken_and_two_do_not_share_it() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::find(Some(directory.path()), "volume").unwrap();
        assert_eq!(state.path(), directory.path());
        let lock = state.lock("mount").unwrap();
        let failure = state.lock("mount").unwrap_err();
        assert_eq!(failure.exit, Exit::Held);
        drop(lock);
        assert!(state.lock("mount").is_ok());
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
