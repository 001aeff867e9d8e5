//! The trait of all clouds.
//!
//! Objects are written once, whole, and never change. *Create-only* is required of every store, but
//! no caller's safety argument relies on it: not every store honours it, and any store may lie.
//! Every operation has a [`Deadline`]; when it passes the caller gets
//! [`StoreErrorKind::Timeout`] and must assume that the operation
//! may still take effect.

use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::name::ObjectName;
use crate::presigned::{NO_LINKS, PresignedUrl};
use crate::receipt::Receipt;
use crate::remote::Traffic;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

/// When a caller stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `length` from now.
    #[must_use]
    pub fn after(length: Duration) -> Self {
        Self(Instant::now() + length)
    }

    /// The deadline as an instant.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }

    /// The earlier of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// The properties of an object that a store gives without sending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its length in bytes.
    pub length: u64,
}

/// The free space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// The pool of space: several stores may share one, as directories of one disk do.
    pub pool: u64,
    /// Free bytes in the pool.
    pub bytes: u64,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Names in ascending order.
    pub names: Vec<ObjectName>,
    /// Whether there are more: the next call's cursor is the last of `names`.
    pub more: bool,
}

/// A cloud: a set of immutable objects under names that are used once.
#[async_trait::async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// The cloud's index and place, for messages.
    fn describe(&self) -> String;

    /// Makes the place this volume's cloud: writes its marker into an empty place.
    ///
    /// # Errors
    /// `Foreign` if it holds anything but this very cloud; `NoContainer`; and as below.
    async fn found(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Checks by its marker that the place is the expected cloud.
    ///
    /// # Errors
    /// `Foreign`, `Corrupt` or `NewerFormat` if its marker differs; and as below.
    async fn check(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Removes the marker from a cloud that was founded and holds no object.
    ///
    /// # Errors
    /// `Foreign` if it holds an object or belongs to another volume; and as below.
    async fn give_back(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Creates an object; once this returns, it is as durable as the store can promise. Returns the
    /// store's receipt, if the store gives one; the caller compares it.
    ///
    /// `AlreadyExists` if the name is taken: nothing was written, and the existing object is as
    /// durable as after a successful put; `Full`, `ReadOnly`, `Denied`, `Unavailable`, `Timeout`;
    /// or another failure that the store reports.
    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError>;

    /// Reads a whole object of at most `length_max` bytes.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if it is longer than `length_max`; and as above.
    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError>;

    /// Reads exactly the bytes of `range`.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the object ends before the range does; and as above.
    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError>;

    /// Asks for an object's length.
    ///
    /// # Errors
    /// `NotFound`, and as above.
    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError>;

    /// Lists names that begin with `prefix` and come after `cursor`, at most `limit` of them.
    ///
    /// # Errors
    /// As above.
    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError>;

    /// Deletes an object; deleting one that is not there succeeds.
    ///
    /// # Errors
    /// As above.
    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError>;

    /// Signs a URL at which anyone reads the object without an account, for `valid_for` from now.
    ///
    /// Nothing is asked of the cloud, unless the provider's way of signing needs it: whether the
    /// object exists, and whether the place is this volume's, is not checked.
    ///
    /// # Errors
    /// `Unsupported` if this cloud or its credentials cannot sign such URLs, or none that is valid
    /// for so long; `Denied` if there are no credentials; and as above.
    async fn presign(
        &self,
        name: &ObjectName,
        _valid_for: Duration,
        _deadline: Deadline,
    ) -> Result<PresignedUrl, StoreError> {
        Err(StoreError {
            kind: StoreErrorKind::Unsupported,
            operation: Operation::Presign,
            cloud: self.describe(),
            object: Some(name.clone()),
            detail: NO_LINKS.to_owned(),
        })
    }

    /// The free space; `None` if it is unknown, as of object stores that accept whatever is paid
    /// for.
    ///
    /// # Errors
    /// As above.
    async fn free_space(&self, _deadline: Deadline) -> Result<Option<FreeSpace>, StoreError> {
        Ok(None)
    }

    /// The requests so far; a store that counts none has no traffic.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}
