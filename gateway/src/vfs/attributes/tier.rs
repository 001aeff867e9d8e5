//! The tier of a file or of everything beneath a directory: an attribute of the volume's own.
//!
//! `user.quorumfs.tier` is `memory`, `local` or `clouds`, and close and fsync of the file wait for
//! that instead of for the mount's tier. A file or directory that is made in a directory with a
//! tier gets the same one, as it gets a default access list; existing files stay as they are. It is
//! sealed as every attribute is: servers do not learn tiers.
//!
//! Opening a file for writing reads its tier. The attributes of the inode show at once if there are
//! none; otherwise the decrypted ones are cached ([`known`](crate::vfs::known)).
//!
//! An unreadable tier (a damaged value, one of a later release) counts as `clouds`, so that no data
//! is reported safer than it is.

use super::extended::ExtendedChange;
use crate::error::VfsError;
use crate::vfs::file_system::FileSystemCore;
use crate::vfs::known::{Name, Value};
use crate::vfs::services::{Caller, Tier};
use bytes::Bytes;
use quorumfs_metadata::attributes::{Attributes, FileType, Namespace};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::operation::SetMode;
use rustix::io::Errno;
use std::sync::Arc;

/// The name without `user.`.
const REST: &[u8] = b"quorumfs.tier";

impl Name {
    /// Whether it is the name of a tier.
    pub(in crate::vfs) fn is_tier(&self) -> bool {
        self.namespace == Namespace::User && self.rest == REST
    }
}

impl ExtendedChange {
    /// The inode's tier after the change, if it changes that.
    pub(in crate::vfs) fn of_tier(&self) -> Option<Option<Tier>> {
        match self {
            Self::Set(name, value, _) if name.is_tier() => Some(Tier::named(value)),
            Self::Remove(name) if name.is_tier() => Some(None),
            _ => None,
        }
    }
}

impl FileSystemCore {
    /// The inode's own tier, if it has one.
    ///
    /// # Errors
    /// If it has attributes, and the servers do not say which.
    pub(in crate::vfs) async fn own_tier(&self, of: &Attributes) -> Result<Option<Tier>, VfsError> {
        if of.extended.count == 0 {
            return Ok(None);
        }
        let opened = self.extended(of).await?;
        let found = opened.all.iter().find(|plain| plain.name.is_tier());
        Ok(found.map(|plain| match &plain.value {
            Value::Known(value) => Tier::named(value).unwrap_or(Tier::Clouds),
            Value::Hidden | Value::Damaged(_) => Tier::Clouds,
        }))
    }

    /// Gives a new inode in `directory` the directory's tier; returns its attributes then, and the
    /// tier.
    ///
    /// # Errors
    /// If the servers do not answer, or there is no space.
    pub(in crate::vfs) async fn inherit_tier(
        self: &Arc<Self>,
        directory: InodeId,
        made: Attributes,
    ) -> Result<(Attributes, Option<Tier>), VfsError> {
        let inode = made.inode;
        if !matches!(made.file_type(), FileType::File | FileType::Directory) {
            return Ok((made, None));
        }
        let directory = self.files.attributes(directory).await?;
        let Some(tier) = self.own_tier(&directory).await? else {
            return Ok((made, None));
        };
        let own = self.services.metadata.own();
        let caller = Caller::user(own.uid.0, own.gid.0, Vec::new());
        let name = Name {
            namespace: Namespace::User,
            rest: REST.to_vec(),
        };
        let value = Bytes::from_static(tier.name().as_bytes());
        let change = ExtendedChange::Set(name, value, SetMode::Any);
        let attributes = match self.change_extended(&caller, inode, &change).await {
            Ok(()) => self.files.attributes(inode).await?,
            // Its mode does not let the owner write it.
            Err(error) if matches!(error.errno(), Errno::ACCESS | Errno::PERM) => {
                tracing::warn!(%inode, %error, "the tier is not stored: it lasts while open");
                made
            }
            Err(error) => return Err(error),
        };
        Ok((attributes, Some(tier)))
    }
}
