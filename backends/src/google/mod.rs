//! Google Cloud Storage, through its JSON API, with the provider's own library for credentials.
//!
//! ```text
//!  connect ── credentials: a file, the application default ones, or none for an emulator
//!     ▼
//!  Bucket: Driver ──► api: HTTP with bounds ──► errors: what refusals mean
//!     └── presign: URLs at which anyone reads an object
//! ```
//!
//! The provider's storage client is not used: it reads an endless refusal to its end, waits for
//! connections as long as the kernel does, queries the machine's metadata while it is being
//! constructed, and can neither list nor delete without gRPC, which emulators do not support. Its
//! additional features, uploads in pieces and resumed reads, are things that a driver must not do.
//!
//! Invariants: one call of the driver is one request, except for pages of a listing without a
//! wanted name, and for answers that do not distinguish a missing bucket from a missing object. An
//! object is created by one upload with `ifGenerationMatch=0` and its CRC32C, which the service
//! compares before the object exists.

mod api;
mod credentials;
mod errors;
mod presign;
#[cfg(test)]
mod tests;

use crate::StoreErrorKind;
use crate::location::Remote;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::remote::{Body, Container, Driver, Listing, Refusal, causes};
use api::Api;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use credentials::Identity;
use futures_util::stream;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, RANGE};
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use std::convert::Infallible;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The provider's own endpoint.
const HOME: &str = "https://storage.googleapis.com";
/// The most names that the service puts on a page.
const PAGE_NAMES_MAX: usize = 1000;
/// The pages that one call of the driver skips.
const PAGES_MAX: usize = 64;

/// A bucket.
#[derive(Debug)]
struct Bucket {
    api: Api,
    name: String,
    place: String,
    /// The project of the bucket, if it is to be created.
    project: Option<String>,
    /// Where credentials are read again.
    file: Option<PathBuf>,
    /// Whether the endpoint has no TLS.
    clear: bool,
}

/// A driver for the bucket that a location names. No request is sent yet.
pub(crate) async fn connect(
    remote: &Remote,
    credentials: Option<&Path>,
) -> Result<Arc<dyn Driver>, Refusal> {
    Ok(Arc::new(attach(remote, credentials)?))
}

fn attach(remote: &Remote, credentials: Option<&Path>) -> Result<Bucket, Refusal> {
    let text = remote.option("endpoint").unwrap_or(HOME);
    let wrong = |reason: &str| {
        let detail = format!("its endpoint is no URL of a service: {reason}");
        Refusal::new(StoreErrorKind::Other, detail)
    };
    let endpoint = Url::parse(text).map_err(|error| wrong(&causes(&error)))?;
    if !matches!(endpoint.scheme(), "http" | "https") {
        return Err(wrong("it begins with http:// or https://"));
    }
    if endpoint.query().is_some()
        || !endpoint.username().is_empty()
        || endpoint.password().is_some()
    {
        return Err(wrong(
            "credentials belong in a file that is named with the location",
        ));
    }
    let clear = endpoint.scheme() == "http";
    let identity = credentials::find(credentials, clear)?;
    let payer = remote.option("project").map(str::to_owned);
    let mut project = payer.clone();
    project = project.or_else(|| std::env::var("GOOGLE_CLOUD_PROJECT").ok());
    if clear {
        // Emulators have one project, whatever its name.
        project = project.or_else(|| Some("emulator".to_owned()));
    }
    let base = endpoint.as_str().trim_end_matches('/');
    Ok(Bucket {
        place: format!("Google, {base}/{}/{}", remote.container, remote.prefix),
        name: remote.container.clone(),
        api: Api::new(endpoint, identity, payer)?,
        project,
        file: credentials.map(Path::to_owned),
        clear,
    })
}

/// The fields of a listing that are requested.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesPage {
    #[serde(default)]
    items: Vec<Name>,
    next_page_token: Option<String>,
    /// The kind that every listing states; a login page's JSON does not.
    #[serde(rename = "kind")]
    _kind: String,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

/// The fields of a new or existing object that are requested.
#[derive(Deserialize)]
struct ObjectResource {
    /// A number, as text.
    size: String,
    /// The checksum that the service computed, big-endian, in base64.
    crc32c: Option<String>,
}

/// The checksum that the service computed.
fn receipt(text: &str) -> Option<Receipt> {
    let sum = STANDARD.decode(text).ok()?;
    sum.try_into().ok().map(Receipt::Crc32c)
}

/// The fields of a bucket that are requested.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    #[serde(rename = "name")]
    _name: String,
    versioning: Option<Versioning>,
    soft_delete_policy: Option<SoftDelete>,
    retention_policy: Option<serde::de::IgnoredAny>,
    default_event_based_hold: Option<bool>,
}

#[derive(Deserialize)]
struct Versioning {
    enabled: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SoftDelete {
    /// A number, as text.
    retention_duration_seconds: Option<String>,
}

impl Bucket {
    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut whole = vec!["storage", "v1", "b", &self.name];
        whole.extend(path);
        self.api.request(method, &whole)
    }

    /// Sends an object in one request, with a condition or none.
    async fn send(
        &self,
        key: &str,
        body: Bytes,
        condition: &[(&str, &str)],
    ) -> Result<Option<Receipt>, Refusal> {
        let (before, behind, form) = envelope(&body)?;
        let length = before.len() + body.len() + behind.len();
        let pieces = [Bytes::from(before), body, Bytes::from(behind)];
        let pieces = pieces.into_iter().map(Ok::<_, Infallible>);
        let request = self
            .api
            .request(
                Method::POST,
                &["upload", "storage", "v1", "b", &self.name, "o"],
            )
            .query(&[
                ("uploadType", "multipart"),
                ("name", key),
                ("fields", "size,crc32c"),
            ])
            .query(condition)
            .header(CONTENT_TYPE, form)
            .header(CONTENT_LENGTH, length)
            .body(reqwest::Body::wrap_stream(stream::iter(pieces)));
        let put = self.api.ask::<ObjectResource>(request).await;
        let put = put.map_err(no_container)?;
        Ok(put.crc32c.and_then(|text| receipt(&text)))
    }

    /// A refusal that concerns an object, after checking whether the object or the bucket is
    /// missing.
    async fn missing(&self, refusal: Refusal) -> Refusal {
        let certain = refusal.detail.contains("No such object");
        if refusal.kind != StoreErrorKind::NotFound || certain {
            return refusal;
        }
        let request = self.request(Method::GET, &[]).query(&[("fields", "name")]);
        match self.api.ask::<Settings>(request).await {
            Err(bucket) if is_missing(&bucket) => no_container(bucket),
            _ => refusal,
        }
    }
}

fn is_missing(refusal: &Refusal) -> bool {
    let kind = refusal.kind;
    matches!(kind, StoreErrorKind::NotFound | StoreErrorKind::NoContainer)
}

/// A refusal of a request without an object: the bucket is missing.
fn no_container(refusal: Refusal) -> Refusal {
    match is_missing(&refusal) {
        true => Refusal::new(StoreErrorKind::NoContainer, refusal.detail),
        false => refusal,
    }
}

/// The parts of an upload before and after an object's bytes, and its content type.
fn envelope(body: &[u8]) -> Result<(String, String, String), Refusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Refusal::new(StoreErrorKind::Other, format!("no randomness: {error}")))?;
    // Sixteen random bytes do not occur in data that was sealed before they were drawn.
    let boundary: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let Receipt::Crc32c(checksum) = Receipt::crc32c(body) else {
        return Err(Refusal::new(StoreErrorKind::Other, "no checksum"));
    };
    let checksum = STANDARD.encode(checksum);
    let before = format!(
        "--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n\
         {{\"crc32c\":\"{checksum}\",\"contentType\":\"application/octet-stream\"}}\r\n\
         --{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    );
    let behind = format!("\r\n--{boundary}--\r\n");
    let form = format!("multipart/related; boundary={boundary}");
    Ok((before, behind, form))
}

#[async_trait::async_trait]
impl Driver for Bucket {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn credentials(&self) -> u64 {
        self.api.renewable.number()
    }

    async fn renew_credentials(&self, refused: u64) -> bool {
        let find = |known: &Identity| known.renewed(self.file.as_deref(), self.clear);
        self.api.renewable.renew_credentials(refused, find).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal> {
        let put = self.send(key, body, &[("ifGenerationMatch", "0")]).await;
        match put {
            // Credentials that may create but not delete may be refused because replacing needs
            // both rights, before the condition is examined.
            Err(refusal)
                if refusal.kind == StoreErrorKind::Denied && self.head(key).await.is_ok() =>
            {
                Err(Refusal::new(StoreErrorKind::AlreadyExists, refusal.detail))
            }
            other => other,
        }
    }

    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal> {
        self.send(key, body, &[]).await.map(drop)
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, Refusal> {
        let mut request = self
            .request(Method::GET, &["o", key])
            .query(&[("alt", "media")]);
        let mut wanted = StatusCode::OK;
        if let Some(range) = range {
            let last = range.end.saturating_sub(1);
            request = request.header(RANGE, format!("bytes={}-{last}", range.start));
            wanted = StatusCode::PARTIAL_CONTENT;
        }
        let mut response = match self.api.send(request, &[wanted]).await {
            Ok(response) => response,
            Err(refusal) => return Err(self.missing(refusal).await),
        };
        if !response.headers().contains_key("x-goog-generation") {
            return Err(api::foreign_answer());
        }
        let mut body = Body::new(length_max, response.content_length())?;
        while let Some(piece) = api::piece(&mut response).await? {
            body.push(piece)?;
        }
        body.finish()
    }

    async fn head(&self, key: &str) -> Result<u64, Refusal> {
        let request = self
            .request(Method::GET, &["o", key])
            .query(&[("fields", "size")]);
        let object = match self.api.ask::<ObjectResource>(request).await {
            Ok(object) => object,
            Err(refusal) => return Err(self.missing(refusal).await),
        };
        object.size.parse().map_err(|_| {
            let detail = format!("it gives {:?} as the object's length", object.size);
            Refusal::new(StoreErrorKind::Corrupt, detail)
        })
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal> {
        // The name at which the listing begins is on the first page.
        let names_max = limit.saturating_add(usize::from(after.is_some()));
        let names_max = names_max.clamp(1, PAGE_NAMES_MAX).to_string();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut query = vec![
                ("prefix", prefix),
                ("maxResults", &names_max),
                ("fields", "kind,items(name),nextPageToken"),
            ];
            query.extend(after.map(|after| ("startOffset", after)));
            query.extend(token.as_deref().map(|token| ("pageToken", token)));
            let request = self.request(Method::GET, &["o"]).query(&query);
            let page = self
                .api
                .ask::<NamesPage>(request)
                .await
                .map_err(no_container)?;
            let mut keys: Vec<String> = page.items.into_iter().map(|item| item.name).collect();
            keys.sort_unstable();
            keys.retain(|key| after < Some(key.as_str()));
            token = page.next_page_token.filter(|token| !token.is_empty());
            let more = token.is_some() || keys.len() > limit;
            keys.truncate(limit);
            if !keys.is_empty() || !more {
                return Ok(Listing { keys, more });
            }
        }
        let detail = format!("{PAGES_MAX} pages of its listing hold nothing that is wanted");
        Err(Refusal::new(StoreErrorKind::Unavailable, detail))
    }

    async fn delete(&self, key: &str) -> Result<(), Refusal> {
        let request = self.request(Method::DELETE, &["o", key]);
        let wanted = [StatusCode::OK, StatusCode::NO_CONTENT];
        let refusal = match self.api.send(request, &wanted).await {
            // The service answers with an empty body, emulators with some JSON, login pages with
            // HTML.
            Ok(answer) => return api::no_page(&answer),
            Err(refusal) => self.missing(refusal).await,
        };
        match refusal.kind {
            StoreErrorKind::NotFound => Ok(()),
            _ => Err(refusal),
        }
    }

    async fn presign(&self, key: &str, valid_for: Duration) -> Result<PresignedUrl, Refusal> {
        self.presign_at(key, valid_for, SystemTime::now()).await
    }

    async fn create_container(&self) -> Result<(), Refusal> {
        let Some(project) = self.project.as_deref() else {
            let detail = "a bucket belongs to a project: name it by `?project=ID` or \
                          GOOGLE_CLOUD_PROJECT";
            return Err(Refusal::new(StoreErrorKind::Other, detail));
        };
        let created = self
            .api
            .request(Method::POST, &["storage", "v1", "b"])
            .query(&[("project", project)])
            .header(CONTENT_TYPE, "application/json")
            .body(serde_json::json!({ "name": self.name }).to_string());
        let refusal = match self.api.ask::<Settings>(created).await {
            Ok(_) => return Ok(()),
            Err(refusal) => refusal,
        };
        // Bucket names are global: an existing one is ours if we may list it.
        match refusal.kind {
            StoreErrorKind::AlreadyExists => {
                let listed = self.list("", None, 1).await;
                listed.map(drop).map_err(|_| refusal)
            }
            _ => Err(refusal),
        }
    }

    async fn container(&self) -> Result<Container, Refusal> {
        let fields = "name,versioning,softDeletePolicy,retentionPolicy,defaultEventBasedHold";
        let request = self.request(Method::GET, &[]).query(&[("fields", fields)]);
        let settings = match self.api.ask::<Settings>(request).await {
            Ok(settings) => settings,
            // Credentials for objects need not allow questions about the bucket.
            Err(refusal) if refusal.kind == StoreErrorKind::Denied => {
                return Ok(Container::default());
            }
            Err(refusal) => return Err(no_container(refusal)),
        };
        let versions = settings.versioning.and_then(|it| it.enabled) == Some(true);
        let kept = settings
            .soft_delete_policy
            .and_then(|it| it.retention_duration_seconds);
        let kept = kept.is_some_and(|seconds| seconds != "0");
        let held = settings.default_event_based_hold == Some(true);
        Ok(Container {
            versioned: Some(versions || kept),
            locked: Some(settings.retention_policy.is_some() || held),
        })
    }

    async fn date(&self) -> Result<Option<String>, Refusal> {
        let request = self.request(Method::GET, &[]).query(&[("fields", "name")]);
        // A refusal of questions about the bucket carries a date as well.
        let wanted = [StatusCode::OK, StatusCode::FORBIDDEN];
        let response = self.api.send(request, &wanted).await;
        let response = response.map_err(no_container)?;
        let date = response.headers().get(DATE);
        Ok(date.and_then(|it| it.to_str().ok()).map(str::to_owned))
    }
}
