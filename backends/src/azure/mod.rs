//! Azure Blob Storage, through the provider's SDK.
//!
//! ```text
//!  connect ── credentials: a key, a token, or an identity (entra); once more if they are refused
//!     │          └─ a policy of the SDK's pipeline: signing, or the SDK's own for identities
//!     ▼
//!  Blobs: Driver ── the SDK's clients ──► pipeline ──► transport: HTTP with bounds
//!     │                                                    │
//!     ├── page_markers: where listings resume               └──► errors: what refusals mean
//!     └── presign: URLs at which anyone reads an object
//! ```
//!
//! Invariants: one call of the driver is one request, except for a listing that has to skip names
//! (see `page_markers`) and the SDK's own requests for tokens. An object is created by one Put Blob
//! with `If-None-Match: *`, never from blocks, so it exists whole or not at all. It is read by one
//! Get Blob; the SDK's own `download` would fetch pieces in parallel, request an empty object
//! twice, and hide whether the service respected the range. No secret is in a URL, an error or a
//! `Debug`.
//!
//! The driver uses two versions of the service's protocol. At the provider's own endpoint it uses
//! the version that can begin a listing at a name; at any other endpoint an earlier one, which
//! emulators support.

mod credentials;
mod entra;
mod errors;
mod page_markers;
mod presign;
mod proving;
mod signing;
#[cfg(test)]
mod tests;
mod transport;

use crate::StoreErrorKind;
use crate::location::Remote;
use crate::marker::MARKER_FILE;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::remote::{Body, Container, Driver, Listing, Refusal, RenewableCredentials, causes};
use azure_core::error::CheckSuccessOptions;
use azure_core::http::headers::HeaderName;
use azure_core::http::policies::Policy;
use azure_core::http::{
    ClientOptions, Context, Method, Pipeline, PipelineStreamOptions, Request, RetryOptions,
    Transport, Url, UserAgentOptions,
};
use azure_storage_blob::models::{
    BlobClientGetPropertiesResultHeaders as _, BlobClientUploadResult,
    BlobContainerClientGetPropertiesResultHeaders as _, BlobContainerClientListBlobsOptions,
    BlockBlobClientUploadOptions,
};
use azure_storage_blob::{
    BlobContainerClient, BlobContainerClientOptions, BlobServiceClient, BlobServiceClientOptions,
};
use bytes::Bytes;
use credentials::AzureCredentials;
use futures_util::{StreamExt as _, TryStreamExt as _};
use page_markers::PageMarkers;
use proving::{Prover, Proving};
use std::fmt;
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The protocol's version where the provider has the service.
const VERSION: &str = "2026-02-06";
/// The protocol's version at any other endpoint; Azurite 3.35 supports no later one.
const VERSION_ELSEWHERE: &str = "2025-11-05";
/// The most names that the service puts on a page.
const PAGE_NAMES_MAX: usize = 5000;
/// The pages that one call of the driver skips.
const PAGES_MAX: usize = 64;

/// A container.
struct Blobs {
    service: BlobServiceClient,
    container: BlobContainerClient,
    container_name: String,
    /// For requests that the SDK's clients do not offer.
    pipeline: Pipeline,
    version: &'static str,
    /// Where the credentials came from, for messages.
    origin: String,
    place: String,
    page_markers: PageMarkers,
    delegation: presign::CachedDelegation,
    renewable: Arc<RenewableCredentials<Proving>>,
    prover: Prover,
    /// Where credentials are read again.
    file: Option<PathBuf>,
    variable: fn(&str) -> Option<String>,
}

impl fmt::Debug for Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Blobs").field(&self.place).finish()
    }
}

/// A driver for the container that a location names. No request is sent yet.
pub(crate) async fn connect(
    remote: &Remote,
    credentials: Option<&Path>,
) -> Result<Arc<dyn Driver>, Refusal> {
    let variable = |name: &str| std::env::var(name).ok();
    let found = credentials::find(&remote.account, credentials, variable)?;
    Ok(Arc::new(attach(remote, found, credentials, variable)?))
}

/// The endpoint of the service, and whether it is the provider's own.
fn endpoint(remote: &Remote, found: &AzureCredentials) -> Result<(Url, bool), Refusal> {
    let account = &remote.account;
    let given = remote.option("endpoint").or(found.endpoint.as_deref());
    let text = match given {
        Some(text) => text.to_owned(),
        None => format!("https://{account}.blob.core.windows.net"),
    };
    let wrong = |reason: &str| {
        let detail = format!("its endpoint is no URL of a service: {reason}");
        Refusal::new(StoreErrorKind::Other, detail)
    };
    let mut url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it begins with http:// or https://"));
    }
    if url.query().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(
            "credentials belong in a file that is named with the location",
        ));
    }
    // Where hosts have no names, the account is in the path.
    let host = url.host_str().unwrap_or_default();
    let nameless = host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok();
    if nameless && url.path() == "/" {
        url.set_path(account);
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Ok((url, given.is_none()))
}

/// Whether a service is on this machine, as emulators are.
fn is_loopback(endpoint: &Url) -> bool {
    let host = endpoint.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Makes the driver with the credentials that were found.
fn attach(
    remote: &Remote,
    found: AzureCredentials,
    file: Option<&Path>,
    variable: fn(&str) -> Option<String>,
) -> Result<Blobs, Refusal> {
    let (endpoint, at_home) = endpoint(remote, &found)?;
    let failed = |detail| Refusal::new(StoreErrorKind::Other, detail);
    let transport = transport::Bounded::new().map_err(|error| failed(causes(&error)))?;
    let mut options = ClientOptions {
        retry: RetryOptions::none(),
        transport: Some(Transport::new(Arc::new(transport))),
        user_agent: UserAgentOptions {
            application_id: Some("quorumfs".to_owned()),
        },
        ..ClientOptions::default()
    };
    let prover = Prover {
        account: remote.account.clone(),
        encrypted: endpoint.scheme() == "https",
        loopback: is_loopback(&endpoint),
        options: options.clone(),
    };
    let renewable = Arc::new(RenewableCredentials::new(prover.prove(&found, variable)?));
    let policy: Arc<dyn Policy> = Arc::new(proving::Newest(Arc::clone(&renewable)));
    options.per_try_policies.push(policy);
    let version = if at_home { VERSION } else { VERSION_ELSEWHERE };
    let service_options = BlobServiceClientOptions {
        client_options: options.clone(),
        version: version.to_owned(),
    };
    let mut container = endpoint.clone();
    container.set_path(&format!(
        "{}/{}",
        endpoint.path().trim_end_matches('/'),
        remote.container
    ));
    let container_options = BlobContainerClientOptions {
        client_options: options.clone(),
        version: version.to_owned(),
    };
    let unusable = |error: azure_core::Error| failed(causes(&error));
    let name = Some(env!("CARGO_PKG_NAME"));
    let release = Some(env!("CARGO_PKG_VERSION"));
    Ok(Blobs {
        place: format!("Azure, {container}/{}", remote.prefix),
        service: BlobServiceClient::new(endpoint, None, Some(service_options)).map_err(unusable)?,
        container: BlobContainerClient::new(container, None, Some(container_options))
            .map_err(unusable)?,
        container_name: remote.container.clone(),
        pipeline: Pipeline::new(name, release, options, Vec::new(), Vec::new(), None),
        version,
        origin: found.origin,
        page_markers: PageMarkers::default(),
        delegation: presign::CachedDelegation::default(),
        renewable,
        prover,
        file: file.map(Path::to_owned),
        variable,
    })
}

/// One page of names.
struct NamesPage {
    names: Vec<String>,
    next: Option<String>,
}

impl Blobs {
    fn refused(&self, error: &azure_core::Error) -> Refusal {
        let mut refusal = errors::refusal(error);
        if matches!(refusal.kind, StoreErrorKind::Denied | StoreErrorKind::Clock) {
            refusal.detail = format!("{} (asked with {})", refusal.detail, self.origin);
        }
        refusal
    }

    async fn send(
        &self,
        key: &str,
        body: Bytes,
        options: BlockBlobClientUploadOptions<'_>,
    ) -> Result<Option<Receipt>, Refusal> {
        let blob = self.container.blob_client(key).block_blob_client();
        let put = blob.upload(body.clone().into(), Some(options));
        let done = put.await.map_err(|error| self.refused(&error))?;
        Ok(receipt(done, &body))
    }

    async fn page(
        &self,
        prefix: &str,
        marker: Option<String>,
        start_from: Option<String>,
        names_max: usize,
    ) -> Result<NamesPage, Refusal> {
        let names_max = names_max.clamp(1, PAGE_NAMES_MAX);
        let options = BlobContainerClientListBlobsOptions {
            prefix: (!prefix.is_empty()).then(|| prefix.to_owned()),
            marker,
            start_from,
            maxresults: i32::try_from(names_max).ok(),
            ..BlobContainerClientListBlobsOptions::default()
        };
        let asked = async {
            let mut pages = self.container.list_blobs(Some(options))?.into_pages();
            pages.try_next().await
        };
        let page = asked.await.map_err(|error| self.refused(&error))?;
        let nothing = || Refusal::new(StoreErrorKind::Unavailable, "it gives no page of names");
        let page = page.ok_or_else(nothing)?;
        genuine(page.headers())?;
        let page = page.into_model().map_err(|error| self.refused(&error))?;
        let mut names: Vec<String> = page
            .blob_items
            .into_iter()
            .filter_map(|it| it.name)
            .collect();
        names.sort_unstable();
        Ok(NamesPage {
            names,
            next: page.next_marker.filter(|marker| !marker.is_empty()),
        })
    }
}

/// Options for an upload in one request, whatever its length.
fn one_request<'a>() -> BlockBlobClientUploadOptions<'a> {
    BlockBlobClientUploadOptions {
        partition_size: NonZero::new(u64::MAX),
        ..BlockBlobClientUploadOptions::default()
    }
}

/// The checksum that the service computed. Its CRC-64 is CRC-64/NVME; the byte order is documented
/// nowhere. If it is ours in neither order, the MD5, if present, distinguishes a fault from another
/// kind of checksum.
fn receipt(done: BlobClientUploadResult, body: &[u8]) -> Option<Receipt> {
    let sum = done.content_crc64.and_then(|sum| sum.try_into().ok());
    let md5 = done.content_md5.and_then(|sum| sum.try_into().ok());
    let Some(mut sum): Option<[u8; 8]> = sum else {
        return md5.map(Receipt::Md5);
    };
    let reported = Receipt::Crc64(sum);
    sum.reverse();
    let turned = Receipt::Crc64(sum);
    if reported.is_for(body) {
        return Some(reported);
    }
    match md5 {
        Some(md5) if !turned.is_for(body) => Some(Receipt::Md5(md5)),
        _ => Some(turned),
    }
}

/// Whether an answer comes from the service itself and not from something in between.
fn genuine(headers: &azure_core::http::headers::Headers) -> Result<(), Refusal> {
    let header = |name| headers.get_optional_str(&HeaderName::from_static(name));
    if header("x-ms-request-id").is_some() {
        return Ok(());
    }
    let form = header("content-type").unwrap_or("nothing in particular");
    let detail = format!("the answer does not come from the service; its type is {form}");
    Err(Refusal::new(StoreErrorKind::Unavailable, detail))
}

#[async_trait::async_trait]
impl Driver for Blobs {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn credentials(&self) -> u64 {
        self.renewable.number()
    }

    async fn renew_credentials(&self, refused: u64) -> bool {
        let (account, file) = (&self.prover.account, self.file.as_deref());
        let find = |known: &Proving| {
            let found = credentials::find(account, file, self.variable).ok()?;
            known.renewed(&self.prover, &found, self.variable)
        };
        self.renewable.renew_credentials(refused, find).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal> {
        let put = self.send(key, body, one_request().if_not_exists()).await;
        match put {
            // Credentials that may create but not overwrite do not always show which of the two was
            // refused.
            Err(refusal)
                if refusal.kind == StoreErrorKind::Denied && self.head(key).await.is_ok() =>
            {
                Err(Refusal::new(StoreErrorKind::AlreadyExists, refusal.detail))
            }
            other => other,
        }
    }

    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal> {
        self.send(key, body, one_request()).await.map(drop)
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, Refusal> {
        let url = self.container.blob_client(key).url().clone();
        let mut request = Request::new(url, Method::Get);
        request.insert_header("accept", transport::OBJECT);
        request.insert_header("x-ms-version", self.version);
        let mut success_codes: &[u16] = &[200];
        if let Some(range) = range {
            let last = range.end.saturating_sub(1);
            request.insert_header("range", format!("bytes={}-{last}", range.start));
            success_codes = &[206];
        }
        let options = PipelineStreamOptions {
            check_success: CheckSuccessOptions { success_codes },
            ..PipelineStreamOptions::default()
        };
        let response = self
            .pipeline
            .stream(&Context::new(), &mut request, Some(options))
            .await
            .map_err(|error| self.refused(&error))?;
        let (_, headers, mut pieces) = response.deconstruct();
        genuine(&headers)?;
        let announced = headers.get_optional_str(&HeaderName::from_static("content-length"));
        let mut body = Body::new(length_max, announced.and_then(|text| text.parse().ok()))?;
        while let Some(piece) = pieces.next().await {
            body.push(piece.map_err(|error| self.refused(&error))?)?;
        }
        body.finish()
    }

    async fn head(&self, key: &str) -> Result<u64, Refusal> {
        let blob = self.container.blob_client(key);
        let properties = blob.get_properties(None).await;
        let properties = properties.map_err(|error| self.refused(&error))?;
        genuine(properties.headers())?;
        let length = properties.content_length().ok().flatten();
        let silent = || Refusal::new(StoreErrorKind::Unavailable, "it gives no length");
        length.ok_or_else(silent)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal> {
        let remembered = after.and_then(|after| self.page_markers.before(prefix, after));
        let exact = match &remembered {
            Some(place) => Some(place.last.as_str()) == after,
            None => after.is_none(),
        };
        let begin = after.filter(|_| remembered.is_none() && self.version == VERSION);
        let begin = begin.map(str::to_owned);
        let names_max = match (exact, &begin) {
            (true, _) => limit,
            // The name at which the listing begins is on the page.
            (false, Some(_)) => limit.saturating_add(1),
            (false, None) => PAGE_NAMES_MAX,
        };
        let mut marker = remembered.as_ref().map(|place| place.marker.clone());
        for _ in 0..PAGES_MAX {
            let page = self
                .page(prefix, marker.clone(), begin.clone(), names_max)
                .await;
            let page = page.map_err(|refusal| match &remembered {
                Some(place) if refusal.kind == StoreErrorKind::Other => {
                    self.page_markers.forget(place);
                    Refusal::new(StoreErrorKind::Unavailable, refusal.detail)
                }
                _ => refusal,
            })?;
            if let (Some(last), Some(next)) = (page.names.last(), &page.next) {
                self.page_markers.remember(prefix, last, next);
            }
            let mut keys = page.names;
            keys.retain(|key| after < Some(key.as_str()));
            let more = page.next.is_some() || keys.len() > limit;
            keys.truncate(limit);
            if !keys.is_empty() || !more {
                return Ok(Listing { keys, more });
            }
            marker = page.next;
        }
        // The next try continues from where this one stopped.
        let detail = format!("{PAGES_MAX} pages of its listing hold nothing that is wanted");
        Err(Refusal::new(StoreErrorKind::Unavailable, detail))
    }

    async fn delete(&self, key: &str) -> Result<(), Refusal> {
        let deleted = self.container.blob_client(key).delete(None).await;
        match deleted.map_err(|error| self.refused(&error)) {
            Err(refusal) if refusal.kind != StoreErrorKind::NotFound => Err(refusal),
            _ => Ok(()),
        }
    }

    async fn presign(&self, key: &str, valid_for: Duration) -> Result<PresignedUrl, Refusal> {
        self.presign_at(key, valid_for, SystemTime::now()).await
    }

    async fn create_container(&self) -> Result<(), Refusal> {
        // Container names belong to the account: one that exists already is ours.
        let created = self.container.create(None).await;
        match created.map_err(|error| self.refused(&error)) {
            Err(refusal) if refusal.kind != StoreErrorKind::AlreadyExists => Err(refusal),
            _ => Ok(()),
        }
    }

    async fn container(&self) -> Result<Container, Refusal> {
        let properties = match self.container.get_properties(None).await {
            Ok(properties) => properties,
            Err(error) => {
                let refusal = self.refused(&error);
                return match refusal.kind {
                    // A token for blobs only has no permission to ask.
                    StoreErrorKind::Denied => Ok(Container::default()),
                    _ => Err(refusal),
                };
            }
        };
        genuine(properties.headers())?;
        let policy = properties.has_immutability_policy().ok().flatten();
        let hold = properties.has_legal_hold().ok().flatten();
        let locked = policy.zip(hold).map(|(policy, hold)| policy || hold);
        let immutable_versions = properties.is_immutable_storage_with_versioning_enabled();
        let mut versioned = immutable_versions.ok().flatten().filter(|it| *it);
        // Another API tells whether the account keeps versions, but any caller that may ask about
        // the account sees how long deleted blobs are kept.
        if versioned.is_none()
            && let Ok(service) = self.service.get_properties(None).await
            && let Ok(service) = service.into_model()
        {
            let retention = service.delete_retention_policy;
            versioned = retention.and_then(|it| it.enabled).filter(|it| *it);
        }
        Ok(Container { versioned, locked })
    }

    async fn date(&self) -> Result<Option<String>, Refusal> {
        // The answer for a missing object has a date as well. A refusal without an answer of the
        // service's own has none.
        let url = self.container.blob_client(MARKER_FILE).url().clone();
        let mut request = Request::new(url, Method::Head);
        request.insert_header("x-ms-version", self.version);
        let options = PipelineStreamOptions {
            check_success: CheckSuccessOptions {
                success_codes: &[200, 403, 404],
            },
            ..PipelineStreamOptions::default()
        };
        let response = self
            .pipeline
            .stream(&Context::new(), &mut request, Some(options))
            .await
            .map_err(|error| self.refused(&error))?;
        let (_, headers, _) = response.deconstruct();
        let date = headers.get_optional_str(&HeaderName::from_static("date"));
        Ok(date.map(str::to_owned))
    }
}
