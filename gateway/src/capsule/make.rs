//! Making a capsule of a file or a directory of a volume.
//!
//! ```text
//!   walk the tree ─► runs of each file ─► link each object once ─► manifest
//!                                                                    │ written as a file, linked;
//!                                                                    │ again, while it lies in
//!                                                                    │ more than one object
//!                                                                    ▼
//!   order the share, which retains all objects ◄── link's text, objects of the manifest
//!                │
//!                ├─► is all that it leads to still needed? if not, it is made again
//!                └─► remove the file of the manifest: its objects are retained
//! ```
//!
//! All that a user could read is taken, and the capsule is refused if something cannot be: a part
//! would be mistaken for the whole. Sockets, pipes and devices, and links that lead out of the
//! tree, are left out and named; what has a temporary name of ours is left out.

use super::content::{CapsuleTables, GivenKey, LinkedContent, LinkedSlice, Run, RunSource};
use super::manifest::{CapsuleEntry, EntryKind, Located, Manifest, ManifestError, Payload};
use super::text::CapsuleLink;
use crate::blocks::{LinkFor, PlacementError, PlacementLog};
use crate::error::VfsError;
use crate::slices::StoredSlice;
use crate::vfs::{
    AttributeChange, Attributes, Caller, ContentRun, ContentSource, FileSystem, FileType, HandleId,
    InodeId, OpenMode, is_temporary_name,
};
use futures_util::StreamExt as _;
use futures_util::stream;
use quorumfs_metadata::identity::{ObjectId, SliceId, VolumeId};
use rustix::io::Errno;
use std::collections::HashMap;
use std::time::Duration;

/// Entries of a directory that are read at a time.
const PAGE: usize = 512;
const PERMISSIONS: u16 = 0o777;
/// Read and search, or read.
const READ_AND_SEARCH: u8 = 5;
const READ: u8 = 4;
/// Of what was left out, this much is named.
const LEFT_OUT_MAX: usize = 20;
/// Objects that are asked about at a time.
const ASKED_AT_ONCE: usize = 32;
/// Bytes that are written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// A capsule cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeCapsuleError {
    /// Something in it cannot be read or linked, or its manifest cannot be stored.
    #[error("{path}: {error}")]
    File {
        /// The path of it, as far as it is known.
        path: String,
        /// The cause.
        error: VfsError,
    },
    /// It is too much.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// A capsule whose share is still to be ordered.
#[derive(Debug)]
pub struct MadeCapsule {
    /// The link: a secret.
    pub link: CapsuleLink,
    /// When the first of its URLs ends by itself.
    pub link_for: LinkFor,
    /// The objects that its link leads to: the first step to all others.
    pub objects: Vec<ObjectId>,
    /// The objects that it leads to.
    leads_to: Vec<ObjectId>,
    /// Files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What was left out, and why; not all of it, if it is much.
    pub left_out: Vec<String>,
    /// How many were left out.
    pub left_out_count: u64,
    /// Where its manifest is: to be removed once the share is ordered.
    temporary: Vec<Vec<u8>>,
}

/// Makes one capsule.
pub struct CapsuleMaker<'a> {
    fs: &'a FileSystem,
    caller: &'a Caller,
    volume: VolumeId,
    link_for: LinkFor,
    tables: TableBuilder,
    entries: Vec<CapsuleEntry>,
    files: u64,
    left_out: Vec<String>,
    left_out_count: u64,
    /// Hears how many files are in it so far.
    told: Box<dyn FnMut(u64) + Send + 'a>,
}

/// Tables without anything twice.
#[derive(Debug, Default)]
struct TableBuilder {
    tables: CapsuleTables,
    objects: HashMap<ObjectId, u32>,
    slices: HashMap<SliceId, u32>,
}

/// The number that the next entry of a table gets.
fn next<T>(table: &[T]) -> Result<u32, VfsError> {
    u32::try_from(table.len()).map_err(|_| VfsError::refused("link", Errno::TOOBIG))
}

impl TableBuilder {
    async fn slice(
        &mut self,
        fs: &FileSystem,
        stored: &StoredSlice,
        link_for: &mut LinkFor,
    ) -> Result<u32, VfsError> {
        if let Some(known) = self.slices.get(&stored.id) {
            return Ok(*known);
        }
        let id = stored.slice.object;
        let object = match self.objects.get(&id) {
            Some(known) => *known,
            None => {
                let place = next(&self.tables.objects)?;
                let linked = fs.link_object(stored, link_for).await?;
                self.tables.objects.push(linked);
                self.objects.insert(id, place);
                place
            }
        };
        let place = next(&self.tables.slices)?;
        let key = fs.key_of_slice(stored).await?;
        self.tables.slices.push(LinkedSlice {
            object,
            id: stored.id,
            offset: stored.slice.offset,
            length: stored.slice.length,
            sealed_length: stored.slice.sealed_length,
            codec: stored.slice.codec,
            key: GivenKey(*key.expose()),
        });
        self.slices.insert(stored.id, place);
        Ok(place)
    }

    async fn content(
        &mut self,
        fs: &FileSystem,
        (size, runs): (u64, Vec<ContentRun>),
        link_for: &mut LinkFor,
    ) -> Result<LinkedContent, VfsError> {
        let mut content = LinkedContent {
            size,
            runs: Vec::with_capacity(runs.len()),
        };
        for run in runs {
            let source = match run.source {
                ContentSource::Inline(bytes) => RunSource::Bytes(bytes.to_vec()),
                ContentSource::Slice(stored, begin) => RunSource::Slice {
                    slice: self.slice(fs, &stored, link_for).await?,
                    begin,
                },
            };
            content.runs.push(Run {
                at: run.at,
                length: run.length,
                source,
            });
        }
        Ok(content)
    }
}

/// A directory that is being walked.
struct Walked {
    entry: u32,
    inode: InodeId,
    path: String,
    depth: usize,
}

fn at<T>(path: &str, result: Result<T, VfsError>) -> Result<T, MakeCapsuleError> {
    result.map_err(|error| MakeCapsuleError::File {
        path: path.to_owned(),
        error,
    })
}

impl<'a> CapsuleMaker<'a> {
    /// One that is valid for so long from now. `told` hears how many files are in it so far.
    #[must_use]
    pub fn new(
        fs: &'a FileSystem,
        caller: &'a Caller,
        volume: VolumeId,
        valid_for: Duration,
        told: impl FnMut(u64) + Send + 'a,
    ) -> Self {
        Self {
            fs,
            caller,
            volume,
            link_for: LinkFor::new(valid_for),
            tables: TableBuilder::default(),
            entries: Vec::new(),
            files: 0,
            left_out: Vec::new(),
            left_out_count: 0,
            told: Box::new(told),
        }
    }

    /// Makes it of something and all that is below it. Its manifest is written into `directory`,
    /// under as many of `names` as are needed.
    ///
    /// # Errors
    /// If something cannot be read or linked, or it is too much for one capsule. What was written
    /// for it is removed then.
    pub async fn make(
        mut self,
        (top, name): (&Attributes, &[u8]),
        (directory, names): (InodeId, &[Vec<u8>]),
    ) -> Result<MadeCapsule, MakeCapsuleError> {
        self.walk(top, name).await?;
        let manifest = Manifest {
            volume: self.volume,
            entries: std::mem::take(&mut self.entries),
            tables: std::mem::take(&mut self.tables.tables),
        };
        let bytes = manifest.bytes();
        let leads_to = manifest.tables.objects.iter();
        let leads_to = leads_to.map(|object| object.id).collect();
        let mut made = MadeCapsule {
            link: CapsuleLink(Located {
                volume: self.volume,
                ends: 0,
                content: LinkedContent::default(),
                tables: CapsuleTables::default(),
            }),
            link_for: self.link_for,
            objects: Vec::new(),
            leads_to,
            files: self.files,
            bytes,
            left_out: std::mem::take(&mut self.left_out),
            left_out_count: self.left_out_count,
            temporary: Vec::new(),
        };
        let stored = self
            .store(Payload::Manifest(manifest), (directory, names), &mut made)
            .await;
        match stored {
            Ok(()) => Ok(made),
            Err(error) => {
                // The next command removes what is left.
                let _ = made.clear(self.fs, self.caller, directory).await;
                Err(error)
            }
        }
    }

    /// Writes a payload and where it is, until that is in one object.
    async fn store(
        &mut self,
        mut payload: Payload,
        (directory, names): (InodeId, &[Vec<u8>]),
        made: &mut MadeCapsule,
    ) -> Result<(), MakeCapsuleError> {
        for name in names {
            let bytes = payload.encode()?;
            // What an opener would refuse is refused here.
            Payload::decode(&bytes)?;
            made.temporary.push(name.clone());
            let what = String::from_utf8_lossy(name).into_owned();
            let mut tables = TableBuilder::default();
            let written = self.write(directory, name, &bytes, &mut tables).await;
            let content = at(&what, written)?;
            // Without the last of them the others are not found.
            made.objects = tables.tables.objects.iter().map(|it| it.id).collect();
            let located = Located {
                volume: self.volume,
                ends: self.link_for.ends,
                content,
                tables: tables.tables,
            };
            made.link_for = self.link_for;
            if located.tables.objects.len() == 1 {
                made.link = CapsuleLink(located);
                return Ok(());
            }
            payload = Payload::Elsewhere(located);
        }
        Err(ManifestError::Contradiction("its list of names does not fit").into())
    }

    async fn write(
        &mut self,
        directory: InodeId,
        name: &[u8],
        bytes: &[u8],
        tables: &mut TableBuilder,
    ) -> Result<LinkedContent, VfsError> {
        let mode = OpenMode {
            read: true,
            write: true,
            ..OpenMode::READ
        };
        let (fs, caller) = (self.fs, self.caller);
        let created = fs.create(caller, directory, name, 0o600, mode, true);
        let (_, handle) = created.await?;
        let written = async {
            let mut offset = 0;
            for part in bytes.chunks(WRITE_BYTES) {
                fs.write(handle, offset, part).await?;
                offset += part.len() as u64;
            }
            fs.fsync_to_clouds(handle).await?;
            let content = fs.content_of(handle).await?;
            tables.content(fs, content, &mut self.link_for).await
        };
        let written = written.await;
        let released = fs.release(handle).await;
        written.and_then(|content| released.map(|()| content))
    }

    /// Adds an entry; its place.
    fn add(&mut self, entry: CapsuleEntry) -> Result<u32, VfsError> {
        let place = next(&self.entries)?;
        self.entries.push(entry);
        Ok(place)
    }

    fn leave_out(&mut self, path: &str, why: &str) {
        self.left_out_count += 1;
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.push(format!("{path}: {why}"));
        }
    }

    async fn walk(&mut self, top: &Attributes, name: &[u8]) -> Result<(), MakeCapsuleError> {
        let shown = String::from_utf8_lossy(name).into_owned();
        let mut waiting = Vec::new();
        waiting.extend(self.one(top, None, name, (shown, 0)).await?);
        while let Some(walked) = waiting.pop() {
            let (fs, caller) = (self.fs, self.caller);
            let access = fs.access(caller, walked.inode, READ_AND_SEARCH).await;
            at(&walked.path, access)?;
            let opened = fs.opendir(caller, walked.inode, true).await;
            let handle = at(&walked.path, opened)?;
            let listed = self.list(handle, &walked, &mut waiting).await;
            let released = fs.releasedir(handle).await;
            listed?;
            at(&walked.path, released)?;
        }
        Ok(())
    }

    async fn list(
        &mut self,
        handle: HandleId,
        walked: &Walked,
        waiting: &mut Vec<Walked>,
    ) -> Result<(), MakeCapsuleError> {
        let mut offset = 0;
        loop {
            let page = self.fs.readdir_plus(handle, offset, PAGE).await;
            let page = at(&walked.path, page)?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            offset = last.cookie.0;
            for (entry, attributes) in &page {
                let is_dots = entry.name == b"." || entry.name == b"..";
                // Perhaps the list of another capsule, with all of its keys.
                let is_temporary = is_temporary_name(&entry.name);
                if is_dots || is_temporary || self.fs.is_of_shared_with_me(attributes.inode) {
                    continue;
                }
                let name = String::from_utf8_lossy(&entry.name);
                let place = (format!("{}/{name}", walked.path), walked.depth);
                let parent = Some(walked.entry);
                let found = self.one(attributes, parent, &entry.name, place).await?;
                waiting.extend(found);
            }
        }
    }

    /// Adds one inode; returns a directory, that is to be walked.
    async fn one(
        &mut self,
        attributes: &Attributes,
        parent: Option<u32>,
        name: &[u8],
        (path, depth): (String, usize),
    ) -> Result<Option<Walked>, MakeCapsuleError> {
        let kind = match attributes.file_type() {
            FileType::Directory => EntryKind::Directory,
            FileType::File => EntryKind::File(at(&path, self.file(attributes.inode).await)?),
            FileType::Symlink => {
                let target = at(&path, self.fs.readlink(attributes.inode).await)?;
                if super::manifest::check_target(&target, depth).is_err() {
                    self.leave_out(&path, "a symbolic link that leads out of what is shared");
                    return Ok(None);
                }
                EntryKind::Symlink(target)
            }
            _ => {
                self.leave_out(&path, "neither a file nor a directory");
                return Ok(None);
            }
        };
        let is_directory = kind == EntryKind::Directory;
        if matches!(kind, EntryKind::File(_)) {
            self.files += 1;
            (self.told)(self.files);
        }
        let entry = self.add(CapsuleEntry {
            parent,
            name: name.to_vec(),
            mode: attributes.mode.0 & PERMISSIONS,
            modified: (attributes.mtime.seconds, attributes.mtime.nanos),
            kind,
        });
        let entry = at(&path, entry)?;
        Ok(is_directory.then_some(Walked {
            entry,
            inode: attributes.inode,
            path,
            depth: depth + 1,
        }))
    }

    async fn file(&mut self, inode: InodeId) -> Result<LinkedContent, VfsError> {
        let (fs, caller) = (self.fs, self.caller);
        fs.access(caller, inode, READ).await?;
        let mode = OpenMode {
            keep_atime: true,
            ..OpenMode::READ
        };
        let handle = fs.open(caller, inode, mode).await?.handle;
        let content = async {
            let content = fs.content_of(handle).await?;
            self.tables.content(fs, content, &mut self.link_for).await
        };
        let content = content.await;
        let released = fs.release(handle).await;
        content.and_then(|content| released.map(|()| content))
    }
}

impl MadeCapsule {
    /// Removes the files of the manifest for good. Once the share is ordered their objects are
    /// retained.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub async fn clear(
        &self,
        fs: &FileSystem,
        caller: &Caller,
        directory: InodeId,
    ) -> Result<(), VfsError> {
        for name in &self.temporary {
            let Some(found) = fs.lookup(caller, directory, name).await? else {
                continue;
            };
            // The trash keeps a name, and is to keep nothing of the content.
            let empty = AttributeChange {
                size: Some(0),
                ..AttributeChange::default()
            };
            fs.setattr(caller, found.inode, None, empty).await?;
            fs.unlink(caller, directory, name).await?;
            let purged = fs.purge(caller, &[found.inode]).await;
            if let Err(error) = purged {
                tracing::debug!(%error, "an empty file stays in the trash");
            }
        }
        Ok(())
    }

    /// Whether everything that it leads to is kept, now that its share is ordered. What lost its
    /// last reference before that may be deleted.
    ///
    /// # Errors
    /// If the metadata do not answer.
    pub async fn is_kept(&self, log: &dyn PlacementLog) -> Result<bool, PlacementError> {
        let rows = stream::iter(self.leads_to.iter().copied());
        let mut rows = rows
            .map(|id| log.object(id))
            .buffer_unordered(ASKED_AT_ONCE);
        while let Some(row) = rows.next().await {
            if row?.is_none_or(|row| row.slices == 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl std::fmt::Debug for CapsuleMaker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapsuleMaker")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Walked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}
