//! Our identity at Google, found as the provider's own tools find it.
//!
//! 1. The file that is named with the location: a service account's key, a user's sign-in, or the
//!    description of an external account, as JSON.
//! 2. The application default credentials: the file that `GOOGLE_APPLICATION_CREDENTIALS` names,
//!    the one that `gcloud auth application-default login` leaves, or the identity of the machine,
//!    which its metadata server provides.
//!
//! No credentials are sent to an endpoint without TLS: it is an emulator, which needs none. The
//! provider's library fetches tokens and renews them in the background until a request for a token
//! is refused; after that it never asks again. So the library is initialised anew, with the file's
//! current content, when the service or the token server refuses us.

use crate::StoreErrorKind;
use crate::remote::{Refusal, causes};
use crate::text::without_mark;
use google_cloud_auth::credentials::{
    Builder, CacheableResource, Credentials, external_account, impersonated, service_account,
    user_account,
};
use google_cloud_auth::errors::CredentialsError;
use google_cloud_auth::signer::Signer;
use reqwest::header::HeaderMap;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a token may take; a machine outside Google has no metadata server to ask.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);
const FILE_BYTES_MAX: u64 = 64 << 10;
/// How long refused credentials are used on when the file is unchanged.
const SAME_FOR: Duration = Duration::from_secs(30);

/// The identity that requests carry.
pub(super) struct Identity {
    /// `None` for an emulator.
    credentials: Option<Credentials>,
    /// The private key of a service account: nothing else signs on this machine.
    pub(super) signer: Option<Signer>,
    /// Where the credentials were found, for messages.
    pub(super) origin: String,
    /// A digest of the file, if there is one.
    digest: Option<blake3::Hash>,
    found: Instant,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.origin).finish()
    }
}

fn denied(detail: String) -> Refusal {
    Refusal::new(StoreErrorKind::Denied, detail)
}

/// Finds our identity; `clear` is an endpoint without TLS.
///
/// # Errors
/// `Denied` if the credentials that are found cannot be used.
pub(super) fn find(file: Option<&Path>, clear: bool) -> Result<Identity, Refusal> {
    match file {
        Some(_) if clear => Err(denied(
            "credentials are sent over https only; an emulator needs none".to_owned(),
        )),
        None if clear => Ok(Identity {
            credentials: None,
            signer: None,
            origin: "no credentials".to_owned(),
            digest: None,
            found: Instant::now(),
        }),
        Some(path) => from_file(path),
        None => default(),
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The key of a file that is a service account's.
fn signer_of(json: &Value) -> Option<Signer> {
    let kind = json.get("type").and_then(Value::as_str);
    kind.filter(|kind| *kind == "service_account")?;
    let signer = service_account::Builder::new(json.clone()).build_signer();
    signer.ok()
}

fn from_file(path: &Path) -> Result<Identity, Refusal> {
    let origin = path.display().to_string();
    let text = read(path)
        .map_err(|error| denied(format!("cannot read the credentials {origin}: {error}")))?;
    // The position of a JSON error reveals nothing of the content; the content may be secret.
    let json: Value = serde_json::from_str(without_mark(&text))
        .map_err(|_| denied(format!("{origin} is no JSON file of Google credentials")))?;
    let kind = json.get("type").and_then(Value::as_str).unwrap_or_default();
    let signer = signer_of(&json);
    let made = match kind {
        "service_account" => service_account::Builder::new(json).build(),
        "authorized_user" => user_account::Builder::new(json).build(),
        "external_account" => external_account::Builder::new(json).build(),
        "impersonated_service_account" => impersonated::Builder::new(json).build(),
        _ => {
            let detail = format!(
                "{origin} has no `type` that is known: service_account, authorized_user, \
                 external_account or impersonated_service_account"
            );
            return Err(denied(detail));
        }
    };
    let wrong = |error| denied(format!("{origin}: {}", causes(&error)));
    Ok(Identity {
        credentials: Some(made.map_err(wrong)?),
        signer,
        origin,
        digest: Some(blake3::hash(text.as_bytes())),
        found: Instant::now(),
    })
}

/// Where `gcloud` leaves a sign-in.
fn left_by_gcloud() -> Option<PathBuf> {
    let path = std::env::home_dir()?.join(".config/gcloud/application_default_credentials.json");
    path.exists().then_some(path)
}

fn default() -> Result<Identity, Refusal> {
    const VARIABLE: &str = "GOOGLE_APPLICATION_CREDENTIALS";
    let (named, left) = (std::env::var(VARIABLE), left_by_gcloud());
    let file = named.as_ref().map(PathBuf::from).ok().or(left.clone());
    let origin = match (named, left) {
        (Ok(path), _) => format!("{VARIABLE}, {path}"),
        (_, Some(path)) => format!("{}, which gcloud left", path.display()),
        _ => format!(
            "this machine's metadata server; there is neither a file named with the location, nor \
             {VARIABLE}, nor a sign-in of `gcloud auth application-default login`"
        ),
    };
    let wrong = |error| denied(format!("{origin}: {}", causes(&error)));
    let credentials = Builder::default().build().map_err(wrong)?;
    let text = file.and_then(|path| read(&path).ok());
    let json = text.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Identity {
        credentials: Some(credentials),
        signer: json.and_then(|json| signer_of(&json)),
        origin,
        digest: None,
        found: Instant::now(),
    })
}

impl Identity {
    /// The replacement of this identity, which was refused; `None` if the file is unchanged and was
    /// read recently.
    pub(super) fn renewed(&self, file: Option<&Path>, clear: bool) -> Option<Self> {
        self.credentials.as_ref()?;
        let found = find(file, clear).ok()?;
        let same = found.digest == self.digest && self.found.elapsed() < SAME_FOR;
        (!same).then_some(found)
    }

    /// The headers that identify us in a request.
    ///
    /// # Errors
    /// `Denied`; `Unavailable` if there is no token now but may be one soon.
    pub(super) async fn headers(&self) -> Result<HeaderMap, Refusal> {
        let Some(credentials) = &self.credentials else {
            return Ok(HeaderMap::new());
        };
        let asked = credentials.headers(Default::default());
        let late = |_| {
            let detail = format!("no token in time from {}", self.origin);
            Refusal::new(StoreErrorKind::Unavailable, detail)
        };
        match tokio::time::timeout(TOKEN_TIMEOUT, asked)
            .await
            .map_err(late)?
        {
            Ok(CacheableResource::New { data, .. }) => Ok(data),
            // The request named no version that might be unmodified.
            Ok(CacheableResource::NotModified) => Ok(HeaderMap::new()),
            Err(error) => Err(self.refused(&error)),
        }
    }

    fn refused(&self, error: &CredentialsError) -> Refusal {
        let text = causes(error);
        let kind = match error.is_transient() {
            _ if super::errors::is_clock(&text) => StoreErrorKind::Clock,
            true => StoreErrorKind::Unavailable,
            false => StoreErrorKind::Denied,
        };
        let refusal = Refusal::new(kind, format!("{text} (asked with {})", self.origin));
        match kind {
            StoreErrorKind::Denied => refusal.outdated(),
            _ => refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_text(text: &str) -> Result<Identity, Refusal> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials.json");
        std::fs::write(&path, text).unwrap();
        find(Some(&path), false)
    }

    #[tokio::test]
    async fn credential_files_are_distinguished_by_their_type() {
        let user = r#"{"type": "authorized_user", "client_id": "c", "client_secret": "secret",
                       "refresh_token": "secret", "token_uri": "http://127.0.0.1:1/"}"#;
        let identity = from_text(user).unwrap();
        assert!(!format!("{identity:?}").contains("secret"));
        for (text, says) in [
            ("secret", "no JSON"),
            ("{}", "no `type`"),
            (r#"{"type": "secret"}"#, "no `type`"),
            (
                r#"{"type": "service_account", "private_key": "secret"}"#,
                "credentials.json",
            ),
        ] {
            let refusal = from_text(text).unwrap_err();
            assert_eq!(refusal.kind, StoreErrorKind::Denied);
            assert!(refusal.detail.contains(says), "{text}: {refusal}");
            assert!(!refusal.detail.contains("secret"), "{refusal}");
        }
        let missing = find(Some(Path::new("/nowhere/at/all")), false).unwrap_err();
        assert!(missing.detail.contains("/nowhere/at/all"), "{missing}");
    }

    #[tokio::test]
    async fn nothing_is_sent_in_the_clear() {
        let anonymous = find(None, true).unwrap();
        assert!(anonymous.headers().await.unwrap().is_empty());
        let refusal = find(Some(Path::new("/some/file")), true).unwrap_err();
        assert_eq!(refusal.kind, StoreErrorKind::Denied);
        assert!(refusal.detail.contains("over https only"), "{refusal}");
    }

    #[tokio::test]
    async fn refused_credentials_are_read_again_from_a_changed_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials.json");
        let write = |token: &str| {
            let text = format!(
                r#"{{"type": "authorized_user", "client_id": "i", "client_secret": "s",
                    "refresh_token": "{token}"}}"#
            );
            std::fs::write(&path, text).unwrap();
        };
        write("old");
        let identity = find(Some(&path), false).unwrap();
        let again = || identity.renewed(Some(&path), false);
        assert!(again().is_none(), "the file is unchanged");
        write("new");
        assert!(again().is_some());
        std::fs::write(&path, "half of a fi").unwrap();
        assert!(again().is_none(), "a partial file is not used");
    }
}
