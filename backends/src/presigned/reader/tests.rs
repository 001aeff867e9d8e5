//! The reader against servers and URLs of an attacker.

use super::*;
use crate::remote::scripted::{Scripted, ScriptedAnswer};

/// What no message may contain.
const SECRET: &str = "0123abcdSIGNATURE";

async fn served(answers: Vec<ScriptedAnswer>) -> (Scripted, String) {
    let server = Scripted::start(answers).await;
    let url = format!("http://{}/box/00/x?sig={SECRET}&sp=r", server.address);
    (server, url)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn reader() -> PresignedReader {
    PresignedReader::with_loopback().unwrap()
}

/// Reads from a server that gives one answer.
async fn read(
    answer: ScriptedAnswer,
    range: Option<Range<u64>>,
    length_max: u64,
) -> Result<Bytes, StoreErrorKind> {
    let (_server, url) = served(vec![answer]).await;
    let read = reader().get(&url, range, length_max, soon()).await;
    read.map_err(|error| {
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
        assert!(error.cloud.contains("127.0.0.1"), "{error}");
        error.kind
    })
}

fn whole(headers: &str, body: &str) -> ScriptedAnswer {
    ScriptedAnswer::whole("200 OK", headers, body)
}

fn part(range: &str, body: &str) -> ScriptedAnswer {
    let header = format!("Content-Range: {range}");
    ScriptedAnswer::whole("206 Partial Content", &header, body)
}

#[tokio::test]
async fn an_object_is_read_by_one_plain_request() {
    let (server, url) = served(vec![whole("", "object"), part("bytes 2-4/6", "jec")]).await;
    let reader = reader();
    assert_eq!(reader.get(&url, None, 6, soon()).await.unwrap(), "object");
    let read = reader.get(&url, Some(2..5), 3, soon()).await;
    assert_eq!(read.unwrap(), "jec");
    let empty = reader.get(&url, Some(7..7), 0, soon()).await;
    assert_eq!(empty.unwrap(), "", "nothing is asked");
    let asked = server.requests();
    let [first, second] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    let first = first.to_lowercase();
    assert!(first.starts_with("get /box/00/x?sig=0123"), "{first}");
    assert!(first.contains("accept-encoding: identity"), "{first}");
    for header in ["range:", "authorization", "cookie", "referer"] {
        assert!(!first.contains(header), "{first}");
    }
    assert!(second.to_lowercase().contains("range: bytes=2-4"));
}

#[tokio::test]
async fn no_more_is_read_than_is_allowed() {
    let endless = |headers: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{headers}\r\n").into_bytes();
        ScriptedAnswer::Endless(head, vec![b'x'; 1000])
    };
    for answer in [
        endless(""),
        endless("Content-Length: 1000000000000\r\n"),
        whole("", "more than nine bytes"),
    ] {
        assert_eq!(read(answer, None, 9).await, Err(StoreErrorKind::Corrupt));
    }
    let answer = endless("");
    let read_part = read(answer, Some(0..9), 9).await;
    assert_eq!(read_part, Err(StoreErrorKind::Corrupt));
    let too_many = read(whole("", "object"), Some(0..10), 9).await;
    assert_eq!(too_many, Err(StoreErrorKind::Corrupt), "the caller's bound");
}

#[tokio::test]
async fn an_object_that_breaks_off_is_not_an_object() {
    let unavailable = Err(StoreErrorKind::Unavailable);
    let answer = whole("Content-Length: 100", "short");
    assert_eq!(read(answer, None, 1000).await, unavailable);
    let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n".to_vec();
    let answer = ScriptedAnswer::Bytes(chunks);
    assert_eq!(read(answer, None, 1000).await, unavailable);
}

#[tokio::test]
async fn a_range_is_the_one_that_was_asked_for() {
    let corrupt = Err(StoreErrorKind::Corrupt);
    let abc = Ok(Bytes::from("abc"));
    for (answer, range, wanted) in [
        (part("bytes 2-4/9", "abc"), 2..5, abc.clone()),
        (part("bytes 2-4/*", "abc"), 2..5, abc.clone()),
        (part("bytes 3-5/9", "abc"), 2..5, corrupt.clone()),
        (part("bytes 2-3/4", "ab"), 2..5, corrupt.clone()),
        (part("bytes 2-44/99", "abc"), 2..5, corrupt.clone()),
        (part("bytes 2-4/9", "ab"), 2..5, corrupt.clone()),
        (part("bytes 2-4/9", "abcd"), 2..5, corrupt.clone()),
        (
            ScriptedAnswer::whole("206 Partial", "", "abc"),
            2..5,
            corrupt.clone(),
        ),
        (whole("", "abc"), 0..3, abc),
        (whole("", "abc"), 2..5, corrupt.clone()),
        (whole("", "abcd"), 0..3, corrupt.clone()),
        (whole("", "ab"), 0..3, corrupt.clone()),
    ] {
        let read = read(answer.clone(), Some(range), 3).await;
        assert_eq!(read, wanted, "{answer:?}");
    }
    let answer = part("bytes 0-2/9", "abc");
    assert_eq!(read(answer, None, 9).await, corrupt, "a part, unasked");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Scripted::start(vec![whole("", "stolen")]).await;
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let place = format!("Location: http://{}/x", elsewhere.address);
        let answer = ScriptedAnswer::whole(status, &place, "");
        assert_eq!(
            read(answer, None, 9).await,
            Err(StoreErrorKind::Unavailable)
        );
    }
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn a_page_or_a_compressed_answer_is_not_an_object() {
    let page = whole(
        "Content-Type: Text/HTML; charset=utf-8",
        "<html>Welcome!</html>",
    );
    assert_eq!(read(page, None, 99).await, Err(StoreErrorKind::Unavailable));
    for encoding in ["gzip", "br", "zstd", "deflate", "Identity, gzip"] {
        let answer = whole(&format!("Content-Encoding: {encoding}"), "x");
        assert_eq!(read(answer, None, 9).await, Err(StoreErrorKind::Corrupt));
    }
    let plain = whole("Content-Encoding: identity", "x");
    assert_eq!(read(plain, None, 9).await, Ok(Bytes::from("x")));
}

#[tokio::test]
async fn a_server_that_is_slow_is_left_at_the_deadline() {
    let begun = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort".to_vec();
    let head = b"HTTP/1.1 200 OK\r\nContent-".to_vec();
    for answer in [
        ScriptedAnswer::Silence,
        ScriptedAnswer::Stalled(head),
        ScriptedAnswer::Stalled(begun),
    ] {
        let (_server, url) = served(vec![answer]).await;
        let begin = tokio::time::Instant::now();
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = reader().get(&url, None, 9, deadline).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn a_refusal_that_stalls_is_not_waited_for() {
    let head = b"HTTP/1.1 403 No\r\nContent-Length: 99\r\n\r\n<Code>Expired</Code>".to_vec();
    let (_server, url) = served(vec![ScriptedAnswer::Stalled(head)]).await;
    let begin = tokio::time::Instant::now();
    let error = reader().get(&url, None, 9, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied);
    assert!(error.detail.ends_with("(HTTP 403 Expired)"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_refusal_has_its_kind_and_the_providers_code() {
    use StoreErrorKind as Kind;
    for (status, body, kind, says) in [
        (
            "403 No",
            "<Error><Code>AccessDenied</Code></Error>",
            Kind::Denied,
            "403 AccessDenied)",
        ),
        ("403 No", "", Kind::Denied, "ask for a new one (HTTP 403)"),
        ("401 No", "", Kind::Denied, "HTTP 401"),
        (
            "400 Bad",
            "<Code>ExpiredToken</Code>",
            Kind::Denied,
            "expired",
        ),
        ("400 Bad", "", Kind::Other, "HTTP 400"),
        (
            "404 No",
            "<Code>NoSuchKey</Code>",
            Kind::NotFound,
            "404 NoSuchKey",
        ),
        ("410 Gone", "", Kind::NotFound, "HTTP 410"),
        ("416 Range", "", Kind::Corrupt, "ends before"),
        ("503 Busy", "", Kind::Throttled, "fewer requests"),
        ("500 Broken", "", Kind::Unavailable, "HTTP 500"),
        ("204 Nothing", "", Kind::Other, "HTTP 204"),
    ] {
        let (_server, url) = served(vec![ScriptedAnswer::whole(status, "", body)]).await;
        let error = reader().get(&url, None, 9, soon()).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.detail.contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_refusal_cannot_put_its_own_words_into_messages() {
    let long = "x".repeat(65);
    for code in [
        SECRET,
        "SIGNATURE",
        "a\u{1b}[31mred",
        "two words",
        "a\nb",
        "ünicode",
        "",
        long.as_str(),
    ] {
        let body = format!("<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>");
        let (_server, url) = served(vec![ScriptedAnswer::whole("403 No", "", &body)]).await;
        let error = reader().get(&url, None, 9, soon()).await.unwrap_err();
        assert!(error.detail.ends_with("(HTTP 403)"), "{error}");
    }
    let head = b"HTTP/1.1 403 No\r\n\r\n<Code>Late</Code>".to_vec();
    let endless = ScriptedAnswer::Endless(head, vec![b'x'; 1000]);
    let (_server, url) = served(vec![endless]).await;
    let error = reader().get(&url, None, 9, soon()).await.unwrap_err();
    assert!(error.detail.ends_with("(HTTP 403 Late)"), "{error}");
}

#[tokio::test]
async fn nothing_is_sent_to_a_url_that_is_not_allowed() {
    let server = Scripted::start(vec![whole("", "object")]).await;
    let port = server.address.port();
    let strict = PresignedReader::new().unwrap();
    let loopback = format!("http://127.0.0.1:{port}/x?sig={SECRET}");
    let error = strict.get(&loopback, None, 9, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unsupported, "{error}");
    assert!(error.detail.contains("this very machine"), "{error}");
    for (url, says) in [
        (
            format!("http://localhost:{port}/?{SECRET}"),
            "no encryption",
        ),
        (format!("http://0.0.0.0:{port}/?{SECRET}"), "no encryption"),
        (
            format!("http://[::ffff:127.0.0.1]:{port}/?{SECRET}"),
            "no encryption",
        ),
        (format!("http://192.168.0.1/?{SECRET}"), "no encryption"),
        (format!("http://cloud.example/?{SECRET}"), "no encryption"),
        (format!("http://{SECRET}@127.0.0.1:{port}/"), "user name"),
        (format!("https://me:{SECRET}@cloud.example/"), "user name"),
        (format!("file:///etc/{SECRET}"), "no host"),
        (format!("data:text/plain,{SECRET}"), "no host"),
        (format!("ftp://127.0.0.1:{port}/{SECRET}"), "https://"),
        (SECRET.to_owned(), "no URL"),
        (
            format!("https://cloud.example/?{}", "x".repeat(URL_BYTES_MAX)),
            "more than",
        ),
    ] {
        let error = reader().get(&url, None, 9, soon()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unsupported, "{error}");
        assert!(error.detail.contains(says), "{error}");
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_server_without_a_trusted_certificate_gets_no_url() {
    let server = Scripted::start(vec![whole("", "object")]).await;
    let port = server.address.port();
    let url = format!("https://127.0.0.1:{port}/x?sig={SECRET}");
    let deadline = Deadline::after(Duration::from_secs(2));
    let error = reader().get(&url, None, 9, deadline).await.unwrap_err();
    assert!(!error.to_string().contains(SECRET), "{error}");
    assert!(server.requests().is_empty());
}
