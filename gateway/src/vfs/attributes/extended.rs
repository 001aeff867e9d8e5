//! Extended attributes, each a name in a namespace and a value; and access control lists, which
//! applications see as two of them.
//!
//! All attributes of an inode are queried at once and cached, decrypted, for as long as they are
//! the same: the inode's row names the version that changed them last. So a process that asks a
//! file without attributes for its capabilities before every write causes no query.
//!
//! A change is one ordered operation. It waits for earlier pending data only where the order
//! matters: for a mode that decides whether it is allowed, and for content whose commit removes
//! capabilities.
//!
//! | Name | Read by | Written by |
//! |---|---|---|
//! | `user.` | readers of the inode | writers of the inode; in a sticky directory the owner |
//! | `trusted.` | the superuser | the superuser |
//! | `security.` | all users | the superuser |
//! | `system.posix_acl_access`, `system.posix_acl_default` | all users | the owner |
//!
//! Only files and directories have `user.` ones. The kernel has checked all that already; it is
//! checked again here and, for changes, by the servers.

pub use quorumfs_metadata::operation::SetMode;

use super::acl;
use crate::clock;
use crate::error::VfsError;
use crate::keys::ValueBinding;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::known::{DecryptedAttributes, Name, Plain, Value};
use crate::vfs::services::{Caller, Tier, cancel_safe};
use crate::vfs::shared::{READ_ONLY, is_shared};
use crate::vfs::writeback::TRIES;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::acl::{AccessAcl, Acl, AclKind, permits};
use quorumfs_metadata::attributes::{Access, Attributes, FileType, Namespace};
use quorumfs_metadata::identity::{InodeId, InodeVersion, Uid};
use quorumfs_metadata::limits::EXTENDED_VALUE_BYTES_MAX;
use quorumfs_metadata::operation::{AttributePlace, SetAcl, SetExtended, Step};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{ListedExtended, QueryResult, StepDone};
use quorumfs_metadata::row::Sealed;
use rustix::io::Errno;
use std::sync::Arc;

/// An attribute that every inode has and no list names: the volume's id. It shows a command that a
/// directory is in a mount of the volume that it is about to copy to.
const VOLUME: &[u8] = b"user.quorumfs.volume";

/// A change of an attribute or list.
#[derive(Clone)]
pub(super) enum ExtendedChange {
    Set(Name, Bytes, SetMode),
    Remove(Name),
    Acl(AclKind, Option<Acl>),
}

pub(super) const NONE: VfsError = VfsError::refused("getxattr", Errno::NODATA);

impl FileSystem {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none, `EOPNOTSUPP` for an unsupported namespace, or if the caller may
    /// not or the servers do not answer.
    #[boxed]
    pub async fn getxattr(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
    ) -> Result<Bytes, VfsError> {
        if let Some(kind) = acl::kind(name).filter(|_| !is_shared(inode)) {
            return self.get_acl(inode, kind).await;
        }
        if name == VOLUME {
            return Ok(self.volume_name().into());
        }
        if is_shared(inode) {
            return Err(NONE);
        }
        let name = Name::parse(name)?;
        let inner = &self.inner;
        let attributes = inner.files.attributes(inode).await?;
        if attributes.extended.count == 0 || !name.is_readable(&attributes, caller) {
            return Err(NONE);
        }
        let opened = inner.extended(&attributes).await?;
        let found = opened
            .all
            .iter()
            .find(|plain| plain.name == name && inner.counts(inode, plain));
        let Some(found) = found else {
            return Err(NONE);
        };
        let reads = || inner.reads(caller, &attributes, opened.acl.as_ref());
        if name.namespace == Namespace::User && !reads() {
            return Err(VfsError::refused("getxattr", Errno::ACCESS));
        }
        match &found.value {
            Value::Known(value) => Ok(value.clone()),
            Value::Hidden => Err(VfsError::refused("getxattr", Errno::ACCESS)),
            Value::Damaged(error) => Err(error.clone()),
        }
    }

    /// The names of all extended attributes that the caller may see, each followed by a NUL.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn listxattr(&self, caller: &Caller, inode: InodeId) -> Result<Vec<u8>, VfsError> {
        if is_shared(inode) {
            return Ok(Vec::new());
        }
        let attributes = self.inner.files.attributes(inode).await?;
        let mut names = Vec::new();
        for (there, name) in [
            (attributes.acl.access, acl::ACCESS),
            (attributes.acl.default, acl::DEFAULT),
        ] {
            if there {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        if attributes.extended.count == 0 {
            return Ok(names);
        }
        for plain in &self.inner.extended(&attributes).await?.all {
            if plain.name.is_readable(&attributes, caller) && self.inner.counts(inode, plain) {
                plain.name.write(&mut names);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// If it exists and should not, or the reverse, it is too large, there is no space, the caller
    /// may not, or the servers do not answer.
    #[boxed]
    pub async fn setxattr(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<(), VfsError> {
        if is_shared(inode) {
            return Err(READ_ONLY);
        }
        if let Some(kind) = acl::kind(name) {
            let acl = acl::parse(value)?;
            return self.set_acl(caller, inode, kind, acl).await;
        }
        if name == VOLUME {
            return Err(VfsError::refused("setxattr", Errno::PERM));
        }
        let name = Name::parse(name)?;
        if value.len() > EXTENDED_VALUE_BYTES_MAX {
            return Err(VfsError::refused("setxattr", Errno::TOOBIG));
        }
        if name.is_tier() && Tier::named(value).is_none() {
            return Err(VfsError::refused("setxattr", Errno::INVAL));
        }
        let change = ExtendedChange::Set(name, Bytes::copy_from_slice(value), mode);
        self.change_extended(caller, inode, change).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none, or if the caller may not or the servers do not answer.
    #[boxed]
    pub async fn removexattr(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
    ) -> Result<(), VfsError> {
        if is_shared(inode) {
            return Err(READ_ONLY);
        }
        let change = match acl::kind(name) {
            Some(kind) => return self.set_acl(caller, inode, kind, None).await,
            None => ExtendedChange::Remove(Name::parse(name)?),
        };
        // The kernel checks who may remove a file's capabilities, but removes them itself when the
        // file is written, in the writer's name. A principal that may not act as the superuser
        // leaves the decision to the servers.
        let superuser = Caller::user(Uid::ROOT.0, 0, Vec::new());
        let speaks = self.inner.services.metadata.own().uid == Uid::ROOT;
        let caller = match change.is_of_capability() && speaks {
            true => &superuser,
            false => caller,
        };
        self.change_extended(caller, inode, change).await
    }

    /// Runs to its end even if the caller gives up: the caches need its outcome.
    pub(super) async fn change_extended(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: ExtendedChange,
    ) -> Result<(), VfsError> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        cancel_safe(async move { inner.change_extended(&caller, inode, &change).await }).await
    }
}

impl FileSystemCore {
    pub(super) async fn change_extended(
        self: &Arc<Self>,
        caller: &Caller,
        inode: InodeId,
        change: &ExtendedChange,
    ) -> Result<(), VfsError> {
        let node = self.files.node(inode);
        let content = match &node {
            Some(node) => Some(node.change().await),
            None => None,
        };
        if let Some(node) = &node {
            let matters = {
                let state = node.state();
                state.pending.mode.is_some() || (change.is_of_capability() && state.is_waiting())
            };
            if matters {
                self.writeback.flush_locked(node).await?;
            }
            self.writeback.journal_change(node);
        }
        let outcome = self.order_extended_patiently(caller, inode, change).await;
        drop(content);
        if let Some(node) = &node {
            if outcome.is_ok()
                && let Some(tier) = change.of_tier()
            {
                let mut state = node.state();
                let base = state.base;
                state.learn_tier(&base, tier);
            }
            self.files.retire(node);
        }
        outcome
    }

    async fn order_extended_patiently(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: &ExtendedChange,
    ) -> Result<(), VfsError> {
        for _ in 1..TRIES {
            match self.order_extended(caller, inode, change).await {
                Err(error) if error.is_out_of_date() => {
                    self.services.catch_up(&error).await?;
                    self.files.refresh_attributes(inode).await?;
                }
                outcome => return outcome,
            }
        }
        self.order_extended(caller, inode, change).await
    }

    async fn order_extended(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: &ExtendedChange,
    ) -> Result<(), VfsError> {
        let (call, step) = match change {
            ExtendedChange::Acl(kind, acl) => {
                let (kind, acl) = (*kind, acl.clone());
                ("setxattr", Step::SetAcl(SetAcl { inode, kind, acl }))
            }
            ExtendedChange::Set(name, value, mode) => {
                let step = self.seal_extended(inode, name, value, *mode).await?;
                ("setxattr", Step::SetExtended(step))
            }
            ExtendedChange::Remove(name) => {
                let (place, _) = self.place_extended(inode, name).await?;
                ("removexattr", Step::RemoveExtended(place))
            }
        };
        let (credentials, asked) = (self.services.credentials(caller), self.known.query_stamp());
        match self
            .services
            .metadata
            .step(call, credentials, clock::now(), step)
            .await?
        {
            StepDone::Set(attributes) => {
                self.writeback.learn_own(&attributes, asked);
                Ok(())
            }
            other => Err(self.services.metadata.mismatch(call, &other)),
        }
    }

    /// Where an attribute lies, or would lie, and its sealed name.
    async fn place_extended(
        &self,
        inode: InodeId,
        name: &Name,
    ) -> Result<(AttributePlace, Vec<u8>), VfsError> {
        let known = self.files.attributes(inode).await?.extended;
        let generation = if known.count == 0 {
            self.services.volume.current_key()?.epoch()
        } else {
            known.generation
        };
        let keys = self
            .services
            .key_of(generation)
            .await?
            .attribute_keys(inode);
        let place = AttributePlace {
            inode,
            namespace: name.namespace,
            hash: keys.hash(name.namespace, &name.rest),
            generation,
        };
        Ok((place, keys.seal(name.namespace, &name.rest)?))
    }

    async fn seal_extended(
        &self,
        inode: InodeId,
        name: &Name,
        value: &[u8],
        mode: SetMode,
    ) -> Result<SetExtended, VfsError> {
        let (place, name) = self.place_extended(inode, name).await?;
        let current = self.services.volume.current_key()?;
        let binding = ValueBinding::attribute(inode, place.namespace, place.hash);
        let key = current.small_value_key();
        let value = Sealed {
            epoch: current.epoch(),
            bytes: key.seal(binding, InodeVersion(0), value)?,
        };
        Ok(SetExtended {
            place,
            name,
            value,
            mode,
        })
    }

    /// An inode's attributes, decrypted: the cached ones, if they are still the same.
    pub(in crate::vfs) async fn extended(
        &self,
        known: &Attributes,
    ) -> Result<Arc<DecryptedAttributes>, VfsError> {
        if let Some(cached) = self.known.extended(known.inode, known.extended.changed) {
            return Ok(cached);
        }
        let question = Question::Extended(known.inode);
        let (own, asked) = (self.services.metadata.own(), self.known.query_stamp());
        let (attributes, listed, acl, default_acl) = match self
            .services
            .metadata
            .ask_near("listxattr", own, question)
            .await?
        {
            QueryResult::Extended {
                attributes,
                listed,
                acl,
                default_acl,
            } => (attributes, listed, acl, default_acl),
            other => return Err(self.services.metadata.mismatch("listxattr", &other)),
        };
        self.files.learn(&attributes, asked);
        let mut all = Vec::with_capacity(listed.len());
        for attribute in listed {
            all.extend(self.open_extended(&attributes, attribute).await?);
        }
        let changed = attributes.extended.changed;
        let opened = DecryptedAttributes {
            all,
            acl,
            default_acl,
        };
        Ok(self.known.learn_extended(known.inode, changed, opened))
    }

    /// Decrypts an attribute; `None` if its name does not decrypt.
    async fn open_extended(
        &self,
        of: &Attributes,
        listed: ListedExtended,
    ) -> Result<Option<Plain>, VfsError> {
        let generation = self.services.key_of(of.extended.generation).await?;
        let keys = generation.attribute_keys(of.inode);
        let (namespace, hash) = (listed.namespace, listed.hash);
        let rest = match keys.open(namespace, hash, &listed.name) {
            Ok(rest) => rest,
            Err(error) => {
                tracing::warn!(inode = %of.inode, %error, "an extended attribute is not shown");
                return Ok(None);
            }
        };
        let value = match listed.value {
            None => Value::Hidden,
            Some(sealed) => {
                let key = self.services.key_of(sealed.epoch).await?.small_value_key();
                let binding = ValueBinding::attribute(of.inode, namespace, hash);
                match key.open(binding, &sealed.bytes) {
                    Ok(value) => Value::Known(value.into()),
                    Err(error) => Value::Damaged(error.into()),
                }
            }
        };
        let name = Name { namespace, rest };
        Ok(Some(Plain { name, value }))
    }

    /// Whether callers see an attribute: a write removes capabilities at once, and its commit
    /// removes them at the servers.
    fn counts(&self, inode: InodeId, plain: &Plain) -> bool {
        plain.name.namespace != Namespace::Capability
            || self
                .files
                .node(inode)
                .is_none_or(|node| !node.state().holds_written())
    }

    /// Whether the caller may read the inode's content.
    pub(super) fn reads(
        &self,
        caller: &Caller,
        attributes: &Attributes,
        acl: Option<&AccessAcl>,
    ) -> bool {
        let of = (attributes.uid, attributes.gid, attributes.mode);
        caller.uid == Uid::ROOT.0
            || permits(of, acl, &self.services.credentials(caller), Access::READ)
    }
}

impl ExtendedChange {
    fn is_of_capability(&self) -> bool {
        match self {
            Self::Set(name, ..) | Self::Remove(name) => name.namespace == Namespace::Capability,
            Self::Acl(..) => false,
        }
    }
}

impl Name {
    /// Whether the name can be seen at all: `trusted.` is the superuser's, and only files and
    /// directories have `user.` ones.
    fn is_readable(&self, attributes: &Attributes, caller: &Caller) -> bool {
        match self.namespace {
            Namespace::User => {
                matches!(attributes.file_type(), FileType::File | FileType::Directory)
            }
            Namespace::Trusted => caller.uid == Uid::ROOT.0,
            Namespace::Security | Namespace::Capability => true,
        }
    }
}
