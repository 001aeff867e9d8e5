//! Replay of a journal after a crash: its data is put in place, or rescued.
//!
//! Done before the mount is ready: no process sees a file without data that was promised to be
//! safe. *In place* means as if it had just been written: it is visible at once, pending in memory
//! and in the journal, and committed in the background, so that a mount is ready while the clouds
//! are down.
//!
//! Data that must not go in place ([`Verdict`]) goes to a file of its own in [`RESCUE_DIRECTORY`]
//! at the root of the volume, or in a directory with a number behind that name if a user has
//! something else there: the written bytes at their offsets, holes elsewhere, named after the
//! inode's number. The user looks at it and removes it. The journal drops the bytes only once the
//! file is as safe as the tier says; a crash before that rescues them again.

use super::file_system::FileSystem;
use super::files::{HandleId, OpenMode};
use super::services::{Caller, VfsOptions};
use super::writeback::{Replay, Waiting};
use crate::error::VfsError;
use crate::journal::{Ground, Reason, Tail, Verdict};
use crate::metadata::MetadataClient;
use crate::slices::SliceStore;
use crate::volume::Volume;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::attributes::{Attributes, FileType};
use quorumfs_metadata::identity::InodeId;
use rustix::io::Errno;
use std::sync::Arc;

/// Where bytes go that cannot go in place, at the root of the volume.
pub const RESCUE_DIRECTORY: &str = ".quorumfs-rescued";
/// Names of directories that are tried before rescues are given up.
const DIRECTORIES_MAX: u32 = 100;
/// File names that are tried for one inode before its rescue is given up.
const NAMES_MAX: u32 = 1000;

/// The outcome of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Files whose data is in place.
    pub in_place: usize,
    /// Files whose bytes were rescued: the inode, and why.
    pub rescued: Vec<(InodeId, Reason)>,
    /// How the journal's disk has lost promised data, if it has.
    pub damage: Option<String>,
}

impl FileSystem {
    /// As [`FileSystem::new`], over a journal: its data is in place, or rescued, when this returns.
    ///
    /// # Errors
    /// If the replay fails; the journal then keeps the data.
    #[boxed]
    pub async fn journalled(
        volume: Arc<Volume>,
        metadata: Arc<MetadataClient>,
        slices: Arc<dyn SliceStore>,
        options: VfsOptions,
        replay: Replay,
    ) -> Result<(Self, Replayed), VfsError> {
        let Replay {
            journal,
            mut recovered,
            mut files,
        } = replay;
        let fs = Self::build(volume, metadata, slices, options, Some(Arc::new(journal)));
        let mut replayed = Replayed {
            damage: recovered.damage.take(),
            ..Replayed::default()
        };
        for (inode, tail) in recovered.tails {
            let waiting = files.remove(&inode).unwrap_or_default();
            match fs.replay(inode, &tail, waiting).await {
                Ok(None) => replayed.in_place += 1,
                Ok(Some(reason)) => replayed.rescued.push((inode, reason)),
                Err(error) => {
                    fs.inner.writeback.close_journal().await;
                    return Err(error);
                }
            }
        }
        Ok((fs, replayed))
    }

    /// Returns why it was rescued, if it was.
    async fn replay(
        &self,
        inode: InodeId,
        tail: &Tail,
        waiting: Waiting,
    ) -> Result<Option<Reason>, VfsError> {
        let found = match self.inner.services.metadata.attributes(inode).await {
            Ok(found) if found.links > 0 && found.file_type() == FileType::File => Some(found),
            Ok(_) => None,
            Err(VfsError::Refused {
                errno: Errno::NOENT | Errno::STALE,
                ..
            }) => None,
            Err(error) => return Err(error),
        };
        let verdict = tail.verdict(found.as_ref().map(Ground::of));
        if let (Verdict::InPlace, Some(found)) = (verdict, found) {
            self.inner.writeback.put_in_place(&found, waiting);
            return Ok(None);
        }
        let reason = match verdict {
            Verdict::Rescue(reason) => reason,
            Verdict::InPlace => Reason::Deleted,
        };
        self.rescue(inode, waiting).await?;
        Ok(Some(reason))
    }

    /// The name of a directory with rescued files to look at, if there is one.
    ///
    /// # Errors
    /// If the servers do not answer.
    #[boxed]
    pub async fn rescued(&self) -> Result<Option<String>, VfsError> {
        for number in 0..DIRECTORIES_MAX {
            let name = directory_name(number);
            match self.look_up_rescue_directory(&name).await? {
                None => return Ok(None),
                Some((_, true)) => return Ok(Some(name)),
                Some((_, false)) => {}
            }
        }
        Ok(None)
    }

    /// What is at the root under this name, and whether it is a directory of this principal.
    async fn look_up_rescue_directory(
        &self,
        name: &str,
    ) -> Result<Option<(Attributes, bool)>, VfsError> {
        let own = self.inner.services.metadata.own();
        let caller = Caller::user(own.uid.0, own.gid.0, Vec::new());
        let found = self.lookup(&caller, self.root(), name.as_bytes()).await?;
        Ok(found.map(|found| {
            let is_own = found.file_type() == FileType::Directory && found.uid == own.uid;
            (found, is_own)
        }))
    }

    /// A directory of this principal for rescued files: one that is there, or a new one.
    async fn rescue_directory(&self) -> Result<Attributes, VfsError> {
        let own = self.inner.services.metadata.own();
        let caller = Caller::user(own.uid.0, own.gid.0, Vec::new());
        for number in 0..DIRECTORIES_MAX {
            let name = directory_name(number);
            let made = self.mkdir(&caller, self.root(), name.as_bytes(), 0o700);
            match made.await {
                Err(VfsError::Refused {
                    errno: Errno::EXIST,
                    ..
                }) => {}
                outcome => return outcome,
            }
            if let Some((found, true)) = self.look_up_rescue_directory(&name).await? {
                return Ok(found);
            }
        }
        Err(VfsError::refused("rescue", Errno::EXIST))
    }

    async fn rescue(&self, inode: InodeId, waiting: Waiting) -> Result<(), VfsError> {
        if !waiting.is_without_bytes() {
            let handle = self.rescue_file(inode).await?;
            let outcome = self.fill_rescue_file(handle, waiting).await;
            let closed = self.release(handle).await;
            outcome.and(closed)?;
        }
        self.inner.writeback.rescued(inode).await;
        Ok(())
    }

    async fn fill_rescue_file(&self, handle: HandleId, waiting: Waiting) -> Result<(), VfsError> {
        let node = self.inner.files.handles.file(handle)?.node.clone();
        self.inner.writeback.fill_rescue_file(&node, waiting).await
    }

    /// A new file in the directory of rescued ones, which only its owner may read.
    async fn rescue_file(&self, inode: InodeId) -> Result<HandleId, VfsError> {
        let own = self.inner.services.metadata.own();
        let caller = Caller::user(own.uid.0, own.gid.0, Vec::new());
        let directory = self.rescue_directory().await?;
        for number in 0..NAMES_MAX {
            let name = match number {
                0 => format!("inode-{inode}"),
                number => format!("inode-{inode}-{number}"),
            };
            let mode = OpenMode::READ_WRITE;
            let made = self
                .create(&caller, directory.inode, name.as_bytes(), 0o600, mode, true)
                .await;
            match made {
                Err(VfsError::Refused {
                    errno: Errno::EXIST,
                    ..
                }) => {}
                outcome => return Ok(outcome?.1),
            }
        }
        Err(VfsError::refused("rescue", Errno::EXIST))
    }
}

/// The name of the directory for rescued files that is tried in this turn.
fn directory_name(number: u32) -> String {
    match number {
        0 => RESCUE_DIRECTORY.to_owned(),
        number => format!("{RESCUE_DIRECTORY}-{number}"),
    }
}
