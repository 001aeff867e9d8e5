//! Copies of large files that a later command goes on with.
//!
//! `put` removes what an interrupted copy left, and begins again. `upload` keeps it: each large
//! file has a record in the state directory, which says what is copied where, and up to which
//! offset the clouds have it:
//!
//! ```text
//! uploads/ID     a line of JSON: the source as it was, the target, the time it began;
//!                then a line for each offset up to which everything is on the clouds
//! ```
//!
//! The content is in the target's directory meanwhile, as `.quorumfs-ID`, open to its owner alone.
//! An offset is recorded once the file system has confirmed that all before it is stored, so that
//! whatever was lost with the killed process lies behind it. A copy is gone on with only if the
//! source has the same inode, size and time of modification as before, and the entry in the volume
//! belongs to the same user; otherwise the file is copied from its start.
//!
//! A process holds the record of each copy in progress locked. A record that no
//! upload went on with for a week is removed with its entry by the next one.

use super::walk::child;
use super::{CHUNK_BYTES, refused};
use crate::directory::{StateDirectory, create_private};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{
    AttributeChange, Caller, FileSystem, FileType, HandleId, InodeId, OpenMode, VfsError,
    temporary_name,
};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;

const DIRECTORY: &str = "uploads";
/// Smaller files are copied again.
pub(super) const FROM_BYTES: u64 = 32 << 20;
/// How many bytes may have to be copied again after a kill, apart from those that are being stored.
const RECORD_EVERY: u64 = 16 << 20;
/// How long a copy is kept that no upload goes on with.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The most bytes of a record: its offsets are at least [`RECORD_EVERY`] apart.
const RECORD_BYTES_MAX: u64 = 16 << 20;

/// What is copied where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Copying {
    source: LocalFile,
    directory: u64,
    name: Vec<u8>,
}

/// A file of this machine as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LocalFile {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl LocalFile {
    fn of(file: &File) -> std::io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// The copies that are kept in a state directory.
#[derive(Debug)]
pub(super) struct Unfinished {
    directory: PathBuf,
}

/// One copy, of which this process holds the record.
#[derive(Debug)]
pub(super) struct KeptCopy {
    path: PathBuf,
    /// Locked.
    record: File,
    entry: Vec<u8>,
    /// Up to where the clouds have it.
    stored: u64,
}

/// A record that was read: the copy, and up to where the clouds have it. A last line that is cut
/// short does not count.
fn parse(text: &str) -> Option<(Copying, u64)> {
    let mut lines = text
        .split_inclusive('\n')
        .filter_map(|it| it.strip_suffix('\n'));
    let copying: Copying = serde_json::from_str(lines.next()?).ok()?;
    let offsets = lines.filter_map(|line| line.parse().ok());
    let stored = offsets.max().unwrap_or(0);
    (stored <= copying.source.bytes).then_some((copying, stored))
}

fn entry_of(id: &str) -> Vec<u8> {
    temporary_name(id).into_bytes()
}

impl Unfinished {
    /// Begins; removes what no upload has gone on with.
    pub(super) async fn begin(state: &StateDirectory, fs: &FileSystem) -> CommandResult<Self> {
        let directory = state.join(DIRECTORY);
        create_private(&directory)?;
        let unfinished = Self { directory };
        for (kept, copying) in unfinished.all()? {
            let age = kept.record.metadata().and_then(|it| it.modified());
            let age = age.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
            match copying {
                None => kept.forget(),
                Some(copying) if age.is_ok_and(|age| age > KEPT) => {
                    kept.abandon(fs, InodeId(copying.directory)).await;
                }
                Some(_) => {}
            }
        }
        Ok(unfinished)
    }

    /// The records that no process holds, each with its copy if it can be read.
    fn all(&self) -> CommandResult<Vec<(KeptCopy, Option<Copying>)>> {
        let failed = |error| Failure::file("read", &self.directory, &error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let id = path.file_name().unwrap_or_default().to_string_lossy();
            if id.len() != 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                continue;
            }
            let Ok(record) = OpenOptions::new().append(true).open(&path) else {
                continue;
            };
            if rustix::fs::flock(&record, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let is_short = record
                .metadata()
                .is_ok_and(|it| it.len() <= RECORD_BYTES_MAX);
            let text = fs::read_to_string(&path).ok().filter(|_| is_short);
            let parsed = text.and_then(|text| parse(&text));
            let entry = entry_of(&id);
            let (copying, stored) = parsed.map_or((None, 0), |(copying, at)| (Some(copying), at));
            let kept = KeptCopy {
                path,
                record,
                entry,
                stored,
            };
            all.push((kept, copying));
        }
        Ok(all)
    }

    /// Opens the entry of a copy: one that was begun before, or a new one. Returns the inode, a
    /// handle to write to it, and the record.
    pub(super) async fn open(
        &self,
        fs: &FileSystem,
        caller: &Caller,
        file: &File,
        (directory, name): (InodeId, &[u8]),
        path: &Path,
    ) -> CommandResult<(InodeId, HandleId, KeptCopy)> {
        let source = LocalFile::of(file).map_err(|error| Failure::file("read", path, &error))?;
        let copying = Copying {
            source,
            directory: directory.0,
            name: name.to_vec(),
        };
        for (kept, found) in self.all()? {
            let Some(found) = found else { continue };
            if (found.directory, &found.name) != (copying.directory, &copying.name) {
                continue;
            }
            if found == copying
                && kept.stored > 0
                && let Some((inode, handle)) = kept.reopen(fs, caller, directory, path).await?
            {
                return Ok((inode, handle, kept));
            }
            // The source is another by now, or nothing of it was stored.
            kept.abandon(fs, directory).await;
        }
        let kept = self.record(&copying)?;
        // Closed to other users until it is complete and has its final mode.
        let made = fs.create(caller, directory, &kept.entry, 0o600, WRITE, true);
        match made.await {
            Ok((made, handle)) => Ok((made.inode, handle, kept)),
            Err(error) => {
                kept.forget();
                Err(refused(path, &error))
            }
        }
    }

    /// Records a copy before it begins.
    fn record(&self, copying: &Copying) -> CommandResult<KeptCopy> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| Failure::new(Exit::Error, format!("no randomness: {error}")))?;
        let id = format!("{:016x}", u64::from_be_bytes(bytes));
        let path = self.directory.join(&id);
        // Under this name no other command takes it before it is locked.
        let unlocked = path.with_extension("new");
        let failed = |error| Failure::file("write", &path, &error);
        let mut line = serde_json::to_vec(copying)
            .map_err(|error| Failure::new(Exit::Error, format!("cannot encode: {error}")))?;
        line.push(b'\n');
        let mut record = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&unlocked)
            .map_err(failed)?;
        quorumfs_gateway::lock::take(&record)
            .and_then(|()| record.write_all(&line))
            .and_then(|()| fs::rename(&unlocked, &path))
            .map_err(failed)?;
        Ok(KeptCopy {
            path,
            record,
            entry: entry_of(&id),
            stored: 0,
        })
    }
}

const WRITE: OpenMode = OpenMode {
    read: false,
    write: true,
    truncate: false,
    keep_atime: false,
    append: false,
};

impl KeptCopy {
    pub(super) fn entry(&self) -> &[u8] {
        &self.entry
    }

    /// Up to where the clouds have it.
    pub(super) const fn stored(&self) -> u64 {
        self.stored
    }

    /// Opens what was copied, cut to what is known to be stored; `None` if it is not there, or is
    /// another user's.
    async fn reopen(
        &self,
        fs: &FileSystem,
        caller: &Caller,
        directory: InodeId,
        path: &Path,
    ) -> CommandResult<Option<(InodeId, HandleId)>> {
        let found = child(fs, directory, &self.entry, path).await?;
        let Some(found) = found.filter(|it| {
            it.file_type() == FileType::File && it.uid.0 == caller.uid && it.size >= self.stored
        }) else {
            return Ok(None);
        };
        let failed = |error: VfsError| refused(path, &error);
        let opened = fs.open(caller, found.inode, WRITE).await.map_err(failed)?;
        let change = AttributeChange {
            size: Some(self.stored),
            ..AttributeChange::default()
        };
        let cut = fs.setattr(caller, found.inode, Some(opened.handle), change);
        if let Err(error) = cut.await {
            // The cut is what counts.
            let _ = fs.release(opened.handle).await;
            return Err(failed(error));
        }
        Ok(Some((found.inode, opened.handle)))
    }

    /// Records that the clouds have everything before `offset`.
    fn stored_to(&mut self, offset: u64) -> CommandResult<()> {
        self.stored = offset;
        let line = format!("{offset}\n");
        let written = self.record.write_all(line.as_bytes());
        written.map_err(|error| Failure::file("write", &self.path, &error))
    }

    /// The copy has its final name, or is gone.
    pub(super) fn forget(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the file cannot be removed");
        }
    }

    /// Removes the entry of a copy that is not gone on with. If that fails, a later upload tries
    /// again.
    pub(super) async fn abandon(self, fs: &FileSystem, directory: InodeId) {
        let caller = fs.this_process();
        match fs.unlink(&caller, directory, &self.entry).await {
            Ok(()) => self.forget(),
            // It, or its directory, is gone.
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {
                self.forget();
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the copy cannot be removed");
            }
        }
    }
}

/// Records how far a copy has come while it goes on.
#[derive(Debug)]
pub(super) struct Recording {
    kept: KeptCopy,
    /// The offset at which storing began last.
    last: u64,
    storing: Option<(u64, JoinHandle<Result<(), VfsError>>)>,
}

impl Recording {
    pub(super) fn new(kept: KeptCopy) -> Self {
        Self {
            last: kept.stored,
            kept,
            storing: None,
        }
    }

    /// Up to where the clouds have it.
    pub(super) const fn stored(&self) -> u64 {
        self.kept.stored
    }

    /// Everything before `offset` was written.
    pub(super) async fn written(
        &mut self,
        fs: &FileSystem,
        handle: HandleId,
        offset: u64,
        path: &Path,
    ) -> CommandResult<()> {
        if self
            .storing
            .as_ref()
            .is_some_and(|(_, it)| it.is_finished())
        {
            self.wait(path).await?;
        }
        if self.storing.is_none() && offset - self.last >= RECORD_EVERY {
            let fs = fs.clone();
            // Whatever tier the file or the mount has: a journal or memory is not the clouds.
            let storing = async move { fs.fsync_to_clouds(handle).await };
            let storing = tokio::spawn(storing);
            (self.last, self.storing) = (offset, Some((offset, storing)));
        }
        Ok(())
    }

    /// Waits for what is being stored, and records it.
    async fn wait(&mut self, path: &Path) -> CommandResult<()> {
        let Some((offset, storing)) = self.storing.take() else {
            return Ok(());
        };
        let stored = storing.await;
        stored
            .map_err(|error| Failure::new(Exit::Error, error.to_string()))?
            .map_err(|error| refused(path, &error))?;
        self.kept.stored_to(offset)
    }

    /// Ends: the record, with all that is known to be stored.
    pub(super) async fn end(mut self, path: &Path) -> (KeptCopy, CommandResult<()>) {
        let waited = self.wait(path).await;
        (self.kept, waited)
    }
}

const _: () = assert!(RECORD_EVERY > CHUNK_BYTES as u64 && FROM_BYTES > RECORD_EVERY);

#[cfg(test)]
mod tests {
    use super::*;

    fn copying() -> Copying {
        Copying {
            source: LocalFile {
                device: 1,
                inode: 2,
                bytes: 100,
                modified: (3, 4),
            },
            directory: 5,
            name: b"a\xff".to_vec(),
        }
    }

    #[test]
    fn a_record_tells_how_far_it_came_and_ignores_a_line_that_was_cut() {
        let first = serde_json::to_string(&copying()).unwrap();
        let read = |rest: &str| parse(&format!("{first}{rest}"));
        assert_eq!(read(""), None);
        assert_eq!(read("\n"), Some((copying(), 0)));
        assert_eq!(read("\n16\n32\n4"), Some((copying(), 32)));
        // Nothing of this kind was written: it is not believed.
        assert_eq!(read("\n101\n"), None);
        assert_eq!(parse("nonsense\n16\n"), None);
    }

    #[test]
    fn a_record_in_use_is_not_taken_by_another() {
        let directory = tempfile::tempdir().unwrap();
        let unfinished = Unfinished {
            directory: directory.path().to_path_buf(),
        };
        let mut kept = unfinished.record(&copying()).unwrap();
        kept.stored_to(16).unwrap();
        kept.stored_to(48).unwrap();
        assert!(unfinished.all().unwrap().is_empty());
        let entry = kept.entry.clone();
        drop(kept);
        let (found, what) = unfinished.all().unwrap().remove(0);
        assert_eq!((found.stored, found.entry.clone()), (48, entry));
        assert_eq!(what, Some(copying()));
        found.forget();
        assert!(unfinished.all().unwrap().is_empty());
    }
}
