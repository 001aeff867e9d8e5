//! A server on loopback that gives prepared answers, for cases that real servers cannot produce.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The answer to a connection's request.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedAnswer {
    /// These bytes, then the end of the connection.
    Bytes(Vec<u8>),
    /// The first bytes once, the second over and over until the reader stops.
    Endless(Vec<u8>, Vec<u8>),
    /// These bytes, then no more, for ever.
    Stalled(Vec<u8>),
    /// No answer, for ever.
    Silence,
}

impl ScriptedAnswer {
    /// A complete answer; its length is added, unless `headers` have one.
    pub(crate) fn whole(status: &str, headers: &str, body: &str) -> Self {
        let length = match headers.to_lowercase().contains("content-length") {
            true => String::new(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        let lines: String = headers.lines().map(|line| format!("{line}\r\n")).collect();
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{length}{lines}\r\n");
        Self::Bytes(format!("{head}{body}").into_bytes())
    }
}

/// The server; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Scripted {
    /// Gives one answer after the other and repeats the last one.
    pub(crate) async fn start(answers: Vec<ScriptedAnswer>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (answers, seen) = (answers.clone(), Arc::clone(&seen));
                connections.spawn(serve(stream, answers, seen));
            }
        });
        Self {
            address,
            requests,
            task,
        }
    }

    /// The heads of the requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answers: Vec<ScriptedAnswer>, seen: Arc<Mutex<Vec<String>>>) {
    let Some(head) = request(&mut stream).await else {
        return;
    };
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(head);
        seen.len()
    };
    match &answers[number.min(answers.len()) - 1] {
        ScriptedAnswer::Bytes(bytes) => {
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
        }
        ScriptedAnswer::Endless(head, piece) => {
            let mut written = stream.write_all(head).await;
            while written.is_ok() {
                written = stream.write_all(piece).await;
            }
        }
        ScriptedAnswer::Stalled(bytes) => {
            let _ = stream.write_all(bytes).await;
            std::future::pending().await
        }
        ScriptedAnswer::Silence => std::future::pending().await,
    }
}

/// Reads a request to its end; returns its head.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = vec![0; 64 << 10];
        let length = stream.read(&mut piece).await.ok().filter(|it| *it > 0)?;
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, _)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let lower = head.to_lowercase();
        let announced = lower.split_once("content-length: ").map_or(0, |(_, rest)| {
            rest.lines().next().unwrap().trim().parse().unwrap()
        });
        if bytes.len() >= head.len() + 4 + announced {
            return Some(head.to_owned());
        }
    }
}
