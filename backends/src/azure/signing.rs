//! Authorises requests with an account's key or with a token that the account's owner issued.
//!
//! The SDK supports neither (it takes only tokens of Microsoft Entra), but its pipeline takes
//! policies that see every try of every request. *Shared key*: an HMAC-SHA256, under the account's
//! key, of the request in a canonical form ("Authorize with Shared Key", version 2009-09-19 and
//! later). A *shared access signature* is such an HMAC over permissions and dates, made beforehand.
//! It is added to each request's query here rather than to the client's URL, so that no stored or
//! displayed URL has a secret in it.

use aws_lc_rs::hmac;
use azure_core::http::headers::{CONTENT_LENGTH, HeaderName};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use azure_core::time::{OffsetDateTime, to_rfc7231};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// Signs each request with an account's key.
pub(super) struct SharedKey {
    account: String,
    key: hmac::Key,
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").finish_non_exhaustive()
    }
}

impl SharedKey {
    /// The key in base64, as the provider displays it; `None` if it is not base64.
    pub(super) fn new(account: &str, key: &str) -> Option<Self> {
        let key = STANDARD.decode(key).ok().filter(|key| !key.is_empty())?;
        Some(Self {
            account: account.to_owned(),
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
        })
    }

    fn authorization(&self, request: &Request) -> String {
        let mac = self.sign(&canonical(&self.account, request));
        format!("SharedKey {}:{mac}", self.account)
    }

    /// The HMAC of a text under the key, in base64.
    pub(super) fn sign(&self, text: &str) -> String {
        STANDARD.encode(hmac::sign(&self.key, text.as_bytes()).as_ref())
    }
}

/// The headers that are signed whether they are present or not, in this order. The date is empty,
/// because `x-ms-date` replaces it.
const STANDARD_HEADERS: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// The text of a request that is signed.
fn canonical(account: &str, request: &Request) -> String {
    let mut text = format!("{}\n", request.method());
    for name in STANDARD_HEADERS {
        let name = HeaderName::from_static(name);
        let value = request.headers().get_optional_str(&name).unwrap_or("");
        let nothing = name == CONTENT_LENGTH && value == "0";
        text.push_str(if nothing { "" } else { value });
        text.push('\n');
    }
    let mut own: Vec<(&str, &str)> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().trim()))
        .filter(|(name, _)| name.starts_with("x-ms-"))
        .collect();
    own.sort_unstable();
    for (name, value) in own {
        let _ = writeln!(text, "{name}:{value}");
    }
    let _ = write!(text, "/{account}{}", request.url().path());
    let mut query: Vec<(String, String)> = request
        .url()
        .query_pairs()
        .map(|(name, value)| (name.to_lowercase(), value.into_owned()))
        .collect();
    query.sort_unstable();
    let mut previous = None;
    for (name, value) in &query {
        match previous == Some(name) {
            true => text.push(','),
            false => {
                let _ = write!(text, "\n{name}:");
            }
        }
        text.push_str(value);
        previous = Some(name);
    }
    text
}

#[async_trait::async_trait]
impl Policy for SharedKey {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        request.insert_header("x-ms-date", to_rfc7231(&OffsetDateTime::now_utc()));
        let authorization = self.authorization(request);
        request.insert_header("authorization", authorization);
        pass_on(ctx, request, next).await
    }
}

/// Adds a shared access signature to each request.
pub(super) struct SharedAccessSignature(String);

impl fmt::Debug for SharedAccessSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedAccessSignature").finish()
    }
}

impl SharedAccessSignature {
    /// The token as the provider displays it, with or without its question mark.
    pub(super) fn new(token: &str) -> Self {
        Self(token.trim_start_matches('?').to_owned())
    }
}

#[async_trait::async_trait]
impl Policy for SharedAccessSignature {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        let query = match request.url().query() {
            Some(query) if !query.is_empty() => format!("{query}&{}", self.0),
            _ => self.0.clone(),
        };
        request.url_mut().set_query(Some(&query));
        pass_on(ctx, request, next).await
    }
}

async fn pass_on(
    ctx: &Context<'_>,
    request: &mut Request,
    next: &[Arc<dyn Policy>],
) -> PolicyResult {
    // A pipeline ends with the policy that sends.
    let (first, rest) = next.split_first().ok_or_else(|| {
        let kind = azure_core::error::ErrorKind::Other;
        azure_core::Error::with_message(kind, "the pipeline has no policy that sends the request")
    })?;
    first.send(ctx, request, rest).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use azure_core::http::{Method, Url};

    fn request(url: &str) -> Request {
        let mut request = Request::new(Url::parse(url).unwrap(), Method::Put);
        for (name, value) in [
            ("content-length", "0"),
            ("content-type", "application/octet-stream"),
            ("x-ms-version", "2025-11-05"),
            ("x-ms-blob-type", " BlockBlob "),
            ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT"),
            ("if-none-match", "*"),
            ("accept", "application/xml"),
        ] {
            request.insert_header(name, value);
        }
        request
    }

    #[test]
    fn the_signed_text_has_the_form_that_the_service_computes() {
        let url =
            "http://127.0.0.1:1/me/box/a%2Fb?restype=container&Comp=list&prefix=a%2Fb&x=2&x=1";
        assert_eq!(
            canonical("me", &request(url)),
            "PUT\n\n\n\n\napplication/octet-stream\n\n\n\n*\n\n\n\
             x-ms-blob-type:BlockBlob\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\n\
             x-ms-version:2025-11-05\n\
             /me/me/box/a%2Fb\ncomp:list\nprefix:a/b\nrestype:container\nx:1,2"
        );
    }

    #[test]
    fn neither_shows_its_secret() {
        let key = SharedKey::new("me", "c2VjcmV0").unwrap();
        let token = SharedAccessSignature::new("?sv=1&sig=secret");
        assert!(!format!("{key:?}{token:?}").contains("secret"));
        assert!(SharedKey::new("me", "not base64!").is_none());
        assert!(SharedKey::new("me", "").is_none());
    }
}
