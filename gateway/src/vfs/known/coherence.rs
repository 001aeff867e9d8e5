//! How a mount learns that others have changed something: the border between what is known and how
//! it is kept so.
//!
//! Today the servers count changes by other sessions, and the count is polled. A count says that
//! something has changed, and not what; so all that was known before goes.

use crate::error::VfsError;
use crate::metadata::MetadataClient;
use async_trait::async_trait;
use std::sync::Arc;

/// What an answer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vfs) enum News {
    /// So many changes by others so far. If it was the same before, nothing has changed; otherwise
    /// anything may have.
    Count(u64),
    /// None will come any more: the mount is not ours.
    Ended,
}

/// Tells whether others have changed something.
#[async_trait]
pub(in crate::vfs) trait Coherence: Send + Sync + 'static {
    /// Whether there is something to ask: only a mount is told.
    fn is_told(&self) -> bool;

    /// Asks. Answers to queries that are sent after this one was answered are at least as new.
    ///
    /// # Errors
    /// If the servers do not answer.
    async fn news(&self) -> Result<News, VfsError>;

    /// Whether another mount has taken over, as far as is known without asking.
    fn is_fenced(&self) -> bool;

    /// Whether the servers are known to be out of reach, so that nothing better can be had than
    /// what is known.
    fn is_cut_off(&self) -> bool;
}

/// The servers' count, asked for from time to time.
pub(in crate::vfs) struct CountPolled(pub(in crate::vfs) Arc<MetadataClient>);

#[async_trait]
impl Coherence for CountPolled {
    fn is_told(&self) -> bool {
        self.0.is_mounted()
    }

    async fn news(&self) -> Result<News, VfsError> {
        let count = self.0.changes_by_others().await?;
        Ok(count.map_or(News::Ended, News::Count))
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

    /// Tells nothing.
    pub(in crate::vfs::known) struct Silent;

    #[async_trait]
    impl Coherence for Silent {
        fn is_told(&self) -> bool {
            false
        }

        async fn news(&self) -> Result<News, VfsError> {
            Ok(News::Ended)
        }

        fn is_fenced(&self) -> bool {
            false
        }

        fn is_cut_off(&self) -> bool {
            false
        }
    }
}
