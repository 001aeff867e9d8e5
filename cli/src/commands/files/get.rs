//! `get`: files and directories of the volume onto this machine.
//!
//! All who may write into the volume decide what comes out of it, so that nothing of it is
//! believed more than its content:
//!
//! - A name is a name and never a path; below the target no link is followed ([`Below`]).
//! - A file is there under its name once it is whole, and not before.
//! - What was there before keeps its mode, and a directory its owner and times; the directory that
//!   the user named does so with `--archive` too.
//! - Modes of what is new are those of the volume without what the user's umask takes away, and
//!   without set-id and sticky bits: the copy belongs to who makes it, and a set-id file of the
//!   superuser's would be whatever its author likes. With `--archive` the superuser gets owners
//!   first and then all bits.
//!
//! A file that has the size and the time of last change that it has in the volume is not read
//! again, so that a copy that was cut short goes on where it was.

use super::below::{Below, Marks, write_at};
use super::list::print;
use super::walk::{entries, find, shown};
use super::{
    CHUNK_BYTES, OWNER, Progress, ROOT_NUMBER, Summary, Taking, caller, closing, into_itself,
    is_taken, is_unchanged, number_in_a_mount, open, printable, refused,
};
use crate::arguments::{General, GetArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_gateway::vfs::{Attributes, FileSystem, FileType, HandleId, InodeId, Seek};
use rustix::fs::{FileType as LocalType, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of fewer bytes are read whole, without a question for holes.
const HOLES_FROM: u64 = 64 << 10;

/// Copies out.
pub(crate) async fn get(general: &General, arguments: &GetArguments, output: Output) -> Outcome {
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
            let message = format!("{} and another source have one name", source.display());
            return Err(Failure::new(Exit::Usage, message).hint("copy them one after the other"));
        }
    }
    let taking = Taking::new(arguments.archive, arguments.all);
    let opened = Opened::to_read(general).await?;
    let mut progress = Progress::new(output);
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
) -> Outcome {
    let [source] = &arguments.sources[..] else {
        let message = "standard output takes one file";
        return Err(Failure::new(Exit::Usage, message).hint("name one source"));
    };
    let opened = Opened::to_read(general).await?;
    let mut progress = Progress::new(output);
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

/// The directory here that a source goes to, and its name there; none, if it is that directory.
fn place(source: &Path, target: &Path, into: bool) -> Outcome<(Below, Option<OsString>)> {
    match source.file_name() {
        name if into => Ok((Below::open(target)?, name.map(OsStr::to_os_string))),
        _ => match target.file_name() {
            Some(name) => {
                let parent = target.parent().unwrap_or(Path::new(""));
                Ok((Below::open(parent)?, Some(name.to_os_string())))
            }
            None => {
                let message = format!("{} is not there", target.display());
                Err(Failure::new(Exit::Path, message).hint("make the directory first"))
            }
        },
    }
}

/// If the target is in a mount of this very volume, the directories that it is in, and itself, as
/// the mount numbers them.
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

/// Something that is still to do.
enum Task {
    /// One inode: where it is in the volume, the directory here that it goes to, its names from the
    /// top on.
    Copy(PathBuf, Arc<Below>, Vec<OsString>, Attributes),
    /// A directory that is full: only now may it get a mode that forbids to write, and times that
    /// what was made in it would change.
    Leave(PathBuf, Arc<Below>, Marks),
}

/// One source on its way.
struct Copy<'a> {
    fs: &'a FileSystem,
    taking: Taking,
    /// The directory that everything goes below.
    top: Arc<Below>,
    /// Where it goes is in this very volume: what nothing may be copied into, being part of it.
    above: Option<BTreeSet<u64>>,
    /// Files with several names that were copied: their names from the top on.
    linked: BTreeMap<InodeId, Vec<OsString>>,
    progress: &'a mut Progress,
}

impl Copy<'_> {
    /// Copies a source and, without recursion, everything below it.
    async fn tree(&mut self, source: PathBuf, name: Option<OsString>) -> Outcome<()> {
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
    ) -> Outcome<()> {
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

    /// Makes a directory, or takes the one that is there, and has it left once it is full.
    async fn directory(
        &mut self,
        tasks: &mut Vec<Task>,
        source: &Path,
        below: &Below,
        name: &OsStr,
        found: &Attributes,
    ) -> Outcome<Arc<Below>> {
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
        } else if there.st_uid == caller().uid && there.st_mode & OWNER != OWNER {
            // What its owner may not fill is opened for as long as it is filled.
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

    /// Has what is in a directory copied.
    async fn enter(
        &mut self,
        tasks: &mut Vec<Task>,
        source: PathBuf,
        directory: Arc<Below>,
        names: Vec<OsString>,
        inode: InodeId,
    ) -> Outcome<()> {
        let all = match entries(self.fs, inode, &source).await {
            Ok(all) => all,
            Err(failure) => return self.progress.failed(&source, failure),
        };
        for (entry, attributes) in all.into_iter().rev() {
            let Some(name) = safe(&entry.name) else {
                let message = format!("`{}` is no name for a file", printable(&entry.name));
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
    ) -> Outcome<Option<u64>> {
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

    /// Copies a file; nothing, if it is there already.
    async fn file(
        &mut self,
        source: &Path,
        below: &Below,
        names: &[OsString],
        name: &OsStr,
        found: &Attributes,
    ) -> Outcome<Option<u64>> {
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
            // What is replaced keeps the rights that it was given here.
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

    /// What the copy is to have of an inode besides its content.
    async fn marks(&self, source: &Path, found: &Attributes) -> Outcome<Marks> {
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

/// The extended attributes that the user takes along.
async fn extended(
    fs: &FileSystem,
    source: &Path,
    inode: InodeId,
    superuser: bool,
) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
    let unread = |error| refused(source, &error);
    let names = fs.listxattr(&caller(), inode).await.map_err(unread)?;
    let mut all = Vec::new();
    let names = names.split(|byte| *byte == 0).filter(|it| !it.is_empty());
    for name in names.filter(|name| is_taken(superuser, name)) {
        let value = fs.getxattr(&caller(), inode, name).await.map_err(unread)?;
        all.push((name.to_vec(), value.to_vec()));
    }
    Ok(all)
}

/// Copies content; what was never written stays a hole. Gives how many bytes the file has.
async fn fill(
    fs: &FileSystem,
    source: &Path,
    path: &Path,
    into: &std::fs::File,
    found: &Attributes,
) -> Outcome<u64> {
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
) -> Outcome<u64> {
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
    // It may end with a hole; and it may be shorter by now, or longer than what was read.
    let now = fs.getattr(found.inode).await.map_err(unread)?.size;
    let size = found.size.min(now).max(offset);
    into.set_len(size).map_err(unwritten)?;
    Ok(size)
}

/// The next place of a kind, if there is one before the end.
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
