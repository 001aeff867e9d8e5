//! Presigned URLs: anyone that has one reads one object, without an account, until it expires.
//!
//! ```text
//!  ObjectStore::presign ── the driver signs with the cloud's own credentials ──► PresignedUrl
//!                                                                                     │ given away
//!  PresignedReader::get ── one GET, without any credentials ◄─────────────────────────┘
//! ```
//!
//! The provider verifies the signature and the expiry at each request; no server of ours is needed.
//!
//! What always holds:
//!
//! - *A URL is a secret.* Any party that has it can read the object: it is in no log, in no error
//!   and in no `Debug`.
//! - *A URL opens one object, for reading.* What would open more is never given away: no key, no
//!   token for a whole container.
//! - *[`PresignedUrl::expires`] is the truth*, as far as this machine knows it. A URL that was
//!   signed with temporary credentials dies with them, and reports their end. A request for more
//!   time than the provider allows is refused and not shortened.
//! - *A URL is not sent in the clear.* It begins with `https`, or leads to a server on this
//!   machine.
//!
//! What can go wrong: the provider refuses a URL before it expires, if the key that signed it was
//! deleted or lost its right to read, or if the object is gone. A URL cannot be revoked alone. This
//! machine's clock determines the expiry: if it is wrong, so is the expiry.
//!
//! | Credentials | URL | At most |
//! |---|---|---|
//! | S3: a key | Signature version 4 in the query | 7 days |
//! | S3: a session's key | the same | until the session ends |
//! | Azure: an account's key | a service SAS for one blob | without a bound |
//! | Azure: an identity in Entra | a user delegation SAS for one blob | 7 days less 5 minutes |
//! | Azure: a SAS token | none: it would give away the container | |
//! | Google: a service account's key | V4 signature | 7 days |
//! | Google: other identities | none | |
//! | Google: an emulator on this machine | not signed; the emulator enforces no expiry | |
//! | a directory | none | |

#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
mod reader;
#[cfg(not(any(feature = "s3", feature = "azure", feature = "google")))]
#[path = "presigned/no_reader.rs"]
mod reader;
#[cfg(test)]
#[cfg(all(feature = "s3", feature = "azure", feature = "google"))]
mod tests;
#[cfg(any(feature = "azure", feature = "google"))]
mod utc;
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
mod validity;

pub use reader::PresignedReader;
#[cfg(any(feature = "azure", feature = "google"))]
pub(crate) use utc::Utc;
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) use validity::{Maximum, SEVEN_DAYS, unix_seconds, valid_seconds};

use std::fmt;

/// Why a store of no provider makes no URLs, and what does.
pub(crate) const NO_LINKS: &str = "this cloud cannot make links by which others read an object; \
     `quorumfs serve` serves links for every cloud";

/// A URL at which anyone reads one object.
#[derive(Clone, PartialEq, Eq)]
pub struct PresignedUrl {
    /// The URL; it is a secret.
    pub url: String,
    /// When the provider stops answering it, in seconds since 1970.
    pub expires: u64,
    /// Whether it may end earlier: it was signed with a session's credentials whose end is unknown.
    pub may_end_earlier: bool,
}

impl fmt::Debug for PresignedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PresignedUrl")
            .field("expires", &self.expires)
            .field("may_end_earlier", &self.may_end_earlier)
            .finish_non_exhaustive()
    }
}

/// Whether a request to this URL cannot be read on its way: it is encrypted, or stays on this
/// machine. Only an address shows that it stays: a name may lead anywhere.
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) fn is_private(url: &url::Url) -> bool {
    match url.scheme() {
        "https" => true,
        "http" => is_loopback(url),
        _ => false,
    }
}

/// Whether a URL leads to an address of this machine.
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) fn is_loopback(url: &url::Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        _ => false,
    }
}

/// Refuses an endpoint whose URLs others could read on their way.
#[cfg(any(feature = "s3", feature = "azure", feature = "google"))]
pub(crate) fn refuse_clear(endpoint: &url::Url) -> Result<(), crate::remote::Refusal> {
    if is_private(endpoint) {
        return Ok(());
    }
    let detail = "its endpoint has no encryption, so anyone on the way could read a link and use \
                  it: give the endpoint as https://, or use `quorumfs serve`, which serves links \
                  for every cloud";
    let kind = crate::StoreErrorKind::Unsupported;
    Err(crate::remote::Refusal::new(kind, detail))
}
