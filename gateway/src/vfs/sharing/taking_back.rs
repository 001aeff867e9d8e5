//! Taking back the lists of shares that have ended: by a command, and by a running mount.
//!
//! A share ends by itself at the servers, or with its person; the lists stay until a client takes
//! them back. Each mount of the user who shares, or of the superuser, looks for such shares more
//! than once in a minute. What fails is tried again after [`AGAIN`].

use super::settle::{Settled, Settling};
use super::{Grants, KnownShare};
use crate::error::VfsError;
use crate::vfs::file_system::{FileSystem, FileSystemCore};
use crate::vfs::services::Caller;
use async_recursion::async_recursion as boxed;
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::query::SharesOf;
use quorumfs_metadata::row::ShareWith;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// When what could not be taken back is tried again.
const AGAIN: Duration = Duration::from_secs(600);

/// Whether all was well.
#[derive(Default)]
struct Quiet {
    failed: Option<(PathBuf, VfsError)>,
    foreign: u64,
}

impl Settling for Quiet {
    fn settled(&mut self, path: &Path, what: Settled) -> bool {
        match what {
            Settled::Set | Settled::Unchanged => {}
            Settled::Foreign(_) => self.foreign = self.foreign.saturating_add(1),
            Settled::Failed(error) => {
                self.failed.get_or_insert_with(|| (path.to_owned(), error));
            }
        }
        true
    }
}

/// Notes whether something failed.
struct Noting<'f> {
    inner: &'f mut dyn Settling,
    failed: bool,
}

impl Settling for Noting<'_> {
    fn settled(&mut self, path: &Path, what: Settled) -> bool {
        self.failed |= matches!(what, Settled::Failed(_));
        self.inner.settled(path, what)
    }
}

impl FileSystem {
    /// Takes back the lists of a share with a person that has ended, except what other shares give
    /// that person, and forgets the share. Returns whether all was done.
    ///
    /// # Errors
    /// If the servers do not answer, or refuse.
    #[boxed]
    pub async fn take_back(
        &self,
        caller: &Caller,
        known: &KnownShare,
        follower: &mut dyn Settling,
    ) -> Result<bool, VfsError> {
        let share = &known.share;
        let ShareWith::Person {
            principal,
            uid,
            through,
            ..
        } = &share.with
        else {
            return Ok(true);
        };
        let grants: Grants = self.grants(caller, (*principal, *uid)).await?;
        let (parent, path) = match &known.place {
            Some(place) => {
                let path = std::ffi::OsStr::from_bytes(&place.path);
                (place.parent, Path::new("/").join(path))
            }
            None => (self.root(), format!("id:{}", share.inode).into()),
        };
        let mut noting = Noting {
            inner: follower,
            failed: false,
        };
        let root = (share.inode, parent);
        let ended = self.settle(caller, root, &path, &grants, &mut noting);
        if !ended.await? || noting.failed {
            return Ok(false);
        }
        for directory in through {
            self.close(caller, *directory, &grants).await?;
        }
        self.forget_share(caller, known.id).await?;
        Ok(true)
    }
}

impl FileSystemCore {
    /// Takes back what has ended in a task of its own, if it is time.
    pub(in crate::vfs) fn take_back_if_due(self: &Arc<Self>) {
        let services = &self.services;
        let may = !services.metadata.is_fenced() && !services.volume.is_reader();
        if !self.taking_back.is_due() || !may {
            return;
        }
        let fs = FileSystem {
            inner: self.clone(),
        };
        tokio::spawn(async move {
            if let Err(error) = fs.take_back_ended().await {
                tracing::debug!(%error, "shares that have ended could not be looked for");
            }
        });
    }
}

impl FileSystem {
    /// Takes back what has ended of this principal's user, or of all users for the superuser.
    async fn take_back_ended(&self) -> Result<(), VfsError> {
        let failed = self.inner.taking_back.failed.clone();
        // A look may take longer than the time between two.
        let Ok(mut failed) = failed.try_lock() else {
            return Ok(());
        };
        failed.retain(|_, at| at.elapsed() < AGAIN);
        let own = self.inner.services.metadata.own();
        let caller = Caller::user(own.uid.0, own.gid.0, Vec::new());
        let of = match own.uid {
            Uid::ROOT => SharesOf::All,
            _ => SharesOf::Mine,
        };
        for known in self.shares(&caller, of).await? {
            if !known.share.ended || failed.contains_key(&known.id) {
                continue;
            }
            let mut quiet = Quiet::default();
            let id = known.id;
            match self.take_back(&caller, &known, &mut quiet).await {
                Ok(true) if quiet.foreign > 0 => {
                    let others = quiet.foreign;
                    tracing::warn!(share = %id, others, "a share has ended, and files of other \
                        users keep the access that it gave: their owners can take it away");
                }
                Ok(true) => tracing::info!(share = %id, "the access of an ended share is gone"),
                Ok(false) => {
                    let (path, error) = quiet.failed.map_or_else(Default::default, |(path, it)| {
                        (path.display().to_string(), it.to_string())
                    });
                    tracing::warn!(share = %id, path, error, "the access of an ended share could \
                        not all be taken away; it is tried again");
                    failed.insert(id, Instant::now());
                }
                Err(error) => {
                    tracing::warn!(share = %id, %error, "the access of an ended share could not \
                        be taken away; it is tried again");
                    failed.insert(id, Instant::now());
                }
            }
        }
        Ok(())
    }
}
