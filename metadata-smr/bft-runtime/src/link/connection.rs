//! A connection after the greeting: one task writes the frames of the outbox, its owner reads.
//!
//! The writer moves all waiting frames into one buffer and passes it to TLS in one piece, so that a
//! burst of small votes costs one record and one system call. It flushes before it waits again, and
//! sends a keepalive when it has had nothing to send for a while. A peer that reads nothing ends
//! the connection after the write deadline; until then it costs the outbox's bound and nothing
//! else.

use super::LinkError;
use super::frame::{Frame, HEADER_BYTES, Kind, Reader};
use super::outbox::Outbox;
use crate::limits;
use crate::tls::SecuredStream;
use std::sync::Arc;
use tokio::io::{AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::task::JoinHandle;

/// The reading half of a greeted connection.
pub type FrameReader = Reader<ReadHalf<SecuredStream>>;

/// A greeted connection, before its outbox is attached.
#[derive(Debug)]
pub struct Greeted {
    pub(crate) reader: Reader<SecuredStream>,
}

/// Stops a connection's writer when it is dropped.
#[derive(Debug)]
pub struct Writing {
    task: JoinHandle<LinkError>,
}

impl Writing {
    /// Waits until the writer has given up, and returns the reason.
    pub async fn ended(&mut self) -> LinkError {
        match (&mut self.task).await {
            Ok(error) => error,
            Err(_) => LinkError::Ended,
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Greeted {
    /// Moves the connection to the runtime that calls this.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn settle(&mut self) -> Result<(), LinkError> {
        let (socket, _) = self.reader.stream().get_mut();
        socket.settle().map_err(LinkError::Broken)
    }

    /// Starts to send the frames of `outbox`; frames of at most `payload_bytes_max` are read.
    #[must_use]
    pub fn start(self, outbox: Arc<Outbox>, payload_bytes_max: usize) -> (FrameReader, Writing) {
        let (reader, writer) = self.reader.split(payload_bytes_max);
        let task = tokio::spawn(write_all(writer, outbox));
        (reader, Writing { task })
    }
}

/// Writes until an error occurs or the outbox is closed.
async fn write_all<W: AsyncWrite + Unpin>(mut half: W, outbox: Arc<Outbox>) -> LinkError {
    let mut frames = Vec::new();
    let mut bytes = Vec::new();
    loop {
        let waiting = outbox.take(limits::WRITE_CHUNK_BYTES, &mut frames);
        match tokio::time::timeout(limits::KEEPALIVE, waiting).await {
            Ok(true) => {}
            Ok(false) => {
                let _ = tokio::time::timeout(limits::WRITE_DEADLINE, half.shutdown()).await;
                return LinkError::Ended;
            }
            Err(_) => frames.push(Frame::empty(Kind::Keepalive)),
        }
        if let Err(error) = write_some(&mut half, &mut frames, &mut bytes).await {
            return error;
        }
    }
}

/// Writes these frames and flushes.
async fn write_some<W: AsyncWrite + Unpin>(
    half: &mut W,
    frames: &mut Vec<Frame>,
    bytes: &mut Vec<u8>,
) -> Result<(), LinkError> {
    bytes.clear();
    bytes.reserve(
        frames
            .iter()
            .map(|frame| frame.payload.len() + HEADER_BYTES)
            .sum(),
    );
    for frame in frames.drain(..) {
        bytes.extend_from_slice(&frame.header()?);
        bytes.extend_from_slice(&frame.payload);
    }
    for chunk in bytes.chunks(limits::WRITE_CHUNK_BYTES) {
        within(half.write_all(chunk)).await?;
    }
    within(half.flush()).await?;
    if bytes.capacity() > limits::WRITE_CHUNK_BYTES {
        *bytes = Vec::new();
    }
    Ok(())
}

async fn within(writing: impl Future<Output = std::io::Result<()>>) -> Result<(), LinkError> {
    match tokio::time::timeout(limits::WRITE_DEADLINE, writing).await {
        Err(_) => Err(LinkError::Stuck(limits::WRITE_DEADLINE)),
        Ok(Err(error)) => Err(LinkError::Broken(error)),
        Ok(Ok(())) => Ok(()),
    }
}

/// Sends one frame at once, outside any outbox: for greetings.
pub(crate) async fn write_frame<W: AsyncWrite + Unpin>(
    half: &mut W,
    frame: Frame,
) -> Result<(), LinkError> {
    write_some(half, &mut vec![frame], &mut Vec::new()).await
}
