//! A cloud that cannot be used as configured: it has no credentials or an invalid option.
//!
//! It stands among the other clouds and refuses each operation with the same reason. The volume
//! works without it, counts it as failing, and shows the reason in its status.

use crate::error::StoreError;
use crate::name::ObjectName;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::store::{Deadline, ObjectInfo, ObjectStore, Page};
use bytes::Bytes;
use std::ops::Range;
use std::time::Duration;

/// Refuses everything for one reason.
#[derive(Clone, Debug)]
pub struct Unusable {
    error: StoreError,
}

impl Unusable {
    /// Refuses everything with this error.
    #[must_use]
    pub fn new(error: StoreError) -> Self {
        Self { error }
    }

    fn refuse<T>(&self) -> Result<T, StoreError> {
        Err(self.error.clone())
    }
}

#[async_trait::async_trait]
impl ObjectStore for Unusable {
    fn describe(&self) -> String {
        self.error.cloud.clone()
    }

    async fn found(&self, _: Deadline) -> Result<(), StoreError> {
        self.refuse()
    }

    async fn check(&self, _: Deadline) -> Result<(), StoreError> {
        self.refuse()
    }

    async fn give_back(&self, _: Deadline) -> Result<(), StoreError> {
        self.refuse()
    }

    async fn put_if_absent(
        &self,
        _: &ObjectName,
        _: Bytes,
        _: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        self.refuse()
    }

    async fn get(&self, _: &ObjectName, _: u64, _: Deadline) -> Result<Bytes, StoreError> {
        self.refuse()
    }

    async fn get_range(
        &self,
        _: &ObjectName,
        _: Range<u64>,
        _: Deadline,
    ) -> Result<Bytes, StoreError> {
        self.refuse()
    }

    async fn head(&self, _: &ObjectName, _: Deadline) -> Result<ObjectInfo, StoreError> {
        self.refuse()
    }

    async fn list(
        &self,
        _: &str,
        _: Option<&ObjectName>,
        _: usize,
        _: Deadline,
    ) -> Result<Page, StoreError> {
        self.refuse()
    }

    async fn delete(&self, _: &ObjectName, _: Deadline) -> Result<(), StoreError> {
        self.refuse()
    }

    async fn presign(
        &self,
        _: &ObjectName,
        _: Duration,
        _: Deadline,
    ) -> Result<PresignedUrl, StoreError> {
        self.refuse()
    }
}
