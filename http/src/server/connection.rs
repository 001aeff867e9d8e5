//! One connection: requests one after the other, each with its answer.

use super::answer::answer;
use super::face::Face;
use crate::limits::{HEAD_BYTES_MAX, HEADERS_MAX};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

/// Tells a connection to end at once, with what is on its way.
#[derive(Debug, Default)]
pub(super) struct Cut {
    is_wanted: AtomicBool,
    bell: Notify,
}

impl Cut {
    /// Ends the connection: its client sees an error and not an end.
    pub(super) fn now(&self) {
        self.is_wanted.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Whether it was.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }
}

/// Serves a connection until its end.
pub(super) async fn serve<IO>(
    face: Arc<Face>,
    stream: IO,
    peer: IpAddr,
    cut: Arc<Cut>,
    mut stopped: watch::Receiver<bool>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let head_within = face.limits().head_within;
    let bell = cut.clone();
    let service = service_fn(move |request| {
        let (face, cut) = (face.clone(), cut.clone());
        async move { Ok::<_, Infallible>(answer(&face, peer, &cut, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            () = bell.bell.notified() => return,
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            changed = stopped.changed(), if !is_stopping => {
                // Also if the server is gone.
                is_stopping = true;
                if changed.is_ok() {
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
