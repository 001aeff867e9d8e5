//! This session's mount of the realm: how it begins and ends, and hears what others change.
//!
//! A mount is *exclusive*, and keeps every other one out; or it is *alone* until another one asks
//! for the realm, and then *shares* it. The servers append what sessions change to a log; a mount
//! hears of it from the position at which it began. A mount that is not exclusive watches the
//! servers' bell as well, which rings when there is something to hear; whether it rings changes
//! only how soon that is asked for. An exclusive mount hears of commands on the volume, and they
//! are seldom enough to be asked for from time to time.
//!
//! A mount that finds another one alone asks again until that one shares, or has been fenced.

use super::client::MetadataClient;
use super::transport::Watching;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_bft::identity::SessionId;
use quorumfs_metadata::attributes::Timestamp;
use quorumfs_metadata::identity::{InodeId, LogPosition};
use quorumfs_metadata::limits::LABEL_BYTES_MAX;
use quorumfs_metadata::operation::{Operation, Takeover};
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::reply::{Claimed, Done, QueryResult};
use quorumfs_metadata::row::{Mount, MountMode};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The first pause before a mount is asked for again; each next one is twice as long.
const RECALL_PAUSE: Duration = Duration::from_millis(10);
/// The longest. Each question moves the servers' lease clock by a second at most.
const RECALL_PAUSE_MAX: Duration = Duration::from_millis(640);
/// How long news are fresh after they were asked for: what is asked of the nearest servers then may
/// be as old.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// How long a mount waits for another one that is alone.
const RECALL_WAIT_MAX: Duration = Duration::from_secs(60);

/// How a mount stands towards others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// There are no others, and none are let in.
    Exclusive,
    /// There were no others at this time, and the servers tell it before they let one in.
    Alone(Instant),
    /// There may be others.
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
    /// There are other mounts.
    pub(crate) others: bool,
    /// This mount is alone and has to share.
    pub(crate) recalled: bool,
}

/// The mount of this session.
#[derive(Debug)]
struct OwnMount {
    /// What it would be if there were no others.
    wish: MountMode,
    standing: Standing,
    /// The position in the log at which it began.
    began: LogPosition,
    /// The session, once the servers have told it.
    session: Option<SessionId>,
    /// Rings the bell as long as it is held.
    _watching: Option<Watching>,
}

/// Whether this session has the realm mounted, and the bell that tells it of changes.
#[derive(Debug, Default)]
pub(super) struct Mounting {
    own: Mutex<Option<OwnMount>>,
    /// When the last news that were all that there were had been asked for.
    heard: Mutex<Option<Instant>>,
    bell: Arc<Notify>,
}

impl Standing {
    /// What the servers have granted just now.
    fn of(mode: MountMode) -> Self {
        match mode {
            MountMode::Exclusive => Self::Exclusive,
            MountMode::Alone => Self::Alone(Instant::now()),
            MountMode::Shared => Self::Shared,
        }
    }
}

impl Mounting {
    fn own(&self) -> MutexGuard<'_, Option<OwnMount>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, Option<Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetadataClient {
    /// Mounts the realm for this session. With [`MountMode::Alone`] it shares the realm as long as
    /// there are others.
    ///
    /// Another mount that is alone has to share first. It does within milliseconds, or is fenced
    /// after [`RECALL_TIME`](quorumfs_metadata::limits::RECALL_TIME); this waits for that.
    ///
    /// # Errors
    /// `EBUSY` if another session has mounted it and cannot share it with this one, unless
    /// `takeover` fences that.
    #[boxed]
    pub async fn mount(&self, takeover: Takeover, wish: MountMode) -> Result<(), VfsError> {
        let (sent, began, mode) = self.begin_mount(takeover, wish).await?;
        let watching = match mode {
            MountMode::Exclusive => None,
            MountMode::Alone | MountMode::Shared => self.watch_bell(began).await,
        };
        *self.mounting.own() = Some(OwnMount {
            wish,
            standing: Standing::of(mode),
            began,
            session: None,
            _watching: watching,
        });
        // An answer without a time reveals nothing of the servers' clock.
        if let Ok(Some(mount)) = self.mounted().await {
            self.agreed.learn(Timestamp::from(mount.since), sent);
            self.learn_session(mount.session);
        }
        Ok(())
    }

    fn learn_session(&self, session: SessionId) {
        if let Some(own) = self.mounting.own().as_mut() {
            own.session = Some(session);
        }
    }

    /// The session that has the realm mounted: this one.
    pub(super) async fn mount_session(&self) -> Result<SessionId, VfsError> {
        let own = self.mounting.own().as_ref().map(|own| own.session);
        match own.ok_or(VfsError::Fenced)? {
            Some(session) => Ok(session),
            None => {
                let mount = self.mounted().await?.ok_or(VfsError::Fenced)?;
                self.learn_session(mount.session);
                Ok(mount.session)
            }
        }
    }

    /// Asks for a mount until it begins; returns when it was last asked for, too.
    async fn begin_mount(
        &self,
        takeover: Takeover,
        wish: MountMode,
    ) -> Result<(std::time::Instant, LogPosition, MountMode), VfsError> {
        let began = Instant::now();
        let mut pause = RECALL_PAUSE;
        loop {
            let sent = std::time::Instant::now();
            match self.order_mount(takeover, wish).await? {
                Done::Mounted { position, mode, .. } => return Ok((sent, position, mode)),
                // The servers' clock stands still as long as they are away.
                Done::Recalled(_) if began.elapsed() >= RECALL_WAIT_MAX => {
                    return Err(VfsError::refused("mount", Errno::BUSY));
                }
                Done::Recalled(holder) => {
                    if pause == RECALL_PAUSE_MAX {
                        let host = &holder.label;
                        tracing::info!(%host, "waiting for a mount to share the volume");
                    }
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(RECALL_PAUSE_MAX);
                }
                other => return Err(self.mismatch("mount", &other)),
            }
        }
    }

    async fn order_mount(&self, takeover: Takeover, mode: MountMode) -> Result<Done, VfsError> {
        let operation = Operation::MountRealm {
            realm: self.realm(),
            takeover,
            mode,
            label: host(),
        };
        self.order("mount", &operation).await
    }

    /// Acts as one that shares from now on, though the servers do not know.
    pub(crate) fn stop_being_alone(&self) {
        self.stand(Standing::Shared);
    }

    /// Lets others mount the realm, as one of them waits for.
    pub(crate) async fn share_mount(&self) -> Result<(), VfsError> {
        // From now on it acts so, whether or not the answer arrives.
        self.stand(Standing::Shared);
        match self
            .order_mount(Takeover::Refused, MountMode::Shared)
            .await?
        {
            Done::Mounted { .. } => Ok(()),
            other => Err(self.mismatch("share", &other)),
        }
    }

    /// Is alone again, if there are no other mounts.
    pub(crate) async fn be_alone(&self) -> Result<(), VfsError> {
        match self
            .order_mount(Takeover::Refused, MountMode::Alone)
            .await?
        {
            Done::Mounted { mode, .. } => {
                self.stand(Standing::of(mode));
                Ok(())
            }
            other => Err(self.mismatch("be alone", &other)),
        }
    }

    fn stand(&self, standing: Standing) {
        if let Some(own) = self.mounting.own().as_mut() {
            own.standing = standing;
        }
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

    /// How this session's mount stands towards others; a session without one shares nothing.
    pub(crate) fn standing(&self) -> Standing {
        let own = self.mounting.own();
        own.as_ref().map_or(Standing::Exclusive, |own| own.standing)
    }

    /// Whether this session's mount is to be alone when there are no others.
    pub(crate) fn would_be_alone(&self) -> bool {
        let own = self.mounting.own();
        own.as_ref().is_some_and(|own| own.wish == MountMode::Alone)
    }

    /// Whether this session has its mount and has heard all news lately.
    pub(super) fn has_fresh_news(&self) -> bool {
        let fresh = |heard: Instant| heard.elapsed() < FRESH_FOR;
        self.is_mounted() && self.mounting.heard().is_some_and(fresh)
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
        let sent = Instant::now();
        match self.ask("news", self.own(), question).await {
            Ok(QueryResult::News {
                position,
                gap,
                inodes,
                more,
                others,
                recalled,
            }) => {
                if !more {
                    let mut heard = self.mounting.heard();
                    *heard = (*heard).max(Some(sent));
                }
                Ok(Some(RealmNews {
                    position,
                    gap,
                    inodes,
                    more,
                    others,
                    recalled,
                }))
            }
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
