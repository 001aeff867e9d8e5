//! Copies one source with everything below it.

use super::super::source::{self, Source, SourceKind};
use super::super::walk::child;
use super::super::{CommandProgress, OWNER, into_itself, is_unchanged, number_in_a_mount, refused};
use super::copier::{Content, Copier, Marks};
use super::{PutTarget, in_the_way};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{Attributes, FileType, InodeId};
use rustix::fs::Stat;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use tokio::task::{JoinSet, spawn_blocking};

/// Files of fewer bytes are copied concurrently.
const SMALL_BYTES: u64 = 512 << 10;
/// The most of them, and the most bytes.
const UNDER_WAY_MAX: usize = 512;
const UNDER_WAY_BYTES_MAX: u64 = 32 << 20;

/// One source in progress, with everything below it.
pub(super) struct Tree<'a> {
    copier: &'a Copier,
    /// The target and its parents, by the inode numbers of a mount.
    above: &'a BTreeSet<u64>,
    /// For local devices, whether they are mounts of this volume.
    same_volume: BTreeMap<u64, bool>,
    /// Copied files with several names, by local device and inode number.
    linked: BTreeMap<(u64, u64), InodeId>,
    /// Directories that get their properties once they are full.
    full: Vec<(InodeId, Marks, PathBuf)>,
    under_way: UnderWay,
}

impl<'a> Tree<'a> {
    pub(super) fn new(copier: &'a Copier, above: &'a BTreeSet<u64>) -> Self {
        Self {
            copier,
            above,
            same_volume: BTreeMap::new(),
            linked: BTreeMap::new(),
            full: Vec::new(),
            under_way: UnderWay::default(),
        }
    }

    /// Copies it, without recursion.
    pub(super) async fn copy(
        &mut self,
        source: Source,
        place: PutTarget,
        progress: &mut CommandProgress,
    ) -> CommandResult<()> {
        let mut waiting = vec![(source, place)];
        let mut stopped = Ok(());
        while let Some((source, place)) = waiting.pop() {
            stopped = self.copier.go_on();
            if stopped.is_err() {
                break;
            }
            let copied = self.one(&source, place, &mut waiting, progress).await;
            match copied {
                Ok(Copied::Whole(bytes)) => progress.done(bytes),
                Ok(Copied::UnderWay) => {}
                Ok(Copied::Unchanged) => progress.skipped(),
                Err(failure) if failure.exit == Exit::Cancelled => {
                    stopped = Err(failure);
                    break;
                }
                Err(failure) => {
                    // Copies in progress are finished even if others fail.
                    if let Err(failure) = progress.failed(&source.path, failure) {
                        stopped = Err(failure);
                        break;
                    }
                }
            }
        }
        // Copies in progress are finished, and directories completed, whether it was stopped or
        // not.
        self.under_way.end(progress).await?;
        for (inode, marks, path) in std::mem::take(&mut self.full).into_iter().rev() {
            if let Err(failure) = self.copier.mark(inode, None, &marks, &path).await {
                progress.failed(&path, failure)?;
            }
        }
        stopped
    }

    async fn one(
        &mut self,
        source: &Source,
        place: PutTarget,
        waiting: &mut Vec<(Source, PutTarget)>,
        progress: &mut CommandProgress,
    ) -> CommandResult<Copied> {
        let (kind, found) = source.look()?;
        match kind {
            SourceKind::Directory => self.directory(source, &place, waiting).await,
            SourceKind::Link => self.link(source, &found, &place).await,
            SourceKind::File => self.file(source, place, progress).await,
            SourceKind::Other => {
                let path = source.path.display();
                let message = format!("{path} is neither file, directory nor link");
                Err(Failure::new(Exit::Path, message).hint("it was skipped"))
            }
        }
    }

    /// Whether an open inode is in a mount of the target volume.
    fn is_of_this_volume(&mut self, open: impl AsFd, device: u64) -> bool {
        let volume = self.copier.fs.volume_name();
        let known = self.same_volume.entry(device);
        *known.or_insert_with(|| {
            source::volume_of(open).is_some_and(|found| found == volume.as_bytes())
        })
    }

    async fn directory(
        &mut self,
        source: &Source,
        place: &PutTarget,
        waiting: &mut Vec<(Source, PutTarget)>,
    ) -> CommandResult<Copied> {
        let copier = self.copier;
        let (opened, children) = source.enter()?;
        let found = rustix::fs::fstat(&opened)
            .map_err(|error| Failure::file("read", &source.path, &error.into()))?;
        let there = child(&copier.fs, place.directory, &place.name, &place.path).await?;
        if self.is_of_this_volume(&opened, found.st_dev) {
            let same =
                there.is_some_and(|it| number_in_a_mount(&copier.fs, it.inode) == found.st_ino);
            if same || self.above.contains(&found.st_ino) {
                return Err(into_itself(&source.path, &place.path));
            }
        }
        let (inode, marks) = self.filled(source, &opened, &found, place, there).await?;
        if let Some(marks) = marks {
            self.full.push((inode, marks, place.path.clone()));
        }
        for child in children.into_iter().rev() {
            let place = PutTarget {
                directory: inode,
                name: source::bytes_of(child.name()),
                path: place.path.join(child.name()),
            };
            waiting.push((child, place));
        }
        Ok(Copied::Whole(0))
    }

    /// The directory to fill, and its properties for the end.
    async fn filled(
        &self,
        source: &Source,
        opened: impl AsFd,
        found: &Stat,
        place: &PutTarget,
        mut there: Option<Attributes>,
    ) -> CommandResult<(InodeId, Option<Marks>)> {
        let copier = self.copier;
        let failed = |error| refused(&place.path, &error);
        let mut made = false;
        if there.is_none() {
            // Closed to other users until it is full and has its final mode.
            let (fs, caller) = (&copier.fs, &copier.caller);
            match fs.mkdir(caller, place.directory, &place.name, OWNER).await {
                Ok(attributes) => (there, made) = (Some(attributes), true),
                // Another copy made it meanwhile.
                Err(error) if error.errno() == Errno::EXIST => {
                    fs.drop_caches();
                    there = child(fs, place.directory, &place.name, &place.path).await?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let there = there.filter(|it| it.file_type() == FileType::Directory);
        let there = there.ok_or_else(|| in_the_way(place, "directory"))?;
        if made || copier.taking.archive {
            let mut marks = copier.marks(found, self.extended(opened, source)?);
            if copier.taking.archive {
                marks.without_lists_of(&there);
            } else {
                // The bit that it inherits from its parent stays, as with `mkdir`.
                marks.mode = marks.mode.map(|mode| mode | there.mode.0 & 0o2000);
            }
            return Ok((there.inode, Some(marks)));
        }
        // A directory that its owner may not fill is opened meanwhile.
        if there.uid.0 == copier.caller.uid && u32::from(there.mode.0) & OWNER != OWNER {
            let only = |mode| Marks {
                mode: Some(mode),
                ..Marks::default()
            };
            let open = only(there.mode.0 | OWNER as u16);
            copier.mark(there.inode, None, &open, &place.path).await?;
            return Ok((there.inode, Some(only(there.mode.0))));
        }
        Ok((there.inode, None))
    }

    fn extended(&self, of: impl AsFd, source: &Source) -> CommandResult<Vec<(Vec<u8>, Vec<u8>)>> {
        match self.copier.taking.archive {
            true => source::extended(of, &source.path, self.copier.taking.superuser),
            false => Ok(Vec::new()),
        }
    }

    async fn link(
        &self,
        source: &Source,
        found: &Stat,
        place: &PutTarget,
    ) -> CommandResult<Copied> {
        let (copier, fs) = (self.copier, &self.copier.fs);
        let leads_to = source.leads_to()?;
        let there = child(fs, place.directory, &place.name, &place.path).await?;
        match there.map(|it| (it.file_type(), it.inode)) {
            Some((FileType::Directory, _)) => return Err(in_the_way(place, "link")),
            Some((FileType::Symlink, inode))
                if !copier.taking.archive
                    && fs.readlink(inode).await.is_ok_and(|it| it == leads_to) =>
            {
                return Ok(Copied::Unchanged);
            }
            _ => {}
        }
        let aside = copier.aside.name(place.directory)?;
        let made = fs
            .symlink(&copier.caller, place.directory, &aside, &leads_to)
            .await
            .map_err(|error| copier.not_made(error, &aside, place))?;
        let marks = Marks {
            mode: None,
            ..copier.marks(found, Vec::new())
        };
        let marked = copier.mark(made.inode, None, &marks, &place.path).await;
        if let Err(failure) = marked {
            copier.remove(&aside, place).await;
            return Err(failure);
        }
        copier.replace(&aside, place).await?;
        Ok(Copied::Whole(0))
    }

    async fn file(
        &mut self,
        source: &Source,
        place: PutTarget,
        progress: &mut CommandProgress,
    ) -> CommandResult<Copied> {
        let copier = self.copier;
        let (file, found) = source.open()?;
        let there = child(&copier.fs, place.directory, &place.name, &place.path).await?;
        if self.is_of_this_volume(&file, found.st_dev)
            && there.is_some_and(|it| it.inode.0 == found.st_ino)
        {
            let (path, place) = (source.path.display(), place.path.display());
            let message = format!("{path} and {place} of the volume are one file");
            return Err(Failure::new(Exit::Path, message).hint("there is nothing to copy"));
        }
        let several = copier.taking.archive && found.st_nlink > 1;
        if several && let Some(first) = self.linked.get(&(found.st_dev, found.st_ino)) {
            return self.another_name(*first, &place, there).await;
        }
        let marks = copier.marks(&found, self.extended(&file, source)?);
        if !copier.taking.all
            && let Some(there) = &there
            && is_unchanged(there, &found)
        {
            if copier.taking.archive {
                let mut marks = marks;
                marks.without_lists_of(there);
                copier.mark(there.inode, None, &marks, &place.path).await?;
            }
            self.remember(several, &found, there.inode);
            let unchanged = &copier.moved.unchanged;
            unchanged.fetch_add(there.size, Ordering::Relaxed);
            return Ok(Copied::Unchanged);
        }
        let size = u64::try_from(found.st_size).unwrap_or_default();
        // Files that report no size may have content all the same; reading one byte tells.
        let one = match size {
            0 => source::read_whole(&file, 1),
            _ => Ok(Vec::new()),
        };
        let unread = |error| Failure::file("read", &source.path, &error);
        let says_its_size = one.map_err(unread)?.is_empty();
        if size < SMALL_BYTES && says_its_size && !several {
            self.under_way.room_for(size, progress).await?;
            let read = spawn_blocking(move || source::read_whole(&file, size as usize));
            let content = read
                .await
                .map_err(|error| Failure::new(Exit::Error, error.to_string()))?
                .map_err(unread)?;
            let (copier, path) = (copier.clone(), source.path.clone());
            self.under_way.begin(content.len() as u64, async move {
                let content = Content::Read(content);
                let copied = copier.file(&path, content, marks, &place, there).await;
                (path, copied.map(|(bytes, _)| bytes))
            });
            return Ok(Copied::UnderWay);
        }
        let content = Content::Open(file, size);
        let copied = copier.file(&source.path, content, marks, &place, there);
        let (bytes, inode) = copied.await?;
        self.remember(several, &found, inode);
        Ok(Copied::Whole(bytes))
    }

    fn remember(&mut self, several: bool, found: &Stat, inode: InodeId) {
        if several {
            self.linked.insert((found.st_dev, found.st_ino), inode);
        }
    }

    /// Makes another name of a file that was copied before.
    async fn another_name(
        &self,
        inode: InodeId,
        place: &PutTarget,
        there: Option<Attributes>,
    ) -> CommandResult<Copied> {
        let fs = &self.copier.fs;
        match there {
            Some(it) if it.inode == inode => return Ok(Copied::Unchanged),
            Some(it) if it.file_type() == FileType::Directory => {
                return Err(in_the_way(place, "file"));
            }
            _ => {}
        }
        let aside = self.copier.aside.name(place.directory)?;
        let copier = self.copier;
        fs.link(&copier.caller, inode, place.directory, &aside)
            .await
            .map_err(|error| copier.not_made(error, &aside, place))?;
        self.copier.replace(&aside, place).await?;
        Ok(Copied::Whole(0))
    }
}

/// The result for one path.
enum Copied {
    Whole(u64),
    UnderWay,
    Unchanged,
}

/// Small files in progress.
#[derive(Default)]
struct UnderWay {
    files: JoinSet<(u64, PathBuf, CommandResult<u64>)>,
    bytes: u64,
}

impl UnderWay {
    /// Waits until a copy of so many bytes may begin.
    async fn room_for(&mut self, bytes: u64, progress: &mut CommandProgress) -> CommandResult<()> {
        while self.files.len() >= UNDER_WAY_MAX
            || (!self.files.is_empty() && self.bytes.saturating_add(bytes) > UNDER_WAY_BYTES_MAX)
        {
            self.one(progress).await?;
        }
        Ok(())
    }

    fn begin(
        &mut self,
        bytes: u64,
        copying: impl Future<Output = (PathBuf, CommandResult<u64>)> + Send + 'static,
    ) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.files.spawn(async move {
            let (source, outcome) = copying.await;
            (bytes, source, outcome)
        });
    }

    /// Waits until one is done.
    async fn one(&mut self, progress: &mut CommandProgress) -> CommandResult<()> {
        match self.files.join_next().await {
            None => Ok(()),
            Some(Ok((bytes, source, outcome))) => {
                self.bytes = self.bytes.saturating_sub(bytes);
                match outcome {
                    Ok(bytes) => progress.done(bytes),
                    Err(failure) => progress.failed(&source, failure)?,
                }
                Ok(())
            }
            Some(Err(error)) => Err(Failure::new(Exit::Error, error.to_string())),
        }
    }

    /// Waits for all of them.
    async fn end(&mut self, progress: &mut CommandProgress) -> CommandResult<()> {
        while !self.files.is_empty() {
            self.one(progress).await?;
        }
        Ok(())
    }
}
