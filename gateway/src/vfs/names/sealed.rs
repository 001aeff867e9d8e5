//! Names, and their sealed form at the servers.
//!
//! A name is sealed under the key epoch that its directory's names have as their generation; a
//! lookup carries the previous generation too while the directory has one. A name that does not
//! decrypt is shown as a stand-in, which leads back to the entry by its cookie.

use crate::blocks::BlockErrorKind;
use crate::error::VfsError;
use crate::keys::{self, NAME_BYTES_MAX, NameKeys};
use crate::vfs::file_system::FileSystemCore;
use crate::vfs::shared::{READ_ONLY, is_shared};
use quorumfs_metadata::attributes::{Attributes, Detail, NameGenerations};
use quorumfs_metadata::identity::{Cookie, InodeId, RealmEpoch};
use quorumfs_metadata::operation::{EntryName, EntryPlace};
use quorumfs_metadata::reply::ListedEntry;
use quorumfs_metadata::row::SealedName;
use rustix::io::Errno;

/// The generations of a directory's names; refused if some are sealed under another realm's keys.
fn own_generations(attributes: &Attributes) -> Result<Option<NameGenerations>, VfsError> {
    let Detail::Directory { generations, .. } = attributes.detail else {
        return Ok(None);
    };
    if generations.is_within(attributes.realm) {
        return Ok(Some(generations));
    }
    Err(VfsError::Data {
        doing: "reading names",
        kind: BlockErrorKind::NewerFormat,
        reason: format!(
            "names in directory {} are sealed under keys of another realm, which this program \
             cannot read: update it",
            attributes.inode
        ),
    })
}

impl FileSystemCore {
    /// The epochs under which a directory's names are sealed: the first, as long as there is no
    /// other; then its attributes name them.
    pub(super) async fn generations(
        &self,
        directory: InodeId,
    ) -> Result<NameGenerations, VfsError> {
        const FIRST: NameGenerations = NameGenerations {
            current: RealmEpoch(0),
            previous: None,
        };
        let mut known = self.known.attributes(directory);
        if known.is_none() && self.services.volume.current_epoch() > Some(FIRST.current) {
            let asked = self.known.query_stamp();
            let found = self.services.metadata.attributes(directory).await?;
            self.files.learn(&found, asked);
            known = Some(found);
        }
        match known {
            Some(attributes) => Ok(own_generations(&attributes)?.unwrap_or(FIRST)),
            None => Ok(FIRST),
        }
    }

    pub(super) async fn name_keys(
        &self,
        directory: InodeId,
        generation: RealmEpoch,
    ) -> Result<NameKeys, VfsError> {
        Ok(self.services.key_of(generation).await?.name_keys(directory))
    }

    async fn seal_name(
        &self,
        directory: InodeId,
        generation: RealmEpoch,
        name: &[u8],
    ) -> Result<SealedName, VfsError> {
        let keys = self.name_keys(directory, generation).await?;
        let bytes = keys.seal(name)?.0;
        Ok(SealedName {
            cookie: keys.cookie(name),
            generation,
            bytes,
        })
    }

    /// The place of `name` in queries and operations, whether or not it exists.
    pub(in crate::vfs) async fn place(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<EntryPlace, VfsError> {
        if is_shared(directory) {
            return Err(READ_ONLY);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(VfsError::refused("name", Errno::NAMETOOLONG));
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(VfsError::refused("name", Errno::INVAL));
        }
        let generations = self.generations(directory).await?;
        let current = self.seal_name(directory, generations.current, name).await?;
        let previous = match generations.previous {
            Some(previous) => Some(self.seal_name(directory, previous.epoch, name).await?),
            None => None,
        };
        Ok(EntryPlace {
            parent: directory,
            name: EntryName { current, previous },
        })
    }

    /// As [`FileSystemCore::place`], for an existing name: a stand-in leads to its entry.
    pub(in crate::vfs) async fn place_of(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<EntryPlace, VfsError> {
        if let Some(entry) = self.stands_for(directory, name).await? {
            let generations = self.generations(directory).await?;
            // As it stands there, in either generation: no entry of the other one has these bytes.
            let of = |generation| SealedName {
                cookie: entry.cookie.base(),
                generation,
                bytes: entry.name.clone(),
            };
            return Ok(EntryPlace {
                parent: directory,
                name: EntryName {
                    current: of(generations.current),
                    previous: generations.previous.map(|previous| of(previous.epoch)),
                },
            });
        }
        self.place(directory, name).await
    }

    /// The entry that a stand-in stands for, if `name` is one.
    pub(in crate::vfs) async fn stands_for(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<ListedEntry>, VfsError> {
        let Some(cookie) = keys::stand_in_cookie(name) else {
            return Ok(None);
        };
        let after = Cookie(cookie.0.saturating_sub(1));
        let page = self.services.metadata.list(directory, after, 1).await?;
        let entry = page
            .entries
            .into_iter()
            .next()
            .filter(|entry| entry.cookie == cookie);
        match entry {
            Some(entry) if !self.decrypts(directory, &entry).await => Ok(Some(entry)),
            _ => Ok(None),
        }
    }

    async fn decrypts(&self, directory: InodeId, entry: &ListedEntry) -> bool {
        let keys = self.name_keys(directory, entry.generation).await;
        keys.is_ok_and(|keys| keys.open(&entry.name, entry.cookie).is_ok())
    }

    /// The names on a page; one that does not decrypt gets a stand-in.
    pub(in crate::vfs) async fn plain_names(
        &self,
        directory: InodeId,
        entries: &[ListedEntry],
    ) -> Vec<Vec<u8>> {
        let mut last: Option<(RealmEpoch, Option<NameKeys>)> = None;
        let mut names = Vec::with_capacity(entries.len());
        for entry in entries {
            if last.as_ref().map(|(generation, _)| *generation) != Some(entry.generation) {
                let keys = self.name_keys(directory, entry.generation).await.ok();
                last = Some((entry.generation, keys));
            }
            let keys = last.as_ref().and_then(|(_, keys)| keys.as_ref());
            let name = keys.and_then(|keys| keys.open(&entry.name, entry.cookie).ok());
            names.push(name.unwrap_or_else(|| keys::stand_in(entry.cookie)));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::attributes::{Mode, PreviousNames};
    use quorumfs_metadata::identity::RealmId;

    #[test]
    fn names_under_keys_of_another_realm_are_refused() {
        let directory = |realm| Attributes {
            mode: Mode(0o755),
            links: 2,
            size: 0,
            allocated: 0,
            detail: Detail::Directory {
                parent: InodeId::ROOT,
                generations: NameGenerations {
                    current: RealmEpoch(1),
                    previous: Some(PreviousNames {
                        realm,
                        epoch: RealmEpoch(0),
                    }),
                },
            },
            ..crate::vfs::files::file_attributes(2, 0, 0, 0)
        };
        let own = own_generations(&directory(RealmId::ROOT)).unwrap().unwrap();
        let epoch = own.previous.map(|previous| previous.epoch);
        assert_eq!(epoch, Some(RealmEpoch(0)));
        let refused = own_generations(&directory(RealmId(1))).unwrap_err();
        assert!(refused.to_string().contains("another realm"), "{refused}");
    }
}
