//! Signatures that Microsoft's own SDK made, and answers to requests for a delegation key.

use super::*;
use crate::azure::attach;
use crate::azure::credentials::AzureCredentials;
use crate::azure::proving::Proving;
use crate::azure::signing::SharedAccessSignature;
use crate::emulators::{Emulator, Server};
use crate::location::{Location, Remote};
use crate::presigned::PresignedReader;
use crate::remote::Driver as _;
use crate::remote::scripted::{Scripted, ScriptedAnswer};
use crate::store::Deadline;
use aws_lc_rs::hmac;
use bytes::Bytes;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use url::Url;

/// 2024-12-31T22:59:59Z.
const NOW: u64 = 1_735_685_999;
const SECRET: &str = "c2VjcmV0";

fn remote(text: &str) -> Remote {
    match text.parse() {
        Ok(Location::Remote(remote)) => remote,
        other => panic!("{other:?}"),
    }
}

fn driver(location: &str, proof: Proof) -> Blobs {
    let found = AzureCredentials {
        proof,
        origin: "a test".to_owned(),
        endpoint: None,
    };
    attach(&remote(location), found, None, |_| None).unwrap()
}

fn key() -> Proof {
    Proof::Key(SECRET.to_owned())
}

async fn presigned(driver: &Blobs, key: &str, seconds: u64) -> Result<PresignedUrl, Refusal> {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    driver
        .presign_at(key, Duration::from_secs(seconds), now)
        .await
}

/// The parameters of a query, in order.
fn parameters(query: &str) -> Vec<(String, String)> {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    let mut pairs: Vec<_> = pairs.into_owned().collect();
    pairs.sort_unstable();
    pairs
}

#[tokio::test]
async fn a_key_signs_what_microsofts_sdk_signs() {
    // Made by azure-sdk-for-go, azblob 1.8.0: BlobSignatureValues.SignWithSharedKey.
    for (location, base, query) in [
        (
            "azure://me/box/my vol/a%20b",
            "https://me.blob.core.windows.net/box/",
            "se=2024-12-31T23%3A59%3A59Z&sig=nPOBpP%2BusOuwzy8b1vYY3%2Bm2bFO%2FRLcIYwJRw9h9ylo%3D\
             &sp=r&spr=https&sr=b&sv=2020-12-06",
        ),
        (
            "azure://me/box/my vol/a%20b?endpoint=http://127.0.0.1:7",
            "http://127.0.0.1:7/me/box/",
            "se=2024-12-31T23%3A59%3A59Z&sig=CkiBA79XGvx%2Bam4b5rL5w8FMl3Dj7wY%2BOeeJXtwvlZU%3D\
             &sp=r&sr=b&sv=2020-12-06",
        ),
    ] {
        let driver = driver(location, key());
        let signed = presigned(&driver, "my vol/a%20b/00/x", 3_600)
            .await
            .unwrap();
        assert_eq!(
            (signed.expires, signed.may_end_earlier),
            (NOW + 3_600, false)
        );
        let (place, given) = signed.url.split_once('?').unwrap();
        assert_eq!(
            place.replace("%2F", "/"),
            format!("{base}my%20vol/a%2520b/00/x")
        );
        assert_eq!(parameters(given), parameters(query));
        assert!(!format!("{signed:?}").contains("2024-12"), "{signed:?}");
    }
}

#[tokio::test]
async fn a_key_signs_for_years_and_within_dates() {
    let driver = driver("azure://me/box", key());
    let years = 20 * 365 * 24 * 3_600;
    let signed = presigned(&driver, "00/x", years).await.unwrap();
    assert_eq!(signed.expires, NOW + years);
    let refusal = presigned(&driver, "00/x", u64::MAX).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Unsupported, "{refusal}");
}

#[tokio::test]
async fn a_token_is_not_given_away() {
    let token = "sv=1&sr=c&sp=rl&sig=geheim".to_owned();
    let driver = driver("azure://me/box", Proof::Token(token));
    let refusal = presigned(&driver, "00/x", 60).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Unsupported, "{refusal}");
    for says in ["a SAS token", "account's key", "Entra", "quorumfs serve"] {
        assert!(refusal.detail.contains(says), "{refusal}");
    }
    assert!(!refusal.detail.contains("geheim"), "{refusal}");
}

#[tokio::test]
async fn nothing_is_signed_for_an_endpoint_without_encryption() {
    let driver = driver("azure://me/box?endpoint=http://10.0.0.1:7", key());
    let refusal = presigned(&driver, "00/x", 60).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Unsupported, "{refusal}");
    assert!(refusal.detail.contains("https://"), "{refusal}");
}

fn delegation(start: u64, expiry: u64) -> Delegation {
    Delegation {
        credentials: 0,
        object_id: "oid".to_owned(),
        tenant_id: "tid".to_owned(),
        start,
        expiry,
        service: "b".to_owned(),
        version: "2026-02-06".to_owned(),
        value: "a2V5".to_owned(),
    }
}

#[test]
fn a_delegation_key_signs_what_azurite_signs() {
    let sas = BlobSas {
        account: "me",
        container: "box",
        key: "my vol/a%20b/00/x",
        expires: NOW + 3_600,
        encrypted: true,
    };
    // 2024-12-25 to 2025-01-01; made by Azurite 3.35: generateBlobSASSignatureWithUDK.
    let key = delegation(1_735_084_800, 1_735_689_600);
    let signer = SharedKey::new("me", &key.value).unwrap();
    let signature = signer.sign(&sas.text(Some(&key)));
    assert_eq!(signature, "1/gxXPEfQaWkFltrtKWsPz+iBYhWZmI5dIq1hMYNFwY=");
}

/// The driver that an identity has, without a token for its requests.
async fn as_identity(driver: Blobs) -> Blobs {
    let proving = Proving {
        policy: Arc::new(SharedAccessSignature::new("as=identity")),
        proof: Proof::Identity,
    };
    let renewable = Arc::clone(&driver.renewable);
    assert!(renewable.renew_credentials(0, |_| Some(proving)).await);
    driver
}

fn given_key(start: &str, expiry: &str) -> ScriptedAnswer {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><UserDelegationKey><SignedOid>oid</SignedOid>\
         <SignedTid>tid</SignedTid><SignedStart>{start}</SignedStart>\
         <SignedExpiry>{expiry}</SignedExpiry><SignedService>b</SignedService>\
         <SignedVersion>2025-11-05</SignedVersion><Value>a2V5</Value></UserDelegationKey>"
    );
    ScriptedAnswer::whole("200 OK", "x-ms-request-id: 1", &body)
}

#[tokio::test]
async fn an_identity_gets_one_key_for_many_urls() {
    // A week from five minutes before now.
    let (start, expiry) = ("2024-12-31T22:54:59Z", "2025-01-07T22:54:59Z");
    let answers = vec![given_key(start, expiry)];
    let server = Scripted::start(answers).await;
    let location = format!("azure://me/box?endpoint=http://{}", server.address);
    let driver = as_identity(driver(&location, key())).await;
    let hour = presigned(&driver, "00/x", 3_600).await.unwrap();
    assert_eq!(hour.expires, NOW + 3_600);
    let given = parameters(hour.url.split_once('?').unwrap().1);
    for (name, value) in [
        ("skoid", "oid"),
        ("sktid", "tid"),
        ("skt", start),
        ("ske", expiry),
        ("sks", "b"),
        ("skv", "2025-11-05"),
        ("sp", "r"),
        ("sr", "b"),
    ] {
        assert!(
            given.contains(&(name.to_owned(), value.to_owned())),
            "{name}: {given:?}"
        );
    }
    presigned(&driver, "00/y", 7_200).await.unwrap();
    let asked = server.requests();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].starts_with("POST /me?"), "{asked:?}");
    assert!(asked[0].contains("comp=userdelegationkey"), "{asked:?}");
    let week = presigned(&driver, "00/x", SEVEN_DAYS).await.unwrap();
    assert_eq!(
        week.expires,
        NOW + SEVEN_DAYS - CLOCK_MARGIN,
        "as long as its key"
    );
    let asked = server.requests().len();
    assert_eq!(asked, 1, "another key would last hardly longer");
    let refusal = presigned(&driver, "00/x", SEVEN_DAYS + 1)
        .await
        .unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Unsupported);
    assert!(refusal.detail.contains("7 days at most"), "{refusal}");
}

#[tokio::test]
async fn a_key_that_is_not_given_is_reported() {
    let denied = "<Error><Code>AuthorizationPermissionMismatch</Code></Error>";
    let header = "x-ms-request-id: 1\nx-ms-error-code: AuthorizationPermissionMismatch";
    for (answer, kind, says) in [
        (
            ScriptedAnswer::whole("403 Forbidden", header, denied),
            StoreErrorKind::Denied,
            "Storage Blob Delegator",
        ),
        (
            ScriptedAnswer::whole("200 OK", "", "<UserDelegationKey></UserDelegationKey>"),
            StoreErrorKind::Unavailable,
            "incomplete",
        ),
        (
            ScriptedAnswer::whole("200 OK", "", "<html>Welcome!"),
            StoreErrorKind::Unavailable,
            "",
        ),
        (
            given_key("2024-12-01T00:00:00Z", "2024-12-08T00:00:00Z"),
            StoreErrorKind::Clock,
            "clock",
        ),
    ] {
        let server = Scripted::start(vec![answer]).await;
        let location = format!("azure://me/box?endpoint=http://{}", server.address);
        let driver = as_identity(driver(&location, key())).await;
        let refusal = presigned(&driver, "00/x", 60).await.unwrap_err();
        assert_eq!(refusal.kind, kind, "{refusal}");
        assert!(refusal.detail.contains(says), "{refusal}");
    }
}

/// Azurite derives the delegation key that it gives from a key in its source, so a test can have
/// one without an identity.
#[tokio::test]
async fn azurite_accepts_a_url_that_a_delegation_key_signed() {
    const AZURITE: &str =
        "I17GKLvcJUossaebtsEDZZ2RJ8GNLwLH4m7hRMxbVbkx6wNIRAABj4Rtw0FBhFuEAgmbL4gFMzUw+AStz9Sqdg==";
    let directory = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(Server::Azurite, directory.path())
        .await
        .unwrap();
    let remote = remote(&emulator.location("box", ""));
    let credentials = emulator.credentials().unwrap();
    let found = crate::azure::credentials::find(&remote.account, Some(&credentials), |_| None);
    let driver = attach(&remote, found.unwrap(), None, |_| None).unwrap();
    driver.create_container().await.unwrap();
    driver.put("00/x", Bytes::from("object")).await.unwrap();
    let driver = as_identity(driver).await;
    let now = unix_seconds(SystemTime::now());
    let mut key = delegation(now - 60, now + 600);
    let fields = [
        key.object_id.as_str(),
        &key.tenant_id,
        &Utc::from_unix(key.start).to_string(),
        &Utc::from_unix(key.expiry).to_string(),
        "b",
        &key.version,
    ];
    let hidden = hmac::Key::new(hmac::HMAC_SHA256, AZURITE.as_bytes());
    key.value = STANDARD.encode(hmac::sign(&hidden, fields.join("\n").as_bytes()));
    key.credentials = driver.credentials();
    *driver.delegation.0.lock().await = Some(key);
    let signed = driver
        .presign("00/x", Duration::from_secs(60))
        .await
        .unwrap();
    let reader = PresignedReader::with_loopback().unwrap();
    let soon = || Deadline::after(Duration::from_secs(20));
    let read = reader.get(&signed.url, None, 9, soon()).await;
    assert_eq!(read.unwrap(), "object");
    let mut altered = Url::parse(&signed.url).unwrap();
    altered.set_path(&altered.path().replace("00%2Fx", "00%2Fy"));
    let refused = reader.get(altered.as_str(), None, 9, soon()).await;
    assert_eq!(refused.unwrap_err().kind, StoreErrorKind::Denied);
}
