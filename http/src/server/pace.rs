//! A client that blocks an answer is cut.
//!
//! Only the time counts in which bytes are ready and the client takes none. After
//! [`slow_window`](crate::ServingLimits::slow_window) of it the client must have taken
//! [`slow_bytes`](crate::ServingLimits::slow_bytes), or its connection ends. So a download that
//! waits for clouds is not the client's fault, and a client that takes a byte a minute is.

use super::connection::Cut;
use crate::limits::ServingLimits;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// How much a client takes while it could have more; pure.
#[derive(Clone, Copy, Debug)]
struct TakingPace {
    window: Duration,
    least: u64,
    blocked: Duration,
    since: Option<Instant>,
    taken: u64,
}

impl TakingPace {
    const fn new(window: Duration, least: u64) -> Self {
        Self {
            window,
            least,
            blocked: Duration::ZERO,
            since: None,
            taken: 0,
        }
    }

    /// The client took some bytes.
    fn took(&mut self, bytes: usize, now: Instant) {
        if let Some(since) = self.since.take() {
            self.blocked += now.duration_since(since);
        }
        self.taken = self.taken.saturating_add(bytes as u64);
        if self.taken >= self.least {
            (self.taken, self.blocked) = (0, Duration::ZERO);
        }
    }

    /// The client takes nothing now: until when it may go on so.
    fn blocks(&mut self, now: Instant) -> Instant {
        let since = *self.since.get_or_insert(now);
        since + self.window.saturating_sub(self.blocked)
    }
}

/// A socket whose client is watched.
pub(super) struct Paced {
    socket: TcpStream,
    cut: Arc<Cut>,
    pace: TakingPace,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(socket: TcpStream, cut: Arc<Cut>, limits: &ServingLimits) -> Self {
        Self {
            socket,
            cut,
            pace: TakingPace::new(limits.slow_window, limits.slow_bytes),
            alarm: None,
        }
    }

    fn judge(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.pace.took(bytes, now);
                self.alarm = None;
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let until = self.pace.blocks(now);
                let alarm = self
                    .alarm
                    .get_or_insert_with(|| Box::pin(sleep_until(until)));
                ready!(alarm.as_mut().poll(context));
                tracing::debug!("a client took too little for too long, and is cut");
                self.cut.now();
                Poll::Ready(Err(ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, pieces);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        // Bytes that the kernel still has are not sent, and the client sees a reset.
        if self.cut.is_wanted() {
            let _ = self.socket.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(15);

    #[test]
    fn only_time_in_which_the_client_blocks_counts() {
        let (mut pace, start) = (TakingPace::new(WINDOW, 1000), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pace.blocks(at(0)), at(15));
        pace.took(10, at(5));
        // The source took ten minutes.
        assert_eq!(pace.blocks(at(605)), at(615));
        assert_eq!(pace.blocks(at(610)), at(615));
        // It took enough: a new window.
        pace.took(990, at(610));
        assert_eq!(pace.blocks(at(700)), at(715));
    }

    #[test]
    fn a_byte_now_and_then_is_not_enough() {
        let (mut pace, start) = (TakingPace::new(WINDOW, 1000), Instant::now());
        let mut now = start;
        while pace.blocks(now) > now {
            now += Duration::from_secs(1);
            pace.took(1, now);
        }
        assert_eq!(now.duration_since(start), WINDOW);
    }
}
