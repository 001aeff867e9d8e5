//! One place with two credentials: one gets and creates, the other lists and deletes.
//!
//! Where credentials are separated by role, some actions need both: a place becomes a cloud only if
//! its listing is empty, which only the collector can see, and then gets a marker, which the
//! collector may not write. Programs that have both credentials use this driver for such actions.

use super::driver::{Container, Driver, Listing, Refusal};
use crate::receipt::Receipt;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A driver that lists and deletes as the collector and does all else as the writer.
#[derive(Debug)]
pub(crate) struct Both {
    /// Gets and creates.
    pub(crate) writer: Arc<dyn Driver>,
    /// Lists and deletes.
    pub(crate) collector: Arc<dyn Driver>,
}

#[async_trait::async_trait]
impl Driver for Both {
    fn place(&self) -> String {
        self.writer.place()
    }

    fn credentials(&self) -> u64 {
        let collector = self.collector.credentials();
        self.writer.credentials().wrapping_add(collector)
    }

    async fn renew_credentials(&self, refused: u64) -> bool {
        if self.credentials() != refused {
            return true;
        }
        let writer = self
            .writer
            .renew_credentials(self.writer.credentials())
            .await;
        let collector = self.collector.credentials();
        self.collector.renew_credentials(collector).await || writer
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal> {
        self.writer.put(key, body).await
    }

    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal> {
        self.writer.overwrite(key, body).await
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, Refusal> {
        self.writer.get(key, range, length_max).await
    }

    async fn head(&self, key: &str) -> Result<u64, Refusal> {
        self.writer.head(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal> {
        self.collector.list(prefix, after, limit).await
    }

    async fn delete(&self, key: &str) -> Result<(), Refusal> {
        self.collector.delete(key).await
    }

    async fn create_container(&self) -> Result<(), Refusal> {
        self.writer.create_container().await
    }

    async fn container(&self) -> Result<Container, Refusal> {
        let (reported, more) = (self.writer.container().await?, self.collector.container());
        if reported.versioned.is_some() && reported.locked.is_some() {
            return Ok(reported);
        }
        let more = more.await?;
        Ok(Container {
            versioned: reported.versioned.or(more.versioned),
            locked: reported.locked.or(more.locked),
        })
    }

    async fn date(&self) -> Result<Option<String>, Refusal> {
        self.writer.date().await
    }
}
