//! Reads presigned URLs on a machine that has nothing else: no volume, no credentials.
//!
//! ```text
//!  URL ── https, no user name, not too long ──► one GET ──► status ──► headers ──► bytes, bounded
//!             else refused, nothing is sent       │ else refused, in words
//!                                                 └─ no redirect, no other encoding, no cookie
//! ```
//!
//! Both the URL and the server may be an attacker's.
//!
//! *A URL of an attacker.* Opening it must do no harm on this machine or in its network. The reader
//! speaks https alone, and the certificate has to be that of the URL's host, so it gives nothing to
//! devices and services of a local network, which rarely have one. What it can still reach there is
//! a server with a trusted certificate, which sees one GET without credentials, as it does if a web
//! page shows a picture from it. Plain http is refused even for this machine itself: a GET to a
//! service on loopback may trigger something there. [`PresignedReader::with_loopback`] allows it
//! for emulators, so that tests and demos can read their URLs; a program that opens links of others
//! does not use it. Only a numeric address counts as this machine, because a name may lead
//! anywhere.
//!
//! *A server of an attacker.* It may lie about all it says. No more is read than the caller allows,
//! nor after its deadline; a connection may take three seconds. A redirect is not followed: it
//! could lead to plain http or into the local network. A range is the one that was asked for, or an
//! error. A compressed answer, which could be small and become large, is refused, and so is a web
//! page. That the bytes are the object's is for the caller to verify.
//!
//! *Secrets.* A URL's query is in no message. A server knows it and could put it into its refusal,
//! so of a refusal only the provider's code is shown, if it looks like one and is not a part of the
//! query.

use super::{is_loopback, is_private};
use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::remote::{Body, Refusal, causes, tls};
use crate::store::Deadline;
use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use std::ops::Range;
use std::time::Duration;
use tokio::time::{timeout, timeout_at};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than any provider's URL: the token of a session in it may have some thousand bytes.
const URL_BYTES_MAX: usize = 16 << 10;
/// How much of a refusal is read, and for how long, to find the provider's code in it.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest code and the longest host that are shown.
const CODE_BYTES_MAX: usize = 64;
const HOST_CHARACTERS_MAX: usize = 100;

/// Reads presigned URLs.
#[derive(Clone, Debug)]
pub struct PresignedReader {
    https: Client,
    /// For plain http on this machine, if that is allowed.
    loopback: Option<Client>,
}

/// A client that sends one request and follows nothing.
fn client() -> reqwest::ClientBuilder {
    Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        // One HTTP/2 connection would limit the throughput of many reads to that of one.
        .http1_only()
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
}

fn error(place: &str, refusal: Refusal) -> StoreError {
    StoreError {
        kind: refusal.kind,
        operation: Operation::Get,
        cloud: place.to_owned(),
        object: None,
        detail: refusal.detail,
    }
}

/// The client of a builder; `place` is for messages.
fn built(builder: reqwest::ClientBuilder) -> Result<Client, StoreError> {
    let failed = |cause: reqwest::Error| {
        let refusal = Refusal::new(StoreErrorKind::Other, causes(&cause));
        error("the reader of links", refusal)
    };
    builder.build().map_err(failed)
}

impl PresignedReader {
    /// A reader of URLs of any origin: it speaks https alone.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, StoreError> {
        Ok(Self {
            https: built(client().https_only(true))?,
            loopback: None,
        })
    }

    /// A reader that also speaks plain http to addresses of this machine, as emulators do: for
    /// tests and demos. A URL of an attacker could make it send a GET to any service on loopback.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn with_loopback() -> Result<Self, StoreError> {
        Ok(Self {
            // A proxy of the environment would see the URLs.
            loopback: Some(built(client().no_proxy())?),
            ..Self::new()?
        })
    }

    /// Reads the object at a URL, all of it or exactly the bytes of `range`, at most `length_max`
    /// bytes.
    ///
    /// # Errors
    /// `Unsupported` if the URL is none that is read; `Denied` if it expired, was revoked or is
    /// refused; `NotFound`; `Corrupt` if the object is longer than `length_max` or ends before the
    /// range does, or if the answer is not what was asked for; `Unavailable`, `Throttled`,
    /// `Timeout`, `Other`.
    pub async fn get(
        &self,
        url: &str,
        range: Option<Range<u64>>,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        let url = parse(url).map_err(|refusal| error("the link", refusal))?;
        let place = format!("the link to {}", host(&url));
        let read = async {
            let client = self.client_for(&url)?;
            let wanted = WantedBytes::new(range, length_max)?;
            match &wanted {
                // HTTP cannot express an empty range.
                WantedBytes::Part(part) if part.is_empty() => Ok(Bytes::new()),
                wanted => fetch(client, &url, wanted).await,
            }
        };
        let late = |_| Err(Refusal::new(StoreErrorKind::Timeout, "no answer in time"));
        let read = timeout_at(deadline.instant(), read).await;
        let read = read.unwrap_or_else(late);
        read.map_err(|refusal| error(&place, refusal))
    }

    fn client_for(&self, url: &Url) -> Result<&Client, Refusal> {
        let refused = |detail: &str| Err(Refusal::new(StoreErrorKind::Unsupported, detail));
        match &self.loopback {
            _ if url.scheme() == "https" => Ok(&self.https),
            Some(client) if is_private(url) => Ok(client),
            _ if url.scheme() != "http" => refused("it is not read: a link begins with https://"),
            None if is_loopback(url) => refused(
                "it is not read: it leads to a service of this very machine, and a link of others \
                 must not reach it",
            ),
            _ => refused(
                "it is not read: it has no encryption, so anyone on the way could read it and \
                 change the answer; a link begins with https://",
            ),
        }
    }
}

/// The bytes that are read.
enum WantedBytes {
    /// All of the object, up to a bound.
    Whole(u64),
    /// Exactly these bytes.
    Part(Range<u64>),
}

impl WantedBytes {
    fn new(range: Option<Range<u64>>, length_max: u64) -> Result<Self, Refusal> {
        let Some(range) = range else {
            return Ok(Self::Whole(length_max));
        };
        match range.end.saturating_sub(range.start) <= length_max {
            true => Ok(Self::Part(range)),
            false => Err(Refusal::new(
                StoreErrorKind::Corrupt,
                format!("the bytes {range:?} are more than {length_max}"),
            )),
        }
    }

    fn length_max(&self) -> u64 {
        match self {
            Self::Whole(most) => *most,
            Self::Part(range) => range.end.saturating_sub(range.start),
        }
    }
}

/// A URL that may be requested, apart from its scheme.
fn parse(text: &str) -> Result<Url, Refusal> {
    let refused = |detail: String| Refusal::new(StoreErrorKind::Unsupported, detail);
    if text.len() > URL_BYTES_MAX {
        let detail = format!("it is not read: no link has more than {URL_BYTES_MAX} bytes");
        return Err(refused(detail));
    }
    let url = Url::parse(text).map_err(|error| refused(format!("it is no URL: {error}")))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(refused("it is not read: it names no host".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let detail = "it is not read: it has a user name before its host, which can make it look \
                      like a link to another place";
        return Err(refused(detail.to_owned()));
    }
    Ok(url)
}

/// Where a URL leads, for messages.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let host: String = host.chars().take(HOST_CHARACTERS_MAX).collect();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

fn unreachable(error: reqwest::Error) -> Refusal {
    let words = causes(&error.without_url());
    tls::refusal(&words).unwrap_or_else(|| Refusal::new(StoreErrorKind::Unavailable, words))
}

async fn fetch(client: &Client, url: &Url, wanted: &WantedBytes) -> Result<Bytes, Refusal> {
    let mut request = client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
    if let WantedBytes::Part(range) = wanted {
        let last = range.end.saturating_sub(1);
        request = request.header(RANGE, format!("bytes={}-{last}", range.start));
    }
    let mut response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    if !matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        let code = code(response, url).await;
        return Err(refusal(status.as_u16(), code.as_deref()));
    }
    check_form(&response)?;
    check_range(&response, wanted)?;
    let mut body = Body::new(wanted.length_max(), response.content_length())?;
    while let Some(piece) = response.chunk().await.map_err(unreachable)? {
        body.push(piece)?;
    }
    let bytes = body.finish()?;
    match wanted {
        WantedBytes::Part(range) if bytes.len() as u64 != wanted.length_max() => {
            let detail = format!("it answers with {} bytes for {range:?}", bytes.len());
            Err(Refusal::new(StoreErrorKind::Corrupt, detail))
        }
        _ => Ok(bytes),
    }
}

/// Refuses what cannot be an object as it was stored.
fn check_form(response: &Response) -> Result<(), Refusal> {
    let header = |name| {
        let value = response.headers().get(name);
        value.map(|value| value.as_bytes().to_ascii_lowercase())
    };
    if header(CONTENT_TYPE).is_some_and(|form| form.starts_with(b"text/html")) {
        let detail = "it answers with a web page instead of the object; a network may ask for a \
                      sign-in first";
        return Err(Refusal::new(StoreErrorKind::Unavailable, detail));
    }
    if header(CONTENT_ENCODING).is_some_and(|encoding| encoding != b"identity") {
        let detail = "it answers with a compressed object, which was not asked for";
        return Err(Refusal::new(StoreErrorKind::Corrupt, detail));
    }
    Ok(())
}

/// Checks that the answer is to hold the wanted bytes.
fn check_range(response: &Response, wanted: &WantedBytes) -> Result<(), Refusal> {
    let corrupt = |detail: String| Err(Refusal::new(StoreErrorKind::Corrupt, detail));
    let partial = response.status() == StatusCode::PARTIAL_CONTENT;
    match wanted {
        WantedBytes::Whole(_) if partial => {
            corrupt("it answers with a part of the object".to_owned())
        }
        // A whole object whose length is not that of the range is noticed when it is read.
        WantedBytes::Part(range) if !partial && range.start > 0 => {
            corrupt(format!("it answers with the whole object for {range:?}"))
        }
        WantedBytes::Part(range) if partial => {
            let last = range.end.saturating_sub(1);
            let wanted = format!("bytes {}-{last}/", range.start);
            let given = response.headers().get(CONTENT_RANGE);
            match given.is_some_and(|given| given.as_bytes().starts_with(wanted.as_bytes())) {
                true => Ok(()),
                false => corrupt(format!("it answers with another part than {range:?}")),
            }
        }
        _ => Ok(()),
    }
}

/// The code in a provider's refusal, if it has one that can be shown.
async fn code(mut response: Response, url: &Url) -> Option<String> {
    let mut body = Vec::new();
    let read = async {
        while body.len() < REFUSAL_BYTES_MAX
            && let Ok(Some(piece)) = response.chunk().await
        {
            body.extend_from_slice(&piece);
        }
    };
    // What has arrived by then counts.
    let _ = timeout(REFUSAL_TIMEOUT, read).await;
    let text = String::from_utf8_lossy(&body);
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let letters = |code: &str| code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let formed = (1..=CODE_BYTES_MAX).contains(&code.len()) && letters(code);
    let secret = url.query().is_some_and(|query| query.contains(code));
    (formed && !secret).then(|| code.to_owned())
}

/// The meaning of a refusal.
fn refusal(status: u16, code: Option<&str>) -> Refusal {
    use StoreErrorKind as Kind;
    let (kind, words) = match (status, code) {
        // Some providers call an expired link a bad request.
        (401 | 403, _) | (400, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) => (
            Kind::Denied,
            "it expired, was revoked or is refused: ask for a new one",
        ),
        (404 | 410, _) => (Kind::NotFound, "the object that it leads to is not there"),
        (416, _) => (Kind::Corrupt, "the object ends before the wanted bytes"),
        (429 | 503, _) => (Kind::Throttled, "the provider asks for fewer requests"),
        (300..=399, _) => (
            Kind::Unavailable,
            "it sends its reader elsewhere, which is not followed",
        ),
        (408 | 500..=599, _) => (Kind::Unavailable, "the provider fails at the moment"),
        _ => (Kind::Other, "it is not answered with an object"),
    };
    let code = code.map(|code| format!(" {code}")).unwrap_or_default();
    Refusal::new(kind, format!("{words} (HTTP {status}{code})"))
}

#[cfg(test)]
#[cfg(any(feature = "azure", feature = "google"))]
mod tests;
