//! Names: lookup, creation, renaming and removal.
//!
//! Each call is one ordered operation, atomic at the servers. Pending content of an inode is
//! committed before a rename or link of it is sent, so that no crash shows a new name with old
//! content; content that is about to be deleted is not committed first.

use super::orphans::is_special;
use crate::clock;
use crate::error::VfsError;
use crate::keys::NAME_BYTES_MAX;
use crate::keys::ValueBinding;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::known::{Known, Scope};
use crate::vfs::services::{Caller, Tier, cancel_safe};
use crate::vfs::shared::is_shared;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, Credentials, Mode};
use quorumfs_metadata::identity::{DeviceNumber, InodeId, InodeVersion};
use quorumfs_metadata::limits::SYMLINK_BYTES_MAX;
use quorumfs_metadata::operation::{Create, EntryPlace, NewInode, Remove, Rename, Step};
use quorumfs_metadata::reply::StepDone;
use quorumfs_metadata::row::Sealed;
use rustix::io::Errno;
use std::sync::Arc;

pub use quorumfs_metadata::operation::RenameMode;

/// What a rename has given new names to.
#[derive(Clone, Debug)]
pub struct RenamedInodes {
    /// What has the new name now.
    pub moved: Attributes,
    /// What has the old name now, after an exchange.
    pub exchanged: Option<Attributes>,
}

/// The bits of `st_mode` for the type of inode.
const KIND_MASK: u32 = 0o170_000;

/// An inode that was made, or existed already.
pub(in crate::vfs) struct Made {
    pub(in crate::vfs) attributes: Attributes,
    pub(in crate::vfs) existed: bool,
    pub(in crate::vfs) tier: Option<Tier>,
}

/// A call that removes a name.
struct Removal {
    call: &'static str,
    step: fn(Remove) -> Step,
    /// Whether the inode may have other names, which then show its content.
    leaves_content: bool,
}

const UNLINK: Removal = Removal {
    call: "unlink",
    step: Step::Unlink,
    leaves_content: true,
};
const RMDIR: Removal = Removal {
    call: "rmdir",
    step: Step::RemoveDirectory,
    leaves_content: false,
};

impl FileSystem {
    /// The inode that `name` leads to; `None` if there is no such entry.
    ///
    /// # Errors
    /// If the directory is no directory, may not be searched, or the servers do not answer.
    #[boxed]
    pub async fn lookup(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<Attributes>, VfsError> {
        let inner = &self.inner;
        // The call fails even if the name is known to be absent: callers get the reason.
        if name.len() > NAME_BYTES_MAX {
            return Err(VfsError::refused("lookup", Errno::NAMETOOLONG));
        }
        if is_shared(directory) {
            return Ok(inner.shared.find(name).await);
        }
        let credentials = || inner.services.credentials(caller);
        match inner.find(credentials, directory, name).await? {
            None if inner.shared.may_be(directory, name) => Ok(inner.shown_shared().await),
            found => Ok(found),
        }
    }

    /// Makes a file, pipe, socket or device. `mode` is as in `mknod(2)`.
    ///
    /// # Errors
    /// If the name is taken or the servers refuse.
    #[boxed]
    pub async fn mknod(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        mode: u32,
        device: u32,
    ) -> Result<Attributes, VfsError> {
        let kind = match mode & KIND_MASK {
            0 | 0o100_000 => NewInode::File,
            0o010_000 => NewInode::Fifo,
            0o140_000 => NewInode::Socket,
            0o020_000 => NewInode::CharacterDevice(DeviceNumber(device)),
            0o060_000 => NewInode::BlockDevice(DeviceNumber(device)),
            _ => return Err(VfsError::refused("mknod", Errno::INVAL)),
        };
        Ok(self
            .inner
            .make("mknod", caller, directory, name, kind, mode, true)
            .await?
            .attributes)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// If the name is taken or the servers refuse.
    #[boxed]
    pub async fn mkdir(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<Attributes, VfsError> {
        let (kind, asked) = (NewInode::Directory, self.inner.known.query_stamp());
        let made = self
            .inner
            .make("mkdir", caller, directory, name, kind, mode, true)
            .await?;
        self.inner
            .known
            .made_directory(made.attributes.inode, asked);
        Ok(made.attributes)
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// If the name is taken, the target too long, or the servers refuse.
    #[boxed]
    pub async fn symlink(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, VfsError> {
        if target.is_empty() {
            return Err(VfsError::refused("symlink", Errno::NOENT));
        }
        let length = u16::try_from(target.len())
            .ok()
            .filter(|length| usize::from(*length) <= SYMLINK_BYTES_MAX)
            .ok_or(VfsError::refused("symlink", Errno::NAMETOOLONG))?;
        let make = async || {
            let key = self.inner.services.volume.current_key()?;
            let binding = ValueBinding::symlink_target();
            let bytes = key
                .small_value_key()
                .seal(binding, InodeVersion(0), target)?;
            let kind = NewInode::Symlink {
                length,
                target: Sealed {
                    epoch: key.epoch(),
                    bytes,
                },
            };
            self.inner
                .make_once("symlink", caller, directory, name, kind, 0o777, true)
                .await
        };
        let made = self.inner.with_retries(make).await?;
        Ok(made.attributes)
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// If it is no symbolic link, or its target does not decrypt.
    #[boxed]
    pub async fn readlink(&self, inode: InodeId) -> Result<Vec<u8>, VfsError> {
        if is_shared(inode) {
            return self.inner.shared_target(inode).await;
        }
        let sealed = self.inner.services.metadata.symlink(inode).await?;
        // A query for the attributes would cost more than the target did.
        if let Some(attributes) = self.inner.known.attributes(inode) {
            let seen = self.inner.files.access_times.with_pending(attributes);
            self.inner.files.access_times.note(&seen);
        }
        let key = self
            .inner
            .services
            .key_of(sealed.epoch)
            .await?
            .small_value_key();
        Ok(key.open(ValueBinding::symlink_target(), &sealed.bytes)?)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// If the name is taken, the inode is a directory, or the servers refuse.
    #[boxed]
    pub async fn link(
        &self,
        caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Attributes, VfsError> {
        let (fs, caller, name) = (self.clone(), caller.clone(), name.to_vec());
        cancel_safe(async move {
            fs.inner
                .with_retries(|| fs.link_once(&caller, inode, directory, &name))
                .await
        })
        .await
    }

    async fn link_once(
        &self,
        caller: &Caller,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Attributes, VfsError> {
        let inner = &self.inner;
        inner.writeback.flush_inode(inode).await?;
        let credentials = inner.services.credentials(caller);
        let place = inner.new_place(&credentials, directory, name).await?;
        let step = Step::Link { inode, place };
        let stamp = inner.known.stamp(directory);
        match inner
            .services
            .metadata
            .step("link", credentials, clock::now(), step)
            .await
        {
            Ok(StepDone::Linked {
                inode: attributes,
                parent,
                ..
            }) => {
                inner.writeback.learn_own(&parent, stamp.asked);
                inner.writeback.learn_own(&attributes, stamp.asked);
                let known = Known::Entry(inode);
                inner.known.change_names(&[(stamp, directory, name, known)]);
                Ok(inner.files.seen(&attributes))
            }
            Ok(other) => Err(inner.services.metadata.mismatch("link", &other)),
            Err(error) => Err(inner.invalidate_name(directory, name, error)),
        }
    }

    /// Removes the name of anything but a directory.
    ///
    /// # Errors
    /// If there is no such name, it leads to a directory, or the servers refuse.
    #[boxed]
    pub async fn unlink(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
    ) -> Result<(), VfsError> {
        self.remove(&UNLINK, caller, directory, name).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If there is no such name, it leads to no directory or to one that is not empty, or the
    /// servers refuse.
    #[boxed]
    pub async fn rmdir(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
    ) -> Result<(), VfsError> {
        self.remove(&RMDIR, caller, directory, name).await
    }

    async fn remove(
        &self,
        removal: &'static Removal,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
    ) -> Result<(), VfsError> {
        let (fs, caller, name) = (self.clone(), caller.clone(), name.to_vec());
        cancel_safe(async move {
            fs.inner
                .with_retries(|| fs.remove_once(removal, &caller, directory, &name))
                .await
        })
        .await
    }

    async fn remove_once(
        &self,
        removal: &Removal,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
    ) -> Result<(), VfsError> {
        let inner = &self.inner;
        let credentials = || inner.services.credentials(caller);
        let place = inner.place_of(directory, name).await?;
        let target = inner.find(credentials, directory, name).await?;
        let Some(target) = target else {
            inner.refuse_shared(directory, name).await?;
            return Err(VfsError::refused(removal.call, Errno::NOENT));
        };
        let flushes = removal.leaves_content && target.links > 1;
        if flushes {
            // It may take long, and other processes wait for the same lock to open their files.
            inner.writeback.flush_inode(target.inode).await?;
        }
        // The inode is not opened between the check for open handles and the removal.
        let _closed_to_opens = inner.files.namespace_lock(target.inode).write().await;
        if flushes {
            inner.writeback.flush_inode(target.inode).await?;
        }
        let step = (removal.step)(Remove {
            place,
            expected: Some(target.inode),
            held: inner.may_be_open(&target),
        });
        let stamp = inner.known.stamp(directory);
        match inner
            .services
            .metadata
            .step(removal.call, credentials(), clock::now(), step)
            .await
        {
            Ok(StepDone::Removed { removed, parent }) => {
                inner.writeback.learn_own(&parent, stamp.asked);
                inner
                    .known
                    .change_names(&[(stamp, directory, name, Known::Absent)]);
                inner.removed(&removed);
                Ok(())
            }
            Ok(other) => Err(inner.services.metadata.mismatch(removal.call, &other)),
            Err(error) => Err(inner.invalidate_name(directory, name, error)),
        }
    }

    /// Renames an entry.
    ///
    /// # Errors
    /// As `rename(2)`.
    #[boxed]
    pub async fn rename(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        new_directory: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<RenamedInodes, VfsError> {
        let (fs, caller) = (self.clone(), caller.clone());
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        cancel_safe(async move {
            let (from, to) = (
                (directory, name.as_slice()),
                (new_directory, new_name.as_slice()),
            );
            fs.inner
                .with_retries(|| fs.rename_once(&caller, from, to, mode))
                .await
        })
        .await
    }

    async fn rename_once(
        &self,
        caller: &Caller,
        (directory, name): (InodeId, &[u8]),
        (new_directory, new_name): (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<RenamedInodes, VfsError> {
        let inner = &self.inner;
        let credentials = || inner.services.credentials(caller);
        inner.refuse_shared(directory, name).await?;
        inner.refuse_shared(new_directory, new_name).await?;
        let to = match mode {
            RenameMode::Exchange => inner.place_of(new_directory, new_name).await?,
            _ => {
                inner
                    .new_place(&credentials(), new_directory, new_name)
                    .await?
            }
        };
        let from = inner.place_of(directory, name).await?;
        let source = inner.find(credentials, directory, name).await?;
        let Some(source) = source else {
            return Err(VfsError::refused("rename", Errno::NOENT));
        };
        inner.writeback.flush_inode(source.inode).await?;
        let target = inner.find(credentials, new_directory, new_name).await?;
        let replaced = target.filter(|target| target.inode != source.inode);
        let flushed = replaced.filter(|it| it.links > 1 || mode == RenameMode::Exchange);
        if let Some(target) = &flushed {
            // As for an unlink.
            inner.writeback.flush_inode(target.inode).await?;
        }
        let _closed_to_opens = match (&replaced, mode) {
            (Some(target), RenameMode::Replace) => {
                Some(inner.files.namespace_lock(target.inode).write().await)
            }
            _ => None,
        };
        if let Some(target) = &flushed {
            inner.writeback.flush_inode(target.inode).await?;
        }
        let step = Step::Rename(Rename {
            from,
            to,
            mode,
            expected_source: Some(source.inode),
            // The replaced inode must be the one that we checked, or `held` would be wrong.
            expected_target: match mode {
                RenameMode::Replace | RenameMode::Exchange => {
                    Some(target.map(|target| target.inode))
                }
                RenameMode::NoReplace => None,
            },
            held: replaced
                .as_ref()
                .is_some_and(|target| inner.may_be_open(target)),
        });
        let stamps = (
            inner.known.stamp(directory),
            inner.known.stamp(new_directory),
        );
        let outcome = inner
            .services
            .metadata
            .step("rename", credentials(), clock::now(), step)
            .await;
        let done = outcome.map_err(|error| {
            inner.known.invalidate(Scope::Name(directory, name));
            inner.invalidate_name(new_directory, new_name, error)
        })?;
        let StepDone::Renamed {
            moved,
            replaced,
            exchanged,
            from_parent,
            to_parent,
            ..
        } = done
        else {
            return Err(inner.services.metadata.mismatch("rename", &done));
        };
        for attributes in [&from_parent, &to_parent] {
            inner.writeback.learn_own(attributes, stamps.0.asked);
        }
        for attributes in [Some(&moved), exchanged.as_ref()].into_iter().flatten() {
            inner.writeback.learn_own(attributes, stamps.0.asked);
            inner.known.moved_directory(attributes.inode);
        }
        let left = exchanged.map_or(Known::Absent, |there| Known::Entry(there.inode));
        // Renaming one of two links of an inode onto the other does nothing.
        let same = target.is_some_and(|target| target.inode == source.inode);
        let arrived = Known::Entry(moved.inode);
        let arrives = (stamps.1, new_directory, new_name, arrived);
        if same {
            inner.known.change_names(&[arrives]);
        } else {
            let leaves = (stamps.0, directory, name, left);
            inner.known.change_names(&[leaves, arrives]);
        }
        if let Some(replaced) = &replaced {
            inner.removed(replaced);
        }
        Ok(RenamedInodes { moved, exchanged })
    }
}

impl FileSystemCore {
    /// Makes an inode and its entry.
    #[allow(clippy::too_many_arguments)] // one value each of what a `create` is made of
    pub(in crate::vfs) async fn make(
        self: &Arc<Self>,
        what: &'static str,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        kind: NewInode,
        mode: u32,
        exclusive: bool,
    ) -> Result<Made, VfsError> {
        let make = || self.make_once(what, caller, directory, name, kind.clone(), mode, exclusive);
        self.with_retries(make).await
    }

    #[allow(clippy::too_many_arguments)] // as above
    async fn make_once(
        self: &Arc<Self>,
        what: &'static str,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        kind: NewInode,
        mode: u32,
        exclusive: bool,
    ) -> Result<Made, VfsError> {
        self.refuse_shared(directory, name).await?;
        let credentials = self.services.credentials(caller);
        let place: EntryPlace = self.new_place(&credentials, directory, name).await?;
        let mode = Mode(u16::try_from(mode & u32::from(Mode::ALL)).unwrap_or(0));
        let step = Step::Create(Create {
            place,
            kind,
            mode,
            umask: Mode(caller.umask),
            exclusive,
            number: None,
        });
        let (inner, name) = (self.clone(), name.to_vec());
        let order = async move {
            let made = inner.order_creation(what, credentials, directory, &name, step);
            let made = made.await?;
            if made.existed {
                return Ok(made);
            }
            let inherited = inner.inherit_tier(directory, made.attributes).await?;
            let (attributes, tier) = inherited;
            Ok(Made {
                attributes,
                tier,
                ..made
            })
        };
        cancel_safe(order).await
    }

    async fn order_creation(
        &self,
        what: &'static str,
        credentials: Credentials,
        directory: InodeId,
        name: &[u8],
        step: Step,
    ) -> Result<Made, VfsError> {
        let stamp = self.known.stamp(directory);
        match self
            .services
            .metadata
            .step(what, credentials, clock::now(), step)
            .await
        {
            Ok(StepDone::Created {
                inode: attributes,
                parent,
                existed,
                ..
            }) => {
                self.writeback.learn_own(&parent, stamp.asked);
                self.writeback.learn_own(&attributes, stamp.asked);
                let known = Known::Entry(attributes.inode);
                self.known.change_names(&[(stamp, directory, name, known)]);
                Ok(Made {
                    attributes: self.files.seen(&attributes),
                    existed,
                    tier: None,
                })
            }
            Ok(other) => Err(self.services.metadata.mismatch(what, &other)),
            Err(error) => Err(self.invalidate_name(directory, name, error)),
        }
    }

    /// Whether this mount has the inode open, or may have.
    fn may_be_open(&self, of: &Attributes) -> bool {
        let node = self.files.node(of.inode);
        is_special(of)
            || self.files.handles.has_directory(of.inode)
            || node.is_some_and(|node| node.state().handles > 0)
    }
}
