//! URLs at which anyone reads an object: Signature Version 4 in the query.
//!
//! The SDK signs the same request that the driver would send, so the endpoint, the style of the
//! path and the region are those of the location. The signature covers the host alone and no other
//! header, so that a plain GET, of all or of a range, is all that a reader has to send.
//!
//! *Temporary keys.* The service refuses the URL when the session of its keys ends, whatever the
//! URL itself says. The end is known if the keys' source gives it. If it does not, as with keys
//! that were copied into a file, the URL reports that it may end earlier; at Amazon no session
//! lasts longer than [`AMAZON_SESSION_MAX`].

use super::refusal::{self, Subject};
use super::{PresignedUrl, Refusal, S3, SystemTime};
use crate::error::StoreErrorKind;
use crate::presigned::{Maximum, SEVEN_DAYS, refuse_clear, unix_seconds, valid_seconds};
use aws_credential_types::provider::ProvideCredentials as _;
use aws_sdk_s3::Config;
use aws_sdk_s3::config::Credentials;
use aws_sdk_s3::presigning::PresigningConfig;
use std::time::Duration;
use url::Url;

const MAXIMUM: Maximum = Maximum {
    seconds: SEVEN_DAYS,
    of: "the S3 protocol",
};
/// The longest session that Amazon grants, in seconds: that of GetSessionToken and
/// GetFederationToken.
const AMAZON_SESSION_MAX: u64 = 36 * 60 * 60;

/// The end of a URL that should be valid until `wanted`, and whether it may end earlier.
fn end(keys: &Credentials, wanted: u64, now: u64, amazon: bool) -> (u64, bool) {
    match (keys.expiry(), keys.session_token()) {
        (Some(ends), _) => (wanted.min(unix_seconds(ends)), false),
        (None, Some(_)) if amazon => (wanted.min(now.saturating_add(AMAZON_SESSION_MAX)), true),
        (None, token) => (wanted, token.is_some()),
    }
}

impl S3 {
    /// Signs a URL that is valid from `now` on.
    pub(super) async fn presign_at(
        &self,
        key: &str,
        valid_for: Duration,
        now: SystemTime,
    ) -> Result<PresignedUrl, Refusal> {
        let broken = |detail: String| Refusal::new(StoreErrorKind::Other, detail);
        let now_seconds = unix_seconds(now);
        let seconds = valid_seconds(valid_for, now_seconds, Some(MAXIMUM))?;
        let keys = self.cached_keys.provide_credentials().await;
        let keys = keys.map_err(|error| refusal::no_keys(&error, &self.keys))?;
        let wanted = now_seconds.saturating_add(seconds);
        let (expires, may_end_earlier) = end(&keys, wanted, now_seconds, self.amazon);
        if expires <= now_seconds {
            let detail = format!("the session of the keys has ended; {}", self.keys);
            return Err(Refusal::new(StoreErrorKind::Denied, detail).outdated());
        }
        let validity = PresigningConfig::builder()
            .start_time(now)
            .expires_in(Duration::from_secs(seconds))
            .build()
            .map_err(|error| broken(error.to_string()))?;
        let signed = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(key)
            .customize()
            // These very keys, whose end was looked at.
            .config_override(Config::builder().credentials_provider(keys))
            .presigned(validity)
            .await
            .map_err(|error| self.refusal(&error, Subject::Object))?;
        let needed = signed.headers().map(|(name, _)| name);
        let needed = needed.filter(|name| !name.eq_ignore_ascii_case("host"));
        if let Some(name) = needed.into_iter().next() {
            return Err(broken(format!("a reader would have to send `{name}`")));
        }
        let url = Url::parse(signed.uri()).map_err(|error| broken(error.to_string()))?;
        refuse_clear(&url)?;
        Ok(PresignedUrl {
            url: signed.uri().to_owned(),
            expires,
            may_end_earlier,
        })
    }
}

#[cfg(test)]
mod tests;
