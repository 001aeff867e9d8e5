//! Requests to an S3 server, signed with Amazon's signature version 4: for requests that our
//! drivers cannot make, and an attacker can.

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const REGION: &str = "us-east-1";
const TRIES: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);

/// The credentials of a request.
#[derive(Debug, Clone)]
pub struct Keys {
    id: String,
    secret: String,
}

/// A request that is being composed.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    method: &'a str,
    path: &'a str,
    query: Vec<(&'a str, &'a str)>,
    headers: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
}

/// The server's answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl Keys {
    /// The keys in a credentials file of one section.
    ///
    /// # Panics
    /// If the file lacks one of them.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.map(|(_, value)| value.trim().to_owned())
        };
        Self {
            id: value("aws_access_key_id").unwrap(),
            secret: value("aws_secret_access_key").unwrap(),
        }
    }
}

impl Answer {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl<'a> Request<'a> {
    /// A request to S3.
    #[must_use]
    pub fn new(method: &'a str, path: &'a str) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            headers: Vec::new(),
            body: b"",
        }
    }

    /// Adds a part of the query.
    #[must_use]
    pub fn query(mut self, name: &'a str, value: &'a str) -> Self {
        self.query.push((name, value));
        self
    }

    /// Adds a header, in lower case.
    #[must_use]
    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    /// Signs it, sends it, and waits for the answer.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn send(self, address: SocketAddr, keys: &Keys) -> Answer {
        let time = timestamp();
        let (host, hash) = (address.to_string(), hexadecimal(&sha256(self.body)));
        let checksum = STANDARD.encode(sha256(self.body));
        let mut headers = self.headers.clone();
        if !self.body.is_empty() {
            // Some requests are refused without a checksum.
            headers.push(("x-amz-checksum-sha256", &checksum));
        }
        headers.extend([
            ("host", host.as_str()),
            ("x-amz-content-sha256", &hash),
            ("x-amz-date", &time),
        ]);
        headers.sort_unstable();
        let mut query = self.query.clone();
        query.sort_unstable();
        let query = query
            .iter()
            .map(|(name, value)| format!("{name}={}", encoded(value)));
        let query = query.collect::<Vec<_>>().join("&");
        let names = headers.iter().map(|(name, _)| *name);
        let names = names.collect::<Vec<_>>().join(";");
        let mut canonical = format!("{}\n{}\n{query}\n", self.method, self.path);
        let mut lines = String::new();
        for (name, value) in &headers {
            writeln!(canonical, "{name}:{value}").unwrap();
            write!(lines, "{name}: {value}\r\n").unwrap();
        }
        write!(canonical, "\n{names}\n{hash}").unwrap();
        let scope = format!("{}/{REGION}/s3/aws4_request", &time[..8]);
        let canonical = hexadecimal(&sha256(canonical.as_bytes()));
        let signed = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{canonical}");
        let mut key = format!("AWS4{}", keys.secret).into_bytes();
        for part in scope.split('/') {
            key = mac(&key, part);
        }
        let signature = hexadecimal(&mac(&key, &signed));
        // HTTP/1.0: the answer is in one piece and ends with the connection.
        let head = format!(
            "{} {}?{query} HTTP/1.0\r\n{lines}authorization: AWS4-HMAC-SHA256 \
             Credential={}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\
             content-length: {}\r\n\r\n",
            self.method,
            self.path,
            keys.id,
            self.body.len()
        );
        let whole = [head.as_bytes(), self.body].concat();
        // A server that refuses before it has read everything sometimes resets the connection.
        let mut tries = (0..TRIES).map(|_| exchange(address, &whole));
        let mut answer = tries.find_map(Result::ok).expect("an answer");
        let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            body: answer.split_off(end + 4),
        }
    }
}

fn exchange(address: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().to_vec()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Percent-encodes all bytes but the unreserved characters of a URL.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => write!(encoded, "%{byte:02X}").unwrap(),
        }
    }
    encoded
}

/// Now, as `20261123T101500Z`.
fn timestamp() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let (mut days, second) = (now / 86_400, now % 86_400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}{month:02}{:02}T{hour:02}{minute:02}{second:02}Z",
        days + 1
    )
}
