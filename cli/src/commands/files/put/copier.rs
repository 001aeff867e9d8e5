//! Copies a file or link into the volume: under a temporary name first, then in its place.

use super::super::aside::Aside;
use super::super::source;
use super::super::unfinished::{FROM_BYTES, KeptCopy, Recording, Unfinished};
use super::super::walk::child;
use super::super::{
    CHUNK_BYTES, Taking, comes_before_the_mode, is_left_out, log_left_out, refused,
};
use super::{PutTarget, cancelled, in_the_way};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{
    AttributeChange, Attributes, Caller, FileSystem, FileType, HandleId, InodeId, OpenMode,
    RenameMode, SetMode, TimeChange, Timestamp, VfsError,
};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// How often a copy of standard input checks whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The content of a file.
pub(super) enum Content {
    /// All of it, read already.
    Read(Vec<u8>),
    Open(File, u64),
    StandardInput,
}

/// Properties of the copy apart from its content.
#[derive(Default)]
pub(super) struct Marks {
    pub(super) owner: Option<(u32, u32)>,
    /// None for a link, which has no mode of its own.
    pub(super) mode: Option<u16>,
    pub(super) accessed: Option<Timestamp>,
    pub(super) modified: Option<Timestamp>,
    pub(super) extended: Vec<(Vec<u8>, Vec<u8>)>,
    /// Access control lists that it inherits from its directory, and its source does not have.
    pub(super) dropped: Vec<&'static [u8]>,
}

impl Marks {
    /// Drops inherited lists that the source does not have.
    pub(super) fn without_lists_of(&mut self, made: &Attributes) {
        let lists = [
            (made.acl.access, &b"system.posix_acl_access"[..]),
            (made.acl.default, b"system.posix_acl_default"),
        ];
        let has = |list: &[u8]| self.extended.iter().any(|(name, _)| name == list);
        let dropped = lists
            .into_iter()
            .filter(|(there, list)| *there && !has(list));
        self.dropped = dropped.map(|(_, list)| list).collect();
    }
}

/// How far a command has come, in bytes.
#[derive(Debug, Default)]
pub(in super::super) struct Moved {
    /// Written by this command.
    pub(in super::super) written: AtomicU64,
    /// In place already: of files that have not changed.
    pub(in super::super) unchanged: AtomicU64,
    /// In place already: of files that an earlier command began.
    pub(in super::super) resumed: AtomicU64,
}

/// The copier; cheap to clone.
#[derive(Clone)]
pub(super) struct Copier {
    pub(super) fs: FileSystem,
    pub(super) aside: Arc<Aside>,
    pub(super) taking: Taking,
    /// The user who started the command.
    pub(super) caller: Caller,
    pub(super) stopped: Arc<AtomicBool>,
    pub(super) moved: Arc<Moved>,
    /// Where copies of large files are kept if this command does not finish them.
    pub(super) unfinished: Option<Arc<Unfinished>>,
}

/// The entry that a copy is written to.
struct Target {
    inode: InodeId,
    handle: HandleId,
    name: Vec<u8>,
    recording: Option<Recording>,
    /// As it was made, with the lists that it inherited; none for one that was begun before.
    made: Option<Attributes>,
}

impl Copier {
    pub(super) fn go_on(&self) -> CommandResult<()> {
        match self.stopped.load(Ordering::Relaxed) {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }

    pub(super) async fn standard_input(&self, place: &PutTarget) -> CommandResult<u64> {
        let marks = Marks {
            owner: None,
            mode: Some((0o666 & !self.taking.umask) as u16),
            accessed: None,
            modified: None,
            extended: Vec::new(),
            dropped: Vec::new(),
        };
        let there = child(&self.fs, place.directory, &place.name, &place.path).await?;
        self.file(
            Path::new("standard input"),
            Content::StandardInput,
            marks,
            place,
            there,
        )
        .await
        .map(|(bytes, _)| bytes)
    }

    pub(super) fn marks(&self, found: &Stat, extended: Vec<(Vec<u8>, Vec<u8>)>) -> Marks {
        let taking = &self.taking;
        let time = |seconds: i64, nanos: u64| Timestamp {
            seconds,
            nanos: u32::try_from(nanos).unwrap_or_default(),
        };
        let accessed = || time(found.st_atime, found.st_atime_nsec);
        Marks {
            owner: (taking.archive && taking.superuser).then_some((found.st_uid, found.st_gid)),
            mode: Some(taking.mode(found.st_mode) as u16),
            accessed: taking.archive.then(accessed),
            modified: Some(time(found.st_mtime, found.st_mtime_nsec)),
            extended,
            dropped: Vec::new(),
        }
    }

    /// Sets the properties of an inode: the owner first, since changing it removes set-id bits;
    /// then attributes that the mode may take away the right to set.
    pub(super) async fn mark(
        &self,
        inode: InodeId,
        handle: Option<HandleId>,
        marks: &Marks,
        path: &Path,
    ) -> CommandResult<()> {
        let failed = |error| refused(path, &error);
        if let Some((uid, gid)) = marks.owner {
            let change = AttributeChange {
                uid: Some(uid),
                gid: Some(gid),
                ..AttributeChange::default()
            };
            let changed = self.fs.setattr(&self.caller, inode, handle, change).await;
            changed.map_err(failed)?;
        }
        let before = |(name, _): &&(Vec<u8>, Vec<u8>)| comes_before_the_mode(name);
        self.set_all(inode, marks.extended.iter().filter(before), path)
            .await?;
        for list in &marks.dropped {
            let dropped = self.fs.removexattr(&self.caller, inode, list).await;
            if let Err(error) = dropped
                && error.errno() != Errno::NODATA
            {
                return Err(failed(error));
            }
        }
        let change = AttributeChange {
            mode: marks.mode,
            atime: marks.accessed.map(TimeChange::At),
            mtime: marks.modified.map(TimeChange::At),
            ..AttributeChange::default()
        };
        if change != AttributeChange::default() {
            let changed = self.fs.setattr(&self.caller, inode, handle, change).await;
            changed.map_err(failed)?;
        }
        let after = |it: &&(Vec<u8>, Vec<u8>)| !before(it);
        self.set_all(inode, marks.extended.iter().filter(after), path)
            .await
    }

    async fn set_all(
        &self,
        inode: InodeId,
        all: impl Iterator<Item = &(Vec<u8>, Vec<u8>)>,
        path: &Path,
    ) -> CommandResult<()> {
        for (name, value) in all {
            let (caller, mode) = (&self.caller, SetMode::Any);
            match self.fs.setxattr(caller, inode, name, value, mode).await {
                Ok(()) => {}
                Err(error) if is_left_out(error.errno()) => log_left_out(name, path),
                Err(error) => {
                    let failure = refused(path, &error);
                    let name = String::from_utf8_lossy(name);
                    let message = format!("the attribute {name} of {}", failure.message);
                    return Err(Failure { message, ..failure });
                }
            }
        }
        Ok(())
    }

    /// Copies a file under a temporary name, and then into its place. Returns its bytes and its
    /// inode.
    pub(super) async fn file(
        &self,
        source: &Path,
        content: Content,
        mut marks: Marks,
        place: &PutTarget,
        there: Option<Attributes>,
    ) -> CommandResult<(u64, InodeId)> {
        if there.is_some_and(|it| it.file_type() == FileType::Directory) {
            return Err(in_the_way(place, "file"));
        }
        if let Some(there) = there.filter(|it| it.file_type() == FileType::File)
            && !self.taking.archive
        {
            // A replaced file keeps the rights that it was given there.
            marks.mode = Some(there.mode.0 & 0o777);
        }
        let failed = |error| refused(&place.path, &error);
        let mut target = self.target(&content, place).await?;
        if let (true, Some(made)) = (self.taking.archive, &target.made) {
            marks.without_lists_of(made);
        }
        let (inode, handle) = (target.inode, target.handle);
        let copied = self.fill(source, content, &mut target, place).await;
        let (kept, recorded) = match target.recording {
            Some(recording) => {
                let (kept, recorded) = recording.end(&place.path).await;
                (Some(kept), recorded)
            }
            None => (None, Ok(())),
        };
        let copied = copied.and_then(|bytes| recorded.map(|()| bytes));
        let marked = match &copied {
            Ok(_) => self.mark(inode, Some(handle), &marks, &place.path).await,
            Err(_) => Ok(()),
        };
        let flushed = self.fs.flush(handle).await;
        let released = self.fs.release(handle).await;
        let whole = match (copied, marked) {
            (Ok(bytes), Ok(())) => flushed.and(released).map(|()| bytes).map_err(failed),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        };
        match (whole, kept) {
            (Ok(bytes), kept) => {
                self.replace(&target.name, place).await?;
                kept.into_iter().for_each(KeptCopy::forget);
                Ok((bytes, inode))
            }
            // The next upload goes on with it.
            (Err(failure), Some(kept)) if kept.stored() > 0 => Err(failure),
            (Err(failure), Some(kept)) => {
                kept.abandon(&self.fs, place.directory).await;
                Err(failure)
            }
            (Err(failure), None) => {
                self.remove(&target.name, place).await;
                Err(failure)
            }
        }
    }

    /// The entry to write a file to: that of a copy that was begun before, or a new one.
    async fn target(&self, content: &Content, place: &PutTarget) -> CommandResult<Target> {
        let directory = place.directory;
        if let (Some(unfinished), Content::Open(file, size)) = (&self.unfinished, content)
            && *size >= FROM_BYTES
        {
            let named = (directory, place.name.as_slice());
            let opening = unfinished.open(&self.fs, &self.caller, file, named, &place.path);
            let (inode, handle, kept) = opening.await?;
            self.moved
                .resumed
                .fetch_add(kept.stored(), Ordering::Relaxed);
            return Ok(Target {
                inode,
                handle,
                name: kept.entry().to_vec(),
                recording: Some(Recording::new(kept)),
                made: None,
            });
        }
        let name = self.aside.name(directory)?;
        let open = OpenMode {
            read: false,
            write: true,
            truncate: false,
            keep_atime: false,
            append: false,
        };
        // Closed to other users until it is complete and has its final mode.
        let made = self
            .fs
            .create(&self.caller, directory, &name, 0o600, open, true)
            .await;
        let (made, handle) = made.map_err(|error| self.not_made(error, &name, place))?;
        Ok(Target {
            inode: made.inode,
            handle,
            name,
            recording: None,
            made: Some(made),
        })
    }

    /// The failure of making a temporary entry, which then does not exist.
    pub(super) fn not_made(&self, error: VfsError, aside: &[u8], place: &PutTarget) -> Failure {
        self.aside.is_gone(aside);
        let failure = refused(&place.path, &error);
        match error.errno() {
            Errno::ACCESS | Errno::PERM => failure
                .or_hint("a copy is made next to its target: that needs the right to write there"),
            _ => failure,
        }
    }

    /// Removes a temporary entry.
    pub(super) async fn remove(&self, aside: &[u8], place: &PutTarget) {
        let removed = self.fs.unlink(&self.caller, place.directory, aside).await;
        if removed.is_ok() || removed.is_err_and(|error| error.errno() == Errno::NOENT) {
            self.aside.is_gone(aside);
        }
    }

    /// Renames a temporary entry to its final name.
    pub(super) async fn replace(&self, aside: &[u8], place: &PutTarget) -> CommandResult<()> {
        let (directory, mode) = (place.directory, RenameMode::Replace);
        let renamed = self
            .fs
            .rename(&self.caller, directory, aside, directory, &place.name, mode)
            .await;
        match renamed {
            Ok(_) => self.aside.is_gone(aside),
            Err(_) => self.remove(aside, place).await,
        }
        renamed
            .map_err(|error| refused(&place.path, &error))
            .map(|_| ())
    }

    async fn fill(
        &self,
        source: &Path,
        content: Content,
        target: &mut Target,
        place: &PutTarget,
    ) -> CommandResult<u64> {
        let (inode, handle) = (target.inode, target.handle);
        let unread = |error| Failure::file("read", source, &error);
        match content {
            Content::Read(bytes) => {
                let length = bytes.len() as u64;
                if !bytes.is_empty() {
                    self.write(handle, 0, &bytes, place).await?;
                }
                Ok(length)
            }
            Content::StandardInput => {
                let mut input = source::standard_input();
                let mut offset = 0;
                loop {
                    self.go_on()?;
                    let chunk = match tokio::time::timeout(LOOK_EVERY, input.recv()).await {
                        Err(_) => continue,
                        Ok(None) => return Ok(offset),
                        Ok(Some(chunk)) => chunk.map_err(unread)?,
                    };
                    self.write(handle, offset, &chunk, place).await?;
                    offset += chunk.len() as u64;
                }
            }
            Content::Open(file, size) => {
                let file = Arc::new(file);
                // Some files report no size and have content all the same (those of /proc).
                let from = target.recording.as_ref().map_or(0, Recording::stored);
                let (mut offset, mut end) = (from, if size == 0 { u64::MAX } else { from });
                loop {
                    self.go_on()?;
                    if offset >= end {
                        match source::next_data(&file, offset, size).map_err(unread)? {
                            Some(data) => (offset, end) = data,
                            None => break,
                        }
                    }
                    let room = (end - offset).min(CHUNK_BYTES.into());
                    let reading = file.clone();
                    let read = spawn_blocking(move || {
                        source::read_at(&reading, offset, usize::try_from(room).unwrap_or(1))
                    });
                    let chunk = read
                        .await
                        .map_err(|error| Failure::new(Exit::Error, error.to_string()))?
                        .map_err(unread)?;
                    if chunk.is_empty() {
                        break;
                    }
                    self.write(handle, offset, &chunk, place).await?;
                    offset += chunk.len() as u64;
                    if let Some(recording) = &mut target.recording {
                        recording
                            .written(&self.fs, handle, offset, &place.path)
                            .await?;
                    }
                }
                // The file ends with a hole, or was truncated meanwhile.
                let now = file.metadata().map_err(unread)?.len();
                let size = size.min(now).max(offset);
                if offset < size {
                    let change = AttributeChange {
                        size: Some(size),
                        ..AttributeChange::default()
                    };
                    let changed = self.fs.setattr(&self.caller, inode, Some(handle), change);
                    changed
                        .await
                        .map_err(|error| refused(&place.path, &error))?;
                }
                Ok(size)
            }
        }
    }

    async fn write(
        &self,
        handle: HandleId,
        offset: u64,
        bytes: &[u8],
        place: &PutTarget,
    ) -> CommandResult<()> {
        let written = self.fs.write(handle, offset, bytes).await;
        written.map_err(|error| refused(&place.path, &error))?;
        let bytes = bytes.len() as u64;
        self.moved.written.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}
