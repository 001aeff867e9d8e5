//! Names that are sealed under older key epochs get the key of the newest: a job of one command.
//!
//! The servers list the directories, and keep for each how far it is; so an interrupted job goes on
//! when it is started again, on any machine, and two at a time do no harm. New names in a directory
//! are under the newest key from the moment on when the first of its names is resealed.
//!
//! ```text
//! inodes, page by page ─► directories with old names ─► their entries, page by page
//!                                                        │ open, seal anew
//!        until a round finds no directory  ◄── ordered ◄─┘ several directories at a time
//! ```
//!
//! Failure modes: *a name does not decrypt*. It is resealed as the stand-in that listings show, so
//! that the directory comes to its end and the entry can be removed. *Another key epoch begins
//! meanwhile*. It is opened, and the next round goes on from there. *A directory is removed or
//! changed meanwhile*. The servers skip what is not there, and the next round finds what is left.

use super::{Volume, VolumeError};
use crate::blocks::ShareStore;
use crate::error::VfsError;
use crate::keys::{NameKeys, stand_in};
use crate::metadata::MetadataClient;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::RealmEpoch;
use quorumfs_metadata::limits::RESEAL_NAMES_MAX;
use quorumfs_metadata::operation::{DirectoryNames, ResealedName};
use quorumfs_metadata::reply::{OldName, OldNames};
use quorumfs_metadata::row::SealedName;
use rustix::io::Errno;

/// Directories in one operation: with its most names it is within the bound of rows.
const DIRECTORIES_MAX: usize = 64;
/// Rounds over all inodes: the first finds nearly all, and others what changed meanwhile.
const ROUNDS_MAX: u32 = 8;

/// What was done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resealed {
    /// Names that are under the newest key now.
    pub names: u64,
    /// Directories all of whose names are.
    pub directories: u64,
    /// Directories that could not be completed: they change all the time.
    pub left: u64,
}

/// Names that wait for their operation.
#[derive(Default)]
struct NameBatch {
    directories: Vec<DirectoryNames>,
    names: usize,
}

impl NameBatch {
    fn is_full(&self) -> bool {
        self.names >= RESEAL_NAMES_MAX || self.directories.len() >= DIRECTORIES_MAX
    }

    fn push(&mut self, directory: DirectoryNames) {
        self.names = self.names.saturating_add(directory.names.len());
        self.directories.push(directory);
    }
}

/// The job.
struct Job<'a> {
    volume: &'a Volume,
    metadata: &'a MetadataClient,
    done: Resealed,
    told: &'a mut (dyn FnMut(&Resealed) + Send),
    batch: NameBatch,
}

impl Volume {
    /// Seals all names anew that are under older key epochs than the newest. `told` hears how far
    /// it is.
    ///
    /// # Errors
    /// If this principal may neither administer nor reconcile, or the servers give no answer; what
    /// was done stays done.
    #[boxed]
    pub async fn reseal_names(
        &self,
        metadata: &MetadataClient,
        clouds: Option<&ShareStore>,
        told: &mut (dyn FnMut(&Resealed) + Send),
    ) -> Result<Resealed, VolumeError> {
        let mut job = Job {
            volume: self,
            metadata,
            done: Resealed::default(),
            told,
            batch: NameBatch::default(),
        };
        for _ in 0..ROUNDS_MAX {
            self.refresh(metadata, clouds).await?;
            job.done.left = job.round().await?;
            if job.done.left == 0 {
                break;
            }
        }
        Ok(job.done)
    }
}

impl Job<'_> {
    /// Looks at all inodes once; returns how many directories had old names.
    async fn round(&mut self) -> Result<u64, VolumeError> {
        let (mut found, mut after) = (0_u64, None);
        loop {
            let (directories, next) = self.metadata.old_names(after).await?;
            found = found.saturating_add(directories.len() as u64);
            for old in directories {
                match self.directory(&old).await {
                    // It was removed.
                    Err(VolumeError::Metadata(VfsError::Refused {
                        errno: Errno::STALE | Errno::NOENT | Errno::NOTDIR,
                        ..
                    })) => {}
                    done => done?,
                }
            }
            self.order().await?;
            match next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Reseals the names of one directory.
    async fn directory(&mut self, old: &OldNames) -> Result<(), VolumeError> {
        let newest = self.volume.current_epoch().unwrap_or_default();
        let (from, to) = match old.generations.previous {
            Some(previous) => (previous.epoch, old.generations.current),
            None => (old.generations.current, newest),
        };
        let (from_keys, to_keys) = (self.keys(from, old)?, self.keys(to, old)?);
        let mut after = old.after;
        loop {
            let page = self.metadata.names_to_reseal(old.directory, after);
            let (found, next) = page.await?;
            let names = found.iter().filter(|name| name.generation == from);
            let names = names.map(|name| resealed(name, &from_keys, (&to_keys, to)));
            let mut names: Vec<ResealedName> = names.collect::<Result<_, _>>()?;
            let last = next.is_none();
            after = next.unwrap_or(after);
            // Without names, too: the servers look whether there is one.
            while last || !names.is_empty() {
                let room = RESEAL_NAMES_MAX.saturating_sub(self.batch.names);
                let rest = names.split_off(names.len().min(room));
                let ends = last && rest.is_empty();
                self.batch.push(DirectoryNames {
                    directory: old.directory,
                    names: std::mem::replace(&mut names, rest),
                });
                // A directory is once in an operation.
                if self.batch.is_full() || !ends {
                    self.order().await?;
                }
                if ends {
                    return Ok(());
                }
            }
        }
    }

    fn keys(&self, epoch: RealmEpoch, of: &OldNames) -> Result<NameKeys, VolumeError> {
        Ok(self.volume.epoch_key(epoch)?.name_keys(of.directory))
    }

    /// Orders what waits.
    async fn order(&mut self) -> Result<(), VolumeError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.directories.is_empty() {
            return Ok(());
        }
        match self.metadata.reseal_names(batch.directories).await {
            Ok((names, directories)) => {
                self.done.names = self.done.names.saturating_add(names.into());
                self.done.directories = self.done.directories.saturating_add(directories.into());
                (self.told)(&self.done);
                Ok(())
            }
            // Another key epoch has begun, or another job was faster: left to the next round.
            Err(VfsError::OtherKeys { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The same name under other keys.
fn resealed(
    old: &OldName,
    from: &NameKeys,
    (to, generation): (&NameKeys, RealmEpoch),
) -> Result<ResealedName, VolumeError> {
    let at = old.at;
    let plain = from.open(&old.bytes, at).unwrap_or_else(|_| stand_in(at));
    let name = SealedName {
        cookie: to.cookie(&plain),
        generation,
        bytes: to.seal(&plain)?.0,
    };
    Ok(ResealedName { at, name })
}
