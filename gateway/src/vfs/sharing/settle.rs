//! The walk over a tree: each inode gets the lists that a person is to have.
//!
//! A page of a directory is read, all lists of what is on it are set, in operations of up to 32
//! inodes, and then each directory on it is walked likewise. Each inode is named with the version
//! that was read, so that a concurrent change is not lost; where one came in between, or an
//! operation fails, its inodes are set one by one.

use super::grants::{Cover, Grants};
use super::lists::{self, Lists};
use crate::clock;
use crate::error::VfsError;
use crate::vfs::file_system::FileSystem;
use crate::vfs::files::HandleId;
use crate::vfs::services::Caller;
use crate::vfs::shared;
use async_recursion::async_recursion as boxed;
use futures_util::stream::{self, StreamExt};
use quorumfs_metadata::acl::{Acl, AclKind};
use quorumfs_metadata::attributes::{Attributes, FileType};
use quorumfs_metadata::identity::{InodeId, Uid};
use quorumfs_metadata::limits::{PRECONDITIONS_MAX, STEPS_MAX};
use quorumfs_metadata::operation::{Precondition, SetAcl, Step};
use quorumfs_metadata::reply::StepDone;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Entries that are looked at together.
const PAGE: usize = 512;
/// Lists that are read, and operations that are ordered, at a time.
const AT_A_TIME: usize = 16;
/// How often an inode is tried that others change meanwhile.
const TRIES: u32 = 4;

/// What became of an inode.
#[derive(Clone, Debug)]
pub enum Settled {
    /// Its lists were set.
    Set,
    /// They were right.
    Unchanged,
    /// It is this user's, and only that user may set its lists.
    Foreign(Uid),
    /// It failed.
    Failed(VfsError),
}

/// What follows a walk.
pub trait Settling: Send {
    /// An inode is done; whether to go on.
    fn settled(&mut self, path: &Path, what: Settled) -> bool;
}

/// An inode of a page.
struct Item {
    attributes: Attributes,
    path: PathBuf,
    cover: Cover,
}

/// Lists to set.
struct Wanted {
    access: Option<Acl>,
    default: Option<Option<Acl>>,
}

impl Wanted {
    fn steps(&self, inode: InodeId) -> Vec<Step> {
        let set = |kind, acl| Step::SetAcl(SetAcl { inode, kind, acl });
        let default = self.default.clone();
        let default = default.map(|acl| set(AclKind::Default, acl));
        let access = self.access.clone();
        let access = access.map(|acl| set(AclKind::Access, Some(acl)));
        // What is made from now on inherits.
        default.into_iter().chain(access).collect()
    }
}

/// What is to be done with an inode.
enum Plan {
    Nothing,
    Foreign(Uid),
    Set(Wanted),
}

/// A directory that is being walked.
struct Frame {
    path: PathBuf,
    cover: Cover,
    handle: HandleId,
    offset: u64,
    waiting: Vec<Item>,
}

impl FileSystem {
    /// Sets the lists that a person is to have over a tree, whose path is for messages. It is in
    /// `parent`. Returns whether it came to the end.
    ///
    /// # Errors
    /// If the servers do not answer. A tree that is gone is no error.
    #[boxed]
    pub async fn settle(
        &self,
        caller: &Caller,
        (root, parent): (InodeId, InodeId),
        path: &Path,
        grants: &Grants,
        follower: &mut dyn Settling,
    ) -> Result<bool, VfsError> {
        let attributes = match self.inner.files.attributes(root).await {
            Err(error) if is_gone(&error) => return Ok(true),
            attributes => attributes?,
        };
        let above = match attributes.detail {
            quorumfs_metadata::attributes::Detail::Directory { parent, .. } if parent != root => {
                parent
            }
            quorumfs_metadata::attributes::Detail::Directory { .. } => root,
            _ => parent,
        };
        let above = match self.cover_of(grants, above).await {
            Err(error) if is_gone(&error) => None,
            cover => cover?,
        };
        let cover = grants.cover(above, root);
        let path = path.to_owned();
        let first = Item {
            attributes,
            path,
            cover,
        };
        let mut frames = Vec::new();
        let Some(mut waiting) = self.page(caller, grants, vec![first], follower).await? else {
            return Ok(false);
        };
        let ended = self
            .walk(caller, grants, &mut frames, &mut waiting, follower)
            .await;
        for frame in frames {
            self.leave_directory(frame.handle);
        }
        ended
    }

    /// Walks the directories that wait, the deepest first.
    async fn walk(
        &self,
        caller: &Caller,
        grants: &Grants,
        frames: &mut Vec<Frame>,
        first: &mut Vec<Item>,
        follower: &mut dyn Settling,
    ) -> Result<bool, VfsError> {
        loop {
            let waiting = match frames.last_mut() {
                Some(frame) => &mut frame.waiting,
                None => &mut *first,
            };
            if let Some(item) = waiting.pop() {
                match self.opendir(caller, item.attributes.inode, true).await {
                    Ok(handle) => frames.push(Frame {
                        path: item.path,
                        cover: item.cover,
                        handle,
                        offset: 0,
                        waiting: Vec::new(),
                    }),
                    Err(error) if is_gone(&error) => {}
                    Err(error) => {
                        if !follower.settled(&item.path, Settled::Failed(error)) {
                            return Ok(false);
                        }
                    }
                }
                continue;
            }
            let Some(frame) = frames.last_mut() else {
                return Ok(true);
            };
            let page = match self.readdir_plus(frame.handle, frame.offset, PAGE).await {
                Ok(page) => page,
                Err(error) if is_gone(&error) => Vec::new(),
                Err(error) => {
                    if error.errno() != Errno::ACCESS {
                        return Err(error);
                    }
                    if !follower.settled(&frame.path, Settled::Failed(error)) {
                        return Ok(false);
                    }
                    Vec::new()
                }
            };
            let Some((last, _)) = page.last() else {
                if let Some(frame) = frames.pop() {
                    self.leave_directory(frame.handle);
                }
                continue;
            };
            frame.offset = last.cookie.0;
            let items = page.into_iter().filter_map(|(entry, attributes)| {
                let is_dot = matches!(entry.name.as_slice(), b"." | b"..");
                let is_real = !is_dot && !shared::is_shared(attributes.inode);
                is_real.then(|| Item {
                    attributes,
                    path: frame.path.join(OsStr::from_bytes(&entry.name)),
                    cover: grants.cover(frame.cover, attributes.inode),
                })
            });
            let items: Vec<_> = items.collect();
            match self.page(caller, grants, items, follower).await? {
                Some(waiting) => {
                    if let Some(frame) = frames.last_mut() {
                        frame.waiting = waiting;
                    }
                }
                None => return Ok(false),
            }
        }
    }

    /// Sets the lists of all inodes of a page, and returns the directories to walk; `None`: not to
    /// go on.
    async fn page(
        &self,
        caller: &Caller,
        grants: &Grants,
        items: Vec<Item>,
        follower: &mut dyn Settling,
    ) -> Result<Option<Vec<Item>>, VfsError> {
        let plans = stream::iter(items).map(|item| async move {
            let plan = self
                .plan(caller, grants, &item.attributes, item.cover)
                .await;
            (item, plan)
        });
        let mut planned = plans.buffered(AT_A_TIME);
        let (mut directories, mut batches) = (Vec::new(), Vec::new());
        let (mut batch, mut steps) = (Vec::new(), 0_usize);
        while let Some((item, plan)) = planned.next().await {
            let goes_on = match plan {
                Ok(Plan::Set(wanted)) => {
                    let more = wanted.steps(item.attributes.inode).len();
                    let is_full = batch.len() >= PRECONDITIONS_MAX;
                    if is_full || steps.saturating_add(more) > STEPS_MAX {
                        batches.push(std::mem::take(&mut batch));
                        steps = 0;
                    }
                    steps = steps.saturating_add(more);
                    batch.push((item, wanted));
                    continue;
                }
                Ok(Plan::Nothing) => follower.settled(&item.path, Settled::Unchanged),
                Ok(Plan::Foreign(uid)) => {
                    if !follower.settled(&item.path, Settled::Foreign(uid)) {
                        return Ok(None);
                    }
                    // With all that is below it.
                    continue;
                }
                Err(error) if is_gone(&error) => continue,
                Err(error) => follower.settled(&item.path, Settled::Failed(error)),
            };
            if !goes_on {
                return Ok(None);
            }
            directories.extend(of_directory(item));
        }
        batches.extend((!batch.is_empty()).then_some(batch));
        drop(planned);
        let set = stream::iter(batches).map(|batch| self.set_batch(caller, grants, batch));
        let mut set = set.buffer_unordered(AT_A_TIME);
        let mut goes_on = true;
        while let Some(done) = set.next().await {
            for (item, what) in done {
                if let Settled::Failed(error) = &what
                    && is_gone(error)
                {
                    continue;
                }
                goes_on &= follower.settled(&item.path, what);
                directories.extend(of_directory(item));
            }
        }
        Ok(goes_on.then_some(directories))
    }

    /// The lists of an inode.
    pub(super) async fn lists(&self, attributes: &Attributes) -> Result<Lists, VfsError> {
        let mode = attributes.mode;
        if !attributes.acl.access && !attributes.acl.default {
            return Ok(Lists {
                access: lists::of_mode(mode.0),
                default: None,
            });
        }
        let opened = self.inner.extended(attributes).await?;
        let access = opened.acl.as_ref().map(|acl| acl.with_mode(mode));
        Ok(Lists {
            access: access.unwrap_or_else(|| lists::of_mode(mode.0)),
            default: opened.default_acl.clone(),
        })
    }

    async fn plan(
        &self,
        caller: &Caller,
        grants: &Grants,
        attributes: &Attributes,
        cover: Cover,
    ) -> Result<Plan, VfsError> {
        let is_link = attributes.file_type() == FileType::Symlink;
        // The person's own are its own already.
        if is_link || attributes.uid == grants.uid {
            return Ok(Plan::Nothing);
        }
        let lists = self.lists(attributes).await?;
        let granted = grants.granted(cover, attributes);
        let mut wanted = lists.settled(grants.uid, attributes.uid, granted);
        if attributes.file_type() != FileType::Directory {
            wanted.default = lists.default.clone();
        }
        if wanted == lists {
            return Ok(Plan::Nothing);
        }
        if caller.uid != Uid::ROOT.0 && caller.uid != attributes.uid.0 {
            return Ok(Plan::Foreign(attributes.uid));
        }
        Ok(Plan::Set(Wanted {
            access: (wanted.access != lists.access).then_some(wanted.access),
            default: (wanted.default != lists.default).then_some(wanted.default),
        }))
    }

    /// Sets lists together, or if that fails one by one.
    async fn set_batch(
        &self,
        caller: &Caller,
        grants: &Grants,
        batch: Vec<(Item, Wanted)>,
    ) -> Vec<(Item, Settled)> {
        let is_open = |item: &Item| self.inner.files.node(item.attributes.inode).is_some();
        let together = !batch.iter().any(|(item, _)| is_open(item));
        let pairs = || {
            batch
                .iter()
                .map(|(item, wanted)| (&item.attributes, wanted))
        };
        if together && self.order_lists(caller, pairs()).await.is_ok() {
            let set = |(item, _)| (item, Settled::Set);
            return batch.into_iter().map(set).collect();
        }
        let mut all = Vec::with_capacity(batch.len());
        for (item, _) in batch {
            let what = self.set_one(caller, grants, &item).await;
            all.push((item, what.unwrap_or_else(Settled::Failed)));
        }
        all
    }

    async fn order_lists<'i>(
        &self,
        caller: &Caller,
        wanted: impl Iterator<Item = (&'i Attributes, &'i Wanted)> + Send,
    ) -> Result<(), VfsError> {
        const WHAT: &str = "setxattr";
        let (mut preconditions, mut steps) = (Vec::new(), Vec::new());
        for (attributes, wanted) in wanted {
            preconditions.push(Precondition::Unchanged {
                inode: attributes.inode,
                version: Some(attributes.version),
                ctime: None,
            });
            steps.extend(wanted.steps(attributes.inode));
        }
        let services = &self.inner.services;
        let (credentials, asked) = (services.credentials(caller), self.inner.known.query_stamp());
        let metadata = &services.metadata;
        let ordered = metadata.compound(WHAT, credentials, clock::now(), preconditions, steps);
        for done in ordered.await? {
            match done {
                StepDone::Set(attributes) => self.inner.writeback.learn_own(&attributes, asked),
                other => return Err(metadata.mismatch(WHAT, &other)),
            }
        }
        Ok(())
    }

    /// Sets the lists of one inode, which others may be changing.
    async fn set_one(
        &self,
        caller: &Caller,
        grants: &Grants,
        item: &Item,
    ) -> Result<Settled, VfsError> {
        let inode = item.attributes.inode;
        let mut outcome = Ok(Settled::Unchanged);
        for _ in 0..TRIES {
            self.inner.files.refresh_attributes(inode).await?;
            // A mode or content that waits counts.
            self.sync(inode).await?;
            let attributes = self.inner.files.attributes(inode).await?;
            let plan = self.plan(caller, grants, &attributes, item.cover).await?;
            let wanted = match plan {
                Plan::Nothing => return Ok(Settled::Unchanged),
                Plan::Foreign(uid) => return Ok(Settled::Foreign(uid)),
                Plan::Set(wanted) => wanted,
            };
            let set = self.order_lists(caller, std::iter::once((&attributes, &wanted)));
            match set.await {
                Ok(()) => return Ok(Settled::Set),
                Err(error) if error.is_out_of_date() => outcome = Err(error),
                Err(error) => return Err(error),
            }
        }
        outcome
    }
}

fn of_directory(item: Item) -> Option<Item> {
    let is_directory = item.attributes.file_type() == FileType::Directory;
    is_directory.then_some(item)
}

pub(super) fn is_gone(error: &VfsError) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::STALE) && !matches!(error, VfsError::Fenced)
}
