//! How a mount learns that others have changed something: the border between what is known and how
//! it is kept so.
//!
//! The servers keep a log of changes. *News* say what others have changed from one position of the
//! log to a later one: some inodes, or, where that is not known any more, perhaps anything.

use crate::error::VfsError;
use crate::metadata::{MetadataClient, RealmNews, Standing};
use async_trait::async_trait;
use quorumfs_metadata::identity::{InodeId, LogPosition};
use std::sync::Arc;
use tokio::sync::Notify;

/// What others have changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::vfs) enum Changed {
    /// These inodes and nothing else.
    Inodes(Vec<InodeId>),
    /// It is not known: perhaps anything.
    Anything,
}

/// What an answer says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::vfs) enum News {
    /// Of the log.
    UpTo {
        /// Up to here.
        position: LogPosition,
        /// By others, since the position that was asked about.
        changed: Changed,
        /// The log goes on: ask again.
        more: bool,
        /// There are other mounts.
        others: bool,
        /// This mount is alone, and another one waits for it to share.
        recalled: bool,
    },
    /// None will come any more: the mount is not ours.
    Ended,
}

/// Tells whether others have changed something.
#[async_trait]
pub(in crate::vfs) trait Coherence: Send + Sync + 'static {
    /// Whether there is something to ask: only a mount is told.
    fn is_told(&self) -> bool;

    /// How this mount stands towards others. Whether there are any is known only some time later.
    fn standing(&self) -> Standing;

    /// Whether it is to be alone when there are no others.
    fn would_be_alone(&self) -> bool;

    /// Stands as one that shares from now on, though the servers do not know.
    fn stop_being_alone(&self);

    /// Shares with the one that waits; from the call on this mount stands so.
    ///
    /// # Errors
    /// If the servers do not answer, or the mount is lost.
    async fn share(&self) -> Result<(), VfsError>;

    /// Is alone again, if there are no others.
    ///
    /// # Errors
    /// If the servers do not answer, or the mount is lost.
    async fn be_alone(&self) -> Result<(), VfsError>;

    /// Asks what others have changed after `known`, or, if that is `None`, from when this session
    /// mounted. Answers to queries that are sent after this one was answered contain all changes up
    /// to its position.
    ///
    /// # Errors
    /// If the servers do not answer.
    async fn news(&self, known: Option<LogPosition>) -> Result<News, VfsError>;

    /// Notified when there may be news; perhaps never.
    fn bell(&self) -> Arc<Notify>;

    /// Whether another mount has taken over, as far as is known without asking.
    fn is_fenced(&self) -> bool;

    /// Whether the servers are known to be out of reach, so that nothing better can be had than
    /// what is known.
    fn is_cut_off(&self) -> bool;
}

/// The servers' log of changes.
pub(in crate::vfs) struct ChangeLog(pub(in crate::vfs) Arc<MetadataClient>);

#[async_trait]
impl Coherence for ChangeLog {
    fn is_told(&self) -> bool {
        self.0.is_mounted()
    }

    fn standing(&self) -> Standing {
        self.0.standing()
    }

    fn would_be_alone(&self) -> bool {
        self.0.would_be_alone()
    }

    fn stop_being_alone(&self) {
        self.0.stop_being_alone();
    }

    async fn share(&self) -> Result<(), VfsError> {
        self.0.share_mount().await
    }

    async fn be_alone(&self) -> Result<(), VfsError> {
        self.0.be_alone().await
    }

    async fn news(&self, known: Option<LogPosition>) -> Result<News, VfsError> {
        let Some(RealmNews {
            position,
            gap,
            inodes,
            more,
            others,
            recalled,
        }) = self.0.news(known).await?
        else {
            return Ok(News::Ended);
        };
        let changed = if gap {
            Changed::Anything
        } else {
            Changed::Inodes(inodes)
        };
        Ok(News::UpTo {
            position,
            changed,
            more,
            others,
            recalled,
        })
    }

    fn bell(&self) -> Arc<Notify> {
        self.0.bell()
    }

    fn is_fenced(&self) -> bool {
        self.0.is_fenced()
    }

    fn is_cut_off(&self) -> bool {
        self.0.is_cut_off()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::time::Duration;
    use tokio::time::Instant;

    /// Tells these news in their order, and then none.
    pub(in crate::vfs::known) struct Scripted {
        is_told: bool,
        standing: Mutex<Standing>,
        news: Mutex<VecDeque<News>>,
        /// Whether a question hangs once they are told.
        hangs: bool,
        /// How long an answer takes.
        takes: Duration,
        bell: Arc<Notify>,
    }

    impl Scripted {
        fn new(is_told: bool, standing: Standing, news: Vec<News>) -> Self {
            Self {
                is_told,
                standing: Mutex::new(standing),
                news: Mutex::new(news.into()),
                hangs: false,
                takes: Duration::ZERO,
                bell: Arc::default(),
            }
        }

        /// Tells nothing.
        pub(in crate::vfs::known) fn silent() -> Self {
            Self::new(false, Standing::Exclusive, Vec::new())
        }

        /// To a mount that shares.
        pub(in crate::vfs::known) fn shared(news: Vec<News>) -> Self {
            Self::new(true, Standing::Shared, news)
        }

        /// No question after the last one is answered.
        pub(in crate::vfs::known) fn then_hanging(self) -> Self {
            Self {
                hangs: true,
                ..self
            }
        }

        /// Each answer takes so long.
        pub(in crate::vfs::known) fn after(self, takes: Duration) -> Self {
            Self { takes, ..self }
        }

        /// To a mount that is alone.
        pub(in crate::vfs::known) fn alone(news: Vec<News>) -> Self {
            Self::new(true, Standing::Alone(Instant::now()), news)
        }
    }

    #[async_trait]
    impl Coherence for Scripted {
        fn is_told(&self) -> bool {
            self.is_told
        }

        fn standing(&self) -> Standing {
            *self.standing.lock().unwrap()
        }

        fn would_be_alone(&self) -> bool {
            false
        }

        fn stop_being_alone(&self) {
            *self.standing.lock().unwrap() = Standing::Shared;
        }

        async fn share(&self) -> Result<(), VfsError> {
            *self.standing.lock().unwrap() = Standing::Shared;
            Ok(())
        }

        async fn be_alone(&self) -> Result<(), VfsError> {
            *self.standing.lock().unwrap() = Standing::Alone(Instant::now());
            Ok(())
        }

        async fn news(&self, _: Option<LogPosition>) -> Result<News, VfsError> {
            if !self.takes.is_zero() {
                tokio::time::sleep(self.takes).await;
            }
            let next = self.news.lock().unwrap().pop_front();
            if next.is_none() && self.hangs {
                std::future::pending::<()>().await;
            }
            next.ok_or(VfsError::Fenced)
        }

        fn bell(&self) -> Arc<Notify> {
            self.bell.clone()
        }

        fn is_fenced(&self) -> bool {
            false
        }

        fn is_cut_off(&self) -> bool {
            false
        }
    }
}
