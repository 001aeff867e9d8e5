//! The server over real sockets, and a tree in memory.

mod secured;

use super::*;
use crate::decoding::{FILE, FOLDER, MemoryTree, SECRET};
use crate::source::{LinkTarget, SourceError};
use crate::token::LinkToken;
use async_trait::async_trait;
use bytes::Bytes;
use rawzip::ZipArchive;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A long file: more than all buffers on the way hold.
const LONG_BYTES: usize = 64 << 20;

/// A server that runs.
struct Ran {
    address: SocketAddr,
    tree: MemoryTree,
    is_away: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Served>,
}

/// A tree that can be out of reach.
struct Reachable {
    tree: MemoryTree,
    is_away: Arc<AtomicBool>,
}

#[async_trait]
impl LinkSource for Reachable {
    async fn find(&self, token: &LinkToken) -> Result<Option<Arc<dyn LinkTarget>>, SourceError> {
        match self.is_away.load(Ordering::Relaxed) {
            true => Err(SourceError::Unavailable("they are away".to_owned())),
            false => self.tree.find(token).await,
        }
    }
}

async fn run_with(limits: ServingLimits, trusts_forwarded: bool, tls: Option<TlsFiles>) -> Ran {
    let mut tree = MemoryTree::sample();
    let long = vec![b"shared".to_vec(), b"long".to_vec()];
    tree.files.insert(long, Bytes::from(vec![7; LONG_BYTES]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let is_away = Arc::new(AtomicBool::new(false));
    let source = Reachable {
        tree: tree.clone(),
        is_away: is_away.clone(),
    };
    let options = ServingOptions {
        limits,
        base: String::new(),
        trusts_forwarded,
    };
    let (stop, stopped) = oneshot::channel();
    let server = LinkServer::new(Arc::new(source), options);
    let ended = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        server.run(listener, tls, stopped).await
    });
    Ran {
        address,
        tree,
        is_away,
        stop: Some(stop),
        ended,
    }
}

async fn run(limits: ServingLimits) -> Ran {
    run_with(limits, false, None).await
}

/// An answer: its head in lower case, and its body.
struct Answered {
    head: String,
    body: Vec<u8>,
}

impl Answered {
    fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
        let end = end.unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let mut body = bytes.get(end + 4..).unwrap_or_default().to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        Self { head, body }
    }

    fn status(&self) -> u16 {
        self.head[9..12].parse().unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(it, _)| *it == name).map(|(_, value)| value)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = bytes.windows(2).position(|it| it == b"\r\n").unwrap();
        let length = std::str::from_utf8(&bytes[..end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
}

impl Ran {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn send(&self, request: &str) -> Answered {
        let mut socket = self.connect().await;
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes).await;
        Answered::of(&bytes)
    }

    async fn get(&self, target: &str, headers: &str) -> Answered {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n");
        self.send(&request).await
    }

    async fn stop(mut self) -> Served {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended.await.unwrap()
    }

    /// Begins to download the long file, and reads its beginning.
    async fn long(&self) -> TcpStream {
        let mut socket = self.connect().await;
        let request = format!("GET /s/{}/long HTTP/1.1\r\nHost: a\r\n\r\n", FOLDER.text());
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut beginning = vec![0; 100_000];
        socket.read_exact(&mut beginning).await.unwrap();
        assert!(beginning.starts_with(b"HTTP/1.1 200"));
        socket
    }
}

fn folder(rest: &str) -> String {
    format!("/s/{}/{rest}", FOLDER.text())
}

#[tokio::test]
async fn a_file_is_served_whole_and_in_parts_and_only_if_it_changed() {
    let ran = run(ServingLimits::default()).await;
    let file = format!("/s/{}", FILE.text());
    let whole = ran.get(&file, "").await;
    assert_eq!(
        (whole.status(), whole.text().as_str()),
        (200, "the first file")
    );
    assert_eq!(
        whole.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(whole.header("content-length"), Some("14"));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    assert_eq!(whole.header("cache-control"), Some("private, no-cache"));
    assert_eq!(
        whole.header("last-modified"),
        Some("sun, 06 nov 1994 08:49:37 gmt")
    );
    assert!(
        whole
            .header("content-disposition")
            .unwrap()
            .starts_with("inline; filename=\"a.txt\"")
    );
    let tag = whole.header("etag").unwrap().to_owned();

    let part = ran.get(&file, "Range: bytes=4-8\r\n").await;
    assert_eq!((part.status(), part.text().as_str()), (206, "first"));
    assert_eq!(part.header("content-range"), Some("bytes 4-8/14"));
    let part = ran
        .get(&file, &format!("Range: bytes=-4\r\nIf-Range: {tag}\r\n"))
        .await;
    assert_eq!((part.status(), part.text().as_str()), (206, "file"));
    let other = ran
        .get(&file, "Range: bytes=-4\r\nIf-Range: \"x\"\r\n")
        .await;
    assert_eq!((other.status(), other.body.len()), (200, 14));
    let behind = ran.get(&file, "Range: bytes=14-\r\n").await;
    assert_eq!((behind.status(), behind.body.len()), (416, 0));
    assert_eq!(behind.header("content-range"), Some("bytes */14"));
    let same = ran.get(&file, &format!("If-None-Match: {tag}\r\n")).await;
    assert_eq!((same.status(), same.body.len()), (304, 0));
    let failed = ran.get(&file, "If-Match: \"x\"\r\n").await;
    assert_eq!((failed.status(), failed.body.len()), (412, 0));

    let head =
        format!("HEAD {file} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: bytes=0-1\r\n\r\n");
    let head = ran.send(&head).await;
    assert_eq!((head.status(), head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some("14"));
    let script = ran.get(&folder("b/page.html"), "").await;
    assert_eq!(
        script.header("content-type"),
        Some("application/octet-stream")
    );
    assert!(
        script
            .header("content-disposition")
            .unwrap()
            .starts_with("attachment;")
    );
    let served = ran.stop().await;
    assert_eq!((served.requests, served.refused), (9, 0));
    assert_eq!(served.bytes, 14 + 5 + 4 + 14 + 25);
}

#[tokio::test]
async fn a_folder_is_a_page_and_an_archive() {
    let ran = run(ServingLimits::default()).await;
    let without = ran.get(folder("b").as_str(), "").await;
    assert_eq!(without.status(), 307);
    assert_eq!(without.header("location"), Some("./b/"));
    let page = ran.get(&folder(""), "").await;
    assert_eq!(page.status(), 200);
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let text = page.text();
    for part in [
        "./a.txt\"",
        "./b/\"",
        "&lt;i&gt;&amp;amp;.png",
        "symbolic link",
        "./?zip",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("./out") && !text.contains("<i>"));
    let head = format!(
        "HEAD {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        folder("")
    );
    let head = ran.send(&head).await;
    let length = text.len().to_string();
    assert_eq!(
        (head.header("content-length"), head.body.len()),
        (Some(length.as_str()), 0)
    );

    let zip = ran.get(&folder("b/?zip"), "").await;
    assert_eq!(zip.header("content-type"), Some("application/zip"));
    assert!(
        zip.header("content-disposition")
            .unwrap()
            .contains("\"b.zip\"")
    );
    let archive = ZipArchive::from_slice(zip.body.as_slice()).unwrap();
    let mut names = Vec::new();
    for entry in archive.entries() {
        let entry = entry.unwrap();
        names.push(
            entry
                .file_path()
                .try_normalize()
                .unwrap()
                .as_str()
                .to_owned(),
        );
    }
    assert_eq!(names, ["b/", "b/c/", "b/c/deep.bin", "b/page.html"]);
    let whole = ran.get(&folder("?zip"), "").await;
    let left_out = "shared/out: symbolic link\n";
    assert!(whole.text().contains(left_out));
    ran.stop().await;
}

#[tokio::test]
async fn no_request_gets_what_is_outside_of_the_link() {
    let ran = run(ServingLimits {
        wrong_token_cost: 0,
        requests_burst: 10_000,
        ..ServingLimits::default()
    })
    .await;
    let (token, cut) = (FOLDER.text(), &FOLDER.text()[..31]);
    let long = "a".repeat(300);
    let paths = [
        "../secret.txt",
        "..",
        "%2e%2e/secret.txt",
        "b/../../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e%2fsecret.txt",
        "/secret.txt",
        "//secret.txt",
        "b//..//..//secret.txt",
        "out",
        "out/",
        "out?zip",
        "%00",
        "a.txt%00.html",
        "secret.txt",
        "..%5csecret.txt",
        "%252e%252e/secret.txt",
        "a.txt/",
        "a.txt/x",
        "%ff",
        &long,
        "b/c/deep.bin/",
        ".",
        "./a.txt",
    ];
    let mut targets: Vec<String> = paths.iter().map(|it| folder(it)).collect();
    for target in [
        format!("/s/{cut}/"),
        format!("/s/{cut}A/"),
        format!("/s/{token}{token}/"),
        format!("/s/../s/{token}/../secret.txt"),
        "/s/".to_owned(),
        "/shared/a.txt".to_owned(),
        "/secret.txt".to_owned(),
        "/../secret.txt".to_owned(),
        "/.env".to_owned(),
        format!("/s/{}/a.txt", LinkToken::new([9; 24]).text()),
    ] {
        targets.push(target);
    }
    for target in &targets {
        for headers in [
            "",
            "Range: bytes=0-18446744073709551615\r\n",
            "Range: bytes=-1\r\n",
        ] {
            let answer = ran.get(target, headers).await;
            assert_eq!(answer.status(), 404, "{target}");
            assert!(!answer.text().contains(SECRET), "{target}");
            assert!(answer.head.contains("default-src 'none'"), "{target}");
        }
    }
    for method in [
        "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND", "TRACE", "PATCH",
    ] {
        let request = format!(
            "{method} {} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
            folder("a.txt")
        );
        let answer = ran.send(&request).await;
        assert_eq!(
            (answer.status(), answer.header("allow")),
            (405, Some("get, head")),
            "{method}"
        );
    }
    for request in [
        "\0\0\0",
        "GET",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\n\r\n",
    ] {
        let answer = ran.send(&format!("{request}\r\n\r\n")).await;
        assert!(
            answer.head.is_empty() || answer.head.contains(" 400 "),
            "{}",
            answer.head
        );
    }
    let large = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(HEAD_TOO_LONG)
    );
    assert_eq!(ran.send(&large).await.status(), 431);
    ran.stop().await;
}

const HEAD_TOO_LONG: usize = crate::limits::HEAD_BYTES_MAX + 1;

#[tokio::test]
async fn a_revoked_link_ends_at_once_and_cuts_its_downloads() {
    let ran = run(ServingLimits::default()).await;
    let mut socket = ran.long().await;
    let mut blocked = ran.long().await;
    ran.tree.revoke(&FOLDER);
    assert_eq!(ran.get(&folder("a.txt"), "").await.status(), 404);
    let began = Instant::now();
    sleep(Duration::from_millis(1_500)).await;
    let mut rest = Vec::new();
    let end = socket.read_to_end(&mut rest).await;
    assert!(end.is_err(), "the client takes a part for the whole");
    assert!(rest.len() < LONG_BYTES / 2, "{}", rest.len());
    // One that does not read is cut as well.
    let mut rest = Vec::new();
    assert!(blocked.read_to_end(&mut rest).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(2));
    ran.stop().await;
}

#[tokio::test]
async fn a_file_that_is_changed_meanwhile_never_looks_complete() {
    let ran = run(ServingLimits::default()).await;
    let mut socket = ran.long().await;
    ran.tree.writes.fetch_add(1, Ordering::Relaxed);
    let mut rest = Vec::new();
    let end = socket.read_to_end(&mut rest).await;
    assert!(end.is_err() || rest.len() + 100_000 < LONG_BYTES);
    ran.stop().await;
}

#[tokio::test]
async fn what_cannot_be_confirmed_is_not_served() {
    let ran = run(ServingLimits {
        confirm_every: Duration::from_millis(100),
        unconfirmed_for: Duration::from_millis(600),
        ..ServingLimits::default()
    })
    .await;
    let mut socket = ran.long().await;
    ran.is_away.store(true, Ordering::Relaxed);
    let answer = ran.get(&folder("a.txt"), "").await;
    assert_eq!(
        (answer.status(), answer.header("retry-after")),
        (503, Some("10"))
    );
    // A short while without the servers does no harm.
    sleep(Duration::from_millis(300)).await;
    ran.is_away.store(false, Ordering::Relaxed);
    sleep(Duration::from_millis(600)).await;
    let mut more = vec![0; 10_000_000];
    socket.read_exact(&mut more).await.unwrap();
    ran.is_away.store(true, Ordering::Relaxed);
    sleep(Duration::from_millis(1_000)).await;
    assert!(socket.read_to_end(&mut more).await.is_err());
    ran.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_and_one_that_waits_is_not() {
    let ran = run(ServingLimits {
        slow_window: Duration::from_millis(400),
        slow_bytes: 100_000,
        head_within: Duration::from_millis(500),
        ..ServingLimits::default()
    })
    .await;
    let mut blocked = ran.long().await;
    sleep(Duration::from_millis(900)).await;
    let mut rest = Vec::new();
    assert!(blocked.read_to_end(&mut rest).await.is_err());
    // Slow and fast enough: everything arrives.
    let mut steady = ran.long().await;
    let (mut piece, mut read) = (vec![0; 2 << 20], 100_000);
    while read < LONG_BYTES {
        sleep(Duration::from_millis(10)).await;
        match steady.read(&mut piece).await.unwrap() {
            0 => panic!("{read} bytes arrived"),
            count => read += count,
        }
    }
    // A head that does not end, and a connection that is idle.
    let began = Instant::now();
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        ran.send(request).await;
    }
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(1) && took < Duration::from_secs(4),
        "{took:?}"
    );
    ran.stop().await;
}

#[tokio::test]
async fn connections_and_requests_have_bounds() {
    let ran = run(ServingLimits {
        connections: 8,
        connections_per_address: 5,
        requests_burst: 20,
        requests_per_second: 1,
        ..ServingLimits::default()
    })
    .await;
    let mut held = Vec::new();
    let busy = async |host: u8, held: &mut Vec<TcpStream>| {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind(SocketAddr::from(([127, 0, 0, host], 0)))
            .unwrap();
        let mut socket = socket.connect(ran.address).await.unwrap();
        socket
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        let mut beginning = [0; 12];
        socket.read_exact(&mut beginning).await.unwrap();
        held.push(socket);
        String::from_utf8_lossy(&beginning[9..]).into_owned()
    };
    for _ in 0..5 {
        assert_eq!(busy(2, &mut held).await, "200");
    }
    assert_eq!(busy(2, &mut held).await, "503", "the sixth of an address");
    for _ in 0..3 {
        assert_eq!(busy(3, &mut held).await, "200");
    }
    assert_eq!(busy(4, &mut held).await, "503", "the ninth of all");
    held.clear();
    sleep(Duration::from_millis(200)).await;
    // A wrong token counts as 21 requests.
    assert_eq!(ran.get("/s/guess", "").await.status(), 404);
    let answer = ran.get("/", "").await;
    assert_eq!(answer.status(), 429);
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(ran.stop().await.refused, 3);
}

#[tokio::test]
async fn behind_a_proxy_the_address_is_the_one_that_it_noted() {
    let limits = ServingLimits {
        connections_per_address: 1,
        requests_burst: 2,
        requests_per_second: 1,
        ..ServingLimits::default()
    };
    let ran = run_with(limits.clone(), true, None).await;
    let _held = ran.connect().await;
    let from = |address: &str| format!("X-Forwarded-For: 10.9.9.9, {address}\r\n");
    for address in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
        for expected in [200, 200, 429] {
            assert_eq!(
                ran.get("/", &from(address)).await.status(),
                expected,
                "{address}"
            );
        }
    }
    ran.stop().await;
    let ran = run(limits).await;
    assert_eq!(ran.get("/", &from("192.0.2.1")).await.status(), 200);
    assert_eq!(ran.get("/", &from("192.0.2.2")).await.status(), 200);
    assert_eq!(
        ran.get("/", &from("192.0.2.3")).await.status(),
        429,
        "it may be invented"
    );
    ran.stop().await;
}

#[tokio::test]
async fn a_stop_lets_downloads_end_and_closes_what_is_idle() {
    let limits = ServingLimits {
        stop_within: Duration::from_secs(1),
        ..ServingLimits::default()
    };
    let ran = run(limits).await;
    let mut idle = ran.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    idle.readable().await.unwrap();
    let (mut running, mut stuck) = (ran.long().await, ran.long().await);
    let address = ran.address;
    let stopped = tokio::spawn(ran.stop());
    let mut rest = Vec::new();
    running.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() + 100_000 > LONG_BYTES);
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    let served = stopped.await.unwrap();
    assert_eq!(served.downloads, 2);
    assert!(served.bytes >= LONG_BYTES as u64);
    let mut cut = Vec::new();
    let _ = stuck.read_to_end(&mut cut).await;
    assert!(cut.len() < LONG_BYTES);
}
