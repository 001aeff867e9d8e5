//! This session's mount of the realm: how it begins and ends, and hears what others change.
//!
//! A mount is *alone*, and keeps every other one out, or it *shares* the realm with others that
//! share. The servers append what sessions change to a log; a mount hears of it from the position
//! at which it began. A mount that shares watches the servers' bell as well, which rings when there
//! is something to hear; whether it rings changes only how soon that is asked for. A mount that is
//! alone hears of commands on the volume, and they are seldom enough to be asked for from time to
//! time.

use super::client::MetadataClient;
use super::transport::Watching;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_metadata::attributes::Timestamp;
use quorumfs_metadata::identity::{InodeId, LogPosition};
use quorumfs_metadata::limits::LABEL_BYTES_MAX;
use quorumfs_metadata::operation::{Operation, Takeover};
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::reply::{Claimed, Done, QueryResult};
use quorumfs_metadata::row::Mount;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Whether other mounts are let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// None are.
    Alone,
    /// Those that share are.
    Shared,
}

/// What others have changed in the realm.
#[derive(Debug)]
pub(crate) struct RealmNews {
    /// Up to here in the log.
    pub(crate) position: LogPosition,
    /// Anything may have changed.
    pub(crate) gap: bool,
    /// Otherwise these inodes have.
    pub(crate) inodes: Vec<InodeId>,
    /// There is more in the log.
    pub(crate) more: bool,
}

/// The mount of this session.
#[derive(Debug)]
struct OwnMount {
    sharing: Sharing,
    /// The position in the log at which it began.
    began: LogPosition,
    /// Rings the bell as long as it is held.
    _watching: Option<Watching>,
}

/// Whether this session has the realm mounted, and the bell that tells it of changes.
#[derive(Debug, Default)]
pub(super) struct Mounting {
    own: Mutex<Option<OwnMount>>,
    bell: Arc<Notify>,
}

impl Mounting {
    fn own(&self) -> MutexGuard<'_, Option<OwnMount>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetadataClient {
    /// Mounts the realm for this session.
    ///
    /// # Errors
    /// `EBUSY` if another session has mounted it and cannot share it with this one, unless
    /// `takeover` fences that.
    #[boxed]
    pub async fn mount(&self, takeover: Takeover, sharing: Sharing) -> Result<(), VfsError> {
        let operation = Operation::MountRealm {
            realm: self.realm(),
            takeover,
            alone: sharing == Sharing::Alone,
            label: host(),
        };
        let sent = Instant::now();
        let began = match self.order("mount", &operation).await? {
            Done::Mounted { position, .. } => position,
            other => return Err(self.mismatch("mount", &other)),
        };
        let watching = match sharing {
            Sharing::Alone => None,
            Sharing::Shared => self.watch_bell(began).await,
        };
        *self.mounting.own() = Some(OwnMount {
            sharing,
            began,
            _watching: watching,
        });
        // An answer without a time reveals nothing of the servers' clock.
        if let Ok(Some(mount)) = self.mounted().await {
            self.agreed.learn(Timestamp::from(mount.since), sent);
        }
        Ok(())
    }

    /// Has the bell rung when there are news, if the servers allow it.
    async fn watch_bell(&self, began: LogPosition) -> Option<Watching> {
        let query = Query {
            credentials: self.own(),
            question: self.about_news(began),
        };
        let watch = Bytes::from(query.to_bytes());
        let bell = self.mounting.bell.clone();
        match self.transport.watch(watch, bell).await {
            Ok(watching) => watching,
            Err(error) => {
                tracing::warn!(%error, "changes by other mounts will be seen half a second later");
                None
            }
        }
    }

    fn about_news(&self, after: LogPosition) -> Question {
        Question::News {
            realm: self.realm(),
            after: Some(after),
        }
    }

    /// Whether this session has the realm mounted, to its knowledge.
    pub(crate) fn is_mounted(&self) -> bool {
        self.mounting.own().is_some() && !self.is_fenced()
    }

    /// Whether other mounts may have joined this one.
    pub(crate) fn is_shared(&self) -> bool {
        let own = self.mounting.own();
        own.as_ref()
            .is_some_and(|own| own.sharing == Sharing::Shared)
    }

    /// Rings when there may be news.
    pub(crate) fn bell(&self) -> Arc<Notify> {
        self.mounting.bell.clone()
    }

    /// A mount that there is now: this session's, or else that of the oldest other session.
    ///
    /// # Errors
    /// If it is refused, or the servers gave no usable answer.
    #[boxed]
    pub async fn mounted(&self) -> Result<Option<Mount>, VfsError> {
        let question = Question::Mounted(self.realm());
        match self.ask("mounted", self.own(), question).await? {
            QueryResult::Mounted(mount) => Ok(mount),
            other => Err(self.mismatch("mounted", &other)),
        }
    }

    /// All mounts that there are now.
    ///
    /// # Errors
    /// If it is refused, or the servers gave no usable answer.
    #[boxed]
    pub async fn mounts(&self) -> Result<Vec<Mount>, VfsError> {
        let question = Question::Mounts(self.realm());
        match self.ask("mounts", self.own(), question).await? {
            QueryResult::Mounts(mounts) => Ok(mounts),
            other => Err(self.mismatch("mounts", &other)),
        }
    }

    /// What other sessions have changed in the realm after a position, or else since this one
    /// mounted it; `None` if it has not, or has lost the mount.
    pub(crate) async fn news(
        &self,
        after: Option<LogPosition>,
    ) -> Result<Option<RealmNews>, VfsError> {
        let Some(began) = self.mounting.own().as_ref().map(|own| own.began) else {
            return Ok(None);
        };
        let question = self.about_news(after.unwrap_or(began));
        match self.ask("news", self.own(), question).await {
            Ok(QueryResult::News {
                position,
                gap,
                inodes,
                more,
                ..
            }) => Ok(Some(RealmNews {
                position,
                gap,
                inodes,
                more,
            })),
            Ok(other) => Err(self.mismatch("news", &other)),
            // They are refused to a session without a mount, and to no other.
            Err(VfsError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Holds inodes whose last names may have gone on other mounts, at most
    /// [`CLAIM_INODES_MAX`](quorumfs_metadata::limits::CLAIM_INODES_MAX); the result of each.
    pub(crate) async fn claim(&self, inodes: &[InodeId]) -> Result<Vec<Claimed>, VfsError> {
        let operation = Operation::Claim {
            inodes: inodes.to_vec(),
        };
        match self.order("claim", &operation).await? {
            Done::Claimed(claimed) if claimed.len() == inodes.len() => Ok(claimed),
            other => Err(self.mismatch("claim", &other)),
        }
    }

    /// Gives the mount back.
    ///
    /// # Errors
    /// If this session has not mounted the realm, or was fenced.
    #[boxed]
    pub async fn unmount(&self) -> Result<(), VfsError> {
        let realm = self.realm();
        match self
            .order("unmount", &Operation::UnmountRealm { realm })
            .await?
        {
            Done::Unmounted => {
                *self.mounting.own() = None;
                Ok(())
            }
            other => Err(self.mismatch("unmount", &other)),
        }
    }
}

/// The name of this machine, for people; empty if it is unknown.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut name = name.trim().to_owned();
    while name.len() > LABEL_BYTES_MAX {
        name.pop();
    }
    name
}
