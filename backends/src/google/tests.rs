//! The driver against answers that no emulator gives.

use super::*;
use crate::location::Location;
use crate::remote::conformance::{self, Provider};
use crate::remote::scripted::{Scripted, ScriptedAnswer};
use std::net::SocketAddr;

const OURS: &str = "x-goog-generation: 1";
const JSON: &str = "Content-Type: application/json";

fn driver(endpoint: &str, more: &str) -> Result<Bucket, Refusal> {
    match format!("gs://box/volume?endpoint={endpoint}{more}").parse() {
        Ok(Location::Remote(remote)) => attach(&remote, None),
        other => panic!("{other:?}"),
    }
}

impl Provider for Bucket {
    const OURS: &'static str = OURS;

    fn at(address: SocketAddr) -> Self {
        driver(&format!("http://{address}"), "").unwrap()
    }

    fn busy(header: &str) -> ScriptedAnswer {
        refusal("503 Busy", "backendError", "We are busy", header)
    }

    fn too_many(header: &str) -> ScriptedAnswer {
        refusal("429 Too Many", "rateLimitExceeded", "", header)
    }
}

conformance::tests!(Bucket);

async fn served(answers: Vec<ScriptedAnswer>) -> (Scripted, Bucket) {
    conformance::served(answers).await
}

fn refusal(status: &str, reason: &str, message: &str, headers: &str) -> ScriptedAnswer {
    let error = format!(r#"{{"message": "{message}", "errors": [{{"reason": "{reason}"}}]}}"#);
    let headers = format!("{JSON}\n{headers}");
    ScriptedAnswer::whole(status, &headers, &format!(r#"{{"error": {error}}}"#))
}

#[tokio::test]
async fn json_of_another_service_is_an_answer_to_a_delete_alone() {
    let other = ScriptedAnswer::whole("200 OK", JSON, r#"{"login": "please"}"#);
    let (_server, driver) = served(vec![other]).await;
    for error in [
        driver.get("volume/x", None, 1000).await.unwrap_err(),
        driver.get("volume/x", Some(2..5), 3).await.unwrap_err(),
        driver.head("volume/x").await.unwrap_err(),
        driver.list("volume/", None, 9).await.unwrap_err(),
        driver.put("volume/x", Bytes::from("x")).await.unwrap_err(),
        driver.container().await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    }
    driver.delete("volume/x").await.unwrap();
}

#[tokio::test]
async fn answers_without_end_are_read_to_a_bound() {
    for (status, kind) in [
        ("403 No", StoreErrorKind::Denied),
        ("200 OK", StoreErrorKind::Unavailable),
    ] {
        let head = format!("HTTP/1.1 {status}\r\n\r\n").into_bytes();
        let (_server, driver) = served(vec![ScriptedAnswer::Endless(head, vec![b' '; 1000])]).await;
        assert_eq!(driver.head("volume/x").await.unwrap_err().kind, kind);
    }
}

#[tokio::test]
async fn a_missing_bucket_differs_from_a_missing_object() {
    let object = || ScriptedAnswer::whole("404 Not Found", "", "No such object: box/volume/x");
    let vague = || ScriptedAnswer::whole("404 Not Found", "", "Not Found");
    let no_bucket = || {
        refusal(
            "404 Not Found",
            "notFound",
            "The specified bucket does not exist.",
            "",
        )
    };
    let bucket = || ScriptedAnswer::whole("200 OK", JSON, r#"{"name": "box"}"#);
    for (answers, wanted, requests) in [
        (vec![object()], StoreErrorKind::NotFound, 1),
        (vec![no_bucket()], StoreErrorKind::NoContainer, 1),
        (vec![vague(), bucket()], StoreErrorKind::NotFound, 2),
        (vec![vague(), vague()], StoreErrorKind::NoContainer, 2),
    ] {
        let (server, driver) = served(answers).await;
        let error = driver.get("volume/x", None, 9).await.unwrap_err();
        assert_eq!(
            (error.kind, server.requests().len()),
            (wanted, requests),
            "{error}"
        );
    }
    let (_server, driver) = served(vec![vague()]).await;
    for error in [
        driver.list("volume/", None, 9).await.unwrap_err(),
        driver.put("volume/x", Bytes::from("x")).await.unwrap_err(),
        driver.delete("volume/x").await.unwrap_err(),
        driver.container().await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::NoContainer, "{error}");
    }
}

#[tokio::test]
async fn an_object_is_created_by_one_request_whatever_its_length() {
    let (server, driver) = served(vec![ScriptedAnswer::whole(
        "200 OK",
        JSON,
        r#"{"size": "9"}"#,
    )])
    .await;
    let body = Bytes::from(vec![1; 20 << 20]);
    driver.put("volume/00/x", body).await.unwrap();
    let requests = server.requests();
    let [request] = requests.as_slice() else {
        panic!("{requests:?}");
    };
    assert!(
        request.starts_with("POST /upload/storage/v1/b/box/o?"),
        "{request}"
    );
    for wanted in [
        "ifGenerationMatch=0",
        "name=volume%2F00%2Fx",
        "uploadType=multipart",
    ] {
        assert!(request.contains(wanted), "{request}");
    }
    let lower = request.to_lowercase();
    assert!(
        lower.contains("content-length: 209") && !lower.contains("chunked"),
        "{request}"
    );
}

#[test]
fn an_upload_carries_its_checksum() {
    let (before, behind, form) = envelope(b"123456789").unwrap();
    // The check value of CRC-32C, e3069283, big-endian, in base64.
    assert!(before.contains(r#"{"crc32c":"4waSgw==","#), "{before}");
    let boundary = form.strip_prefix("multipart/related; boundary=").unwrap();
    assert_eq!(before.matches(&format!("--{boundary}\r\n")).count(), 2);
    assert_eq!(behind, format!("\r\n--{boundary}--\r\n"));
}

fn page(names: &[&str], token: Option<&str>) -> ScriptedAnswer {
    let items: Vec<String> = names
        .iter()
        .map(|it| format!(r#"{{"name": "{it}"}}"#))
        .collect();
    let token = token.map(|token| format!(r#", "nextPageToken": "{token}""#));
    let (items, token) = (items.join(","), token.unwrap_or_default());
    let body = format!(r#"{{"kind": "storage#objects", "items": [{items}]{token}}}"#);
    ScriptedAnswer::whole("200 OK", JSON, &body)
}

#[tokio::test]
async fn a_listing_begins_behind_a_name_and_passes_over_empty_pages() {
    let (server, driver) = served(vec![
        page(&["v/2"], Some("a+b")),
        page(&[], Some("c")),
        page(&["v/3", "v/4"], None),
    ])
    .await;
    let listing = driver.list("v/", Some("v/2"), 10).await.unwrap();
    let wanted = vec!["v/3".to_owned(), "v/4".to_owned()];
    assert_eq!((listing.keys, listing.more), (wanted, false));
    let asked = server.requests();
    assert!(asked[0].contains("startOffset=v%2F2") && asked[0].contains("maxResults=11"));
    assert!(asked[1].contains("pageToken=a%2Bb") && asked[2].contains("pageToken=c"));
}

#[tokio::test]
async fn bucket_retention_is_reported_if_it_may_be_read() {
    let soft = r#"{"name": "b", "softDeletePolicy": {"retentionDurationSeconds": "604800"}}"#;
    let locked = r#"{"name": "b", "softDeletePolicy": {"retentionDurationSeconds": "0"},
                     "versioning": {"enabled": false}, "retentionPolicy": {"isLocked": true}}"#;
    let (_server, driver) = served(vec![
        ScriptedAnswer::whole("200 OK", JSON, soft),
        ScriptedAnswer::whole("200 OK", JSON, locked),
        refusal(
            "403 Forbidden",
            "forbidden",
            "x has no storage.buckets.get",
            "",
        ),
    ])
    .await;
    for (versioned, locked) in [
        (Some(true), Some(false)),
        (Some(false), Some(true)),
        (None, None),
    ] {
        let wanted = Container { versioned, locked };
        assert_eq!(driver.container().await.unwrap(), wanted);
    }
}

#[tokio::test]
async fn a_bucket_that_is_there_already_is_created_if_it_is_ours() {
    let taken = || refusal("409 Conflict", "conflict", "the name is taken", "");
    let foreign = refusal(
        "403 Forbidden",
        "forbidden",
        "x has no storage.objects.list",
        "",
    );
    let (server, driver) = served(vec![
        ScriptedAnswer::whole("200 OK", JSON, r#"{"name": "box"}"#),
        taken(),
        page(&[], None),
        taken(),
        foreign,
    ])
    .await;
    driver.create_container().await.unwrap();
    driver.create_container().await.unwrap();
    let error = driver.create_container().await.unwrap_err();
    assert!(error.detail.contains("the name is taken"), "{error}");
    let request = &server.requests()[0];
    assert!(
        request.starts_with("POST /storage/v1/b?project="),
        "{request}"
    );
}

#[tokio::test]
async fn each_request_names_its_payer() {
    let server = Scripted::start(vec![ScriptedAnswer::whole("200 OK", OURS, "object")]).await;
    let endpoint = format!("http://{}", server.address);
    let driver = driver(&endpoint, "&project=mine").unwrap();
    driver.get("volume/x", None, 9).await.unwrap();
    let request = &server.requests()[0];
    assert!(request.contains("userProject=mine"), "{request}");
    assert!(
        request.contains("/storage/v1/b/box/o/volume%2Fx?"),
        "{request}"
    );
    assert!(
        !request.to_lowercase().contains("authorization"),
        "{request}"
    );
}

#[tokio::test]
async fn an_endpoint_that_is_gone_says_so() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/base/", unused.local_addr().unwrap());
    drop(unused);
    let driver = driver(&endpoint, "").unwrap();
    assert_eq!(driver.place(), format!("Google, {endpoint}box/volume/"));
    let error = driver.get("volume/x", None, 9).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert!(error.detail.contains("onnection refused"), "{error}");
}

#[test]
fn an_endpoint_is_a_url_without_secrets() {
    for wrong in [
        "ftp://x",
        "nonsense",
        "https://x/?key=secret",
        "https://me:secret@x",
    ] {
        let refusal = driver(wrong, "").unwrap_err();
        assert!(!refusal.detail.contains("secret"), "{refusal}");
    }
}

#[tokio::test]
async fn a_key_is_sent_unchanged_and_encoded_once() {
    let (server, driver) = served(vec![ScriptedAnswer::whole("200 OK", OURS, "object")]).await;
    driver.get("my vol/a%20b/object", None, 9).await.unwrap();
    let request = server.requests().remove(0);
    let target = request.split(' ').nth(1).unwrap().replace("%2F", "/");
    assert!(target.contains("/my%20vol/a%2520b/object"), "{target}");
}
