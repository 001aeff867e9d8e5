//! Requests that mean ill: nothing outside of the link, and nothing for nothing.

use super::{MIB, SECRET, Site};
use quorumfs_tests::harness::{HttpAnswer, peak_mib};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// A connection from an address of loopback, of which there are many.
fn connect_from(host: u8, to: SocketAddr) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let connected = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 1, host], 0)))?;
        socket.connect(to).await?.into_std()
    })?;
    connected.set_nonblocking(false)?;
    connected.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(connected)
}

/// Sends a request from an address of its own, so that tries do not count together.
fn send_from(site: &Site, host: u8, request: &[u8]) -> HttpAnswer {
    let mut socket = connect_from(host, site.gateway().address).unwrap();
    let _ = socket.write_all(request);
    HttpAnswer::read(socket)
}

#[test]
fn no_request_gets_what_is_outside_of_the_shared_folder() {
    let site = Site::start();
    let folder = site.share("/Photos", &[]);
    let file = site.share("/Photos/notes.txt", &[]);
    let (token, other) = (&folder.target[3..35], &file.target[3..35]);
    let outside = format!("{SECRET}.txt");
    let long = "a".repeat(5000);
    let mut targets = Vec::new();
    for path in [
        "out",
        "out/",
        "out?zip",
        "out/x",
        "../",
        "..",
        "../Photos/notes.txt",
        "%2e%2e/",
        "2024/../../",
        "2024/%2e%2e/%2e%2e/",
        "..%2f",
        "%2e%2e%2f",
        "//",
        "%00",
        "notes.txt%00",
        "%2fetc%2fpasswd",
        "..%5c",
        ".%2e/",
        "%252e%252e/",
        "notes.txt/..",
        "2024//..//..//",
        &long,
        "%ff%fe",
        "2024/M%C3%A4rz/../../../",
    ] {
        targets.push(format!("/s/{token}/{path}"));
        targets.push(format!("/s/{token}/{path}{outside}"));
    }
    for target in [
        format!("/{outside}"),
        format!("/../{outside}"),
        format!("/s/{outside}"),
        format!("/s/{}/{outside}", &token[..31]),
        format!("/s/{token}{other}/{outside}"),
        format!("/s/{other}/../{token}/{outside}"),
        format!("/s/{other}/{outside}"),
        format!("/s/{}/", &token[..31]),
        format!("/s/{}A/", &token[..31]),
        format!("/s/{}/", "A".repeat(32)),
        "/s/".to_owned(),
        "/metrics".to_owned(),
        "/.git/config".to_owned(),
    ] {
        targets.push(target);
    }
    let mut refused = 0;
    for (number, target) in targets.iter().enumerate() {
        let host = 1 + (number % 200) as u8;
        for headers in [
            "",
            "Range: bytes=0-18446744073709551615\r\n",
            "Range: bytes=-99999\r\n",
        ] {
            let request =
                format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n");
            let answer = send_from(&site, host, request.as_bytes());
            let found = String::from_utf8_lossy(&answer.body).contains(SECRET);
            assert!(!found && !answer.head.contains(SECRET), "{target}");
            let status = answer.status();
            assert!(
                matches!(status, 400 | 404 | 414 | 429 | 431),
                "{target}: {status}"
            );
            refused += u32::from(status == 404);
        }
    }
    assert!(
        refused > 80,
        "only {refused} requests got as far as the links"
    );
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "TRACE", "CONNECT",
    ] {
        let request = format!("{method} {} HTTP/1.1\r\nHost: a\r\n\r\n", folder.target);
        let status = send_from(&site, 201, request.as_bytes()).status();
        assert!(matches!(status, 400 | 404 | 405), "{method}: {status}");
    }
    for request in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
    ] {
        assert!(!send_from(&site, 202, request).text().contains(SECRET));
    }
    // The page of the folder says where the symbolic link is, and not where it leads.
    let page = send_from(
        &site,
        203,
        format!("GET {} HTTP/1.0\r\n\r\n", folder.target).as_bytes(),
    );
    assert!(page.text().contains("symbolic link") && !page.text().contains(SECRET));
    // All that, and no token is in the log.
    let log = fs::read_to_string(&site.gateway().log).unwrap();
    assert!(log.contains("answered"), "{log}");
    assert!(!log.contains(token) && !log.contains(other) && !log.contains("panicked"));
}

#[test]
fn a_user_shares_no_more_than_that_user_may_read() {
    let site = Site::start();
    // The sharer is another user than the owner of a part of the folder.
    let own = site.cluster.directory().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("mine.txt"), "mine").unwrap();
    fs::create_dir(own.join("closed")).unwrap();
    fs::write(own.join("closed/x.txt"), SECRET).unwrap();
    fs::write(own.join("not-mine.txt"), SECRET).unwrap();
    let mount = site.cluster.mount_point();
    site.quorumfs(&["mount", "--background"])
        .args([&mount])
        .run()
        .ok();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([&own, &mount.join("own")])
        .status();
    assert!(copied.unwrap().success());
    let set = |path: &str, uid: u32, mode: u32| {
        use std::os::unix::fs::{PermissionsExt, chown};
        let path = mount.join("own").join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
    };
    set("not-mine.txt", 1002, 0o600);
    set("closed", 1002, 0o700);
    set("mine.txt", 1001, 0o600);
    set("", 1001, 0o755);
    site.quorumfs(&["umount"]).run().ok();
    // As the user, with the state directory of the machine's superuser.
    let link = share_as(&site, "/own", 1001);
    let page = site.get(&link);
    assert_eq!(page.status(), 200, "{}", page.text());
    assert_eq!(site.get(&format!("{link}mine.txt")).text(), "mine");
    for path in ["not-mine.txt", "closed/", "closed/x.txt", "closed/?zip"] {
        let answer = site.get(&format!("{link}{path}"));
        assert!(!answer.text().contains(SECRET), "{path}");
        assert!(
            answer.status() == 404 || path.ends_with("?zip"),
            "{path}: {}",
            answer.status()
        );
    }
    let zip = site.get(&format!("{link}?zip"));
    let text = zip.text();
    assert!(zip.is_whole && !text.contains(SECRET));
    assert!(
        text.contains("own/not-mine.txt: it cannot be read"),
        "{text}"
    );
    assert!(
        text.contains("own/closed: the folder cannot be read"),
        "{text}"
    );
}

/// Shares as another user of this machine, who has a copy of the state directory.
fn share_as(site: &Site, path: &str, user: u32) -> String {
    use std::os::unix::fs::chown;
    let (from, state) = (
        site.cluster.volume(),
        site.cluster.directory().join("state-of-user"),
    );
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([&from, &state])
        .status();
    assert!(copied.unwrap().success());
    let open = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(site.cluster.directory());
    let mut all = vec![state.clone()];
    while let Some(path) = all.pop() {
        chown(&path, Some(user), Some(user)).unwrap();
        if path.is_dir() {
            all.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
    }
    for cloud in 0..4 {
        let mut all = vec![site.cluster.cloud(cloud)];
        while let Some(path) = all.pop() {
            use std::os::unix::fs::PermissionsExt;
            let mode = if path.is_dir() { 0o777 } else { 0o666 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            if path.is_dir() {
                all.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
            }
        }
    }
    let shared = quorumfs_tests::harness::Quorumfs::on(&state).as_user(user);
    let shared = shared.args(["share", path, "--link"]).run().ok();
    let line = shared.records("link").remove(0);
    let url = line["url"].as_str().unwrap();
    url.strip_prefix(super::URL).unwrap().to_owned()
}

#[test]
fn a_thousand_connections_are_held_and_the_next_is_told_so() {
    let site = Site::start();
    let file = site.share("/Photos/notes.txt", &[]);
    let request = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", file.target);
    let address = site.gateway().address;
    let mut held = Vec::new();
    for number in 0..1_000_u32 {
        let mut socket = connect_from((number / 100) as u8, address).unwrap();
        // They are idle within the bound of ten seconds; each has had an answer.
        if number % 10 == 0 {
            socket.write_all(request.as_bytes()).unwrap();
            let mut beginning = [0; 15];
            socket.read_exact(&mut beginning).unwrap();
            assert_eq!(&beginning, b"HTTP/1.1 200 OK");
        }
        held.push(socket);
    }
    let mut more = connect_from(99, address).unwrap();
    let _ = more.write_all(request.as_bytes());
    let refused = HttpAnswer::read(more);
    assert_eq!(refused.status(), 503, "{}", refused.head);
    let memory = peak_mib(site.gateway().id()).unwrap();
    assert!(memory < 700, "{memory} MiB");
    drop(held);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(site.get(&file.target).status(), 200);
}

#[test]
fn a_client_that_takes_nothing_loses_its_connection() {
    let site = Site::start();
    let link = site.share_large(3, 64);
    let request = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", link.target);
    let mut sockets = Vec::new();
    for host in 0..20 {
        let mut socket = connect_from(host, site.gateway().address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        sockets.push(socket);
    }
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(18));
    for mut socket in sockets {
        let mut rest = Vec::new();
        assert!(socket.read_to_end(&mut rest).is_err());
        assert!(rest.len() < 32 * MIB);
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    let memory = peak_mib(site.gateway().id()).unwrap();
    assert!(memory < 700, "{memory} MiB");
    assert_eq!(
        site.gateway()
            .get(&link.target, "Range: bytes=0-9\r\n")
            .status(),
        206
    );
}
