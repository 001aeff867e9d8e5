//! A TCP socket that can move to another thread's runtime.
//!
//! Connections are accepted and secured on any free thread, because a handshake takes half a dozen
//! operations on curves and any host may ask for one. Admitted connections belong on the thread of
//! the replica, next to the core: a frame then wakes no other thread on its way. Moving a socket
//! means that another runtime watches it from now on; bytes that TLS has buffered stay with TLS.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP connection, watched by the runtime that created it or to which it moved last.
#[derive(Debug)]
pub struct Socket(Option<TcpStream>);

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self(Some(stream))
    }
}

impl Socket {
    /// Registers the socket with the calling runtime.
    ///
    /// # Errors
    /// If the system refuses; the socket is closed then.
    pub fn settle(&mut self) -> Result<()> {
        let stream = self.0.take().ok_or_else(gone)?;
        self.0 = Some(TcpStream::from_std(stream.into_std()?)?);
        Ok(())
    }

    fn stream(self: Pin<&mut Self>) -> Result<Pin<&mut TcpStream>> {
        self.get_mut().0.as_mut().map(Pin::new).ok_or_else(gone)
    }
}

/// Only after a failed move.
fn gone() -> Error {
    Error::new(
        ErrorKind::NotConnected,
        "the socket was lost while it moved",
    )
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match slices {
            // The usual case, and cheaper for the kernel.
            [one] => self.stream()?.poll_write(context, one),
            several => self.stream()?.poll_write_vectored(context, several),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}
