//! The driver against answers that no emulator gives.

use super::credentials::Proof;
use super::*;
use crate::location::Location;
use crate::remote::conformance::{self, MARKER, Provider};
use crate::remote::scripted::{Scripted, ScriptedAnswer};
use crate::store::ObjectStore as _;
use std::net::SocketAddr;

const OURS: &str = "x-ms-request-id: 1";

fn remote(address: impl fmt::Display) -> Remote {
    let text = format!("azure://me/box/volume?endpoint=http://{address}");
    match text.parse() {
        Ok(Location::Remote(remote)) => remote,
        other => panic!("{other:?}"),
    }
}

fn driver(address: impl fmt::Display, proof: Proof) -> Blobs {
    let found = AzureCredentials {
        proof,
        origin: "a test".to_owned(),
        endpoint: None,
    };
    attach(&remote(address), found, None, |_| None).unwrap()
}

fn key() -> Proof {
    Proof::Key("c2VjcmV0".to_owned())
}

fn refusal(status: &str, code: &str, headers: &str, text: &str) -> ScriptedAnswer {
    let headers = format!("{OURS}\nx-ms-error-code: {code}\n{headers}");
    let body = format!("<Error><Code>{code}</Code>{text}</Error>");
    ScriptedAnswer::whole(status, &headers, &body)
}

impl Provider for Blobs {
    const OURS: &'static str = OURS;

    fn at(address: SocketAddr) -> Self {
        driver(address, key())
    }

    fn busy(header: &str) -> ScriptedAnswer {
        refusal("503 Busy", "ServerBusy", header, "")
    }

    fn too_many(header: &str) -> ScriptedAnswer {
        refusal("429 Too Many", "TooManyRequests", header, "")
    }
}

conformance::tests!(Blobs);

async fn served(answers: Vec<ScriptedAnswer>) -> (Scripted, Blobs) {
    conformance::served(answers).await
}

#[tokio::test]
async fn a_refusal_without_end_is_read_to_a_bound() {
    let head = format!("HTTP/1.1 403 No\r\n{OURS}\r\nx-ms-error-code: X\r\n\r\n").into_bytes();
    let (_server, driver) = served(vec![ScriptedAnswer::Endless(head, vec![b'x'; 1000])]).await;
    let error = driver.get("volume/x", None, 9).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
    let error = driver.delete("volume/x").await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_clock_skew_and_an_expired_token_are_distinguished() {
    let text = |detail: &str| {
        format!(
            "<Message>Server failed to authenticate the request.\nRequestId:1</Message>\
             <AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>"
        )
    };
    let code = "AuthenticationFailed";
    let skewed = text("Request date header too old: 'Mon, 01 Jan 2024 00:00:00 GMT'");
    let expired = text("Signature not valid in the specified time frame: Start [a] - Expiry [b]");
    let (_server, driver) = served(vec![
        refusal("403 Forbidden", code, "", &skewed),
        refusal("403 Forbidden", code, "", &expired),
    ])
    .await;
    let error = driver.get("volume/x", None, 9).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Clock, "{error}");
    let error = driver.get("volume/x", None, 9).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
    assert!(error.detail.contains("make a new one"), "{error}");
    assert!(error.detail.contains("a test"), "{error}");
}

#[tokio::test]
async fn an_object_is_created_by_one_request_whatever_its_length() {
    let (server, driver) = served(vec![ScriptedAnswer::whole("201 Created", OURS, "")]).await;
    let body = Bytes::from(vec![1; 9 << 20]);
    driver.put("volume/00/x", body).await.unwrap();
    let requests = server.requests();
    let [request] = requests.as_slice() else {
        panic!("{requests:?}");
    };
    let lower = request.to_lowercase();
    assert!(
        request.starts_with("PUT /me/box/volume%2F00%2Fx HTTP"),
        "{request}"
    );
    for wanted in [
        "if-none-match: *",
        "x-ms-version: 2025-11-05",
        "content-length: 9437184",
        "authorization: sharedkey me:",
    ] {
        assert!(lower.contains(wanted), "{request}");
    }
}

#[tokio::test]
async fn a_container_that_is_there_already_is_created() {
    let (server, driver) = served(vec![
        ScriptedAnswer::whole("201 Created", OURS, ""),
        refusal("409 Conflict", "ContainerAlreadyExists", "", ""),
        refusal("403 Forbidden", "AuthorizationFailure", "", ""),
    ])
    .await;
    driver.create_container().await.unwrap();
    driver.create_container().await.unwrap();
    let error = driver.create_container().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
    let request = &server.requests()[0];
    assert!(
        request.starts_with("PUT /me/box?restype=container "),
        "{request}"
    );
}

#[tokio::test]
async fn a_token_goes_into_requests_and_nowhere_else() {
    let server = Scripted::start(vec![ScriptedAnswer::whole("200 OK", OURS, "object")]).await;
    let token = || Proof::Token("sv=1&sig=secret".to_owned());
    let there = driver(server.address, token());
    assert_eq!(there.get("volume/x", None, 9).await.unwrap(), "object");
    assert!(server.requests()[0].contains("?sv=1&sig=secret HTTP"));
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap();
    drop(unused);
    let gone = driver(address, token());
    let error = gone.get("volume/x", None, 9).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert!(error.detail.contains("onnection refused"), "{error}");
    let shown = format!("{error:?}{gone:?}{}", gone.place());
    assert!(!shown.contains("secret"), "{shown}");
}

fn page(names: &[&str], next: &str) -> ScriptedAnswer {
    let blobs: String = names
        .iter()
        .map(|name| format!("<Blob><Name>{name}</Name><Properties></Properties></Blob>"))
        .collect();
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults \
         ServiceEndpoint=\"http://x/\" ContainerName=\"box\"><Blobs>{blobs}</Blobs>\
         <NextMarker>{next}</NextMarker></EnumerationResults>"
    );
    ScriptedAnswer::whole("200 OK", OURS, &body)
}

#[tokio::test]
async fn a_listing_begins_after_its_cursor_and_continues() {
    let (server, driver) = served(vec![
        page(&["v/1", "v/2"], "two"),
        page(&[], "nothing"),
        page(&["v/3", "v/4"], "four"),
        page(&["v/5"], ""),
    ])
    .await;
    let listing = driver.list("v/", Some("v/2"), 10).await.unwrap();
    assert_eq!(
        (listing.keys, listing.more),
        (vec!["v/3".to_owned(), "v/4".to_owned()], true)
    );
    let listing = driver.list("v/", Some("v/4"), 10).await.unwrap();
    assert_eq!(
        (listing.keys, listing.more),
        (vec!["v/5".to_owned()], false)
    );
    let asked = server.requests();
    assert!(!asked[0].contains("marker="), "{}", asked[0]);
    assert!(asked[1].contains("marker=two") && asked[2].contains("marker=nothing"));
    assert!(asked[3].contains("marker=four") && asked[3].contains("maxresults=10"));
}

#[tokio::test]
async fn a_marker_that_is_not_taken_any_more_is_forgotten() {
    let (server, driver) = served(vec![
        page(&["v/1"], "one"),
        refusal("400 Bad", "InvalidQueryParameterValue", "", ""),
        page(&["v/1", "v/2"], ""),
    ])
    .await;
    assert!(driver.list("v/", None, 1).await.unwrap().more);
    let error = driver.list("v/", Some("v/1"), 1).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    let listing = driver.list("v/", Some("v/1"), 1).await.unwrap();
    assert_eq!(listing.keys, ["v/2"]);
    assert!(!server.requests()[2].contains("marker="));
}

#[test]
fn the_account_is_in_the_path_where_hosts_have_no_names() {
    let found = |endpoint: Option<&str>| AzureCredentials {
        proof: key(),
        origin: String::new(),
        endpoint: endpoint.map(str::to_owned),
    };
    let place = |text: &str, named: Option<&str>| {
        let Ok(Location::Remote(remote)) = text.parse() else {
            panic!("{text}");
        };
        attach(&remote, found(named), None, |_| None).map(|it| (it.place, it.version))
    };
    let home = "https://me.blob.core.windows.net/box/".to_owned();
    let there = |text: &str, named| place(text, named).unwrap();
    assert_eq!(
        there("azure://me/box", None),
        (format!("Azure, {home}"), VERSION)
    );
    for endpoint in [
        "http://127.0.0.1:7",
        "http://127.0.0.1:7/",
        "http://127.0.0.1:7/me/",
    ] {
        let text = format!("azure://me/box?endpoint={endpoint}");
        let wanted = "Azure, http://127.0.0.1:7/me/box/".to_owned();
        assert_eq!(there(&text, None), (wanted, VERSION_ELSEWHERE));
    }
    let (named, _) = there("azure://me/box/v", Some("https://me.privatelink.example"));
    assert_eq!(named, "Azure, https://me.privatelink.example/box/v/");
    for wrong in [
        "ftp://x",
        "nonsense",
        "https://x/?sig=secret",
        "https://me:secret@x",
    ] {
        let refusal = place(&format!("azure://me/box?endpoint={wrong}"), None).unwrap_err();
        assert!(!refusal.detail.contains("secret"), "{refusal}");
    }
}

#[test]
fn an_identity_is_not_sent_in_the_clear() {
    let found = AzureCredentials {
        proof: Proof::Identity,
        origin: String::new(),
        endpoint: None,
    };
    let refusal = attach(&remote("127.0.0.1:7"), found, None, |_| None).unwrap_err();
    assert_eq!(refusal.kind, StoreErrorKind::Denied);
    assert!(refusal.detail.contains("AZURE_STORAGE_KEY"), "{refusal}");
}

#[tokio::test]
async fn a_token_that_was_renewed_in_its_file_is_used_as_soon_as_the_old_one_is_refused() {
    let expired = "<AuthenticationErrorDetail>Signature not valid in the specified time frame\
                   </AuthenticationErrorDetail>";
    let marker: String = MARKER
        .encode()
        .iter()
        .map(|byte| char::from(*byte))
        .collect();
    let answers = vec![
        refusal("403 No", "AuthenticationFailed", "", expired),
        ScriptedAnswer::whole(
            "200 OK",
            &format!("{OURS}\nContent-Length: {}", marker.len()),
            &marker,
        ),
    ];
    let server = Scripted::start(answers).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |token: &str| std::fs::write(file.path(), token).unwrap();
    write("sv=1&sig=old");
    let found = credentials::find("me", Some(file.path()), |_| None).unwrap();
    let remote = remote(server.address);
    let driver = attach(&remote, found, Some(file.path()), |_| None).unwrap();
    write("sv=1&sig=new");
    let store = conformance::store(driver);
    let _ = store.check(conformance::soon()).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "{requests:#?}");
    assert!(requests[0].contains("sig=old") && requests[1].contains("sig=new"));
}

#[tokio::test]
async fn a_key_is_sent_unchanged_and_encoded_once() {
    let found = ScriptedAnswer::whole("200 OK", &format!("{OURS}\nContent-Length: 0"), "");
    let (server, driver) = served(vec![found]).await;
    let _ = driver.head("my vol/a%20b/object").await;
    let request = server.requests().remove(0);
    let target = request.split(' ').nth(1).unwrap().replace("%2F", "/");
    assert_eq!(target, "/me/box/my%20vol/a%2520b/object");
}

#[test]
fn a_token_is_not_sent_where_others_can_read_it() {
    let prove = |endpoint: &str, proof: Proof| {
        let text = format!("azure://me/box?endpoint={endpoint}");
        let Ok(Location::Remote(remote)) = text.parse() else {
            panic!("{text}");
        };
        let found = AzureCredentials {
            proof,
            origin: "a test".to_owned(),
            endpoint: None,
        };
        attach(&remote, found, None, |_| None).map(drop)
    };
    let token = || Proof::Token("sv=1&sig=secret".to_owned());
    for endpoint in [
        "https://blobs.example.com",
        "http://127.0.0.1:1",
        "http://[::1]:1",
    ] {
        prove(endpoint, token()).unwrap();
    }
    for endpoint in ["http://blobs.example.com", "http://10.0.0.1:1"] {
        let refusal = prove(endpoint, token()).unwrap_err();
        assert!(refusal.detail.contains("https only"), "{refusal}");
        assert!(!refusal.detail.contains("secret"), "{refusal}");
        // Only a signature by a key is sent, and never the key.
        prove(endpoint, key()).unwrap();
    }
}
