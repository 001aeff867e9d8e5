//! Attributes: changing them, and letting changes ride with a commit.
//!
//! Copying a tree sets times and modes of files that were just written, and a database sets the
//! owner of its journal to the same owner whenever it opens it. Such a change rides with the commit
//! of the content, if the file is open for writing or has pending data, and if the servers would
//! surely allow it: it comes from the owner or the superuser, for a mode or times. All processes on
//! this mount see it at once; a crash before the commit loses it together with the content, as on
//! any local file system. Everything else is one ordered operation, after pending data of the same
//! inode is committed.

use crate::clock;
use crate::error::VfsError;
use crate::metadata::MetadataClient;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::files::{Departure, HandleId, Node, NodeState, Pending};
use crate::vfs::services::{Caller, cancel_safe};
use crate::vfs::shared::{READ_ONLY, is_shared};
use crate::vfs::writeback::{TRIES, unchanged};
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, FileType, Mode, Timestamp};
use quorumfs_metadata::identity::{Gid, InodeId, Uid};
use quorumfs_metadata::limits::FILE_SIZE_MAX;
use quorumfs_metadata::operation::{Precondition, SetAttributes, SetTime, Step};
use quorumfs_metadata::reply::StepDone;
use rustix::io::Errno;
use std::sync::Arc;

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeChange {
    /// Now.
    Now,
    /// This one.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttributeChange {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length of a file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeChange>,
    /// Last change of content.
    pub mtime: Option<TimeChange>,
}

impl FileSystem {
    /// Changes attributes; returns the new ones.
    ///
    /// # Errors
    /// If the caller may not, or the servers do not answer.
    #[boxed]
    pub async fn setattr(
        &self,
        caller: &Caller,
        inode: InodeId,
        handle: Option<HandleId>,
        change: AttributeChange,
    ) -> Result<Attributes, VfsError> {
        if is_shared(inode) {
            return Err(READ_ONLY);
        }
        if change == AttributeChange::default() {
            return self.chown_to_same(caller, inode).await;
        }
        let handle = handle.and_then(|handle| self.inner.files.handles.file(handle).ok());
        if let Some(handle) = &handle {
            handle.keeps_locks()?;
        }
        let by_handle =
            handle.is_some_and(|handle| handle.mode.write && handle.node.inode == inode);
        self.inner
            .set_attributes(caller, inode, by_handle, change)
            .await
    }

    /// `chown` that names neither an owner nor a group, and of which the kernel passes no argument.
    /// The time of change moves, and set-id bits and capabilities go. Any caller may do it, unless
    /// bits of another user's file would go.
    ///
    /// The kernel sends the same request when a process is about to write to a file with such bits.
    /// The write follows right after and takes them. So nothing happens here before it, and a
    /// caller that does this to a file that is open for writing gets success.
    async fn chown_to_same(&self, caller: &Caller, inode: InodeId) -> Result<Attributes, VfsError> {
        let seen = self.inner.files.attributes(inode).await?;
        let keeps = self.inner.services.may_keep_group(caller, &seen);
        let without = seen.mode.without_set_id(keeps);
        let takes_bits = seen.file_type() != FileType::Directory && seen.mode != without;
        if takes_bits && caller.uid != Uid::ROOT.0 && caller.uid != seen.uid.0 {
            let node = self.inner.files.node(inode);
            return match node.is_some_and(|node| node.state().writers > 0) {
                true => Ok(seen),
                false => Err(VfsError::refused("chown", Errno::PERM)),
            };
        }
        let change = AttributeChange {
            uid: Some(seen.uid.0),
            mode: takes_bits.then_some(without.0),
            ..AttributeChange::default()
        };
        // A principal that may not act as the superuser leaves the decision to the servers.
        let superuser = Caller::user(Uid::ROOT.0, 0, Vec::new());
        let speaks = self.inner.services.metadata.own().uid == Uid::ROOT;
        let caller = if speaks { &superuser } else { caller };
        self.inner
            .set_attributes(caller, inode, false, change)
            .await
    }
}

fn to_set(change: TimeChange) -> SetTime {
    match change {
        TimeChange::Now => SetTime::Now,
        TimeChange::At(time) => SetTime::To(time),
    }
}

impl FileSystemCore {
    pub(in crate::vfs) async fn set_attributes(
        self: &Arc<Self>,
        caller: &Caller,
        inode: InodeId,
        by_handle: bool,
        change: AttributeChange,
    ) -> Result<Attributes, VfsError> {
        if change.size.is_some_and(|size| size > FILE_SIZE_MAX) {
            return Err(VfsError::refused("truncate", Errno::FBIG));
        }
        if change.atime.is_some() {
            self.files.access_times.discard(inode).await;
        }
        let Some(node) = self.files.node(inode) else {
            let attributes = self
                .order_attributes(caller, inode, by_handle, change)
                .await?;
            return Ok(self.files.seen(&attributes));
        };
        {
            let mut state = node.state();
            let metadata = &self.services.metadata;
            if let Some(attributes) =
                defer_to_commit(&mut state, caller, by_handle, change, metadata)
            {
                self.writeback.journal_pending(&node, &mut state);
                return Ok(attributes);
            }
        }
        // Runs to its end even if the caller gives up: content must not change under a lock that is
        // not held.
        let (inner, caller) = (self.clone(), caller.clone());
        cancel_safe(async move {
            let outcome = inner.set_on_node(&caller, &node, by_handle, change).await;
            inner.files.retire(&node);
            outcome
        })
        .await
    }

    async fn set_on_node(
        self: &Arc<Self>,
        caller: &Caller,
        node: &Arc<Node>,
        by_handle: bool,
        change: AttributeChange,
    ) -> Result<Attributes, VfsError> {
        let _content = node.change().await;
        // Data that was promised to survive a crash is not dropped before the truncation is
        // certain.
        let void = {
            let state = node.state();
            state.journalled.is_none() || state.full.is_some()
        };
        if change.size == Some(0) && void {
            return self
                .truncate_to_empty(caller, node, by_handle, change)
                .await;
        }
        self.writeback.flush_settled(node).await?;
        let attributes = self
            .order_attributes(caller, node.inode, by_handle, change)
            .await?;
        if change.size.is_some() {
            let mut state = node.state();
            state.resized(&attributes);
            return Ok(state.attributes());
        }
        Ok(self.files.seen(&attributes))
    }

    /// Content that is about to be truncated need not be committed first; but it is dropped only
    /// once the truncation is known to have happened.
    async fn truncate_to_empty(
        self: &Arc<Self>,
        caller: &Caller,
        node: &Arc<Node>,
        by_handle: bool,
        change: AttributeChange,
    ) -> Result<Attributes, VfsError> {
        let (departure, through) = {
            let mut state = node.state();
            (state.set_aside(), state.journalled)
        };
        let order = async {
            self.commit_pending(node, departure.pending).await?;
            self.order_attributes(caller, node.inode, by_handle, change)
                .await
        };
        let outcome = order.await;
        let mut state = node.state();
        let outcome = match outcome {
            Ok(attributes) => {
                state.cut(&attributes);
                self.writeback.settle(&mut state, through, &attributes);
                Ok(state.attributes())
            }
            Err(error) => {
                state.put_back(&departure);
                Err(error)
            }
        };
        self.writeback.book(&mut state);
        outcome
    }

    /// Commits attributes that ride with content that will never be committed; mtime is about to be
    /// set anew.
    async fn commit_pending(
        self: &Arc<Self>,
        node: &Arc<Node>,
        pending: Pending,
    ) -> Result<(), VfsError> {
        let pending = Pending {
            mtime: None,
            ..pending
        };
        if !pending.is_empty() {
            let departure = Departure::of_pending(pending);
            let (attributes, _) = self.writeback.commit(node, &departure).await?;
            self.writeback
                .learn_own(&attributes, self.known.unconfirmed());
        }
        Ok(())
    }

    /// Orders the change; returns the servers' attributes after it.
    async fn order_attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
        by_handle: bool,
        change: AttributeChange,
    ) -> Result<Attributes, VfsError> {
        for _ in 1..TRIES {
            match self.order_once(caller, inode, by_handle, change).await {
                Err(error) if error.is_out_of_date() => {
                    self.files.refresh_attributes(inode).await?
                }
                outcome => return outcome,
            }
        }
        self.order_once(caller, inode, by_handle, change).await
    }

    /// A truncation whose answer was lost must not be executed over later writes.
    async fn preconditions_of(
        &self,
        inode: InodeId,
        change: AttributeChange,
    ) -> Result<Vec<Precondition>, VfsError> {
        if change.size.is_none() {
            return Ok(Vec::new());
        }
        let known = self.files.node(inode).map(|node| node.state().base.version);
        let version = match known {
            Some(version) => version,
            None => self.files.attributes(inode).await?.version,
        };
        Ok(vec![unchanged(inode, version)])
    }

    async fn order_once(
        &self,
        caller: &Caller,
        inode: InodeId,
        by_handle: bool,
        change: AttributeChange,
    ) -> Result<Attributes, VfsError> {
        let now = clock::now();
        let step = Step::SetAttributes(SetAttributes {
            mode: change.mode.map(Mode),
            uid: change.uid.map(Uid),
            gid: change.gid.map(Gid),
            size: change.size,
            atime: change.atime.map(to_set),
            mtime: change.mtime.map(to_set),
            by_handle,
            ..SetAttributes::of(inode)
        });
        let credentials = self.services.credentials(caller);
        let preconditions = self.preconditions_of(inode, change).await?;
        let asked = self.known.query_stamp();
        let done = self
            .services
            .metadata
            .compound("setattr", credentials, now, preconditions, vec![step])
            .await?;
        match done.as_slice() {
            [StepDone::Set(attributes)] => {
                if change.size.is_some() {
                    // A node that was made meanwhile has the old length.
                    self.files.learn(attributes, asked);
                } else {
                    self.writeback.learn_own(attributes, asked);
                }
                Ok(*attributes)
            }
            other => Err(self.services.metadata.mismatch("setattr", &other)),
        }
    }
}

/// Defers a change to the next commit, if it may ride.
fn defer_to_commit(
    state: &mut NodeState,
    caller: &Caller,
    by_handle: bool,
    change: AttributeChange,
    metadata: &MetadataClient,
) -> Option<Attributes> {
    let seen = state.attributes();
    let superuser = caller.uid == Uid::ROOT.0;
    let owner = superuser || caller.uid == seen.uid.0;
    let same_owner = change.uid.is_none_or(|uid| uid == seen.uid.0);
    let same_group = change.gid.is_none_or(|gid| gid == seen.gid.0);
    // Whether the group bit may be set depends on groups, which the servers check.
    let set_group = change.mode.is_some_and(|mode| mode & Mode::SET_GID != 0);
    // An owner may do anything with a file, except truncate it by its name.
    let may_cut = by_handle || superuser || seen.mode.0 & 0o200 != 0;
    let cuts_nothing = change.size == Some(0) && state.holds_nothing() && may_cut;
    let same_size = change.size.is_none() || cuts_nothing;
    // Setting the owner to the same owner changes the ctime, and takes set-id bits and a
    // capability; so does truncation, even of an empty file.
    let gives = change.uid.is_some() || change.gid.is_some();
    let has_neither = seen.mode == seen.mode.without_set_id(false) && seen.extended.count == 0;
    let keeps_bits = !(gives || change.size.is_some()) || has_neither;
    let rides = seen.file_type() == FileType::File
        && (state.writers > 0 || state.is_waiting())
        && !state.unlinked
        && owner
        && same_owner
        && same_group
        && same_size
        && keeps_bits
        && (superuser || !set_group);
    if !rides {
        return None;
    }
    let now = clock::now();
    let at = |time: TimeChange| match time {
        TimeChange::Now => now,
        TimeChange::At(time) => time,
    };
    if let Some(mode) = change.mode {
        state.pending.mode = Some(Mode(mode & Mode::ALL));
    } else if gives {
        state.pending.mode = Some(seen.mode);
    }
    if let Some(atime) = change.atime {
        state.pending.atime = Some(at(atime));
    }
    if let Some(mtime) = change.mtime {
        state.pending.mtime = Some(at(mtime));
    }
    if change.size.is_some() && change.mtime.is_none() {
        state.pending.mtime = Some(now);
    }
    if !state.pending.is_empty() {
        state.pending.changed = Some(metadata.agreed(now));
        state.wait_for_commit();
    }
    Some(state.attributes())
}
