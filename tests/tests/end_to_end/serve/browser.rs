//! A person with a browser: opens a link, looks at the folder, clicks on a file, and has it.
//!
//! The browser is Chromium without a window, driven through its debugging pipe
//! (`--remote-debugging-pipe`: messages of JSON, each with a zero byte behind it, on descriptors 3
//! and 4). Clicks are those of a mouse, so that the page's own rules decide what may happen.

use super::Site;
use quorumfs_tests::harness::eventually;
use rustix::fs::Mode;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// Fresh, and without anything that reaches for the network by itself.
const OPTIONS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];

fn chromium(profile: &Path) -> Command {
    let profile = format!("--user-data-dir={}", profile.display());
    let mut words = vec!["chromium"];
    words.extend(OPTIONS);
    let mut command = Command::new("env");
    command
        .args(["-u", "DBUS_SESSION_BUS_ADDRESS"])
        .args(words)
        .arg(profile);
    command
}

struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    number: u64,
    session: Option<String>,
    events: Vec<Value>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Browser {
    fn start(directory: &Path) -> Self {
        let pipes = ["in", "out"].map(|it| directory.join(it));
        for pipe in &pipes {
            let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR);
            rustix::fs::mknodat(rustix::fs::CWD, pipe, kind, mode, 0).unwrap();
        }
        let browser = chromium(&directory.join("profile"));
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "exec 3<\"$0\" 4>\"$1\"; shift; exec \"$@\""])
            .args(&pipes);
        shell.arg(browser.get_program()).args(browser.get_args());
        shell.args(["--remote-debugging-pipe", "about:blank"]);
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = shell
            .spawn()
            .expect("chromium is needed: scripts/setup installs it");
        let to = File::options().write(true).open(&pipes[0]).unwrap();
        let from = BufReader::new(File::open(&pipes[1]).unwrap());
        Self {
            process,
            to,
            from,
            number: 0,
            session: None,
            events: Vec::new(),
        }
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&message).unwrap()
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn wait_for(&mut self, event: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            if let Some(at) = self.events.iter().position(&event) {
                return self.events.remove(at);
            }
            assert!(began.elapsed() < ANSWERED_WITHIN, "{:?}", self.events);
            let received = self.receive();
            self.events.push(received);
        }
    }

    /// Opens a page of its own.
    fn open(&mut self, url: &str) {
        let made = self.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": made["targetId"], "flatten": true});
        let attached = self.ask("Target.attachToTarget", attach);
        self.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        self.ask("Page.enable", json!({}));
        self.ask("Page.navigate", json!({"url": url}));
        self.wait_for(|it| it["method"] == "Page.loadEventFired");
        self.events.clear();
    }

    /// The page as text of HTML.
    fn page(&mut self) -> String {
        let document = self.ask("DOM.getDocument", json!({}));
        let node = document["root"]["nodeId"].clone();
        let html = self.ask("DOM.getOuterHTML", json!({"nodeId": node}));
        html["outerHTML"].as_str().unwrap().to_owned()
    }

    /// Clicks on the first thing that a selector finds.
    fn click(&mut self, selector: &str) {
        let document = self.ask("DOM.getDocument", json!({}));
        let node = document["root"]["nodeId"].clone();
        let asked = json!({"nodeId": node, "selector": selector});
        let found = self.ask("DOM.querySelector", asked)["nodeId"].clone();
        assert_ne!(found, 0, "{selector}");
        let quads = self.ask("DOM.getContentQuads", json!({"nodeId": found}));
        let at = |index: usize| quads["quads"][0][index].as_f64().unwrap();
        let (x, y) = ((at(0) + at(4)) / 2.0, (at(1) + at(5)) / 2.0);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({
                "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1
            });
            self.ask("Input.dispatchMouseEvent", event);
        }
    }

    /// Waits until something that was clicked on is downloaded.
    fn downloaded(&mut self) {
        let state = |it: &Value| it["params"]["state"].as_str().map(str::to_owned);
        let ended = self.wait_for(|it| {
            it["method"] == "Browser.downloadProgress"
                && state(it).is_some_and(|state| state != "inProgress")
        });
        assert_eq!(ended["params"]["state"], "completed", "{ended}");
    }
}

#[test]
fn a_person_with_a_browser_opens_a_link_looks_and_downloads() {
    let site = Site::start();
    let folder = site.share("/Photos", &[]);
    let url = format!("http://{}{}", site.gateway().address, folder.target);

    let directory = tempfile::tempdir().unwrap();
    let dumped = chromium(&directory.path().join("dumping"))
        .args(["--dump-dom", &url])
        .output()
        .expect("chromium is needed: scripts/setup installs it");
    let page = String::from_utf8_lossy(&dumped.stdout).into_owned();
    assert!(
        page.contains("notes.txt") && page.contains("Download all"),
        "{page}"
    );

    let downloads = directory.path().join("downloads");
    fs::create_dir(&downloads).unwrap();
    let mut browser = Browser::start(directory.path());
    let allowed = json!({
        "behavior": "allow", "downloadPath": downloads, "eventsEnabled": true
    });
    browser.ask("Browser.setDownloadBehavior", allowed);
    browser.open(&url);
    assert!(browser.page().contains("<bdi>Photos</bdi>"));

    // Into a folder, and a picture is shown.
    browser.click("a[href='./2024/']");
    browser.wait_for(|it| it["method"] == "Page.loadEventFired");
    let page = browser.page();
    assert!(
        page.contains("one two.jpg") && page.contains("März"),
        "{page}"
    );
    // A page with scripts is downloaded and not run, and so is the whole folder.
    browser.click("a[href='../']");
    browser.wait_for(|it| it["method"] == "Page.loadEventFired");
    browser.click("a[href='./page.html']");
    browser.downloaded();
    let saved = downloads.join("page.html");
    assert_eq!(
        fs::read(&saved).unwrap(),
        fs::read(site.tree.join("page.html")).unwrap()
    );
    browser.events.clear();
    browser.click("a[href='./?zip']");
    browser.downloaded();
    let archive = downloads.join("Photos.zip");
    eventually("the archive has its name", Duration::from_secs(10), || {
        archive.exists()
    });
    let mut python = Command::new("python3");
    python.args(["-m", "zipfile", "-t"]).arg(&archive);
    assert!(python.status().unwrap().success());
    // Text is shown, since nothing in it can run.
    browser.click("a[href='./notes.txt']");
    browser.wait_for(|it| it["method"] == "Page.loadEventFired");
    assert!(browser.page().contains("the notes"));
}
