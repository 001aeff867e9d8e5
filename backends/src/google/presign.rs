//! URLs at which anyone reads an object: Google's V4 signatures with a service account's key.
//!
//! A signature is RSA with SHA-256 over the digest of the request in a canonical form ("V4 signing
//! process"), as the service receives it on its XML interface: `/bucket/object`. It covers the host
//! alone and no other header, so that a plain GET, of all or of a range, is all that a reader has
//! to send. The provider's library holds the private key and signs; nothing is asked of the
//! provider.
//!
//! *Other identities are refused.* A user's sign-in and an external account have no key. A
//! machine's identity could ask the provider to sign, with a right that few have, and the URL would
//! end whenever the provider replaces that key.
//!
//! *Emulators.* They have no credentials, so a URL of one is not signed, and no emulator enforces
//! its expiry: it exists so that what uses links can be tried on one machine.

use super::{Bucket, PresignedUrl, Refusal, SystemTime};
use crate::StoreErrorKind;
use crate::presigned::{Maximum, SEVEN_DAYS, Utc, refuse_clear, unix_seconds, valid_seconds};
use crate::remote::causes;
use aws_lc_rs::digest::{SHA256, digest};
use google_cloud_auth::signer::{Signer, SigningError};
use std::fmt::Write as _;
use std::time::Duration;
use url::Url;

const ALGORITHM: &str = "GOOG4-RSA-SHA256";
const MAXIMUM: Maximum = Maximum {
    seconds: SEVEN_DAYS,
    of: "Google",
};

/// A request whose signature is to be made.
struct Unsigned {
    /// The path, encoded.
    path: String,
    /// The query, encoded and sorted.
    query: String,
    /// What is signed.
    text: String,
}

/// Encodes all but the unreserved characters of a URL, and those of `kept`.
fn encode(text: &str, kept: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let letter = char::from(byte);
        match letter.is_ascii_alphanumeric() || "-._~".contains(letter) || kept.contains(letter) {
            true => encoded.push(letter),
            false => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The request for an object, from `now` on, by the service account of this address.
fn unsigned(
    host: &str,
    path: String,
    account: &str,
    payer: Option<&str>,
    (now, seconds): (u64, u64),
) -> Unsigned {
    let now = Utc::from_unix(now);
    let scope = format!("{}/auto/storage/goog4_request", now.date());
    let credential = encode(&format!("{account}/{scope}"), "");
    let moment = now.compact();
    let mut query = format!(
        "X-Goog-Algorithm={ALGORITHM}&X-Goog-Credential={credential}&X-Goog-Date={moment}\
         &X-Goog-Expires={seconds}&X-Goog-SignedHeaders=host"
    );
    if let Some(project) = payer {
        let _ = write!(query, "&userProject={}", encode(project, ""));
    }
    let request = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
    let request = hexadecimal(digest(&SHA256, request.as_bytes()).as_ref());
    Unsigned {
        path,
        query,
        text: format!("{ALGORITHM}\n{moment}\n{scope}\n{request}"),
    }
}

/// The host of an endpoint as requests to it name it.
fn host(endpoint: &Url) -> String {
    let host = endpoint.host_str().unwrap_or_default();
    match endpoint.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

impl Bucket {
    /// Signs a URL that is valid from `now` on.
    pub(super) async fn presign_at(
        &self,
        key: &str,
        valid_for: Duration,
        now: SystemTime,
    ) -> Result<PresignedUrl, Refusal> {
        let endpoint = &self.api.endpoint;
        let now = unix_seconds(now);
        let seconds = valid_seconds(valid_for, now, Some(MAXIMUM))?;
        refuse_clear(endpoint)?;
        let base = endpoint.path().trim_end_matches('/');
        let path = format!("{base}/{}/{}", encode(&self.name, ""), encode(key, "/"));
        let url = match self.clear {
            true => format!("http://{}{path}", host(endpoint)),
            false => {
                let identity = self.api.renewable.get();
                let Some(signer) = &identity.signer else {
                    let detail = format!(
                        "a link cannot be made with {}: only the key file of a service account \
                         can sign; name one for this cloud, or use `quorumfs serve`, which serves \
                         links for every cloud",
                        identity.origin
                    );
                    return Err(Refusal::new(StoreErrorKind::Unsupported, detail));
                };
                self.sign(signer, &identity.origin, path, (now, seconds))
                    .await?
            }
        };
        Ok(PresignedUrl {
            url,
            expires: now.saturating_add(seconds),
            may_end_earlier: false,
        })
    }

    async fn sign(
        &self,
        signer: &Signer,
        origin: &str,
        path: String,
        validity: (u64, u64),
    ) -> Result<String, Refusal> {
        let failed = |error: SigningError| {
            let detail = format!("the key of {origin} cannot sign: {}", causes(&error));
            Refusal::new(StoreErrorKind::Denied, detail)
        };
        let account = signer.client_email().await.map_err(failed)?;
        let payer = self.api.project.as_deref();
        let host = host(&self.api.endpoint);
        let Unsigned { path, query, text } = unsigned(&host, path, &account, payer, validity);
        let signature = signer.sign(text.as_bytes()).await.map_err(failed)?;
        let signature = hexadecimal(&signature);
        Ok(format!(
            "https://{host}{path}?{query}&X-Goog-Signature={signature}"
        ))
    }
}

#[cfg(test)]
mod tests;
