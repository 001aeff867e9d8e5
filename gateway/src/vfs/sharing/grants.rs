//! What a person is to have of which inode, by all shares with it that have not ended.

use super::KnownShare;
use super::lists::Granted;
use crate::error::VfsError;
use crate::vfs::file_system::FileSystem;
use crate::vfs::services::Caller;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, Detail, FileType};
use quorumfs_metadata::identity::{InodeId, PrincipalNumber, Uid};
use quorumfs_metadata::limits::DEPTH_MAX;
use quorumfs_metadata::query::SharesOf;
use quorumfs_metadata::row::ShareWith;
use std::collections::{BTreeMap, BTreeSet};

/// What shares a person has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// The user for whom the person acts.
    pub(super) uid: Uid,
    /// What is shared, and whether it may be written.
    shared: BTreeMap<InodeId, bool>,
    /// The directories that let it pass for its name alone.
    through: BTreeSet<InodeId>,
}

/// What covers an inode: a share of it, or of a directory above it; whether it may be written.
pub(super) type Cover = Option<bool>;

/// Both of what two shares give.
fn joined(one: Cover, other: Cover) -> Cover {
    match (one, other) {
        (Some(one), Some(other)) => Some(one || other),
        (one, other) => one.or(other),
    }
}

impl Grants {
    /// What these shares give a user.
    pub(super) fn of<'s>(uid: Uid, shares: impl IntoIterator<Item = &'s KnownShare>) -> Self {
        let mut grants = Self {
            uid,
            shared: BTreeMap::new(),
            through: BTreeSet::new(),
        };
        for known in shares.into_iter().filter(|known| !known.share.ended) {
            let ShareWith::Person {
                uid: of,
                writes,
                through,
                ..
            } = &known.share.with
            else {
                continue;
            };
            if *of == uid {
                let shared = grants.shared.entry(known.share.inode).or_default();
                *shared |= writes;
                grants.through.extend(through);
            }
        }
        grants
    }

    /// Whether a share needs the directory to let the person pass.
    pub(super) fn needs(&self, directory: InodeId) -> bool {
        self.through.contains(&directory)
    }

    /// What covers an inode, if this covers the directory that it is in.
    pub(super) fn cover(&self, above: Cover, inode: InodeId) -> Cover {
        joined(above, self.shared.get(&inode).copied())
    }

    /// What the person is to have of an inode.
    pub(super) fn granted(&self, cover: Cover, of: &Attributes) -> Granted {
        let is_directory = of.file_type() == FileType::Directory;
        let executes = is_directory || of.mode.has_execute_bit();
        let passes = is_directory && self.needs(of.inode);
        let rights = cover.map(|writes| 4 | u8::from(writes) << 1 | u8::from(executes));
        Granted {
            rights: rights.or(passes.then_some(1)),
            inherited: cover.filter(|_| is_directory),
        }
    }
}

impl FileSystem {
    /// What all shares with a person give its user, as far as the caller may know of them.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn grants(
        &self,
        caller: &Caller,
        (person, uid): (PrincipalNumber, Uid),
    ) -> Result<Grants, VfsError> {
        let mut all = self.shares(caller, SharesOf::With(person)).await?;
        // One person may have several keys, each a principal.
        all.extend(self.shares(caller, SharesOf::Mine).await?);
        Ok(Grants::of(uid, &all))
    }

    /// What covers all that is in a directory: shares of it, and of directories above it.
    pub(super) async fn cover_of(
        &self,
        grants: &Grants,
        directory: InodeId,
    ) -> Result<Cover, VfsError> {
        let (mut cover, mut here) = (None, directory);
        for _ in 0..DEPTH_MAX {
            cover = grants.cover(cover, here);
            match self.inner.files.attributes(here).await?.detail {
                Detail::Directory { parent, .. } if parent != here => here = parent,
                _ => break,
            }
        }
        Ok(cover)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::Time;
    use quorumfs_metadata::identity::{RealmEpoch, ShareId};
    use quorumfs_metadata::row::{Sealed, Share};

    fn share(inode: u64, (uid, writes): (u32, bool), through: &[u64], ended: bool) -> KnownShare {
        KnownShare {
            id: ShareId(inode),
            exists: true,
            place: None,
            share: Share {
                by: PrincipalNumber(0),
                uid: Uid(1000),
                inode: InodeId(inode),
                with: ShareWith::Person {
                    principal: PrincipalNumber(4),
                    uid: Uid(uid),
                    writes,
                    through: through.iter().copied().map(InodeId).collect(),
                },
                expires: None,
                created: Time(1),
                ended,
                place: Sealed {
                    epoch: RealmEpoch(0),
                    bytes: Vec::new(),
                },
            },
        }
    }

    #[test]
    fn all_shares_that_have_not_ended_count_together() {
        let all = [
            share(10, (3, false), &[1, 2], false),
            share(11, (3, true), &[], false),
            share(12, (3, true), &[7], true),
            share(13, (4, true), &[8], false),
        ];
        let grants = Grants::of(Uid(3), &all);
        let cover = |above, inode| grants.cover(above, InodeId(inode));
        assert_eq!(cover(None, 10), Some(false));
        assert_eq!(cover(Some(false), 11), Some(true));
        assert_eq!(cover(Some(true), 10), Some(true));
        assert_eq!((cover(None, 12), cover(None, 13)), (None, None));
        let needed = (1..9).filter(|inode| grants.needs(InodeId(*inode)));
        assert_eq!(needed.collect::<Vec<_>>(), [1, 2]);
    }
}
