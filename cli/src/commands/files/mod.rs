//! `put`, `upload`, `get`, `ls`, `cat`, `rm`, `trash`, `lease`: files of the volume, unmounted; and
//! `open`, which needs no volume.
//!
//! Each opens a session of its own, works through the same file system that a mount shows to the
//! kernel, as the user who started it, and ends the session. Errors are reported for each path; if
//! other paths succeeded, the command ends with [`Exit::Partial`].
//!
//! | Module | What it holds |
//! |---|---|
//! | [`walk`] | paths of the volume as inodes |
//! | [`mod@put`], [`mod@get`] | copying in and out |
//! | [`mod@upload`] | copying in with a progress bar, going on after a kill, and a link |
//! | [`unfinished`] | copies of large files that a later upload goes on with |
//! | [`below`] | writing on this machine, without following links |
//! | [`shared_directory`] | the directory that all users may put something into |
//! | [`mod@open`] | what a capsule leads to, without the volume |
//! | [`source`] | reading on this machine, without following links |
//! | [`aside`] | temporary entries in the volume for copies in progress |
//! | [`list`] | `ls` and `cat` |
//! | [`remove`] | `rm` |
//! | [`mod@trash`] | what was removed |
//! | [`mod@lease`] | locks that programs hold |

pub(super) mod aside;
mod below;
mod get;
mod lease;
mod list;
mod open;
mod put;
mod remove;
pub(super) mod shared_directory;
mod source;
mod trash;
mod unfinished;
mod upload;
pub(super) mod walk;

pub(crate) use get::get;
pub(crate) use lease::lease;
pub(crate) use list::{cat, date, ls};
pub(crate) use open::open_capsule;
pub(crate) use put::put;
pub(crate) use remove::rm;
pub(crate) use trash::{kept_for, trash};
pub(crate) use upload::upload;

use super::opened::Opened;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, line};
use quorumfs_gateway::vfs::{
    Attributes, FileSystem, FileType, HandleId, InodeId, OpenMode, VfsError,
};
use rustix::fs::{FileType as LocalType, Stat};
use rustix::io::Errno;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes to read or write in one call.
const CHUNK_BYTES: u32 = 1 << 20;

/// The kernel's inode number of every mount's root.
const ROOT_NUMBER: u64 = 1;
/// The rights that the owner of a directory needs to fill it.
const OWNER: u32 = 0o700;

/// The inode number that an inode has in a mount of the volume.
fn number_in_a_mount(fs: &FileSystem, inode: InodeId) -> u64 {
    match inode == fs.root() {
        true => ROOT_NUMBER,
        false => inode.0,
    }
}

/// Whether a file of the volume and a local one have the same size and time of modification.
fn is_unchanged(there: &Attributes, here: &Stat) -> bool {
    there.file_type() == FileType::File
        && LocalType::from_raw_mode(here.st_mode) == LocalType::RegularFile
        && u64::try_from(here.st_size) == Ok(there.size)
        && (here.st_mtime, here.st_mtime_nsec) == (there.mtime.seconds, there.mtime.nanos.into())
}

fn into_itself(source: &Path, target: &Path) -> Failure {
    let (source, target) = (source.display(), target.display());
    let message = format!("{source} cannot be copied into itself ({target})");
    Failure::new(Exit::Path, message)
        .hint("both are directories of this very volume; copy it next to itself")
}

/// What a copy preserves.
#[derive(Clone, Copy, Debug)]
struct Taking {
    /// Times of access, attributes, access control lists, hard links; owners, for the superuser.
    archive: bool,
    superuser: bool,
    /// Whether to copy unchanged files as well.
    all: bool,
    /// The user's umask.
    umask: u32,
}

impl Taking {
    fn new(archive: bool, all: bool) -> Self {
        use rustix::fs::Mode;
        // There is no call that only reads it.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(umask);
        Self {
            archive,
            superuser: rustix::process::geteuid().is_root(),
            all,
            umask: umask.as_raw_mode(),
        }
    }

    /// The mode of a new copy. A set-id bit is set only together with the owner whose rights it
    /// gives: the copy of another user's file would otherwise run as the copying user.
    fn mode(&self, of: u32) -> u32 {
        match (self.archive, self.superuser) {
            (true, true) => of & 0o7777,
            (true, false) => of & 0o777,
            (false, _) => of & 0o777 & !self.umask,
        }
    }
}

/// Whether a user may copy an attribute. The others are the superuser's, and attributes of one
/// machine's security module are often in the way on another.
fn is_taken(superuser: bool, name: &[u8]) -> bool {
    superuser || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

/// Whether to set an attribute before the mode, which may take away the right to set it.
fn comes_before_the_mode(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

/// Whether an attribute is unsupported on the other side, or not permitted to this user: the copy
/// counts without it.
fn is_left_out(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::PERM)
}

/// Logs once per command that attributes were left out.
fn log_left_out(name: &[u8], path: &Path) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        let (name, path) = (String::from_utf8_lossy(name), path.display());
        tracing::warn!("the attribute {name} of {path}, and others, cannot be set there");
    }
}

/// The progress of one command.
#[derive(Debug)]
pub(super) struct CommandProgress {
    output: Output,
    summary: Summary,
    last: Option<(PathBuf, Failure)>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    done: u64,
    failed: u64,
    /// Paths that were there already.
    skipped: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct PathFailure<'a> {
    path: &'a str,
    code: u8,
    message: &'a str,
}

impl CommandProgress {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            summary: Summary::default(),
            last: None,
        }
    }

    /// One path is done.
    pub(super) fn done(&mut self, bytes: u64) {
        self.summary.done += 1;
        self.summary.bytes = self.summary.bytes.saturating_add(bytes);
    }

    /// One path is there already.
    pub(super) fn skipped(&mut self) {
        self.summary.skipped += 1;
    }

    /// One path failed: reports it, and goes on.
    pub(super) fn failed(&mut self, path: &Path, failure: Failure) -> CommandResult<()> {
        self.summary.failed += 1;
        match self.last.replace((path.to_path_buf(), failure)) {
            Some((path, earlier)) => self.report(&path, &earlier),
            None => Ok(()),
        }
    }

    fn report(&self, path: &Path, failure: &Failure) -> CommandResult<()> {
        let path = path.display().to_string();
        let record = PathFailure {
            path: &path,
            code: failure.exit.code(),
            message: &failure.message,
        };
        line::clear(self.output);
        if self.output.is_json() {
            self.output.record("failed", &record, |_| String::new())
        } else {
            self.output.failure(failure);
            Ok(())
        }
    }

    /// Reports the failures that are still pending, before the command ends in another way.
    pub(super) fn report_all(&mut self) -> CommandResult<()> {
        match self.last.take() {
            Some((path, failure)) => self.report(&path, &failure),
            None => Ok(()),
        }
    }

    /// Why the command ends before its end: if it was stopped, with what it did.
    pub(super) fn stopped(
        &mut self,
        failure: Failure,
        people: impl FnOnce(&Summary) -> String,
    ) -> Failure {
        if failure.exit != Exit::Cancelled {
            return failure;
        }
        if let Err(unreported) = self.report_all() {
            return unreported;
        }
        let message = format!("stopped; {}", people(&self.summary));
        Failure { message, ..failure }
    }

    /// The result of the command: a lone failure is the command's own.
    pub(super) fn end(mut self, people: impl FnOnce(&Summary) -> String) -> CommandResult {
        match self.last.take() {
            Some((_, failure)) if self.summary.done + self.summary.skipped == 0 => Err(failure),
            Some((path, failure)) => {
                self.report(&path, &failure)?;
                self.output
                    .record("summary", &self.summary, |_| String::new())?;
                Ok(Exit::Partial)
            }
            None => {
                self.output.record("summary", &self.summary, people)?;
                Ok(Exit::Success)
            }
        }
    }
}

impl Summary {
    /// Paths that were handled.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Paths of which nothing was to do.
    pub(super) const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The text form after copying.
    fn copied(&self) -> String {
        self.moved("Copied")
    }

    /// The text form after opening a capsule.
    fn opened(&self) -> String {
        self.moved("Fetched")
    }

    /// The text form after uploading.
    fn uploaded(&self) -> String {
        self.moved("Uploaded")
    }

    fn moved(&self, verb: &str) -> String {
        let copied = format!("{verb} {}, {} bytes", counted(self.done), self.bytes);
        match self.skipped {
            0 => format!("{copied}."),
            _ => format!("{copied}; {} had not changed.", counted(self.skipped)),
        }
    }
}

/// The number of files, directories and links, in words.
pub(super) fn counted(paths: u64) -> String {
    match paths {
        1 => "1 path".to_string(),
        _ => format!("{paths} paths"),
    }
}

/// Opens a file to read it, if the user may.
async fn open(fs: &FileSystem, inode: InodeId, path: &Path) -> CommandResult<HandleId> {
    const MAY_READ: u8 = 4;
    let opening = async {
        fs.access(&fs.this_process(), inode, MAY_READ).await?;
        fs.open(&fs.this_process(), inode, OpenMode::READ).await
    };
    opening
        .await
        .map(|opened| opened.handle)
        .map_err(|error| refused(path, &error))
}

/// Ends the session whatever the outcome was; a failure to commit is a failure of the command.
async fn closing<T>(opened: Opened, outcome: CommandResult<T>) -> CommandResult<T> {
    let closed = opened.close().await;
    let value = outcome?;
    closed.map(|()| value)
}

/// The failure of a call on a path of the volume.
pub(super) fn refused(path: &Path, error: &VfsError) -> Failure {
    let failure = vfs_failure(error);
    let reason = match error {
        VfsError::Refused { errno, .. } => std::io::Error::from(*errno).to_string(),
        _ => failure.message,
    };
    Failure {
        message: format!("{}: {reason}", path.display()),
        ..failure
    }
}

/// A name that is safe on a terminal: control characters are shown, not obeyed.
fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
