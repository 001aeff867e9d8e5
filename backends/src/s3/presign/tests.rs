//! Signatures that are computed here a second time, from the protocol's description.

use super::*;
use crate::location::Location;
use crate::remote::Driver as _;
use crate::s3::attach;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use std::path::Path;
use std::time::UNIX_EPOCH;

const ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
/// The moment of Amazon's example: 2013-05-24T00:00:00Z.
const NOW: u64 = 1_369_353_600;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The signature that a URL has to have.
fn signature(url: &str) -> String {
    let url = Url::parse(url).unwrap();
    let mut query: Vec<&str> = url.query().unwrap().split('&').collect();
    query.retain(|part| !part.starts_with("X-Amz-Signature="));
    query.sort_unstable();
    let value = |name: &str| {
        let found = url.query_pairs().find(|(given, _)| given == name);
        found.unwrap().1.into_owned()
    };
    let host = match url.port() {
        Some(port) => format!("{}:{port}", url.host_str().unwrap()),
        None => url.host_str().unwrap().to_owned(),
    };
    let (path, query) = (url.path(), query.join("&"));
    let request = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
    let credential = value("X-Amz-Credential");
    let (id, scope) = credential.split_once('/').unwrap();
    assert_eq!(id, ID);
    let request = hexadecimal(digest(&SHA256, request.as_bytes()).as_ref());
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{request}",
        value("X-Amz-Date")
    );
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in scope.split('/') {
        key = sign(&Key::new(HMAC_SHA256, &key), part.as_bytes())
            .as_ref()
            .to_vec();
    }
    hexadecimal(sign(&Key::new(HMAC_SHA256, &key), text.as_bytes()).as_ref())
}

/// Asks the driver of a location, with a file of keys that has these lines, for a URL.
async fn presigned(
    location: &str,
    lines: &str,
    seconds: u64,
    now: u64,
) -> Result<PresignedUrl, Refusal> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    let text =
        format!("[default]\naws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\n{lines}\n");
    std::fs::write(&file, text).unwrap();
    with_keys(location, &file, seconds, now).await
}

async fn with_keys(
    location: &str,
    file: &Path,
    seconds: u64,
    now: u64,
) -> Result<PresignedUrl, Refusal> {
    let Ok(Location::Remote(remote)) = location.parse() else {
        panic!("{location}");
    };
    let driver = attach(&remote, Some(file)).await.unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(now);
    let key = format!("{}00/x", remote.prefix);
    driver
        .presign_at(&key, Duration::from_secs(seconds), now)
        .await
}

#[test]
fn amazons_own_example_has_the_signature_that_is_computed_here() {
    let url = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
               &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
               &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host";
    let published = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
    assert_eq!(signature(url), published);
}

#[tokio::test]
async fn a_url_is_signed_for_the_place_of_its_location() {
    for (location, begins) in [
        (
            "s3://box?region=us-east-1&endpoint=https://s3.amazonaws.com",
            "https://box.s3.amazonaws.com/00/x?",
        ),
        (
            "s3://box/below?region=eu-central-1",
            "https://box.s3.eu-central-1.amazonaws.com/below/00/x?",
        ),
        (
            "s3://box/my vol/a%20b?endpoint=https://minio.example:9000&preset=minio",
            "https://minio.example:9000/box/my%20vol/a%2520b/00/x?",
        ),
        (
            "s3://box?preset=r2&account=0a1b",
            "https://0a1b.r2.cloudflarestorage.com/box/00/x?",
        ),
        (
            "s3://box?endpoint=http://127.0.0.1:9000&preset=garage",
            "http://127.0.0.1:9000/box/00/x?",
        ),
    ] {
        let signed = presigned(location, "", 86_400, NOW).await.unwrap();
        assert_eq!(
            (signed.expires, signed.may_end_earlier),
            (NOW + 86_400, false)
        );
        let url = &signed.url;
        assert!(url.starts_with(begins), "{url}");
        for part in [
            "X-Amz-Date=20130524T000000Z",
            "X-Amz-Expires=86400",
            "X-Amz-SignedHeaders=host&",
        ] {
            assert!(url.contains(part), "{url}");
        }
        let wanted = format!("X-Amz-Signature={}", signature(url));
        assert!(url.contains(&wanted), "{url}");
        assert!(!format!("{signed:?}").contains("Signature"), "{signed:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_signed_is_refused_with_the_reason() {
    let week = SEVEN_DAYS;
    for (location, seconds, says) in [
        (
            "s3://box?region=x",
            week + 1,
            "the S3 protocol allows 7 days at most",
        ),
        ("s3://box?region=x", 0, "a second at least"),
        ("s3://box?endpoint=http://10.0.0.1:9000", week, "https://"),
        ("s3://box?endpoint=http://localhost:9000", week, "https://"),
    ] {
        let refusal = presigned(location, "", seconds, NOW).await.unwrap_err();
        assert_eq!(refusal.kind, StoreErrorKind::Unsupported, "{refusal}");
        assert!(refusal.detail.contains(says), "{refusal}");
    }
    let nowhere = Path::new("/nowhere/at/all");
    let refusal = with_keys("s3://box?region=x", nowhere, 60, NOW)
        .await
        .unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Denied, "{refusal}");
    assert!(refusal.detail.contains("no keys"), "{refusal}");
    assert!(refusal.detail.contains("/nowhere/at/all"), "{refusal}");
}

#[tokio::test]
async fn the_token_of_a_session_is_part_of_the_url() {
    let lines = "aws_session_token = of-today";
    let (seconds, now) = (SEVEN_DAYS, NOW);
    let signed = presigned("s3://box?region=x", lines, seconds, now)
        .await
        .unwrap();
    assert!(signed.url.contains("X-Amz-Security-Token=of-today"));
    assert_eq!(signed.expires, NOW + AMAZON_SESSION_MAX);
    assert!(signed.may_end_earlier);
    let wanted = format!("X-Amz-Signature={}", signature(&signed.url));
    assert!(signed.url.contains(&wanted), "{}", signed.url);
}

/// A program that gives keys says when they end.
#[tokio::test]
async fn a_url_reports_the_end_of_the_keys_that_sign_it() {
    let directory = tempfile::tempdir().unwrap();
    let (file, given) = (
        directory.path().join("credentials"),
        directory.path().join("keys"),
    );
    let line = format!("[default]\ncredential_process = cat {}\n", given.display());
    std::fs::write(&file, line).unwrap();
    let keys = format!(
        r#"{{"Version": 1, "AccessKeyId": "{ID}", "SecretAccessKey": "{SECRET}",
            "SessionToken": "t", "Expiration": "2100-03-01T00:00:00Z"}}"#
    );
    std::fs::write(&given, keys).unwrap();
    let end = 4_107_542_400;
    for (now, expires) in [(end - 2 * SEVEN_DAYS, end - SEVEN_DAYS), (end - 60, end)] {
        let signed = with_keys("s3://box?region=x", &file, SEVEN_DAYS, now).await;
        let signed = signed.unwrap();
        assert_eq!((signed.expires, signed.may_end_earlier), (expires, false));
    }
    let ended = with_keys("s3://box?region=x", &file, 60, end + 1).await;
    let refusal = ended.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Denied, "{refusal}");
    assert!(refusal.detail.contains("has ended") && refusal.outdated);
}

#[tokio::test]
async fn the_driver_signs_from_now_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    let text = format!("[default]\naws_access_key_id={ID}\naws_secret_access_key={SECRET}\n");
    std::fs::write(&file, text).unwrap();
    let Ok(Location::Remote(remote)) = "s3://box?region=x".parse() else {
        panic!("no location");
    };
    let driver = attach(&remote, Some(&file)).await.unwrap();
    let before = unix_seconds(SystemTime::now());
    let signed = driver
        .presign("00/x", Duration::from_secs(60))
        .await
        .unwrap();
    let after = unix_seconds(SystemTime::now());
    assert!((before + 60..=after + 60).contains(&signed.expires));
}

#[test]
fn a_url_ends_with_the_session_of_its_keys() {
    let keys = |token: Option<&str>, ends: Option<u64>| {
        let ends = ends.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        Credentials::new("id", "secret", token.map(str::to_owned), ends, "test")
    };
    let week = NOW + SEVEN_DAYS;
    let day_and_a_half = NOW + AMAZON_SESSION_MAX;
    for (keys, wanted, amazon, ends) in [
        (keys(None, None), week, true, (week, false)),
        (keys(None, None), week, false, (week, false)),
        (keys(Some("t"), Some(NOW + 5)), week, true, (NOW + 5, false)),
        (
            keys(Some("t"), Some(NOW + 5)),
            NOW + 3,
            true,
            (NOW + 3, false),
        ),
        (keys(Some("t"), None), week, true, (day_and_a_half, true)),
        (keys(Some("t"), None), NOW + 3, true, (NOW + 3, true)),
        (keys(Some("t"), None), week, false, (week, true)),
    ] {
        assert_eq!(end(&keys, wanted, NOW, amazon), ends, "{keys:?}");
    }
}
