//! One place with credentials for each role: some get and create, others list and delete, others
//! sign links.
//!
//! Where credentials are separated by role, some actions need both: a place becomes a cloud only if
//! its listing is empty, which only the collector can see, and then gets a marker, which the
//! collector may not write. Programs that have both credentials use this driver for such actions.
//!
//! A link ends early only if the key that signed it does. So links are signed with credentials of
//! readers, where there are any: replacing those ends all links and nothing else.

use super::driver::{Container, Driver, Listing, Refusal};
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A driver that lists and deletes as the collector, signs links as the signer, and does all else
/// as the writer. Roles may have the same driver.
#[derive(Debug)]
pub(crate) struct Both {
    /// Gets and creates.
    pub(crate) writer: Arc<dyn Driver>,
    /// Lists and deletes.
    pub(crate) collector: Arc<dyn Driver>,
    /// Signs links. A cloud can be used without it.
    pub(crate) signer: Result<Arc<dyn Driver>, Refusal>,
}

impl Both {
    /// The drivers of all roles, each once.
    fn drivers(&self) -> Vec<&Arc<dyn Driver>> {
        let mut drivers = vec![&self.writer];
        let others = [Some(&self.collector), self.signer.as_ref().ok()];
        for driver in others.into_iter().flatten() {
            if !drivers.iter().any(|known| Arc::ptr_eq(known, driver)) {
                drivers.push(driver);
            }
        }
        drivers
    }
}

#[async_trait::async_trait]
impl Driver for Both {
    fn place(&self) -> String {
        self.writer.place()
    }

    fn credentials(&self) -> u64 {
        let numbers = self.drivers().into_iter().map(|it| it.credentials());
        numbers.fold(0, u64::wrapping_add)
    }

    async fn renew_credentials(&self, refused: u64) -> bool {
        if self.credentials() != refused {
            return true;
        }
        let mut renewed = false;
        for driver in self.drivers() {
            renewed |= driver.renew_credentials(driver.credentials()).await;
        }
        renewed
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

    async fn presign(&self, key: &str, valid_for: Duration) -> Result<PresignedUrl, Refusal> {
        let signer = self.signer.as_ref().map_err(Clone::clone)?;
        signer.presign(key, valid_for).await
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
