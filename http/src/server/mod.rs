//! Sockets, TLS and time: everything of the server that is not pure.
//!
//! | Module | What it does |
//! |---|---|
//! | `face` | what all connections share: the source, the counts, the bounds |
//! | `connection` | one connection, from its first byte to its last |
//! | `pace` | cuts a client that blocks an answer |
//! | `answer` | a request to its answer |
//! | `download` | content on its way: pieces, and how it is broken off |
//! | `folder` | a folder on its way, as an archive |
//! | `watched` | confirms links while something is downloaded |
//! | `tls` | the certificate, and its renewal |
//!
//! A connection is a task; a download is another one, which reads ahead by one piece while the
//! connection sends. The end of either ends the other. The server stops in order: it accepts
//! nothing more, lets answers that have begun end for [`ServingLimits::stop_within`], and cuts the
//! rest.

mod answer;
mod connection;
mod download;
mod face;
mod folder;
mod pace;
#[cfg(test)]
mod tests;
mod tls;
mod watched;

pub use face::Served;
pub use tls::{TlsFiles, TlsFilesError};

use crate::limits::{REFUSALS_MAX, ServingLimits};
use crate::source::LinkSource;
use connection::Cut;
use face::Face;
use pace::Paced;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// How often to look whether the certificate was renewed.
const RENEWED_EVERY: Duration = Duration::from_secs(60);
/// How long to wait after a connection could not be accepted, for lack of memory or files.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long a refused client may take to read that it is refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// What a client reads that has no connection left.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// How to serve.
#[derive(Clone, Debug, Default)]
pub struct ServingOptions {
    /// The bounds.
    pub limits: ServingLimits,
    /// The path of the URL under which the server is reached, without a slash at its end.
    pub base: String,
    /// Requests come from a proxy, which notes the client's address in `X-Forwarded-For`.
    pub trusts_forwarded: bool,
}

/// The server.
pub struct LinkServer {
    face: Arc<Face>,
}

impl LinkServer {
    /// A server of these links.
    #[must_use]
    pub fn new(source: Arc<dyn LinkSource>, options: ServingOptions) -> Self {
        Self {
            face: Arc::new(Face::new(source, options)),
        }
    }

    /// Serves until `stop`, and then for as long as what has begun may take.
    pub async fn run(
        &self,
        listener: TcpListener,
        tls: Option<TlsFiles>,
        stop: impl Future<Output = ()>,
    ) -> Served {
        let (stopping, stopped) = watch::channel(false);
        let (mut tasks, mut stop) = (JoinSet::new(), pin!(stop));
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let tls = tls.map(Arc::new);
        let mut renewal = interval(RENEWED_EVERY);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, peer)) => {
                        let (tls, refusals) = (tls.clone(), refusals.clone());
                        self.admit(&mut tasks, socket, peer.ip(), tls, &refusals, &stopped);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        sleep(ACCEPT_AGAIN_AFTER).await;
                    }
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                _ = renewal.tick(), if tls.is_some() => {
                    if let Some(tls) = &tls {
                        tls.renew();
                    }
                }
            }
        }
        drop(listener);
        let _ = stopping.send(true);
        let ended = timeout(self.face.limits().stop_within, async {
            while tasks.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            tracing::info!(
                connections = tasks.len(),
                "cut, since they took too long to end"
            );
            tasks.shutdown().await;
        }
        self.face.served()
    }

    /// Begins to serve a connection, or refuses it.
    fn admit(
        &self,
        tasks: &mut JoinSet<()>,
        socket: TcpStream,
        peer: IpAddr,
        tls: Option<Arc<TlsFiles>>,
        refusals: &Arc<Semaphore>,
        stopped: &watch::Receiver<bool>,
    ) {
        let Some(slot) = self.face.connect(peer) else {
            if let Ok(permit) = refusals.clone().try_acquire_owned() {
                let secured = tls.is_some();
                tasks.spawn(async move {
                    let _permit = permit;
                    let _ = timeout(REFUSED_WITHIN, refuse(socket, secured)).await;
                });
            }
            return;
        };
        let (face, stopped) = (self.face.clone(), stopped.clone());
        tasks.spawn(async move {
            let _slot = slot;
            let _ = socket.set_nodelay(true);
            let (cut, limits) = (Arc::new(Cut::default()), face.limits().clone());
            let paced = Paced::new(socket, cut.clone(), &limits);
            match tls {
                None => connection::serve(face, paced, peer, cut, stopped).await,
                Some(tls) => {
                    let secured = timeout(limits.handshake_within, tls.accept(paced)).await;
                    match secured {
                        Ok(Ok(secured)) => {
                            connection::serve(face, secured, peer, cut, stopped).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                }
            }
        });
    }

    /// Serves one connection over any stream of bytes, until its end.
    pub async fn serve_stream<IO>(&self, stream: IO, peer: IpAddr)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (_stopping, stopped) = watch::channel(false);
        let cut = Arc::new(Cut::default());
        connection::serve(self.face.clone(), stream, peer, cut, stopped).await;
    }
}

/// Tells a client that there are too many, and lets it read that.
async fn refuse(mut socket: TcpStream, secured: bool) {
    if secured || socket.write_all(FULL).await.is_err() {
        return;
    }
    let _ = socket.shutdown().await;
    // Closing with unread bytes would discard the answer.
    let (mut unread, began) = ([0; 1024], Instant::now());
    while began.elapsed() < REFUSED_WITHIN {
        match socket.read(&mut unread).await {
            Ok(1..) => {}
            _ => return,
        }
    }
}
