//! The service's JSON API over HTTP, with bounds on waiting and reading.

use super::credentials::Identity;
use super::errors;
use crate::StoreErrorKind;
use crate::remote::{Refusal, RenewableCredentials, causes, tls};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The bound of an answer that is not an object: a page of a listing has at most 1000 names.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The bound of an error answer.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// The service at one endpoint.
#[derive(Debug)]
pub(super) struct Api {
    http: reqwest::Client,
    pub(super) endpoint: Url,
    /// The identity that requests carry.
    pub(super) renewable: RenewableCredentials<Identity>,
    /// The project that pays for requests, if not the bucket's owner.
    pub(super) project: Option<String>,
}

fn unreachable(error: reqwest::Error) -> Refusal {
    let words = causes(&error.without_url());
    tls::refusal(&words).unwrap_or_else(|| Refusal::new(StoreErrorKind::Unavailable, words))
}

/// The beginning of a body.
async fn read(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Refusal> {
    let mut body = Vec::new();
    while body.len() < bytes_max
        && let Some(piece) = response.chunk().await.map_err(unreachable)?
    {
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

impl Api {
    /// The service at an endpoint.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(super) fn new(
        endpoint: Url,
        identity: Identity,
        project: Option<String>,
    ) -> Result<Self, Refusal> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            // One HTTP/2 connection would limit the total throughput to that of a single
            // connection.
            .http1_only()
            // The service does not redirect; a network's login page does.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Refusal::new(StoreErrorKind::Other, causes(&error)))?;
        Ok(Self {
            http,
            endpoint,
            renewable: RenewableCredentials::new(identity),
            project,
        })
    }

    /// A request for the resource at a path.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url);
        match &self.project {
            Some(project) => request.query(&[("userProject", project)]),
            None => request,
        }
    }

    /// Sends a request once; any status but `wanted` is a refusal.
    ///
    /// # Errors
    /// The service's refusal, or the failure to reach it.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        wanted: &[StatusCode],
    ) -> Result<Response, Refusal> {
        let identity = self.renewable.get();
        let request = request.headers(identity.headers().await?);
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if wanted.contains(&status) {
            return Ok(response);
        }
        let header = |name: &str| {
            let value = response.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let (retry_after, location) = (header("retry-after"), header("location"));
        let body = read(response, REFUSAL_BYTES_MAX).await.unwrap_or_default();
        let mut refusal = errors::refusal(status.as_u16(), &body, retry_after.as_deref());
        if let Some(place) = location {
            let place = place.split('?').next().unwrap_or_default();
            refusal.detail = format!("{}, and it sends us to {place}", refusal.detail);
        }
        if matches!(refusal.kind, StoreErrorKind::Denied | StoreErrorKind::Clock) {
            let origin = &identity.origin;
            refusal.detail = format!("{} (asked with {origin})", refusal.detail);
        }
        Err(refusal)
    }

    /// Sends a request that is answered with JSON.
    ///
    /// # Errors
    /// As [`send`](Self::send), and `Unavailable` if the answer is not JSON.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, Refusal> {
        let response = self.send(request, &[StatusCode::OK]).await?;
        let body = read(response, ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|_| foreign_answer())
    }
}

/// The next piece of an object.
pub(super) async fn piece(response: &mut Response) -> Result<Option<bytes::Bytes>, Refusal> {
    response.chunk().await.map_err(unreachable)
}

/// Whether an answer is something other than a web page.
pub(super) fn no_page(response: &Response) -> Result<(), Refusal> {
    let form = response.headers().get(CONTENT_TYPE);
    let page = form.is_some_and(|form| form.as_bytes().starts_with(b"text/html"));
    match page {
        true => Err(foreign_answer()),
        false => Ok(()),
    }
}

/// A refusal for an answer that does not come from the service.
pub(super) fn foreign_answer() -> Refusal {
    let detail = "the answer does not come from the service";
    Refusal::new(StoreErrorKind::Unavailable, detail)
}
