//! `get`: copies files and directories of the volume to this machine.
//!
//! The volume's writers decide everything that comes out of it, so nothing of it is trusted except
//! its content:
//!
//! - A name is a name and never a path; below the target no link is followed ([`Below`]).
//! - A file gets its name once it is complete, and not before.
//! - An existing file keeps its mode, and a directory its owner and times; the directory that the
//!   user named does so with `--archive` too.
//! - New inodes get the mode of the volume, reduced by the user's umask and without set-id and
//!   sticky bits: the copy belongs to the user who makes it, and a set-id file of the superuser
//!   could be anything that its author likes. With `--archive` the superuser sets owners first and
//!   then all bits.
//!
//! A file whose size and time of modification are the same as in the volume is not read again, so
//! that an interrupted copy continues where it was.

use super::below::{Below, Marks, write_at};
use super::list::print;
use super::walk::{entries, find, shown};
use super::{
    CHUNK_BYTES, CommandProgress, OWNER, ROOT_NUMBER, Summary, Taking, closing, into_itself,
    is_taken, is_unchanged, number_in_a_mount, open, printable, refused,
};
use crate::arguments::{General, GetArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{Attributes, FileSystem, FileType, HandleId, InodeId, Seek};
use rustix::fs::{FileType as LocalType, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of fewer bytes are read whole, without looking for holes.
const HOLES_FROM: u64 = 64 << 10;

/// Runs the command.
pub(crate) async fn get(
    general: &General,
    arguments: &GetArguments,
    output: Output,
) -> CommandResult {
    if arguments.target.as_os_str() == "-" {
        return to_standard_output(general, arguments, output).await;
    }
    let into = arguments.target.is_dir();
    if !into && arguments.sources.len() > 1 {
        let message = format!("{} is not a directory", arguments.target.display());
        return Err(Failure::new(Exit::Usage, message).hint("several sources need a directory"));
    }
    let mut names = BTreeSet::new();
    for source in &arguments.sources {
        let source = shown(source);
        if !names.insert(source.file_name().map(OsStr::to_os_string)) {
            let message = format!("{} and another source have the same name", source.display());
            return Err(Failure::new(Exit::Usage, message).hint("copy them one after the other"));
        }
    }
    let taking = Taking::new(arguments.archive, arguments.all);
    let opened = Opened::to_read(general).await?;
    let mut progress = CommandProgress::new(output);
    let mut outcome = Ok(());
    for source in &arguments.sources {
        let source = shown(source);
        let got = match place(&source, &arguments.target, into) {
            Ok((top, name)) => {
                let mut copy = Copy {
                    fs: opened.file_system(),
                    taking,
                    above: above(&top, &arguments.target, opened.file_system()),
                    top: Arc::new(top),
                    linked: BTreeMap::new(),
                    progress: &mut progress,
                };
                copy.tree(source, name).await
            }
            Err(failure) => progress.failed(&source, failure),
        };
        outcome = outcome.and(got);
    }
    closing(opened, outcome).await?;
    progress.end(Summary::copied)
}

async fn to_standard_output(
    general: &General,
    arguments: &GetArguments,
    output: Output,
) -> CommandResult {
    let [source] = &arguments.sources[..] else {
        let message = "standard output takes one file";
        return Err(Failure::new(Exit::Usage, message).hint("name one source"));
    };
    let opened = Opened::to_read(general).await?;
    let mut progress = CommandProgress::new(output);
    let source = shown(source);
    let outcome = match print(opened.file_system(), &source).await {
        Ok(bytes) => {
            progress.done(bytes);
            Ok(())
        }
        Err(failure) => progress.failed(&source, failure),
    };
    closing(opened, outcome).await?;
    if progress.summary.failed == 0 {
        return Ok(Exit::Success);
    }
    progress.end(Summary::copied)
}

/// The local directory that a source goes to, and its name there; no name if it is that directory.
fn place(source: &Path, target: &Path, into: bool) -> CommandResult<(Below, Option<OsString>)> {
    match source.file_name() {
        name if into => Ok((Below::open(target)?, name.map(OsStr::to_os_string))),
        _ => match target.file_name() {
            Some(name) => {
                let parent = target.parent().unwrap_or(Path::new(""));
                Ok((Below::open(parent)?, Some(name.to_os_string())))
            }
            None => {
                let message = format!("{} does not exist", target.display());
                Err(Failure::new(Exit::Path, message).hint("make the directory first"))
            }
        },
    }
}

/// If the target is in a mount of this very volume: the target and its parents, by the mount's
/// inode numbers.
fn above(top: &Below, target: &Path, fs: &FileSystem) -> Option<BTreeSet<u64>> {
    use std::os::unix::fs::MetadataExt;
    let here = top.itself().ok()?;
    if top.volume()? != fs.volume_name().as_bytes() {
        return None;
    }
    let mut above = BTreeSet::from([here.st_ino]);
    for directory in std::fs::canonicalize(target.parent()?).ok()?.ancestors() {
        match std::fs::metadata(directory) {
            Ok(found) if found.dev() == here.st_dev => above.insert(found.ino()),
            _ => break,
        };
    }
    if above.contains(&fs.root().0) {
        above.insert(ROOT_NUMBER);
    }
    Some(above)
}

/// A step of a copy.
enum Task {
    /// Copy one inode: its path in the volume, its local directory, its names below the top.
    Copy(PathBuf, Arc<Below>, Vec<OsString>, Attributes),
    /// Finish a full directory: only now may it get a mode that forbids writing, and times that
    /// making entries would change.
    Leave(PathBuf, Arc<Below>, Marks),
}

/// One source in progress.
struct Copy<'a> {
    fs: &'a FileSystem,
    taking: Taking,
    /// The directory above everything that is copied.
    top: Arc<Below>,
    /// If the target is in this very volume: directories that may not be copied, since they contain
    /// the target.
    above: Option<BTreeSet<u64>>,
    /// Copied files with several names: their names below the top.
    linked: BTreeMap<InodeId, Vec<OsString>>,
    progress: &'a mut CommandProgress,
}

impl Copy<'_> {
    /// Copies a source and everything below it, without recursion.
    async fn tree(&mut self, source: PathBuf, name: Option<OsString>) -> CommandResult<()> {
        let found = match find(self.fs, &source).await {
            Ok(found) => found,
            Err(failure) => return self.progress.failed(&source, failure),
        };
        let mut tasks = Vec::new();
        match name {
            Some(name) => tasks.push(Task::Copy(source, self.top.clone(), vec![name], found)),
            // The directory that the user named keeps its mode, owner and times.
            None => {
                let top = self.top.clone();
                self.enter(&mut tasks, source, top, Vec::new(), found.inode)
                    .await?;
            }
        }
        while let Some(task) = tasks.pop() {
            match task {
                Task::Copy(source, below, names, found) => {
                    self.one(&mut tasks, source, below, names, found).await?;
                }
                Task::Leave(source, below, marks) => {
                    if let Err(failure) = below.mark(&marks) {
                        self.progress.failed(&source, failure)?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn one(
        &mut self,
        tasks: &mut Vec<Task>,
        source: PathBuf,
        below: Arc<Below>,
        names: Vec<OsString>,
        found: Attributes,
    ) -> CommandResult<()> {
        let name = names.last().cloned().unwrap_or_default();
        let copied = match found.file_type() {
            FileType::Directory => {
                match self.directory(tasks, &source, &below, &name, &found).await {
                    Ok(directory) => {
                        self.progress.done(0);
                        let inode = found.inode;
                        return self.enter(tasks, source, directory, names, inode).await;
                    }
                    Err(failure) => Err(failure),
                }
            }
            FileType::Symlink => self.link(&source, &below, &name, &found).await,
            FileType::File => self.file(&source, &below, &names, &name, &found).await,
            _ => {
                let message = format!("{} is neither file, directory nor link", source.display());
                Err(Failure::new(Exit::Path, message).hint("it was skipped"))
            }
        };
        match copied {
            Ok(Some(bytes)) => self.progress.done(bytes),
            Ok(None) => self.progress.skipped(),
            Err(failure) => self.progress.failed(&source, failure)?,
        }
        Ok(())
    }

    /// Makes a directory, or takes the existing one, and schedules its last step for when it is
    /// full.
    async fn directory(
        &mut self,
        tasks: &mut Vec<Task>,
        source: &Path,
        below: &Below,
        name: &OsStr,
        found: &Attributes,
    ) -> CommandResult<Arc<Below>> {
        let number = number_in_a_mount(self.fs, found.inode);
        if self.above.as_ref().is_some_and(|it| it.contains(&number)) {
            return Err(into_itself(source, &below.path_of(name)));
        }
        let (directory, made) = below.directory(name)?;
        let there = directory.itself()?;
        if let Some(above) = &mut self.above {
            if there.st_ino == number {
                return Err(into_itself(source, &below.path_of(name)));
            }
            above.insert(there.st_ino);
        }
        let directory = Arc::new(directory);
        let marks = if made || self.taking.archive {
            Some(Marks {
                keeps_group: !self.taking.archive,
                ..self.marks(source, found).await?
            })
        } else if there.st_uid == rustix::process::geteuid().as_raw()
            && there.st_mode & OWNER != OWNER
        {
            // A directory that its owner may not fill is opened meanwhile.
            let mode = |mode| Marks {
                mode: Some(mode & 0o7777),
                ..Marks::default()
            };
            directory.mark(&mode(there.st_mode | OWNER))?;
            Some(mode(there.st_mode))
        } else {
            None
        };
        if let Some(marks) = marks {
            tasks.push(Task::Leave(source.to_path_buf(), directory.clone(), marks));
        }
        Ok(directory)
    }

    /// Schedules the entries of a directory.
    async fn enter(
        &mut self,
        tasks: &mut Vec<Task>,
        source: PathBuf,
        directory: Arc<Below>,
        names: Vec<OsString>,
        inode: InodeId,
    ) -> CommandResult<()> {
        let all = match entries(self.fs, inode, &source).await {
            Ok(all) => all,
            Err(failure) => return self.progress.failed(&source, failure),
        };
        for (entry, attributes) in all.into_iter().rev() {
            let Some(name) = safe(&entry.name) else {
                let message = format!("`{}` is not a valid file name", printable(&entry.name));
                let failure = Failure::new(Exit::Damaged, message);
                self.progress.failed(&source, failure)?;
                continue;
            };
            let path = source.join(&name);
            let names = names.iter().cloned().chain([name]).collect();
            tasks.push(Task::Copy(path, directory.clone(), names, attributes));
        }
        Ok(())
    }

    async fn link(
        &self,
        source: &Path,
        below: &Below,
        name: &OsStr,
        found: &Attributes,
    ) -> CommandResult<Option<u64>> {
        let leads_to = self.fs.readlink(found.inode).await;
        let leads_to = leads_to.map_err(|error| refused(source, &error))?;
        let marks = Marks {
            mode: None,
            extended: Vec::new(),
            ..self.marks(source, found).await?
        };
        below.symlink(name, OsStr::from_bytes(&leads_to), &marks)?;
        Ok(Some(0))
    }

    /// Copies a file, unless it is there already.
    async fn file(
        &mut self,
        source: &Path,
        below: &Below,
        names: &[OsString],
        name: &OsStr,
        found: &Attributes,
    ) -> CommandResult<Option<u64>> {
        let several = self.taking.archive && found.links > 1;
        if several && let Some(first) = self.linked.get(&found.inode) {
            below.link(name, &self.top, first)?;
            return Ok(Some(0));
        }
        let mut marks = self.marks(source, found).await?;
        let there = below.look(name)?;
        if let (Some(there), Some(_)) = (&there, &self.above)
            && there.st_ino == found.inode.0
        {
            let (source, path) = (source.display(), below.path_of(name));
            let message = format!("{source} and {} are one file", path.display());
            return Err(Failure::new(Exit::Path, message).hint("there is nothing to copy"));
        }
        if let Some(there) = there
            && !self.taking.archive
            && LocalType::from_raw_mode(there.st_mode) == LocalType::RegularFile
        {
            // A replaced file keeps the rights that it was given here.
            marks.mode = Some(there.st_mode & 0o777);
        }
        let unchanged = |there: &Stat| !self.taking.all && is_unchanged(found, there);
        let same = match there.filter(unchanged) {
            Some(_) if !self.taking.archive => true,
            Some(there) => below.mark_file(name, &there, &marks)?,
            None => false,
        };
        let copied = if same {
            None
        } else {
            let part = below.part(name)?;
            let path = below.path_of(name);
            let bytes = fill(self.fs, source, &path, &part.file, found).await?;
            part.finish(name, &marks)?;
            Some(bytes)
        };
        if several {
            self.linked.insert(found.inode, names.to_vec());
        }
        Ok(copied)
    }

    /// The properties of the copy apart from its content.
    async fn marks(&self, source: &Path, found: &Attributes) -> CommandResult<Marks> {
        let Taking {
            archive, superuser, ..
        } = self.taking;
        let time = |at: quorumfs_gateway::vfs::Timestamp| (at.seconds, at.nanos);
        Ok(Marks {
            owner: (archive && superuser).then_some((found.uid.0, found.gid.0)),
            mode: Some(self.taking.mode(found.mode.0.into())),
            accessed: archive.then_some(time(found.atime)),
            modified: Some(time(found.mtime)),
            extended: match archive {
                true => extended(self.fs, source, found.inode, superuser).await?,
                false => Vec::new(),
            },
            keeps_group: false,
            lists: archive,
        })
    }
}

fn safe(name: &[u8]) -> Option<OsString> {
    let unsafe_name = name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, b'/' | 0));
    (!unsafe_name).then(|| OsString::from_vec(name.to_vec()))
}

/// The extended attributes to copy.
async fn extended(
    fs: &FileSystem,
    source: &Path,
    inode: InodeId,
    superuser: bool,
) -> CommandResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let unread = |error| refused(source, &error);
    let names = fs
        .listxattr(&fs.this_process(), inode)
        .await
        .map_err(unread)?;
    let mut all = Vec::new();
    let names = names.split(|byte| *byte == 0).filter(|it| !it.is_empty());
    for name in names.filter(|name| is_taken(superuser, name)) {
        let value = fs
            .getxattr(&fs.this_process(), inode, name)
            .await
            .map_err(unread)?;
        all.push((name.to_vec(), value.to_vec()));
    }
    Ok(all)
}

/// Copies content and preserves holes. Returns the size of the file.
async fn fill(
    fs: &FileSystem,
    source: &Path,
    path: &Path,
    into: &std::fs::File,
    found: &Attributes,
) -> CommandResult<u64> {
    let handle = open(fs, found.inode, source).await?;
    let copied = copy(fs, source, path, into, found, handle).await;
    let _ = fs.release(handle).await;
    copied
}

async fn copy(
    fs: &FileSystem,
    source: &Path,
    path: &Path,
    into: &std::fs::File,
    found: &Attributes,
    handle: HandleId,
) -> CommandResult<u64> {
    let unread = |error| refused(source, &error);
    let unwritten = |error| Failure::file("write", path, &error);
    let whole = found.size < HOLES_FROM;
    let (mut offset, mut end) = (0, if whole { u64::MAX } else { 0 });
    loop {
        if offset == end {
            let Some(data) = next(fs, handle, offset, Seek::Data).await.map_err(unread)? else {
                break;
            };
            offset = data;
            let hole = next(fs, handle, offset, Seek::Hole).await.map_err(unread)?;
            end = hole.unwrap_or(u64::MAX);
        }
        let room = (end - offset).min(CHUNK_BYTES.into());
        let size = u32::try_from(room).unwrap_or(CHUNK_BYTES);
        let chunk = fs.read(handle, offset, size).await.map_err(unread)?;
        if chunk.is_empty() {
            break;
        }
        write_at(into, &chunk, offset).map_err(unwritten)?;
        offset += chunk.len() as u64;
    }
    // The file may end with a hole, and may have changed its length meanwhile.
    let now = fs.getattr(found.inode).await.map_err(unread)?.size;
    let size = found.size.min(now).max(offset);
    into.set_len(size).map_err(unwritten)?;
    Ok(size)
}

/// The next offset of a kind, if there is one before the end.
async fn next(
    fs: &FileSystem,
    handle: HandleId,
    offset: u64,
    to: Seek,
) -> Result<Option<u64>, quorumfs_gateway::vfs::VfsError> {
    use quorumfs_gateway::vfs::VfsError;
    match fs.seek(handle, offset, to).await {
        Ok(place) => Ok(Some(place)),
        Err(VfsError::Refused {
            errno: Errno::NXIO, ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_the_volume_is_never_a_path() {
        for name in [&b""[..], b".", b"..", b"../x", b"a/b", b"nul\0"] {
            assert_eq!(safe(name), None);
        }
        assert_eq!(safe(b"..x"), Some("..x".into()));
    }
}
