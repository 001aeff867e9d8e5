//! Frames on a secured connection: length, kind, payload.
//!
//! ```text
//!   offset  bytes  what
//!   0       4      length of the payload, big-endian
//!   4       1      kind
//!   5       …      payload
//! ```
//!
//! The length is checked against the connection's limit before a byte of payload is read or memory
//! for it is allocated; memory then grows with the bytes received, never with the announced length.
//! A small frame is copied out of the read buffer, so that a vote that is kept for long does not
//! keep sixteen kilobytes of neighbouring frames alive.

use super::LinkError;
use crate::limits;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf, WriteHalf};

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;
/// Frames up to this size are copied out of the read buffer.
const COPY_BYTES_MAX: usize = 32 << 10;
const READ_BYTES: usize = 16 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing to send, but alive.
    Keepalive,
    /// A message of the ordering library.
    Message,
    /// The greeting, first in each direction.
    Hello,
}

impl Kind {
    /// Its byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Keepalive => 0,
            Self::Message => 1,
            Self::Hello => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Keepalive,
            1 => Self::Message,
            2 => Self::Hello,
            _ => return None,
        })
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// Its content.
    pub payload: Bytes,
}

impl Frame {
    /// A message of the ordering library.
    #[must_use]
    pub fn message(payload: Bytes) -> Self {
        Self {
            kind: Kind::Message,
            payload,
        }
    }

    /// A frame without payload.
    #[must_use]
    pub fn empty(kind: Kind) -> Self {
        Self {
            kind,
            payload: Bytes::new(),
        }
    }

    /// The bytes before the payload.
    ///
    /// # Errors
    /// If the payload is longer than the length field allows.
    pub fn header(&self) -> Result<[u8; HEADER_BYTES], LinkError> {
        let length = u32::try_from(self.payload.len()).map_err(|_| LinkError::Oversized {
            bytes: u32::MAX,
            limit: u32::MAX as usize,
        })?;
        let [a, b, c, d] = length.to_be_bytes();
        Ok([a, b, c, d, self.kind.byte()])
    }
}

/// Splits incoming bytes into frames.
#[derive(Debug)]
pub struct Reader<R> {
    half: R,
    buffer: BytesMut,
    payload_bytes_max: usize,
}

impl<R: AsyncRead + AsyncWrite> Reader<R> {
    /// Splits off the writing half, and allows larger frames from now on, once the peer's identity
    /// is verified.
    pub fn split(self, payload_bytes_max: usize) -> (Reader<ReadHalf<R>>, WriteHalf<R>) {
        let (half, writer) = tokio::io::split(self.half);
        let reader = Reader {
            half,
            buffer: self.buffer,
            payload_bytes_max,
        };
        (reader, writer)
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads frames of at most `payload_bytes_max` bytes.
    pub fn new(half: R, payload_bytes_max: usize) -> Self {
        Self {
            half,
            buffer: BytesMut::new(),
            payload_bytes_max,
        }
    }

    /// The stream that it reads from.
    pub fn stream(&mut self) -> &mut R {
        &mut self.half
    }

    /// The next frame that is not a keepalive.
    ///
    /// # Errors
    /// If the connection ends, is silent for too long, or carries something that is not a frame.
    pub async fn next(&mut self) -> Result<Frame, LinkError> {
        loop {
            match self.take_frame()? {
                Some(frame) if frame.kind == Kind::Keepalive => {}
                Some(frame) => return Ok(frame),
                None => self.fill().await?,
            }
        }
    }

    /// Takes one complete frame off the buffer, if there is one.
    fn take_frame(&mut self) -> Result<Option<Frame>, LinkError> {
        let Some((header, rest)) = self.buffer.split_at_checked(HEADER_BYTES) else {
            return Ok(None);
        };
        let &[a, b, c, d, kind] = header else {
            return Ok(None);
        };
        let bytes = u32::from_be_bytes([a, b, c, d]);
        let length = bytes as usize;
        if length > self.payload_bytes_max {
            return Err(LinkError::Oversized {
                bytes,
                limit: self.payload_bytes_max,
            });
        }
        let kind = Kind::from_byte(kind).ok_or(LinkError::Malformed("a frame of unknown kind"))?;
        if rest.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = if length <= COPY_BYTES_MAX {
            let payload = self.buffer.get(..length).map(Bytes::copy_from_slice);
            self.buffer.advance(length);
            payload.unwrap_or_default()
        } else {
            self.buffer.split_to(length).freeze()
        };
        Ok(Some(Frame { kind, payload }))
    }

    async fn fill(&mut self) -> Result<(), LinkError> {
        self.buffer.reserve(READ_BYTES);
        let reading = self.half.read_buf(&mut self.buffer);
        match tokio::time::timeout(limits::IDLE_DEADLINE, reading).await {
            Err(_) => Err(LinkError::Silent(limits::IDLE_DEADLINE)),
            Ok(Err(error)) => Err(LinkError::Broken(error)),
            Ok(Ok(0)) => Err(LinkError::Closed),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend_from_slice(&frame.header().expect("short"));
            bytes.extend_from_slice(&frame.payload);
        }
        bytes
    }

    fn read_all(bytes: &[u8], step: usize, limit: usize) -> (Vec<Frame>, LinkError) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let mut builder = Vec::new();
            builder.extend_from_slice(bytes);
            let (mut near, far) = tokio::io::duplex(step.max(1));
            let writer = tokio::spawn(async move {
                use tokio::io::AsyncWriteExt;
                near.write_all(&builder).await.ok();
            });
            let mut reader = Reader::new(far, limit);
            let mut frames = Vec::new();
            let end = loop {
                match reader.next().await {
                    Ok(frame) => frames.push(frame),
                    Err(error) => break error,
                }
            };
            drop(reader);
            writer.await.expect("writer");
            (frames, end)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn frames_survive_any_split_of_their_bytes(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            step in 1_usize..300,
        ) {
            let frames: Vec<_> =
                payloads.into_iter().map(|bytes| Frame::message(bytes.into())).collect();
            let (read, end) = read_all(&bytes_of(&frames), step, 200);
            prop_assert_eq!(read, frames);
            prop_assert!(matches!(end, LinkError::Closed));
        }

        #[test]
        fn any_bytes_give_frames_within_the_limit_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..400), limit in 0_usize..300,
        ) {
            let (read, _) = read_all(&bytes, 64, limit);
            prop_assert!(read.iter().all(|frame| frame.payload.len() <= limit));
        }
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_header() {
        let (read, end) = read_all(&[0xff, 0xff, 0xff, 0xff, 1], 64, 1 << 20);
        assert!(read.is_empty());
        match end {
            LinkError::Oversized { bytes, limit } => {
                assert_eq!((bytes, limit), (u32::MAX, 1 << 20));
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_large_frame_arrives_whole() {
        let frame = Frame::message(vec![7_u8; COPY_BYTES_MAX * 3].into());
        let (read, _) = read_all(&bytes_of(std::slice::from_ref(&frame)), 4096, 1 << 20);
        assert_eq!(read, [frame]);
    }
}
