//! Amazon S3 and compatible services, through Amazon's own SDK.
//!
//! - `service`: the service that a location's options and preset describe: a pure function.
//! - `credentials`: the source of the keys, and the message if there are none.
//! - `cached_keys`: the current keys, cached until they are old, expire or are refused.
//! - `refusal`: the meaning of an answer: a pure function of status, code and message.
//! - `presign`: URLs at which anyone reads an object.
//! - `http`: the connections that all S3 clouds of a process share, and the bound of an answer.
//!
//! The location alone determines where requests go: endpoints in the environment or the AWS
//! configuration file are ignored, because one process has several clouds and they share one
//! environment. Keys are found where AWS's own tools find them, or in the file that is named with
//! the location.
//!
//! ```text
//! preset    endpoint                                 region        checksums       create-only
//! (none)    Amazon's, or the option                  looked for    CRC-32          If-None-Match
//! r2        https://ACCOUNT.r2.cloudflarestorage.com auto          where required  If-None-Match
//! b2        https://s3.REGION.backblazeb2.com        to be given   where required  asked before
//! wasabi    https://s3.REGION.wasabisys.com          us-east-1     where required  asked before
//! minio     to be given                              us-east-1     CRC-32          If-None-Match
//! garage    to be given                              garage        CRC-32          asked before
//! ceph      to be given                              us-east-1     where required  If-None-Match
//! ```
//!
//! *Why.* R2 documents `If-None-Match` on PutObject and its one region; it answered "not
//! implemented" to CRC headers when the SDKs began to send them. B2 answers "not implemented" to
//! `If-None-Match`, refused CRC headers for long, and its region is part of the endpoint that it
//! shows for a bucket. Wasabi documents one endpoint for each region and no conditional writes.
//! MinIO accepts all that Amazon's SDK sends. Garage has no versions to compare a write with, and
//! its region's name is that of its own configuration, `garage` by custom. Ceph's gateway had
//! conditional writes before Amazon, accepts any region, and supports CRC headers only in newer
//! releases. For a service with an endpoint of its own the bucket's name is in the path, because
//! names below its host name need DNS records and certificates that few operators have set up.
//!
//! *Create-only* is `If-None-Match: *`. A 412 means that the name is taken; a 409 that another
//! write of it is under way, with an unknown result: it is retried. Where the service does not
//! support the header, as its preset or its first 501 shows, each put first asks whether the object
//! exists. That finds the common case, a put that was repeated because its answer was lost; it does
//! not find two concurrent writers, and no caller relies on it.
//!
//! *One try is one request.* The SDK's retries, its corrections of the clock and its watch over
//! slow streams are off: [`crate::remote`] does this for all providers alike, and counts it.
//! Connecting is bounded by three seconds. Bodies are sent unchanged, with a CRC-32 that the
//! service verifies and, over https, no other hash in the signature; no more of an object is read
//! than was requested, and lists and errors have bounds.
//!
//! *A service that is not S3* is detected where an answer would be trusted: an object in the form
//! of a web page, a put that is answered without an entity tag. That is a portal or a proxy, which
//! is temporary: the cloud is unavailable.

mod cached_keys;
mod credentials;
mod http;
mod presign;
mod refusal;
#[cfg(test)]
mod scripted;
mod service;
#[cfg(test)]
mod tests;

use crate::error::StoreErrorKind;
use crate::identities::hidden_with;
use crate::location::Remote;
use crate::presigned::PresignedUrl;
use crate::receipt::Receipt;
use crate::remote::{Body, Container, Driver, Listing, Refusal};
use aws_credential_types::provider::ProvideCredentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedCredentialsProvider, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::put_object::{PutObjectError, PutObjectOutput};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    BucketLocationConstraint, BucketVersioningStatus, CreateBucketConfiguration, ObjectLockEnabled,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use refusal::{Response, Subject};
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The most keys that the protocol gives at a time.
const KEYS_MAX: usize = 1000;

/// A driver for the bucket. Keys are looked up; no request is sent to the bucket yet.
pub(crate) async fn connect(
    remote: &Remote,
    credentials: Option<&Path>,
) -> Result<Arc<dyn Driver>, Refusal> {
    Ok(Arc::new(attach(remote, credentials).await?))
}

async fn attach(remote: &Remote, credentials: Option<&Path>) -> Result<S3, Refusal> {
    let service = service::Service::of(remote)?;
    let http = http::client();
    let keys = credentials::Keys {
        file: credentials.map(Path::to_owned),
        profile: remote.option("profile").map(str::to_owned),
        amazon: service.amazon,
    };
    let region = match service.region.clone() {
        Some(region) => region,
        None => keys.region(&http, service.endpoint.is_some()).await?,
    };
    let provider = keys.provider(&http, &region).await;
    let cached_keys = Arc::new(cached_keys::CachedKeys::new(provider));
    let (asked, checked) = if service.checksums {
        (
            RequestChecksumCalculation::WhenSupported,
            ResponseChecksumValidation::WhenSupported,
        )
    } else {
        (
            RequestChecksumCalculation::WhenRequired,
            ResponseChecksumValidation::WhenRequired,
        )
    };
    let mut config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .region(Region::new(region.clone()))
        .credentials_provider(SharedCredentialsProvider::from(
            Arc::clone(&cached_keys) as Arc<dyn ProvideCredentials>
        ))
        .identity_cache(IdentityCache::no_cache())
        .retry_config(RetryConfig::disabled())
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .build(),
        )
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .disable_clock_skew_correction(true)
        .request_checksum_calculation(asked)
        .response_checksum_validation(checked)
        .force_path_style(service.path_style)
        .interceptor(http::Bound::Errors);
    config.set_endpoint_url(service.endpoint.clone());
    let bucket = remote.container.clone();
    Ok(S3 {
        client: Client::from_conf(config.build()),
        place: match &service.endpoint {
            Some(endpoint) => format!("s3://{bucket}/{} at {endpoint}", remote.prefix),
            None => format!("s3://{bucket}/{} in {region}", remote.prefix),
        },
        bucket,
        keys: keys.place(),
        cached_keys,
        constraint: (service.amazon && region != "us-east-1").then(|| region.as_str().into()),
        amazon: service.amazon,
        encrypted: service.encrypted(),
        create_only: AtomicBool::new(service.create_only),
    })
}

/// One bucket.
struct S3 {
    client: Client,
    bucket: String,
    place: String,
    /// The sources of the keys, for messages.
    keys: String,
    cached_keys: Arc<cached_keys::CachedKeys>,
    /// The region that Amazon requires for a new bucket, unless it is the first region.
    constraint: Option<BucketLocationConstraint>,
    /// Whether the service is Amazon's.
    amazon: bool,
    /// Whether requests are protected against changes in transit, so that no hash of them is
    /// signed.
    encrypted: bool,
    /// Whether the service supports `If-None-Match`, as far as is known.
    create_only: AtomicBool,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3").field(&self.place).finish()
    }
}

impl S3 {
    fn refusal<E>(&self, error: &SdkError<E, Response>, subject: Subject) -> Refusal
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let refusal = refusal::of(error, subject, &self.keys);
        let detail = hidden_with(&refusal.detail, &[&self.cached_keys.id()]);
        Refusal { detail, ..refusal }
    }

    /// Sends an object; `create_only` refuses to replace one.
    async fn send(
        &self,
        key: &str,
        body: Bytes,
        create_only: bool,
    ) -> Result<PutObjectOutput, SdkError<PutObjectError, Response>> {
        let put = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .content_type("application/octet-stream")
            .set_if_none_match(create_only.then(|| "*".to_owned()))
            .body(ByteStream::from(body))
            .customize()
            .interceptor(http::Bound::All);
        let put = match self.encrypted {
            true => put.disable_payload_signing(),
            false => put,
        };
        put.send().await
    }
}

/// A service that stores an object returns its entity tag.
fn taken(done: &PutObjectOutput) -> Result<(), Refusal> {
    match done.e_tag() {
        Some(_) => Ok(()),
        None => Err(not_the_service(
            "it accepts an object and returns no entity tag",
        )),
    }
}

/// The checksum that the service computed and compared with ours, or an entity tag that is the MD5
/// of the body. A tag may be anything; if it is not the MD5, it shows nothing.
fn receipt(done: &PutObjectOutput, body: &[u8]) -> Option<Receipt> {
    let decode = |text: Option<&str>| STANDARD.decode(text?).ok();
    let crc32 = decode(done.checksum_crc32()).and_then(|sum| sum.try_into().ok());
    let crc32c = decode(done.checksum_crc32_c()).and_then(|sum| sum.try_into().ok());
    let crc64 = decode(done.checksum_crc64_nvme()).and_then(|sum| sum.try_into().ok());
    let reported = crc32.map(Receipt::Crc32);
    let reported = reported.or(crc32c.map(Receipt::Crc32c));
    reported.or(crc64.map(Receipt::Crc64)).or_else(|| {
        let tag = done.e_tag()?.trim_matches('"');
        if tag.len() != 32 {
            return None;
        }
        let md5 = Receipt::md5(body);
        let is_it = md5.to_string() == format!("md5 {}", tag.to_ascii_lowercase());
        is_it.then_some(md5)
    })
}

/// A refusal for an answer that comes from something other than the service.
fn not_the_service(what: &str) -> Refusal {
    let detail =
        format!("{what}: this is no S3 service; check the endpoint, and proxies on the way to it");
    Refusal::new(StoreErrorKind::Unavailable, detail)
}

/// Refuses web pages: objects are not stored as such.
fn refuse_page(content_type: Option<&str>) -> Result<(), Refusal> {
    match content_type {
        Some(kind) if kind.to_ascii_lowercase().starts_with("text/html") => {
            Err(not_the_service("it answers with a web page"))
        }
        _ => Ok(()),
    }
}

/// Reads a body of at most `most` bytes.
async fn read(mut body: ByteStream, claimed: Option<i64>, most: u64) -> Result<Bytes, Refusal> {
    let claimed = claimed.and_then(|length| u64::try_from(length).ok());
    let mut whole = Body::new(most, claimed)?;
    while let Some(part) = body.next().await {
        whole.push(part.map_err(|error| refusal::of_body(&error))?)?;
    }
    whole.finish()
}

#[async_trait::async_trait]
impl Driver for S3 {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn credentials(&self) -> u64 {
        self.cached_keys.number()
    }

    async fn renew_credentials(&self, refused: u64) -> bool {
        self.cached_keys.renew_credentials(refused).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<Option<Receipt>, Refusal> {
        let create_only = self.create_only.load(Ordering::Relaxed);
        if !create_only {
            match self.head(key).await {
                Err(refusal) if refusal.kind == StoreErrorKind::NotFound => {}
                Err(refusal) => return Err(refusal),
                Ok(_) => {
                    let detail = "there is an object of this name";
                    return Err(Refusal::new(StoreErrorKind::AlreadyExists, detail));
                }
            }
        }
        match self.send(key, body.clone(), create_only).await {
            Ok(done) => {
                taken(&done)?;
                Ok(receipt(&done, &body))
            }
            Err(error) if create_only && refusal::is_not_implemented(&error) => {
                self.create_only.store(false, Ordering::Relaxed);
                let detail = "the service does not know `If-None-Match`; from now on it is asked \
                              whether an object is there before each put";
                tracing::info!(place = self.place, "{detail}");
                Err(Refusal::new(StoreErrorKind::Unavailable, detail))
            }
            Err(error) => Err(self.refusal(&error, Subject::New)),
        }
    }

    async fn overwrite(&self, key: &str, body: Bytes) -> Result<(), Refusal> {
        match self.send(key, body, false).await {
            Ok(done) => taken(&done),
            Err(error) => Err(self.refusal(&error, Subject::New)),
        }
    }

    async fn get(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        length_max: u64,
    ) -> Result<Bytes, Refusal> {
        let wanted = match &range {
            None => None,
            // HTTP ranges include the last byte, so they cannot be empty.
            Some(range) => match range.end.checked_sub(1).filter(|last| *last >= range.start) {
                Some(last) => Some(format!("bytes={}-{last}", range.start)),
                None => return Ok(Bytes::new()),
            },
        };
        let get = self.client.get_object().bucket(&self.bucket).key(key);
        let answer = get
            .set_range(wanted)
            .send()
            .await
            .map_err(|error| self.refusal(&error, Subject::Object))?;
        refuse_page(answer.content_type())?;
        let corrupt = |detail: String| Err(Refusal::new(StoreErrorKind::Corrupt, detail));
        let Some(range) = range else {
            return read(answer.body, answer.content_length, length_max).await;
        };
        let begins = format!("bytes {}-", range.start);
        match answer.content_range() {
            Some(given) if given.starts_with(&begins) => {}
            // The whole object from its beginning: acceptable as well, if it is no longer than the
            // range.
            None if range.start == 0 => {}
            given => {
                let given = given.unwrap_or("the whole object");
                return corrupt(format!("asked for {range:?}, it answers with {given}"));
            }
        }
        let length = (range.end - range.start).min(length_max);
        let part = read(answer.body, answer.content_length, length).await?;
        match part.len() as u64 == length {
            true => Ok(part),
            false => corrupt(format!("it ends before byte {}", range.end)),
        }
    }

    async fn head(&self, key: &str) -> Result<u64, Refusal> {
        let head = self.client.head_object().bucket(&self.bucket).key(key);
        let head = head.customize().interceptor(http::Bound::All);
        let answer = head.send().await;
        let answer = answer.map_err(|error| self.refusal(&error, Subject::Object))?;
        refuse_page(answer.content_type())?;
        answer
            .content_length()
            .and_then(|length| u64::try_from(length).ok())
            .ok_or_else(|| not_the_service("it gives no length"))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, Refusal> {
        let limit = limit.clamp(1, KEYS_MAX);
        let list = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(prefix)
            .set_start_after(after.map(str::to_owned))
            .max_keys(i32::try_from(limit).unwrap_or(i32::MAX));
        let list = list.customize().interceptor(http::Bound::All);
        let answer = list.send().await;
        let answer = answer.map_err(|error| self.refusal(&error, Subject::Bucket))?;
        let found = answer.contents();
        Ok(Listing {
            keys: found
                .iter()
                .filter_map(|object| object.key().map(str::to_owned))
                .take(limit)
                .collect(),
            more: answer.is_truncated().unwrap_or(false) || found.len() > limit,
        })
    }

    async fn delete(&self, key: &str) -> Result<(), Refusal> {
        let delete = self.client.delete_object().bucket(&self.bucket).key(key);
        let delete = delete.customize().interceptor(http::Bound::All);
        let Err(error) = delete.send().await else {
            return Ok(());
        };
        match self.refusal(&error, Subject::Object) {
            refusal if refusal.kind == StoreErrorKind::NotFound => Ok(()),
            refusal => Err(refusal),
        }
    }

    async fn presign(&self, key: &str, valid_for: Duration) -> Result<PresignedUrl, Refusal> {
        self.presign_at(key, valid_for, SystemTime::now()).await
    }

    async fn create_container(&self) -> Result<(), Refusal> {
        let region = self.constraint.as_ref().map(|region| {
            CreateBucketConfiguration::builder()
                .location_constraint(region.clone())
                .build()
        });
        let create = self
            .client
            .create_bucket()
            .bucket(&self.bucket)
            .set_create_bucket_configuration(region)
            .customize()
            .interceptor(http::Bound::All);
        match create.send().await {
            Err(error) if error.code() != Some("BucketAlreadyOwnedByYou") => {
                Err(self.refusal(&error, Subject::Bucket))
            }
            _ => Ok(()),
        }
    }

    async fn container(&self) -> Result<Container, Refusal> {
        let versioning = self.client.get_bucket_versioning().bucket(&self.bucket);
        let versioning = versioning.customize().interceptor(http::Bound::All);
        let versioned = match versioning.send().await {
            Ok(answer) => Some(answer.status() == Some(&BucketVersioningStatus::Enabled)),
            Err(error) => self.unknown_if_unsupported(&error)?,
        };
        let lock = self
            .client
            .get_object_lock_configuration()
            .bucket(&self.bucket);
        let lock = lock.customize().interceptor(http::Bound::All);
        let locked = match lock.send().await {
            // Without a rule only objects that request a lock are locked, and ours do not.
            Ok(answer) => Some(answer.object_lock_configuration().is_some_and(|lock| {
                lock.object_lock_enabled() == Some(&ObjectLockEnabled::Enabled)
                    && lock
                        .rule()
                        .is_some_and(|rule| rule.default_retention().is_some())
            })),
            Err(error) if error.code() == Some("ObjectLockConfigurationNotFoundError") => {
                Some(false)
            }
            Err(error) => self.unknown_if_unsupported(&error)?,
        };
        Ok(Container { versioned, locked })
    }

    async fn date(&self) -> Result<Option<String>, Refusal> {
        let date = http::Date::default();
        let asked = self.client.head_bucket().bucket(&self.bucket);
        let asked = asked
            .customize()
            .interceptor(http::Bound::All)
            .interceptor(date.clone());
        let answer = asked.send().await;
        match answer.map_err(|error| self.refusal(&error, Subject::Bucket)) {
            // A refusal of questions about the bucket carries a date as well.
            Err(refusal) if refusal.kind != StoreErrorKind::Denied => Err(refusal),
            _ => Ok(date.take()),
        }
    }
}

impl S3 {
    /// Unknown if the service lacks the feature or does not reveal it; other errors are failures.
    fn unknown_if_unsupported<E>(
        &self,
        error: &SdkError<E, Response>,
    ) -> Result<Option<bool>, Refusal>
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let refusal = self.refusal(error, Subject::Bucket);
        match refusal.kind {
            StoreErrorKind::Denied if error.code() == Some("AccessDenied") => Ok(None),
            StoreErrorKind::Other => Ok(None),
            _ => Err(refusal),
        }
    }
}
