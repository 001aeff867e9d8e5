//! The interface of a provider's SDK: one try, one answer, and the kind of the answer.
//!
//! A driver holds no policy: time-outs of a try, retries, connections, rates and counting are the
//! same for all providers and lie in [`super::RemoteStore`]; the SDK's own retries are switched
//! off. Keys are complete: they include the volume's prefix. Nothing that a driver returns is
//! trusted, but it never returns more bytes than were requested: it stops reading instead.

use crate::error::StoreErrorKind;
use crate::identities;
use crate::presigned::{NO_LINKS, PresignedUrl};
use crate::receipt::Receipt;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// A try that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind that callers decide on.
    pub kind: StoreErrorKind,
    /// The cause, in the provider's own words and codes, without secrets.
    pub detail: String,
    /// How long the cloud asks us to pause.
    pub retry_after: Option<Duration>,
    /// Whether the credentials themselves were refused, as they are when they expire: other
    /// credentials may get another answer.
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

    /// The same refusal, as one of the credentials themselves.
    #[must_use]
    pub fn outdated(self) -> Self {
        Self {
            outdated: true,
            ..self
        }
    }

    /// The same without the names of accounts that the provider may have included.
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
    /// Complete keys, in ascending order, all after the cursor.
    pub keys: Vec<String>,
    /// Whether there are more.
    pub more: bool,
}

/// The properties of a bucket or container; `None` where the provider does not reveal them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// It keeps and bills the old content of overwritten or deleted objects.
    pub versioned: Option<bool>,
    /// It refuses to delete objects that are younger than some age.
    pub locked: Option<bool>,
}

/// One provider's API over its own SDK.
#[async_trait::async_trait]
pub trait Driver: Send + Sync + fmt::Debug {
    /// Provider, endpoint, bucket and prefix, for messages; no secrets.
    fn place(&self) -> String;

    /// The number of the current credentials; it changes with them.
    fn credentials(&self) -> u64 {
        0
    }

    /// Looks for new credentials at their source, since those of the number `refused` were refused.
    /// Returns whether other credentials are used now. The source is not read more than once in a
    /// while.
    async fn renew_credentials(&self, refused: u64) -> bool {
        let _ = refused;
        false
    }

    /// Creates an object, if the provider can guarantee it only where none exists. Returns the
    /// checksum that the provider computed.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken.
    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal>;

    /// Writes an object, whether one of its name exists or not. No code of ours ever does that to
    /// stored objects: it exists to prove that it is refused.
    ///
    /// # Errors
    /// The provider's refusals.
    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal>;

    /// Reads all of an object or a range of it, at most `length_max` bytes.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if there are more than `length_max` bytes, or the range exceeds the
    /// object.
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

    /// At most `limit` keys that begin with `prefix` and come after `after`; a provider may return
    /// fewer and report that there are more.
    ///
    /// # Errors
    /// The provider's refusals.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal>;

    /// Deletes an object; a missing one counts as deleted.
    ///
    /// # Errors
    /// The provider's refusals.
    async fn delete(&self, key: &str) -> Result<(), Refusal>;

    /// Signs a URL at which anyone reads the object, for `valid_for` from now. Only the provider's
    /// own way of signing may send a request.
    ///
    /// # Errors
    /// `Unsupported` if the credentials cannot sign, or not for so long.
    async fn presign(&self, key: &str, valid_for: Duration) -> Result<PresignedUrl, Refusal> {
        let _ = (key, valid_for);
        Err(Refusal::new(StoreErrorKind::Unsupported, NO_LINKS))
    }

    /// Creates the bucket or container; an existing one of ours is a success.
    ///
    /// # Errors
    /// The provider's refusals.
    async fn create_container(&self) -> Result<(), Refusal>;

    /// The properties of the bucket.
    ///
    /// # Errors
    /// `NoContainer`, and the provider's refusals.
    async fn container(&self) -> Result<Container, Refusal>;

    /// The `Date` of an answer, in the provider's words; `None` if it has none.
    ///
    /// # Errors
    /// `Clock` if the provider considers our clock wrong, and its other refusals.
    async fn date(&self) -> Result<Option<String>, Refusal>;
}
