//! A running `quorumfs serve`, and an HTTP client that sends what a test wants, right or wrong.

use super::command::Quorumfs;
use super::running::{Reaped, terminate};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

/// How long an answer may take that a test waits for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// A gateway that serves links.
#[derive(Debug)]
pub struct LinkGateway {
    child: Reaped,
    stdout: BufReader<ChildStdout>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it logs.
    pub log: PathBuf,
}

impl LinkGateway {
    /// Starts `serve` with these options, on a free port of loopback unless they say otherwise.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    #[track_caller]
    pub fn start(quorumfs: Quorumfs, options: &[&str], log: PathBuf) -> Self {
        let mut command = quorumfs.args(["serve"]).args(options);
        if !options.contains(&"--listen") {
            command = command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut command = command.args(["--log", "debug"]).command();
        let errors = std::fs::File::create(&log).unwrap();
        command.stdout(Stdio::piped()).stderr(errors);
        let mut child = Reaped(command.spawn().unwrap());
        let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let errors = std::fs::read_to_string(&log).unwrap_or_default();
        let record: Value = serde_json::from_str(&line).unwrap_or_default();
        assert_eq!(record["type"], "serving", "{line}\n{errors}");
        Self {
            child,
            stdout,
            address: record["listen"].as_str().unwrap().parse().unwrap(),
            log,
        }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// A connection.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(ANSWERED_WITHIN)).unwrap();
        socket.set_write_timeout(Some(ANSWERED_WITHIN)).unwrap();
        socket
    }

    /// Sends these bytes and reads to the end, which may be a broken one.
    #[must_use]
    #[track_caller]
    pub fn exchange(&self, request: &[u8]) -> HttpAnswer {
        let mut socket = self.connect();
        let _ = socket.write_all(request);
        HttpAnswer::read(socket)
    }

    /// Gets what is at the target, with more headers, each of which ends its line.
    #[must_use]
    #[track_caller]
    pub fn get(&self, target: &str, headers: &str) -> HttpAnswer {
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n",
            self.address
        );
        self.exchange(request.as_bytes())
    }

    /// Stops it as systemd does; returns what it says in the end.
    ///
    /// # Panics
    /// If it does not stop successfully.
    #[track_caller]
    pub fn stop(mut self) -> Value {
        let status = terminate(&mut self.child).expect("serve does not stop");
        assert!(status.success(), "serve stopped with {status}");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        serde_json::from_str(rest.trim()).unwrap()
    }
}

/// An answer.
#[derive(Debug)]
pub struct HttpAnswer {
    /// Its lines before the content, in lower case.
    pub head: String,
    /// Its content.
    pub body: Vec<u8>,
    /// Whether it was all of it.
    pub is_whole: bool,
}

impl HttpAnswer {
    /// Reads an answer to its end.
    #[must_use]
    pub fn read(mut from: impl Read) -> Self {
        let mut bytes = Vec::new();
        let ended = from.read_to_end(&mut bytes).is_ok();
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
        let end = end.unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let body = bytes.get(end + 4..).unwrap_or_default();
        let mut answer = Self {
            head,
            body: body.to_vec(),
            is_whole: ended,
        };
        if answer.header("transfer-encoding") == Some("chunked") {
            let (content, is_whole) = unchunked(body);
            (answer.body, answer.is_whole) = (content, ended && is_whole);
        } else if let Some(length) = answer.header("content-length") {
            answer.is_whole = length.parse() == Ok(answer.body.len());
        }
        answer
    }

    /// Its status; 0 if there was no answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        let digits = self.head.split(' ').nth(1);
        digits.and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    /// A header's value, in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(it, _)| *it == name).map(|(_, value)| value)
    }

    /// Its content as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Content without its chunks' heads, and whether its last chunk was there.
fn unchunked(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut whole = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|it| it == b"\r\n") else {
            return (whole, false);
        };
        let digits = std::str::from_utf8(&bytes[..end]).unwrap_or_default();
        let Ok(length) = usize::from_str_radix(digits, 16) else {
            return (whole, false);
        };
        if length == 0 {
            return (whole, true);
        }
        let begin = end + 2;
        let Some(chunk) = bytes.get(begin..begin + length) else {
            whole.extend_from_slice(&bytes[begin..]);
            return (whole, false);
        };
        whole.extend_from_slice(chunk);
        bytes = bytes.get(begin + length + 2..).unwrap_or_default();
    }
}
