//! Signatures against Google's published vectors, and against the public key.

use super::*;
use crate::google::attach;
use crate::location::Location;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// 2019-02-01T09:00:00Z, as in the vectors.
const NOW: u64 = 1_549_011_600;
const ACCOUNT: &str = "test-iam-credentials@dummy-project-id.iam.gserviceaccount.com";
const HOST: &str = "storage.googleapis.com";

fn bucket(location: &str, credentials: Option<&Path>) -> Bucket {
    match location.parse() {
        Ok(Location::Remote(remote)) => attach(&remote, credentials).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn presigned(bucket: &Bucket, key: &str, seconds: u64) -> Result<PresignedUrl, Refusal> {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    bucket
        .presign_at(key, Duration::from_secs(seconds), now)
        .await
}

#[test]
fn what_is_signed_is_what_googles_vectors_have() {
    // googleapis/conformance-tests, storage/v1/v4_signatures.json.
    for (bucket, object, moment, seconds, digest) in [
        (
            "test-bucket",
            "test-object",
            NOW,
            10,
            "00e2fb794ea93d7adb703edaebdd509821fcc7d4f1a79ac5c8d2b394df109320",
        ),
        (
            "test-bucket2",
            "test-object2",
            NOW,
            10,
            "a139afbf35ac30e9864f63197f79609731ab1b0ca166e2a456dba156fcd3f9ce",
        ),
        (
            "test-bucket",
            "/path/with/slashes/under_score/amper&sand/file.ext",
            NOW,
            10,
            "63c601ecd6ccfec84f1113fc906609cbdf7651395f4300cecd96ddd2c35164f8",
        ),
        (
            "test-bucket",
            "test-object",
            NOW + 28 * 24 * 3_600,
            20,
            "779f19fdb6fd381390e2d5af04947cf21750277ee3c20e0c97b7e46a1dff8907",
        ),
    ] {
        let path = format!("/{bucket}/{}", encode(object, "/"));
        let text = unsigned(HOST, path, ACCOUNT, None, (moment, seconds)).text;
        let (_, given) = text.rsplit_once('\n').unwrap();
        assert_eq!(given, digest, "{object}");
    }
    let text = unsigned(HOST, "/b/o".to_owned(), ACCOUNT, None, (NOW, 10)).text;
    let begins = "GOOG4-RSA-SHA256\n20190201T090000Z\n20190201/auto/storage/goog4_request\n";
    assert!(text.starts_with(begins), "{text}");
}

/// A service account's key file, and its public key.
fn key_file(directory: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let private: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let private = STANDARD.encode(private.as_ref());
    let lines: Vec<&str> = private
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    let (kind, lines) = ("PRIVATE KEY", lines.join("\n"));
    let private = format!("-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n");
    let file = serde_json::json!({
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "i",
        "private_key": private,
        "client_email": ACCOUNT,
    });
    let path = directory.join("credentials.json");
    std::fs::write(&path, file.to_string()).unwrap();
    (path, pair.public_key().as_ref().to_vec())
}

#[tokio::test]
async fn a_service_account_signs_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let (file, public) = key_file(directory.path());
    for (location, host, path, payer) in [
        ("gs://box", HOST, "/box/00/x", None),
        (
            "gs://box/my vol/a%20b~?project=mine",
            HOST,
            "/box/my%20vol/a%2520b~/00/x",
            Some("mine"),
        ),
        (
            "gs://box?endpoint=https://private.example:8443/",
            "private.example:8443",
            "/box/00/x",
            None,
        ),
    ] {
        let bucket = bucket(location, Some(&file));
        let (_, place) = location.split_once("gs://box").unwrap();
        let prefix = place.split('?').next().unwrap().trim_start_matches('/');
        let key = format!("{prefix}/00/x");
        let signed = presigned(&bucket, key.trim_start_matches('/'), SEVEN_DAYS)
            .await
            .unwrap();
        assert_eq!(
            (signed.expires, signed.may_end_earlier),
            (NOW + SEVEN_DAYS, false)
        );
        let (unsigned_url, signature) = signed.url.split_once("&X-Goog-Signature=").unwrap();
        let begins = format!("https://{host}{path}?X-Goog-Algorithm=GOOG4-RSA-SHA256&");
        assert!(unsigned_url.starts_with(&begins), "{unsigned_url}");
        let signature: Vec<u8> = (0..signature.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&signature[at..at + 2], 16).unwrap())
            .collect();
        let text = unsigned(host, path.to_owned(), ACCOUNT, payer, (NOW, SEVEN_DAYS)).text;
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &public);
        public.verify(text.as_bytes(), &signature).unwrap();
        assert_eq!(url::Url::parse(&signed.url).unwrap().as_str(), signed.url);
    }
}

#[tokio::test]
async fn credentials_without_a_key_are_refused_with_those_that_have_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials.json");
    let user = r#"{"type": "authorized_user", "client_id": "c", "client_secret": "geheim",
                   "refresh_token": "geheim"}"#;
    std::fs::write(&file, user).unwrap();
    let bucket = bucket("gs://box", Some(&file));
    let refusal = presigned(&bucket, "00/x", 60).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Unsupported, "{refusal}");
    assert!(
        refusal.detail.contains("key file of a service account"),
        "{refusal}"
    );
    assert!(!refusal.detail.contains("geheim"), "{refusal}");
}

#[tokio::test]
async fn a_key_that_cannot_sign_is_reported_and_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (file, _) = key_file(directory.path());
    let broken = std::fs::read_to_string(&file)
        .unwrap()
        .replace("MII", "geheim");
    std::fs::write(&file, broken).unwrap();
    let Ok(Location::Remote(remote)) = "gs://box".parse() else {
        panic!("no location");
    };
    let refusal = match attach(&remote, Some(&file)) {
        Ok(bucket) => presigned(&bucket, "00/x", 60).await.unwrap_err(),
        Err(refusal) => refusal,
    };
    assert_eq!(refusal.kind, StoreErrorKind::Denied, "{refusal}");
    assert!(!refusal.detail.contains("geheim"), "{refusal}");
}

#[tokio::test]
async fn more_than_a_week_and_endpoints_without_encryption_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (file, _) = key_file(directory.path());
    let google = bucket("gs://box", Some(&file));
    let far = bucket("gs://box?endpoint=http://10.0.0.1:7", None);
    for (bucket, seconds, says) in [
        (&google, SEVEN_DAYS + 1, "Google allows 7 days at most"),
        (&google, 0, "a second at least"),
        (&far, 60, "https://"),
    ] {
        let refusal = presigned(bucket, "00/x", seconds).await.unwrap_err();
        assert_eq!(refusal.kind, StoreErrorKind::Unsupported, "{refusal}");
        assert!(refusal.detail.contains(says), "{refusal}");
    }
}

#[tokio::test]
async fn an_emulators_url_is_not_signed() {
    let bucket = bucket("gs://box?endpoint=http://127.0.0.1:7", None);
    let url = presigned(&bucket, "my vol/00/x", 60).await.unwrap();
    assert_eq!(url.url, "http://127.0.0.1:7/box/my%20vol/00/x");
    assert_eq!(url.expires, NOW + 60);
}
