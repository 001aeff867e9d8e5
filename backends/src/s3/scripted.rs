//! An HTTP server that gives scripted answers and logs its requests.
//!
//! For cases that no emulator produces: truncated, missing and invalid answers.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The method.
    pub(crate) method: String,
    /// The path and query.
    pub(crate) target: String,
    /// The head as received.
    pub(crate) head: String,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// These bytes, then the end of the connection.
    Bytes(Vec<u8>),
    /// No answer, for ever.
    Silence,
}

impl Reply {
    /// A complete answer.
    pub(crate) fn new(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        Self::claiming(status, headers, body.as_ref().len(), body)
    }

    /// An answer that declares so many bytes.
    pub(crate) fn claiming(
        status: &str,
        headers: &[(&str, &str)],
        length: usize,
        body: impl AsRef<[u8]>,
    ) -> Self {
        let mut bytes = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "transfer-encoding") {
            bytes.push_str(&format!("content-length: {length}\r\n"));
        }
        for (name, value) in headers {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut bytes = format!("{bytes}\r\n").into_bytes();
        bytes.extend_from_slice(body.as_ref());
        Self::Bytes(bytes)
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Scripted {
    /// `http://127.0.0.1:PORT`.
    pub(crate) endpoint: String,
    asked: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripted {
    /// Answers each request with the result of `answer`.
    pub(crate) async fn serve(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (Arc::clone(&asked), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                tokio::spawn(async move {
                    let _ = serve_connection(stream, &kept, &*answer).await;
                });
            }
        });
        Self {
            endpoint,
            asked,
            task,
        }
    }

    /// The requests so far, in order.
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    kept: &Mutex<Vec<Request>>,
    answer: &(dyn Fn(&Request) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut read = Vec::new();
    let head_bytes = loop {
        if let Some(at) = read.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
    };
    let mut body = read.split_off(head_bytes);
    let head = String::from_utf8_lossy(&read).into_owned();
    let mut words = head.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next(), words.next());
    let mut request = Request {
        method: method.unwrap_or_default(),
        target: target.unwrap_or_default(),
        head,
        body: Vec::new(),
    };
    let length = request.header("content-length").map(str::parse::<usize>);
    let length = length.and_then(Result::ok).unwrap_or(0);
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            break;
        }
    }
    request.body = body;
    let reply = answer(&request);
    kept.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(request);
    match reply {
        Reply::Silence => pending().await,
        Reply::Bytes(bytes) => {
            // The client may hang up when it has read enough.
            let _ = stream.write_all(&bytes).await;
            stream.shutdown().await
        }
    }
}
