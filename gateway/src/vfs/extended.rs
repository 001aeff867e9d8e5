//! Extended attributes, each a name in a namespace and a value; and access control lists, which
//! applications see as two of them.
//!
//! All of an inode's attributes are asked for at once and kept, opened, for as long as the inode's
//! own attributes say that they are the same: its row names the version that changed them last. So
//! whoever asks a file without any for its capabilities before every write asks nobody but us.
//!
//! A change is one ordered operation. It waits for what was written before it only where the order
//! matters: a mode that decides whether it is allowed, content whose commit takes capabilities off.
//!
//! | Name | Read by | Written by |
//! |---|---|---|
//! | `user.` | who may read the inode | who may write it; in a sticky directory the owner |
//! | `trusted.` | the superuser | the superuser |
//! | `security.` | everybody | the superuser |
//! | `system.posix_acl_access`, `system.posix_acl_default` | everybody | the owner |
//!
//! Only files and directories have `user.` ones. The kernel has checked all that already; it is
//! checked again here and, for all that changes something, by the servers.

mod acl;
#[cfg(any(test, feature = "decoders"))]
pub(crate) mod decoding;
mod kept;
mod name;
pub(crate) mod tier;

pub(crate) use kept::KeptAttributes;
pub use quorumfs_metadata::operation::SetMode;

use super::caller::Caller;
use super::commit::TRIES;
use super::file_system::{FileSystem, Inner};
use super::keep::Tier;
use super::uncut::uncut;
use super::{VfsError, clock};
use crate::keys::ValueBinding;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use kept::{Opened, Plain, Value};
use name::Name;
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

/// An attribute that everything has, and no list names: of which volume it is. By that a command
/// knows a mount of the volume that it is about to copy to.
const VOLUME: &[u8] = b"user.quorumfs.volume";

/// What is to become of an attribute.
#[derive(Clone)]
enum Change {
    Set(Name, Bytes, SetMode),
    Remove(Name),
    Acl(AclKind, Option<Acl>),
}

const NONE: VfsError = VfsError::refused("getxattr", Errno::NODATA);

impl FileSystem {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none, `EOPNOTSUPP` for a namespace that is not kept here, or if the
    /// caller may not or the servers do not answer.
    #[boxed]
    pub async fn getxattr(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
    ) -> Result<Bytes, VfsError> {
        if let Some(kind) = acl::kind(name) {
            return self.get_acl(inode, kind).await;
        }
        if name == VOLUME {
            return Ok(self.volume_name().into());
        }
        let name = Name::parse(name)?;
        let inner = &self.inner;
        let attributes = inner.attributes(inode).await?;
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

    /// The names of all extended attributes that the caller may know of, a NUL behind each.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn listxattr(&self, caller: &Caller, inode: InodeId) -> Result<Vec<u8>, VfsError> {
        let attributes = self.inner.attributes(inode).await?;
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
    /// If it is there and should not be, or the reverse, it is too large, there is no room, the
    /// caller may not, or the servers do not answer.
    #[boxed]
    pub async fn setxattr(
        &self,
        caller: &Caller,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<(), VfsError> {
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
        let change = Change::Set(name, Bytes::copy_from_slice(value), mode);
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
        let change = match acl::kind(name) {
            Some(kind) => return self.set_acl(caller, inode, kind, None).await,
            None => Change::Remove(Name::parse(name)?),
        };
        // The kernel lets nobody remove a file's capabilities who may not, but takes them off
        // itself when somebody writes, in the writer's name. Whoever may not speak for the
        // superuser leaves it to the servers.
        let superuser = Caller::user(Uid::ROOT.0, 0, Vec::new());
        let speaks = self.inner.metadata.own().uid == Uid::ROOT;
        let caller = match change.is_of_capability() && speaks {
            true => &superuser,
            false => caller,
        };
        self.change_extended(caller, inode, change).await
    }

    /// Runs to its end even if the caller gives up: what the operation did is to be heard.
    async fn change_extended(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: Change,
    ) -> Result<(), VfsError> {
        let (inner, caller) = (self.inner.clone(), caller.clone());
        uncut(async move { inner.change_extended(&caller, inode, &change).await }).await
    }
}

impl Inner {
    async fn change_extended(
        self: &Arc<Self>,
        caller: &Caller,
        inode: InodeId,
        change: &Change,
    ) -> Result<(), VfsError> {
        let node = self.node(inode);
        let content = match &node {
            Some(node) => Some(node.content.lock().await),
            None => None,
        };
        if let Some(node) = &node {
            let matters = {
                let state = node.state();
                state.pending.mode.is_some() || (change.is_of_capability() && state.is_waiting())
            };
            if matters {
                self.flush_locked(node).await?;
            }
            self.tell_of_change(node);
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
            self.retire(node);
        }
        outcome
    }

    async fn order_extended_patiently(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: &Change,
    ) -> Result<(), VfsError> {
        for _ in 1..TRIES {
            match self.order_extended(caller, inode, change).await {
                Err(error) if error.is_out_of_date() => self.look_again(inode).await?,
                outcome => return outcome,
            }
        }
        self.order_extended(caller, inode, change).await
    }

    async fn order_extended(
        &self,
        caller: &Caller,
        inode: InodeId,
        change: &Change,
    ) -> Result<(), VfsError> {
        let (call, step) = match change {
            Change::Acl(kind, acl) => {
                let (kind, acl) = (*kind, acl.clone());
                ("setxattr", Step::SetAcl(SetAcl { inode, kind, acl }))
            }
            Change::Set(name, value, mode) => {
                let step = self.seal_extended(inode, name, value, *mode).await?;
                ("setxattr", Step::SetExtended(step))
            }
            Change::Remove(name) => {
                let (place, _) = self.place_extended(inode, name).await?;
                ("removexattr", Step::RemoveExtended(place))
            }
        };
        let (credentials, asked) = (self.credentials(caller), self.cache.ask());
        match self
            .metadata
            .step(call, credentials, clock::now(), step)
            .await?
        {
            StepDone::Set(attributes) => {
                self.learn_own(&attributes, asked);
                Ok(())
            }
            other => Err(self.metadata.mismatch(call, &other)),
        }
    }

    /// Where an attribute lies, or would lie, and its sealed name.
    async fn place_extended(
        &self,
        inode: InodeId,
        name: &Name,
    ) -> Result<(AttributePlace, Vec<u8>), VfsError> {
        let known = self.attributes(inode).await?.extended;
        let generation = if known.count == 0 {
            self.volume.current_key()?.epoch()
        } else {
            known.generation
        };
        let keys = self.key_of(generation).await?.attribute_keys(inode);
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
        let current = self.volume.current_key()?;
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

    /// An inode's attributes, opened: those that are kept, if they are still the same.
    async fn extended(&self, known: &Attributes) -> Result<Arc<Opened>, VfsError> {
        if let Some(kept) = self.extended.get(known.inode, known.extended.changed) {
            return Ok(kept);
        }
        let question = Question::Extended(known.inode);
        let (own, asked) = (self.metadata.own(), self.cache.ask());
        let (attributes, listed, acl, default_acl) =
            match self.metadata.ask("listxattr", own, question).await? {
                QueryResult::Extended {
                    attributes,
                    listed,
                    acl,
                    default_acl,
                } => (attributes, listed, acl, default_acl),
                other => return Err(self.metadata.mismatch("listxattr", &other)),
            };
        self.learn(&attributes, asked);
        let mut all = Vec::with_capacity(listed.len());
        for attribute in listed {
            all.extend(self.open_extended(&attributes, attribute).await?);
        }
        let changed = attributes.extended.changed;
        let opened = Opened {
            all,
            acl,
            default_acl,
        };
        Ok(self.extended.keep(known.inode, changed, opened))
    }

    /// Opens an attribute; one whose name does not open is nobody's.
    async fn open_extended(
        &self,
        of: &Attributes,
        listed: ListedExtended,
    ) -> Result<Option<Plain>, VfsError> {
        let generation = self.key_of(of.extended.generation).await?;
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
                let key = self.key_of(sealed.epoch).await?.small_value_key();
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

    /// Whether an attribute is there for callers: capabilities go at once when somebody writes, and
    /// at the servers with the commit of what was written.
    fn counts(&self, inode: InodeId, plain: &Plain) -> bool {
        plain.name.namespace != Namespace::Capability
            || self
                .node(inode)
                .is_none_or(|node| !node.state().holds_written())
    }

    /// Whether the caller may read the inode's content.
    fn reads(&self, caller: &Caller, attributes: &Attributes, acl: Option<&AccessAcl>) -> bool {
        let of = (attributes.uid, attributes.gid, attributes.mode);
        caller.uid == Uid::ROOT.0 || permits(of, acl, &self.credentials(caller), Access::READ)
    }
}

impl Change {
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
