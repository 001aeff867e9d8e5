//! Links: what one leads to is served to those that have it, as it is now, and nothing else is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "serve/browser.rs"]
mod browser;
#[path = "serve/hostile.rs"]
mod hostile;
#[path = "serve/secured.rs"]
mod secured;

use quorumfs_tests::harness::{Cluster, HttpAnswer, LinkGateway, Quorumfs, eventually, noise};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const URL: &str = "http://files.example";
/// A text outside of what is shared, in content and in a name.
const SECRET: &str = "the-secret-outside";
const MIB: usize = 1 << 20;

/// A volume with some files, and a gateway that serves its links.
struct Site {
    cluster: Cluster,
    gateway: Option<LinkGateway>,
    tree: PathBuf,
}

/// A link that was made.
struct MadeLink {
    id: u64,
    /// From the root of the server.
    target: String,
}

impl Site {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Self {
        let mut cluster = Cluster::prepare();
        cluster.configure(&format!("[share]\nurl = \"{URL}\"\n"));
        cluster.start();
        let tree = cluster.directory().join("Photos");
        make_tree(&tree);
        let secret = cluster.directory().join(format!("{SECRET}.txt"));
        fs::write(&secret, SECRET).unwrap();
        let put = cluster.quorumfs().args(["put"]).args([&tree, &secret]);
        put.args(["/"]).run().ok();
        let log = cluster.directory().join("serve.log");
        let gateway = LinkGateway::start(cluster.quorumfs(), options, log);
        Self {
            cluster,
            gateway: Some(gateway),
            tree,
        }
    }

    fn gateway(&self) -> &LinkGateway {
        self.gateway.as_ref().unwrap()
    }

    fn quorumfs(&self, arguments: &[&str]) -> Quorumfs {
        self.cluster.quorumfs().args(arguments)
    }

    /// A link to a file of so many MiB.
    fn share_large(&self, seed: u64, mib: usize) -> MadeLink {
        let large = self.cluster.directory().join("large");
        fs::write(&large, noise(seed, mib * MIB)).unwrap();
        let put = self.quorumfs(&["put"]).args([&large]).args(["/"]);
        put.run().ok();
        self.share("/large", &[])
    }

    fn share(&self, path: &str, options: &[&str]) -> MadeLink {
        let shared = self.quorumfs(&["share", path, "--link"]).args(options);
        let line = shared.run().ok().records("link").remove(0);
        let url = line["url"].as_str().unwrap();
        MadeLink {
            id: line["id"].as_u64().unwrap(),
            target: url.strip_prefix(URL).unwrap().to_owned(),
        }
    }

    fn revoke(&self, link: &MadeLink) {
        let id = link.id.to_string();
        self.quorumfs(&["share", "revoke", &id]).run().ok();
    }

    fn get(&self, target: &str) -> HttpAnswer {
        self.gateway().get(target, "")
    }

    fn shares(&self) -> Vec<Value> {
        self.quorumfs(&["share", "ls"]).run().ok().records("share")
    }
}

/// A folder with files of several kinds and sizes, and a link out of it.
fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("2024/März")).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::write(tree.join("notes.txt"), "the notes").unwrap();
    fs::write(tree.join("page.html"), "<script>alert(1)</script>").unwrap();
    fs::write(tree.join("2024/one two.jpg"), noise(0, 100_000)).unwrap();
    fs::write(tree.join("2024/März/ä<b>&.bin"), noise(1, 5 * MIB + 7)).unwrap();
    symlink(format!("../{SECRET}.txt"), tree.join("out")).unwrap();
}

#[test]
fn a_link_leads_to_a_file_or_a_folder_until_it_is_revoked() {
    let site = Site::start();
    let file = site.share("/Photos/notes.txt", &[]);
    let folder = site.share("/Photos", &[]);
    let answer = site.get(&file.target);
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (200, "the notes")
    );
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(
        answer
            .header("content-disposition")
            .unwrap()
            .contains("\"notes.txt\"")
    );
    assert_eq!(site.get(&format!("{}/", file.target)).status(), 404);

    let page = site.get(&folder.target);
    assert_eq!(page.status(), 200);
    for part in [
        "<bdi>Photos</bdi>",
        "./2024/",
        "./notes.txt",
        "9 B",
        "symbolic link",
    ] {
        assert!(page.text().contains(part), "{part}: {}", page.text());
    }
    let inner = site.get(&format!("{}2024/M%C3%A4rz/", folder.target));
    assert!(
        inner.text().contains("ä&lt;b&gt;&amp;.bin"),
        "{}",
        inner.text()
    );
    let large = format!("{}2024/M%C3%A4rz/%C3%A4%3Cb%3E%26.bin", folder.target);
    let expected = fs::read(site.tree.join("2024/März/ä<b>&.bin")).unwrap();
    assert!(site.get(&large).body == expected);
    let part = site
        .gateway()
        .get(&large, "Range: bytes=4194300-4194310\r\n");
    assert_eq!(
        (part.status(), &part.body[..]),
        (206, &expected[4_194_300..4_194_311])
    );
    let last = site.gateway().get(&large, "Range: bytes=-3\r\n");
    assert_eq!(&last.body[..], &expected[expected.len() - 3..]);
    assert_eq!(site.get(&format!("{}empty", folder.target)).status(), 200);

    // What is served is what is there now.
    let tag = answer.header("etag").unwrap();
    let same = site
        .gateway()
        .get(&file.target, &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(same.status(), 304);
    fs::write(site.tree.join("notes.txt"), "other notes").unwrap();
    let changed = site.tree.join("notes.txt");
    let put = site.quorumfs(&["put"]).args([&changed]).args(["/Photos/"]);
    put.run().ok();
    eventually("the new content is served", Duration::from_secs(5), || {
        site.get(&format!("{}notes.txt", folder.target)).text() == "other notes"
    });

    let shares = site.shares();
    assert_eq!(shares.len(), 2);
    assert!(
        shares
            .iter()
            .all(|it| !it.to_string().contains(&file.target[3..]))
    );
    site.revoke(&file);
    assert_eq!(site.get(&file.target).status(), 404);
    assert_eq!(site.get(&folder.target).status(), 200);
    site.revoke(&folder);
    assert_eq!(site.get(&folder.target).status(), 404);
    assert!(site.shares().is_empty());
    site.quorumfs(&["share", "revoke", &file.id.to_string()])
        .run()
        .fails(2, "no share", "share ls");
}

#[test]
fn a_folder_is_downloaded_as_an_archive_that_equals_it() {
    let site = Site::start();
    let folder = site.share("/Photos", &[]);
    let zip = site.get(&format!("{}?zip", folder.target));
    assert!(zip.status() == 200 && zip.is_whole);
    assert!(
        zip.header("content-disposition")
            .unwrap()
            .contains("\"photos.zip\"")
    );
    let path = site.cluster.directory().join("all.zip");
    fs::write(&path, &zip.body).unwrap();
    let target = site.cluster.directory().join("unpacked");
    let script = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); \
                  assert z.testzip() is None; z.extractall(sys.argv[2])";
    let mut python = Command::new("python3");
    python.args(["-c", script]).args([&path, &target]);
    assert!(python.status().unwrap().success());
    let left_out = target.join("Photos/left-out-of-this-archive.txt");
    let text = fs::read_to_string(&left_out).unwrap();
    assert_eq!(text, "Photos/out: symbolic link\n");
    fs::remove_file(left_out).unwrap();
    fs::remove_file(site.tree.join("out")).unwrap();
    let mut compared = Command::new("diff");
    compared
        .arg("-r")
        .args([&site.tree, &target.join("Photos")]);
    assert!(compared.status().unwrap().success());
}

#[test]
fn a_link_ends_by_itself_when_its_time_has_come() {
    let site = Site::start();
    let folder = site.share("/Photos", &["--expires", "4s"]);
    let began = Instant::now();
    assert_eq!(site.get(&folder.target).status(), 200);
    eventually("the link ends", Duration::from_secs(10), || {
        site.get(&folder.target).status() == 404
    });
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(2) && took < Duration::from_secs(7),
        "{took:?}"
    );
    eventually("its row goes", Duration::from_secs(5), || {
        site.shares().is_empty()
    });
}

#[test]
fn a_download_stops_when_its_link_is_revoked() {
    let site = Site::start();
    let link = site.share_large(2, 96);
    let mut socket = site.gateway().connect();
    let request = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", link.target);
    socket.write_all(request.as_bytes()).unwrap();
    let mut beginning = vec![0; 4 * MIB];
    socket.read_exact(&mut beginning).unwrap();
    site.revoke(&link);
    std::thread::sleep(Duration::from_secs(2));
    let mut rest = Vec::new();
    assert!(socket.read_to_end(&mut rest).is_err(), "it looks complete");
    assert!(rest.len() < 48 * MIB, "{} bytes arrived", rest.len());
}

#[test]
fn a_download_of_a_file_that_is_changed_never_looks_complete() {
    let site = Site::start();
    let large = site.cluster.directory().join("large");
    let put = || {
        site.quorumfs(&["put"])
            .args([&large])
            .args(["/"])
            .run()
            .ok()
    };
    fs::write(&large, noise(4, 64 * MIB)).unwrap();
    put();
    let link = site.share("/large", &[]);
    let mut socket = site.gateway().connect();
    let request = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", link.target);
    socket.write_all(request.as_bytes()).unwrap();
    let mut beginning = vec![0; MIB];
    socket.read_exact(&mut beginning).unwrap();
    // In the same inode: the old file would be read to its end.
    let mount = site.cluster.mount_point();
    site.quorumfs(&["mount", "--background"])
        .args([&mount])
        .run()
        .ok();
    let mut file = fs::File::options()
        .write(true)
        .open(mount.join("large"))
        .unwrap();
    file.write_all(b"another beginning").unwrap();
    file.sync_all().unwrap();
    drop(file);
    site.quorumfs(&["umount"]).run().ok();
    let answer = HttpAnswer::read(&beginning[..]);
    assert_eq!(answer.status(), 200);
    let mut rest = Vec::new();
    let ended = socket.read_to_end(&mut rest);
    assert!(
        ended.is_err() || beginning.len() + rest.len() < 64 * MIB,
        "it looks complete"
    );
}

#[test]
fn without_the_replicas_nothing_is_served_and_with_them_everything_again() {
    let mut site = Site::start();
    let folder = site.share("/Photos", &[]);
    assert_eq!(site.get(&folder.target).status(), 200);
    site.cluster.kill_one(0);
    site.cluster.kill_one(1);
    let answer = site.get(&folder.target);
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("retry-after"), Some("10"));
    assert!(!answer.text().contains("notes"));
    site.cluster.start_some(0..2);
    eventually("links are served again", Duration::from_secs(60), || {
        site.get(&folder.target).status() == 200
    });
    let served = site.gateway.take().unwrap().stop();
    assert_eq!(served["type"], "served");
    assert!(served["requests"].as_u64().unwrap() >= 3);
}

#[test]
fn what_cannot_be_shared_or_served_is_said_with_what_to_do() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let run = |arguments: &[&str]| cluster.quorumfs().run_with(arguments);
    run(&["share", "/", "--link"]).fails(2, "not known under which URL", "[share]");
    let url = ["--url", "files.example"];
    run(&[&["share", "/", "--link"][..], &url].concat()).fails(2, "neither with https", "https://");
    let url = ["--url", URL];
    run(&[&["share", "/nothing", "--link"][..], &url].concat()).fails(9, "no such file", "");
    let shared = run(&[&["share", "/", "--link"][..], &url].concat()).ok();
    let line = shared.records("link").remove(0);
    assert_eq!(line["kind"], "directory");
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    run(&["serve", "--listen", &address]).fails(11, "cannot listen", "--listen");
    run(&[
        "serve",
        "--certificate",
        "/nothing",
        "--certificate-key",
        "/nothing",
    ])
    .fails(2, "no usable", "PEM");
}
