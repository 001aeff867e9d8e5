//! What a provider's SDK is asked for: one try, one answer, and what kind of answer it was.
//!
//! A driver holds no policy: time-outs of a try, retries, connections, rates and counting are the
//! same for all providers and lie in [`super::RemoteStore`]; the SDK's own retries are switched
//! off. Keys are whole: the volume's prefix is in them already. Nothing that a driver returns is
//! trusted, but it never returns more bytes than it was asked for: it stops reading instead.

use crate::error::StoreErrorKind;
use crate::identities;
use crate::receipt::Receipt;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// A try that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What callers decide on.
    pub kind: StoreErrorKind,
    /// What happened, in the provider's own words and codes, without secrets.
    pub detail: String,
    /// How long the cloud asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The credentials themselves were refused, as they are when they expire: with others that were
    /// put in their place the answer may be another one.
    pub outdated: bool,
}

impl Refusal {
    /// A refusal of this kind.
    #[must_use]
    pub fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retry_after: None,
            outdated: false,
        }
    }

    /// The same refusal, of the credentials themselves.
    #[must_use]
    pub fn outdated(self) -> Self {
        Self {
            outdated: true,
            ..self
        }
    }

    /// The same without the names of accounts that the provider may have said.
    #[must_use]
    pub(crate) fn without_identities(self) -> Self {
        Self {
            detail: identities::hidden(&self.detail),
            ..self
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Names below a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Whole keys, in ascending order, all behind the one that was asked to begin after.
    pub keys: Vec<String>,
    /// Whether there are more.
    pub more: bool,
}

/// What a bucket or container is like; `None` where the provider would not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// It keeps the old content of what is overwritten or deleted, and has it paid for.
    pub versioned: Option<bool>,
    /// It refuses to delete what is younger than some age.
    pub locked: Option<bool>,
}

/// One provider's API over its own SDK.
#[async_trait::async_trait]
pub trait Driver: Send + Sync + fmt::Debug {
    /// Provider, endpoint, bucket and prefix, for messages; no secrets.
    fn place(&self) -> String;

    /// Which credentials are used now: a number that changes when others are.
    fn credentials(&self) -> u64 {
        0
    }

    /// Looks where credentials come from, since those of the number `refused` were; answers whether
    /// others are used now. The place is not looked at more than once in a while.
    async fn look_again(&self, refused: u64) -> bool {
        let _ = refused;
        false
    }

    /// Creates an object, if the provider can promise it only where there is none; answers with the
    /// checksum that the provider computed of what it took.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken.
    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal>;

    /// Writes an object whatever there is of its name. Nothing of ours ever does that to what it
    /// keeps: it is there to prove that it is refused.
    ///
    /// # Errors
    /// As the provider says.
    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal>;

    /// Reads all of an object or a range of it, at most `length_max` bytes.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if there is more than `length_max`, or the range ends behind the end.
    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, Refusal>;

    /// An object's length.
    ///
    /// # Errors
    /// `NotFound`.
    async fn head(&self, key: &str) -> Result<u64, Refusal>;

    /// At most `limit` keys that begin with `prefix` and come behind `after`; a provider may give
    /// fewer and say that there are more.
    ///
    /// # Errors
    /// As the provider says.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal>;

    /// Deletes an object; one that is not there is deleted already.
    ///
    /// # Errors
    /// As the provider says.
    async fn delete(&self, key: &str) -> Result<(), Refusal>;

    /// Creates the bucket or container; that it is there already, and ours, is a success.
    ///
    /// # Errors
    /// As the provider says.
    async fn create_container(&self) -> Result<(), Refusal>;

    /// What the bucket is like.
    ///
    /// # Errors
    /// `NoContainer`; and as the provider says.
    async fn container(&self) -> Result<Container, Refusal>;

    /// The `Date` of an answer, in the provider's words; `None` if it has none.
    ///
    /// # Errors
    /// `Clock` if it takes ours for wrong; and as the provider says.
    async fn date(&self) -> Result<Option<String>, Refusal>;
}
