//! The text form of a cloud's place.
//!
//! ```text
//! /mnt/first                                         a directory of this machine
//! s3://BUCKET[/PREFIX][?OPTIONS]                     Amazon S3, and any service of its protocol
//! azure://ACCOUNT/CONTAINER[/PREFIX][?OPTIONS]       Azure Blob Storage
//! gs://BUCKET[/PREFIX][?OPTIONS]                     Google Cloud Storage
//!
//! options  endpoint=URL     where the service is, if not at its provider's own endpoint
//!          region=NAME      s3 only
//!          preset=NAME      s3 only: r2, b2, wasabi, minio, garage, ceph: the service's features
//!          account=ID       s3 with preset r2: the account, which determines the endpoint
//!          profile=NAME     s3 only: a section of the AWS credentials file
//!          project=ID       gs only: the project that pays for requests
//! ```
//!
//! A prefix separates several volumes, or other data, in one bucket. It is taken literally, up to
//! the first `?`: nothing of it is decoded or encoded, so `my vol` and `my%20vol` are two prefixes.
//! Options are encoded as in any URL. No secret is part of a location: credentials are found where
//! each provider's users keep them, or in a file that is named with the location, in the form that
//! the provider issues. An option that does not exist for a kind of cloud is an error.

use crate::local::LocalStore;
use crate::marker::Marker;
use crate::remote::{Both, Driver, Limits, Pace, Refusal, RemoteStore, RetryPolicy};
use crate::store::ObjectStore;
use crate::unusable::Unusable;
use crate::{Operation, StoreError, StoreErrorKind};
use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use url::Url;

/// The backend of a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A directory.
    Local,
    /// Amazon S3 and compatible services.
    S3,
    /// Azure Blob Storage.
    Azure,
    /// Google Cloud Storage.
    Google,
}

impl Kind {
    /// Its name in a volume's description.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::S3 => "s3",
            Self::Azure => "azure",
            Self::Google => "google",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Local => &[],
            Self::S3 => &["endpoint", "region", "preset", "account", "profile"],
            Self::Azure => &["endpoint"],
            Self::Google => &["endpoint", "project"],
        }
    }
}

/// A text that is no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no cloud's location: {reason}")]
pub struct LocationError {
    /// The given text, without possible secrets.
    pub text: String,
    /// The fault, and the correct form.
    pub reason: String,
}

/// A place across a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The backend.
    pub kind: Kind,
    /// The storage account; Azure alone has one.
    pub account: String,
    /// The bucket or container.
    pub container: String,
    /// The beginning of all keys: empty, or ending in a slash.
    pub prefix: String,
    options: BTreeMap<String, String>,
}

impl Remote {
    fn provider(&self) -> &str {
        match (self.kind, self.option("preset")) {
            (Kind::S3, Some(preset)) => preset,
            (Kind::S3, None) => "amazon",
            (Kind::Azure, _) => "microsoft",
            (Kind::Google, _) => "google",
            (Kind::Local, _) => "",
        }
    }

    /// An option's value.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }
}

/// The place of a cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory of this machine.
    Local(PathBuf),
    /// A place across a network.
    Remote(Remote),
}

/// What opening a cloud needs in addition to its location.
#[derive(Clone, Debug)]
pub struct Access {
    /// The expected identity of the cloud.
    pub marker: Marker,
    /// A file with credentials, in its provider's own form.
    pub credentials: Option<PathBuf>,
    /// A file with credentials that list and delete, where the others may not.
    pub collector: Option<PathBuf>,
    /// A file with credentials that links are signed with, in the place of the others.
    pub signer: Option<PathBuf>,
    /// Time limits and retries.
    pub retry_policy: RetryPolicy,
    /// The bounds of requests to it.
    pub limits: Limits,
    /// The bounds of requests to all clouds together.
    pub shared: Arc<Pace>,
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err(wrong(text, "it is empty")),
                path => Ok(Self::Local(PathBuf::from(path))),
            };
        };
        let kind = match scheme {
            "s3" => Kind::S3,
            "azure" => Kind::Azure,
            "gs" => Kind::Google,
            _ => {
                let known = "it begins with s3://, azure:// or gs://, or is a directory";
                return Err(wrong(text, known));
            }
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        if authority.contains('@') {
            let reason = "credentials do not belong in it; name a file that holds them instead";
            return Err(wrong(scheme, reason));
        }
        let url = Url::parse(&format!("{scheme}://{authority}"));
        // A text that does not parse may be a secret with a slash in it.
        let url = url.map_err(|error| wrong(scheme, error.to_string()))?;
        let host = url.host_str().unwrap_or_default();
        let path = path.trim_matches('/');
        let (account, container, prefix) = match kind {
            Kind::Azure => {
                let (container, prefix) = path.split_once('/').unwrap_or((path, ""));
                (host, container, prefix)
            }
            _ => ("", host, path),
        };
        if container.is_empty() || (kind == Kind::Azure && account.is_empty()) {
            let form = match kind {
                Kind::Azure => "it is azure://ACCOUNT/CONTAINER[/PREFIX]",
                _ => "it names no bucket",
            };
            return Err(wrong(text, form));
        }
        if let Some(reason) = unusable(prefix) {
            return Err(wrong(text, reason));
        }
        let mut options = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if !kind.options().contains(&name.as_ref()) {
                let known = kind.options().join(", ");
                let reason = format!("it has no option `{name}`; there are {known}");
                return Err(wrong(text, reason));
            }
            if options
                .insert(name.to_string(), value.to_string())
                .is_some()
            {
                return Err(wrong(text, format!("it gives `{name}` twice")));
            }
        }
        let prefix = match prefix {
            "" => String::new(),
            below => format!("{below}/"),
        };
        Ok(Self::Remote(Remote {
            kind,
            account: account.to_owned(),
            container: container.to_owned(),
            prefix,
            options,
        }))
    }
}

/// Why keys cannot begin with a prefix as given; some services and proxies resolve dots.
fn unusable(prefix: &str) -> Option<&'static str> {
    if prefix.chars().any(char::is_control) {
        Some("its prefix has a control character")
    } else if prefix.split('/').any(|part| matches!(part, "." | "..")) {
        Some("its prefix has a part that is `.` or `..`, which services resolve as a path")
    } else {
        None
    }
}

fn wrong(text: &str, reason: impl Into<String>) -> LocationError {
    LocationError {
        text: text.to_owned(),
        reason: reason.into(),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remote = match self {
            Self::Local(path) => return write!(f, "{}", path.display()),
            Self::Remote(remote) => remote,
        };
        let scheme = match remote.kind {
            Kind::Google => "gs",
            kind => kind.name(),
        };
        write!(f, "{scheme}://")?;
        if !remote.account.is_empty() {
            write!(f, "{}/", remote.account)?;
        }
        write!(f, "{}", remote.container)?;
        if !remote.prefix.is_empty() {
            write!(f, "/{}", remote.prefix.trim_end_matches('/'))?;
        }
        let mut separator = '?';
        for (name, value) in &remote.options {
            let value: String = url::form_urlencoded::byte_serialize(value.as_bytes()).collect();
            write!(f, "{separator}{name}={value}")?;
            separator = '&';
        }
        Ok(())
    }
}

impl Location {
    /// The backend of the cloud.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Local(_) => Kind::Local,
            Self::Remote(remote) => remote.kind,
        }
    }

    /// The party that could lose everything there at once, as far as the location shows it: the
    /// provider, or the operator of the endpoint. For a directory it is unknown.
    #[must_use]
    pub fn failure_domain(&self) -> Option<String> {
        let Self::Remote(remote) = self else {
            return None;
        };
        let endpoint = remote.option("endpoint").and_then(|it| Url::parse(it).ok());
        if let Some(endpoint) = endpoint {
            let host = endpoint.host_str().unwrap_or_default();
            let port = endpoint.port_or_known_default().unwrap_or_default();
            return Some(format!("{host}:{port}"));
        }
        Some(remote.provider().to_owned())
    }

    /// The usual price of reading a GiB from there, in millionths of a dollar: the providers'
    /// public prices of 2025 for traffic to the internet in their cheapest regions, without free
    /// allowances. It serves to compare clouds; the actual price depends on the contract.
    #[must_use]
    pub fn usual_read_price(&self) -> u32 {
        let Self::Remote(remote) = self else {
            return 0;
        };
        if remote.option("endpoint").is_some() {
            return 0;
        }
        match remote.provider() {
            "amazon" => 90_000,
            "microsoft" => 87_000,
            "google" => 120_000,
            "b2" => 10_000,
            _ => 0,
        }
    }

    /// The same location, with a relative directory placed below `base`.
    #[must_use]
    pub fn below(self, base: &Path) -> Self {
        match self {
            Self::Local(path) => Self::Local(base.join(path)),
            remote => remote,
        }
    }

    /// Creates the bucket, the container or the directory that the location names; an existing one
    /// is left unchanged.
    ///
    /// # Errors
    /// The provider's refusal: most names are taken, and buckets are commonly made by hand.
    #[boxed]
    pub async fn create_container(&self, credentials: Option<&Path>) -> Result<(), StoreError> {
        let error = |refusal: Refusal| StoreError {
            kind: refusal.kind,
            operation: Operation::Create,
            cloud: self.to_string(),
            object: None,
            detail: refusal.without_identities().detail,
        };
        match self {
            Self::Local(path) => std::fs::create_dir_all(path)
                .map_err(|refused| error(Refusal::new(StoreErrorKind::Other, refused.to_string()))),
            Self::Remote(remote) => {
                let driver = connect(remote, credentials).await.map_err(error)?;
                driver.create_container().await.map_err(error)
            }
        }
    }

    /// A store as [`attach`](Self::attach) makes it. A cloud that cannot be used reports that at
    /// each operation: a volume works without any one of its clouds.
    #[boxed]
    pub async fn attach_or_refuse(&self, access: &Access) -> Arc<dyn ObjectStore> {
        match self.attach(access).await {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(%error, "a cloud cannot be used");
                Arc::new(Unusable::new(error))
            }
        }
    }

    /// A store for a cloud that exists or will exist. No request is sent yet.
    ///
    /// # Errors
    /// If credentials or options are invalid, or this build lacks the backend.
    #[boxed]
    pub async fn attach(&self, access: &Access) -> Result<Arc<dyn ObjectStore>, StoreError> {
        match self {
            Self::Local(path) => {
                let store: Arc<dyn ObjectStore> = Arc::new(LocalStore::attach(path, access.marker));
                Ok(store)
            }
            Self::Remote(remote) => {
                let store: Arc<dyn ObjectStore> = Arc::new(remote.attach(access).await?);
                Ok(store)
            }
        }
    }
}

impl Remote {
    /// A store for a cloud that exists or will exist. No request is sent yet.
    ///
    /// # Errors
    /// As [`Location::attach`].
    #[boxed]
    pub async fn attach(&self, access: &Access) -> Result<RemoteStore, StoreError> {
        let connected = async {
            let writer = connect(self, access.credentials.as_deref()).await?;
            if access.collector.is_none() && access.signer.is_none() {
                return Ok(writer);
            }
            let as_role = async |file: &Option<PathBuf>| match file.as_deref() {
                Some(file) => connect(self, Some(file)).await,
                None => Ok(Arc::clone(&writer)),
            };
            let collector = as_role(&access.collector).await?;
            let signer = as_role(&access.signer).await;
            Ok(Arc::new(Both {
                writer,
                collector,
                signer,
            }) as Arc<dyn Driver>)
        };
        let driver = connected.await.map_err(|refusal: Refusal| StoreError {
            kind: refusal.kind,
            operation: Operation::Open,
            cloud: format!(
                "cloud {} ({})",
                access.marker.cloud,
                Location::Remote(self.clone())
            ),
            object: None,
            detail: refusal.without_identities().detail,
        })?;
        Ok(RemoteStore::attach(
            driver,
            &self.prefix,
            access.marker,
            access.retry_policy,
            access.limits,
            Arc::clone(&access.shared),
        ))
    }
}

/// The provider's driver.
#[cfg_attr(
    not(any(feature = "s3", feature = "azure", feature = "google")),
    allow(unused_variables)
)]
async fn connect(remote: &Remote, credentials: Option<&Path>) -> Result<Arc<dyn Driver>, Refusal> {
    match remote.kind {
        #[cfg(feature = "s3")]
        Kind::S3 => crate::s3::connect(remote, credentials).await,
        #[cfg(feature = "azure")]
        Kind::Azure => crate::azure::connect(remote, credentials).await,
        #[cfg(feature = "google")]
        Kind::Google => crate::google::connect(remote, credentials).await,
        #[allow(unreachable_patterns)]
        kind => {
            let detail = format!(
                "this quorumfs was built without the feature `{}`",
                kind.name()
            );
            Err(Refusal::new(StoreErrorKind::Other, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> Remote {
        match text.parse() {
            Ok(Location::Remote(remote)) => remote,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_kind_has_its_form() {
        let s3 = remote("s3://bucket/some/where?region=eu-central-1&endpoint=http://[::1]:9000");
        assert_eq!((s3.kind, s3.container.as_str()), (Kind::S3, "bucket"));
        assert_eq!(s3.prefix, "some/where/");
        assert_eq!(s3.option("endpoint"), Some("http://[::1]:9000"));
        let azure = remote("azure://account/container");
        assert_eq!(
            (azure.account.as_str(), azure.prefix.as_str()),
            ("account", "")
        );
        assert_eq!(remote("gs://my_bucket/").container, "my_bucket");
        assert_eq!(
            "clouds/a".parse(),
            Ok(Location::Local(PathBuf::from("clouds/a")))
        );
    }

    #[test]
    fn a_prefix_is_taken_literally() {
        for prefix in [
            "my vol",
            "my%20vol",
            "Ünicode/π",
            "a#b",
            "a//b",
            "{x}\"<>`|^",
            "+",
        ] {
            for (place, kind) in [("s3://b", "s3"), ("gs://b", "gs"), ("azure://a/b", "azure")] {
                let text = format!("{place}/{prefix}?endpoint=http%3A%2F%2F127.0.0.1%3A9000");
                let read = remote(&text);
                assert_eq!(read.prefix, format!("{prefix}/"), "{kind}");
                assert_eq!(read.option("endpoint"), Some("http://127.0.0.1:9000"));
                assert_eq!(Location::Remote(read).to_string(), text);
            }
        }
    }

    #[test]
    fn two_buckets_of_one_provider_fail_together() {
        let domain = |text: &str| text.parse::<Location>().unwrap().failure_domain();
        assert_eq!(domain("s3://a"), domain("s3://b?region=eu-central-1"));
        assert_ne!(domain("s3://a"), domain("s3://a?preset=b2&region=x"));
        assert_ne!(domain("azure://a/b"), domain("gs://b"));
        let (one, other) = (
            "s3://a?endpoint=https://s3.example.com",
            "s3://b?endpoint=https://s3.example.com:443/",
        );
        assert_eq!(domain(one), domain(other));
        assert_eq!(domain("/mnt/a"), None);
    }

    #[test]
    fn a_shown_location_parses_back() {
        for text in [
            "s3://bucket?endpoint=http%3A%2F%2F127.0.0.1%3A9000&preset=minio",
            "azure://account/container/below/it",
            "gs://bucket/below",
            "/mnt/a",
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn invalid_locations_are_refused_with_the_valid_forms() {
        for (text, says) in [
            ("", "empty"),
            ("ftp://host/x", "s3://, azure:// or gs://"),
            ("s3://", ""),
            ("s3:///prefix", ""),
            ("azure://account", "azure://ACCOUNT/CONTAINER"),
            ("s3://bucket?regoin=x", "region"),
            ("gs://bucket?region=x", "no option `region`"),
            ("s3://bucket?region=a&region=b", "twice"),
            ("s3://key:secret@bucket/", "credentials do not belong"),
            ("s3://key:secret/more@bucket/", "port"),
            ("s3://bucket/a/../b", "`..`"),
            ("azure://account/container/.", "`.`"),
            ("gs://bucket/a\tb", "control character"),
        ] {
            let error = text.parse::<Location>().unwrap_err();
            assert!(error.reason.contains(says), "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
