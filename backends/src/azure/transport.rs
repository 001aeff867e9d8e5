//! HTTP for the SDK's pipeline: the requests that leave this machine, and the bounds of answers.
//!
//! The SDK's own client waits 20 s for a connection and 60 s for each piece of an answer, reads an
//! endless answer to its end, and puts the URL, which holds the secret of a SAS token, into its
//! errors. This client gives up connecting early, leaves all other waiting to the caller's
//! deadline, bounds every answer but an object's, and never shows URLs.

use azure_core::error::{Error, ErrorKind};
use azure_core::http::headers::{ACCEPT, HeaderName, HeaderValue, Headers};
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Request};
use futures_util::stream::try_unfold;
use std::collections::HashMap;
use std::time::Duration;

/// The media type that a request for an object accepts.
pub(super) const OBJECT: &str = "application/octet-stream";
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The bound of a listing: 5000 names with a few hundred bytes of properties each.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The bound of an error answer.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// An HTTP client with bounds.
#[derive(Debug)]
pub(super) struct Bounded(reqwest::Client);

impl Bounded {
    /// A client with a connection pool of its own.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(super) fn new() -> reqwest::Result<Self> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            // The service does not redirect; a network's login page does.
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self(client))
    }
}

fn failed(error: reqwest::Error) -> Error {
    let kind = match error.is_connect() {
        true => ErrorKind::Connection,
        false => ErrorKind::Io,
    };
    Error::new(kind, error.without_url())
}

/// How much of an answer is read; the reader of an object has a bound of its own.
fn bytes_max(request: &Request, status: reqwest::StatusCode) -> usize {
    let accept = request.headers().get_optional_str(&ACCEPT);
    match (status.is_success(), accept == Some(OBJECT)) {
        (true, true) => usize::MAX,
        (true, false) => ANSWER_BYTES_MAX,
        (false, _) => REFUSAL_BYTES_MAX,
    }
}

#[async_trait::async_trait]
impl HttpClient for Bounded {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let method = reqwest::Method::from_bytes(request.method().as_ref().as_bytes());
        let method = method.map_err(|error| Error::new(ErrorKind::Other, error))?;
        let mut outgoing = self.0.request(method, request.url().clone());
        for (name, value) in request.headers().iter() {
            outgoing = outgoing.header(name.as_str(), value.as_str());
        }
        if let Body::Bytes(bytes) = request.body() {
            outgoing = outgoing.body(bytes.clone());
        }
        let response = outgoing.send().await.map_err(failed)?;
        let status = response.status();
        let headers: HashMap<_, _> = response
            .headers()
            .iter()
            .filter_map(|(name, value)| {
                let name = HeaderName::from(name.as_str().to_owned());
                Some((name, HeaderValue::from(value.to_str().ok()?.to_owned())))
            })
            .collect();
        let bound = bytes_max(request, status);
        let body = try_unfold((response, bound), |(mut response, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let piece = response.chunk().await.map_err(failed)?;
            Ok(piece.map(|piece| {
                let left = left.saturating_sub(piece.len());
                (piece, (response, left))
            }))
        });
        Ok(AsyncRawResponse::new(
            status.as_u16().into(),
            Headers::from(headers),
            Box::pin(body),
        ))
    }
}
