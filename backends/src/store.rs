//! The trait that every cloud is reached through.
//!
//! Objects are written once, whole, and never change. *Create-only* is asked of every store and
//! relied on by none of the callers' safety arguments: not every store honours it, and any store
//! may lie. Every operation has a [`Deadline`]; when it passes the caller gets
//! [`StoreErrorKind::Timeout`](crate::StoreErrorKind::Timeout) and must assume that the operation
//! may still take effect.

use crate::error::StoreError;
use crate::name::ObjectName;
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

    /// The moment itself.
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

/// What a store says about an object without sending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its length in bytes.
    pub length: u64,
}

/// How much more a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which room it is: several stores may share one, as directories of one disk do.
    pub pool: u64,
    /// Bytes that are free there.
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

    /// Makes the place this volume's cloud: writes its marker where nothing is yet.
    ///
    /// # Errors
    /// `Foreign` if it holds anything but this very cloud; `NoContainer`; and as below.
    async fn found(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Looks whether the place is the cloud that it is meant to be, by its marker.
    ///
    /// # Errors
    /// `Foreign`, `Corrupt` or `NewerFormat` if its marker is another; and as below.
    async fn check(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Takes the marker back from a cloud that was founded and holds no object.
    ///
    /// # Errors
    /// `Foreign` if it holds any, or is another's; and as below.
    async fn give_back(&self, deadline: Deadline) -> Result<(), StoreError>;

    /// Creates an object; once this returns it is durable as far as the store can promise. Answers
    /// what the store says that it took, if it says so; the caller compares.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken, in which case nothing was written and what is there is
    /// as durable as a successful put would have made it; `Full`, `ReadOnly`, `Denied`,
    /// `Unavailable`, `Timeout`; or what else the store admits to.
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

    /// Asks how much more it takes; `None` if nobody can say, as of object stores that take
    /// whatever is paid for.
    ///
    /// # Errors
    /// As above.
    async fn room(&self, _deadline: Deadline) -> Result<Option<Room>, StoreError> {
        Ok(None)
    }

    /// What was asked of it so far; nothing is counted where nothing has to be paid for.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}
