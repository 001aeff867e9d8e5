//! In the place of the reader of URLs, where no provider is compiled in.

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::store::Deadline;
use bytes::Bytes;
use std::ops::Range;

/// A reader that does not exist.
#[derive(Clone, Copy, Debug)]
pub enum PresignedReader {}

fn missing() -> StoreError {
    StoreError {
        kind: StoreErrorKind::Unsupported,
        operation: Operation::Get,
        cloud: "any cloud".to_owned(),
        object: None,
        detail: "this program was built without any provider (features s3, azure, google)"
            .to_owned(),
    }
}

impl PresignedReader {
    /// Fails.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn new() -> Result<Self, StoreError> {
        Err(missing())
    }

    /// Fails.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn with_loopback() -> Result<Self, StoreError> {
        Err(missing())
    }

    /// Is never called.
    ///
    /// # Errors
    /// None.
    pub async fn get(
        &self,
        _url: &str,
        _range: Option<Range<u64>>,
        _length_max: u64,
        _deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        match *self {}
    }
}
