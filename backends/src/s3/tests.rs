//! Cases that emulators of S3 do not produce: each test has a service of its own.

use super::scripted::{Reply, Request, Scripted};
use crate::error::{StoreError, StoreErrorKind};
use crate::location::{Access, Location};
use crate::marker::{MARKER_FILE, Marker};
use crate::name::ObjectName;
use crate::remote::{Container, Driver, Limits, Pace, Refusal, RetryPolicy};
use crate::store::{Deadline, ObjectStore};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const NAME: &str = "ab/object";
const SECRET: &str = "wholly-secret";
const MARKER: Marker = Marker {
    volume: [3; 16],
    cloud: 0,
};

/// A file with keys in the form that Amazon issues.
fn keys() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("credentials");
    let text = format!(
        "[default]\naws_access_key_id = AKIDTEST\naws_secret_access_key = {SECRET}\n\
         [other]\naws_access_key_id = AKIDOTHER\naws_secret_access_key = {SECRET}\n"
    );
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

async fn connect(options: &str, credentials: &Path) -> Result<Arc<dyn Driver>, Refusal> {
    let location = format!("s3://bucket/below?{options}").parse().unwrap();
    match location {
        Location::Remote(remote) => super::connect(&remote, Some(credentials)).await,
        Location::Local(path) => panic!("{path:?}"),
    }
}

async fn driver(server: &Scripted, options: &str) -> Arc<dyn Driver> {
    let (_kept, path) = keys();
    let options = format!("endpoint={}{options}", server.endpoint);
    let driver = connect(&options, &path).await.unwrap();
    // The keys are read at the first request, which is this one.
    let _ = driver.head("first").await;
    driver
}

async fn store(server: &Scripted) -> (Arc<dyn ObjectStore>, TempDir) {
    let (kept, path) = keys();
    let location: Location = format!("s3://bucket/below?endpoint={}", server.endpoint)
        .parse()
        .unwrap();
    let access = Access {
        marker: MARKER,
        credentials: Some(path),
        collector: None,
        signer: None,
        retry_policy: RetryPolicy {
            pause_min: Duration::from_millis(1),
            pause_max: Duration::from_millis(2),
            ..RetryPolicy::default()
        },
        limits: Limits::default(),
        shared: Arc::new(Pace::new(Limits::default())),
    };
    (location.attach(&access).await.unwrap(), kept)
}

fn name() -> ObjectName {
    ObjectName::parse(NAME).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Answers requests for the volume's marker with it and all others with the result of `answer`.
fn ours(
    answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Request) -> Reply + Send + Sync + 'static {
    move |request| match request.target.contains(MARKER_FILE) {
        true => Reply::new("200 OK", &[], MARKER.encode()),
        false => answer(request),
    }
}

fn error(status: &str, code: &str, headers: &[(&str, &str)]) -> Reply {
    let body = format!("<Error><Code>{code}</Code><Message>in words</Message></Error>");
    Reply::new(status, headers, body)
}

async fn get(server: &Scripted) -> Result<Bytes, Refusal> {
    driver(server, "").await.get(NAME, None, 100).await
}

async fn kind_of_get(reply: Reply) -> (StoreErrorKind, String) {
    let server = Scripted::serve(move |_| reply.clone()).await;
    let refusal = get(&server).await.unwrap_err();
    (refusal.kind, refusal.detail)
}

#[tokio::test]
async fn a_service_that_asks_for_a_pause_gets_it_and_then_the_object() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::serve(ours(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => error("503 Slow Down", "SlowDown", &[("retry-after", "3")]),
        _ => Reply::new("200 OK", &[("etag", "\"e\"")], ""),
    }))
    .await;
    let (store, _kept) = store(&server).await;
    let body = Bytes::from_static(b"content");
    store.put_if_absent(&name(), body, soon()).await.unwrap();
    let traffic = store.traffic();
    assert_eq!(
        (traffic.puts, traffic.throttled, traffic.retries),
        (2, 1, 1)
    );
    let put = server.asked().pop().unwrap();
    assert_eq!(put.header("if-none-match"), Some("*"));
    assert_eq!(put.body, b"content");
    assert!(put.header("x-amz-checksum-crc32").is_some());
}

#[tokio::test]
async fn a_requested_pause_is_passed_on() {
    let reply = || error("503 Slow Down", "SlowDown", &[("retry-after", "3")]);
    let server = Scripted::serve(move |_| reply()).await;
    let refusal = get(&server).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Throttled);
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(3)));
    assert_eq!(
        server.asked().len(),
        2,
        "one for the first head, one for the get"
    );
}

#[tokio::test]
async fn a_service_that_only_says_no_is_asked_three_times() {
    let server = Scripted::serve(ours(|_| Reply::new("429 Too Many Requests", &[], ""))).await;
    let (store, _kept) = store(&server).await;
    let refused: StoreError = store.get(&name(), 100, soon()).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Throttled);
    assert_eq!(store.traffic().throttled, 3);
    assert_eq!(server.asked().len(), 4, "and once for the marker");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_asked_for_again() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::serve(ours(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::claiming("200 OK", &[], 7, "cont"),
        _ => Reply::new("200 OK", &[], "content"),
    }))
    .await;
    let (store, _kept) = store(&server).await;
    let read = store.get(&name(), 100, soon()).await.unwrap();
    assert_eq!(read, "content");
    let (kind, detail) = kind_of_get(Reply::claiming("200 OK", &[], 7, "cont")).await;
    assert_eq!(kind, StoreErrorKind::Unavailable);
    assert!(detail.contains("was interrupted"), "{detail}");
}

#[tokio::test]
async fn a_body_with_another_checksum_is_corrupt() {
    let headers = [("x-amz-checksum-crc32", "AAAAAA==")];
    let (kind, detail) = kind_of_get(Reply::new("200 OK", &headers, "content")).await;
    assert_eq!(kind, StoreErrorKind::Corrupt, "{detail}");
}

#[tokio::test]
async fn a_web_page_is_no_object_no_list_and_no_success() {
    let page = "<!DOCTYPE html><html><body><p>Welcome<br>to the hotel</body></html>";
    let headers = [("content-type", "text/html; charset=utf-8")];
    let server = Scripted::serve(move |_| Reply::new("200 OK", &headers, page)).await;
    let driver = driver(&server, "").await;
    let refusals = [
        driver.get(NAME, None, 1000).await.unwrap_err(),
        driver.head(NAME).await.unwrap_err(),
        driver.put(NAME, Bytes::new()).await.unwrap_err(),
        driver.list("", None, 10).await.unwrap_err(),
        driver.container().await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.kind, StoreErrorKind::Unavailable, "{refusal}");
        assert!(refusal.detail.contains("check the endpoint"), "{refusal}");
    }
}

#[tokio::test]
async fn no_more_is_read_than_may_be_there() {
    let (kind, _) = kind_of_get(Reply::new("200 OK", &[], [7; 101])).await;
    assert_eq!(kind, StoreErrorKind::Corrupt, "it says so");
    let chunked = [("transfer-encoding", "chunked")];
    let parts = [b"40\r\n".as_slice(), &[7; 64], b"\r\n"].concat().repeat(9);
    let (kind, detail) = kind_of_get(Reply::new("200 OK", &chunked, parts)).await;
    assert_eq!(
        kind,
        StoreErrorKind::Corrupt,
        "it does not say so: {detail}"
    );
}

#[tokio::test]
async fn an_error_or_a_list_without_end_is_not_read_to_its_end() {
    let chunked = [("transfer-encoding", "chunked")];
    let part = [b"100000\r\n".as_slice(), &[b' '; 1 << 20], b"\r\n"].concat();
    for status in ["200 OK", "500 Internal Server Error"] {
        // Without a last chunk: a reader of the whole body would wait for the rest and see it
        // truncated.
        let endless = Reply::new(status, &chunked, part.repeat(16));
        let server = Scripted::serve(move |_| endless.clone()).await;
        let refusal = driver(&server, "")
            .await
            .list("", None, 10)
            .await
            .unwrap_err();
        assert_eq!(refusal.kind, StoreErrorKind::Unavailable);
        assert!(
            refusal.detail.contains("length limit exceeded"),
            "{refusal}"
        );
    }
}

#[tokio::test]
async fn a_range_that_is_not_the_one_asked_for_is_noticed() {
    let range = |given: &'static str, body: &'static str| async move {
        let headers = [("content-range", given)];
        let headers = if given.is_empty() {
            &[][..]
        } else {
            &headers[..]
        };
        let reply = Reply::new("206 Partial Content", headers, body);
        let server = Scripted::serve(move |_| reply.clone()).await;
        let read = driver(&server, "").await.get(NAME, Some(2..5), 3).await;
        let asked = server.asked().pop().unwrap();
        assert_eq!(asked.header("range"), Some("bytes=2-4"));
        read.map_err(|refusal| refusal.kind)
    };
    assert_eq!(range("bytes 2-4/9", "cde").await, Ok(Bytes::from("cde")));
    let corrupt = Err(StoreErrorKind::Corrupt);
    assert_eq!(range("bytes 2-3/4", "cd").await, corrupt, "the object ends");
    assert_eq!(range("bytes 3-5/9", "def").await, corrupt, "another range");
    assert_eq!(range("", "cde").await, corrupt, "no range at all");
    assert_eq!(range("bytes 2-4/9", "cdef").await, corrupt, "too much");
    let behind = Reply::new("416 Range Not Satisfiable", &[], "");
    assert_eq!(kind_of_get(behind).await.0, StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn a_service_that_never_answers_is_left_at_the_deadline() {
    let server = Scripted::serve(|_| Reply::Silence).await;
    let (store, _kept) = store(&server).await;
    let deadline = Deadline::after(Duration::from_millis(200));
    let refused = store.get(&name(), 100, deadline).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Timeout);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_port_without_a_listener_is_reported() {
    let server = Scripted::serve(|_| Reply::Silence).await;
    let (endpoint, (_kept, path)) = (server.endpoint.clone(), keys());
    drop(server);
    tokio::task::yield_now().await;
    let driver = connect(&format!("endpoint={endpoint}"), &path)
        .await
        .unwrap();
    let refusal = driver.head(NAME).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Unavailable);
    assert!(refusal.detail.contains("Connection refused"), "{refusal}");
}

#[tokio::test]
async fn a_clock_skew_is_reported_and_not_corrected() {
    let headers = [("date", "Mon, 05 Jan 2015 00:00:00 GMT")];
    let reply = error("403 Forbidden", "RequestTimeTooSkewed", &headers);
    let server = Scripted::serve(move |_| reply.clone()).await;
    let refusal = get(&server).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Clock);
    let signed: Vec<_> = server.asked();
    let year = |request: &Request| request.header("x-amz-date").unwrap()[..4].to_owned();
    assert_eq!(year(&signed[0]), year(&signed[1]));
}

#[tokio::test]
async fn a_redirect_names_the_region_and_is_not_followed() {
    let elsewhere = Scripted::serve(|_| Reply::new("200 OK", &[], "stolen")).await;
    let target = elsewhere.endpoint.clone();
    let server = Scripted::serve(move |_| {
        let headers = [("x-amz-bucket-region", "eu-west-3"), ("location", &*target)];
        error("301 Moved Permanently", "PermanentRedirect", &headers)
    })
    .await;
    let refusal = get(&server).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::NoContainer);
    assert!(refusal.detail.contains("region=eu-west-3"), "{refusal}");
    assert!(elsewhere.asked().is_empty());
}

#[tokio::test]
async fn a_service_without_create_only_is_learned_once_and_then_asked_before() {
    let server = Scripted::serve(ours(|request| match &*request.method {
        "PUT" if request.header("if-none-match").is_some() => {
            error("501 Not Implemented", "NotImplemented", &[])
        }
        "PUT" => Reply::new("200 OK", &[("etag", "\"e\"")], ""),
        _ => Reply::new("404 Not Found", &[], ""),
    }))
    .await;
    let (store, _kept) = store(&server).await;
    let body = Bytes::from_static(b"content");
    store
        .put_if_absent(&name(), body.clone(), soon())
        .await
        .unwrap();
    store.put_if_absent(&name(), body, soon()).await.unwrap();
    let methods: Vec<_> = server
        .asked()
        .into_iter()
        .map(|asked| asked.method)
        .collect();
    assert_eq!(methods, ["GET", "PUT", "HEAD", "PUT", "HEAD", "PUT"]);
}

#[tokio::test]
async fn a_preset_without_create_only_finds_existing_objects() {
    let server = Scripted::serve(|_| Reply::new("200 OK", &[], "")).await;
    let driver = driver(&server, "&preset=garage").await;
    let refusal = driver.put(NAME, Bytes::new()).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::AlreadyExists);
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.method == "HEAD"));
    let scope = asked[0].header("authorization").unwrap().to_owned();
    assert!(scope.contains("/garage/s3/aws4_request"), "{scope}");
}

/// MinIO accepts paths with the bucket in them, a condition, a checksum.
#[tokio::test]
async fn the_preset_of_minio_asks_for_all_that_it_knows() {
    let reply = Reply::new("200 OK", &[("etag", "\"x\"")], Vec::new());
    let server = Scripted::serve(move |_| reply.clone()).await;
    let driver = driver(&server, "&preset=minio").await;
    driver
        .put(NAME, Bytes::from_static(b"content"))
        .await
        .unwrap();
    let put = server.asked().pop().unwrap();
    let path = put.target.split('?').next().unwrap();
    assert_eq!((put.method.as_str(), path), ("PUT", "/bucket/ab/object"));
    assert_eq!(put.header("if-none-match"), Some("*"));
    assert!(put.header("x-amz-checksum-crc32").is_some(), "{}", put.head);
}

#[tokio::test]
async fn a_conflict_in_flight_is_no_verdict() {
    let asked = AtomicUsize::new(0);
    let server = Scripted::serve(ours(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => error("409 Conflict", "ConditionalRequestConflict", &[]),
        _ => error("412 Precondition Failed", "PreconditionFailed", &[]),
    }))
    .await;
    let (store, _kept) = store(&server).await;
    let refused = store.put_if_absent(&name(), Bytes::new(), soon()).await;
    assert_eq!(refused.unwrap_err().kind, StoreErrorKind::AlreadyExists);
    assert_eq!(store.traffic().puts, 2);
}

#[tokio::test]
async fn a_bucket_that_is_ours_already_needs_not_be_created() {
    for (code, created) in [
        ("BucketAlreadyOwnedByYou", true),
        ("BucketAlreadyExists", false),
    ] {
        let reply = error("409 Conflict", code, &[]);
        let server = Scripted::serve(move |_| reply.clone()).await;
        let done = driver(&server, "&region=eu-west-1")
            .await
            .create_container()
            .await;
        assert_eq!(done.is_ok(), created, "{code}");
        let asked = server.asked().pop().unwrap();
        assert_eq!(
            (&*asked.method, asked.target.trim_end_matches('/')),
            ("PUT", "/bucket")
        );
        assert!(asked.body.is_empty(), "only Amazon gets the region");
    }
}

#[tokio::test]
async fn an_unreadable_bucket_description_is_tolerated() {
    let lock = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule>\
                <DefaultRetention><Mode>COMPLIANCE</Mode><Days>9</Days></DefaultRetention></Rule>\
                </ObjectLockConfiguration>";
    let versions = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let server = Scripted::serve(move |request| match request.target.contains("versioning") {
        true => Reply::new("200 OK", &[], versions),
        false => Reply::new("200 OK", &[], lock),
    })
    .await;
    let found = driver(&server, "").await.container().await.unwrap();
    let both = Container {
        versioned: Some(true),
        locked: Some(true),
    };
    assert_eq!(found, both);
    let server = Scripted::serve(|request| match request.target.contains("versioning") {
        true => error("403 Forbidden", "AccessDenied", &[]),
        false => error("404 Not Found", "ObjectLockConfigurationNotFoundError", &[]),
    })
    .await;
    let found = driver(&server, "").await.container().await.unwrap();
    assert_eq!((found.versioned, found.locked), (None, Some(false)));
    for (code, kind) in [
        ("NoSuchBucket", StoreErrorKind::NoContainer),
        ("InvalidAccessKeyId", StoreErrorKind::Denied),
    ] {
        let server = Scripted::serve(move |_| error("403 Forbidden", code, &[])).await;
        let refusal = driver(&server, "").await.container().await.unwrap_err();
        assert_eq!(refusal.kind, kind);
    }
}

#[tokio::test]
async fn keys_that_are_missing_are_denied_with_where_they_were_looked_for() {
    let server = Scripted::serve(|_| Reply::Silence).await;
    let (kept, path) = keys();
    let endpoint = format!("endpoint={}", server.endpoint);
    for (options, path, says) in [
        (
            endpoint.clone(),
            kept.path().join("nowhere"),
            "No such file",
        ),
        (format!("{endpoint}&profile=third"), path.clone(), "[third]"),
    ] {
        let driver = connect(&options, &path).await.unwrap();
        let refusal = driver.head(NAME).await.unwrap_err();
        assert_eq!(refusal.kind, StoreErrorKind::Denied, "{refusal}");
        assert!(refusal.detail.contains(says), "{refusal}");
        assert!(
            refusal.detail.contains(&path.display().to_string()),
            "{refusal}"
        );
        assert!(refusal.detail.contains("aws_access_key_id"), "{refusal}");
    }
    assert!(server.asked().is_empty(), "no request is sent without keys");
}

#[tokio::test]
async fn keys_come_from_the_section_that_is_named_and_never_show() {
    let server = Scripted::serve(|_| error("403 Forbidden", "SignatureDoesNotMatch", &[])).await;
    let driver = driver(&server, "&profile=other").await;
    let refusal = driver.get(NAME, None, 9).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Denied);
    assert!(refusal.detail.contains("section [other] of"), "{refusal}");
    let asked = server.asked().pop().unwrap();
    let signed = asked.header("authorization").unwrap().to_owned();
    assert!(signed.contains("AKIDOTHER"), "{signed}");
    for shown in [
        format!("{driver:?}"),
        refusal.detail,
        driver.place(),
        asked.head,
    ] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// A session's keys are useless without its token, which is signed with the other headers.
#[tokio::test]
async fn the_token_of_a_session_goes_with_each_request() {
    let (_kept, path) = keys();
    let keys = std::fs::read_to_string(&path).unwrap();
    let session = keys.replace("[other]", "aws_session_token = of-today\n[other]");
    std::fs::write(&path, session).unwrap();
    let server = Scripted::serve(|_| error("400 Bad Request", "ExpiredToken", &[])).await;
    let driver = connect(&format!("endpoint={}", server.endpoint), &path).await;
    let refusal = driver.unwrap().get(NAME, None, 9).await.unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Denied, "{refusal}");
    let asked = server.asked().pop().unwrap();
    assert_eq!(asked.header("x-amz-security-token"), Some("of-today"));
    let signed = asked.header("authorization").unwrap();
    assert!(signed.contains("x-amz-security-token"), "{signed}");
}

#[tokio::test]
async fn the_services_clock_is_read_from_answers_and_refusals() {
    for status in ["200 OK", "403 Forbidden"] {
        let headers = [("date", "Mon, 05 Jan 2015 00:00:00 GMT")];
        let reply = Reply::new(status, &headers, Vec::new());
        let server = Scripted::serve(move |_| reply.clone()).await;
        let date = driver(&server, "").await.date().await.unwrap();
        assert_eq!(date.as_deref(), Some(headers[0].1), "{status}");
    }
}

#[tokio::test]
async fn an_overwrite_is_asked_for_without_a_condition() {
    let reply = Reply::new("200 OK", &[("etag", "\"x\"")], Vec::new());
    let server = Scripted::serve(move |_| reply.clone()).await;
    let driver = driver(&server, "").await;
    driver.put(NAME, Bytes::new()).await.unwrap();
    driver.overwrite(NAME, Bytes::new()).await.unwrap();
    let puts: Vec<_> = server.asked();
    let conditions: Vec<_> = puts
        .iter()
        .filter(|request| request.target.contains(NAME))
        .map(|request| request.header("if-none-match"))
        .collect();
    assert_eq!(conditions, [Some("*"), None]);
}

#[tokio::test]
async fn keys_that_were_renewed_in_their_file_are_used_as_soon_as_the_old_ones_expire() {
    let server = Scripted::serve(ours(|request| {
        let signed = request.header("authorization").unwrap_or_default();
        match signed.contains("AKIDTEST") {
            true => error("400 Bad Request", "ExpiredToken", &[]),
            false => Reply::new("200 OK", &[("etag", "\"e\"")], ""),
        }
    }))
    .await;
    let (store, kept) = store(&server).await;
    // The marker is read with the old keys, which caches them.
    store.check(soon()).await.unwrap();
    let put = |number: u32| {
        let (store, name) = (Arc::clone(&store), format!("ab/{number}"));
        async move {
            let name = ObjectName::parse(&name).unwrap();
            let body = Bytes::from_static(b"content");
            store.put_if_absent(&name, body, soon()).await
        }
    };
    let refused = put(0).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Denied);
    assert!(!refused.to_string().contains("AKIDTEST"), "{refused}");
    let path = kept.path().join("credentials");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("AKIDTEST", "AKIDNEWER")).unwrap();
    // After a read without new keys the source is not read again at once.
    tokio::time::sleep(crate::remote::PAUSE).await;
    for put in (1..=44).map(put).collect::<Vec<_>>() {
        put.await.unwrap();
    }
    let traffic = store.traffic();
    assert_eq!((traffic.puts, traffic.retries), (46, 1));
}

#[tokio::test]
async fn a_key_is_sent_unchanged_and_encoded_once() {
    let server = Scripted::serve(|_| Reply::new("200 OK", &[("etag", "\"e\"")], "")).await;
    let driver = driver(&server, "").await;
    driver.head("my vol/a%20b/ab/object").await.unwrap();
    let target = server.asked().pop().unwrap().target;
    assert_eq!(target, "/bucket/my%20vol/a%2520b/ab/object");
}
