//! Frames: a fixed header, a body, and a signature behind it where there is one.
//!
//! ```text
//!  0        8     10        26      34    36     44
//!  ├────────┼─────┼─────────┼───────┼─────┼──────┼──────────┬──────────────┐
//!  │ tag    │ ver │ cluster │ epoch │ grp │ view │ body …   │ signature 64 │
//!  └────────┴─────┴─────────┴───────┴─────┴──────┴──────────┴──────────────┘
//!  └────────────── signed bytes ────────────────────────────┘  signed kinds only
//! ```
//!
//! The transport delimits frames. [`Envelope::decode`] parses one with hard limits and checks
//! nothing else; [`super::admit()`] makes a [`super::Verified`] of it.

use super::body;
use super::limits::{FRAME_BYTES_MAX, REQUEST_BYTES_MAX};
use super::message::{Batch, Bodies, Kind, Message, StrayRequest};
use super::signed_bytes::{batch_digest, request_digest};
use crate::authentication::Signer;
use crate::identity::{ClusterId, Digest, Epoch, Group, Signature, View};
use bytes::Bytes;
use std::sync::Arc;

/// The version of wire and signed bytes.
pub const VERSION: u16 = 1;
/// Bytes before the body.
pub const HEADER_BYTES: usize = 8 + 2 + 16 + 8 + 2 + 8;
/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// What every message names in addition to its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// The cluster.
    pub cluster: ClusterId,
    /// The membership.
    pub epoch: Epoch,
    /// The ordering instance.
    pub group: Group,
    /// The view; 0 in messages of clients.
    pub view: View,
}

impl Header {
    /// The same with another view.
    #[must_use]
    pub const fn at(self, view: View) -> Self {
        Self { view, ..self }
    }

    /// Appends tag, version and header.
    pub fn encode(&self, kind: Kind, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&kind.tag());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.epoch.0.to_le_bytes());
        bytes.extend_from_slice(&self.group.0.to_le_bytes());
        bytes.extend_from_slice(&self.view.0.to_le_bytes());
    }
}

/// Bytes that are not a frame of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Longer than any frame may be.
    #[error("a frame of {bytes} bytes: the limit is {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// It ends within a field.
    #[error("a frame that ends within its {field}")]
    CutShort {
        /// Where it ends.
        field: &'static str,
    },
    /// A tag that no kind has.
    #[error("a frame with an unknown tag")]
    UnknownKind,
    /// Another version of the format.
    #[error("a frame of version {version}: this release uses version {VERSION}")]
    OtherVersion {
        /// Its version.
        version: u16,
    },
    /// A count or length beyond its limit.
    #[error("a frame with {count} as the size of its {field}: the limit is {count_max}")]
    TooMany {
        /// Which count.
        field: &'static str,
        /// Its value.
        count: usize,
        /// The limit.
        count_max: usize,
    },
    /// A field with a value that it cannot have.
    #[error("a frame with an invalid {field}")]
    Impossible {
        /// Which field.
        field: &'static str,
    },
}

/// A parsed frame. Nothing in it has been checked unless it is inside a [`super::Verified`].
#[derive(Clone, Debug)]
pub struct Envelope {
    frame: Bytes,
    header: Header,
    message: Message,
    digest: Digest,
}

impl Envelope {
    /// Parses a frame.
    ///
    /// # Errors
    /// If it is not one, or beyond a limit.
    pub fn decode(frame: Bytes) -> Result<Self, Malformed> {
        let mut reader = body::Reader::new(&frame);
        let (kind, header) = reader.header()?;
        let bytes_max = match kind.from_clients() {
            true => REQUEST_BYTES_MAX,
            false => FRAME_BYTES_MAX,
        };
        if frame.len() > bytes_max {
            return Err(Malformed::TooLong {
                bytes: frame.len(),
                bytes_max,
            });
        }
        if kind.signed() {
            // It is parsed in place when it is needed.
            reader.signature()?;
        }
        let message = body::decode(kind, &mut reader)?;
        reader.end()?;
        let digest = digest_of(kind, &frame);
        Ok(Self {
            frame,
            header,
            message,
            digest,
        })
    }

    /// An unsigned message as a frame.
    #[must_use]
    pub fn unsigned(header: Header, message: Message) -> Self {
        let frame = encode(header, &message);
        let digest = digest_of(message.kind(), &frame);
        Self {
            frame,
            header,
            message,
            digest,
        }
    }

    /// The bytes as received or sent.
    #[must_use]
    pub const fn frame(&self) -> &Bytes {
        &self.frame
    }

    /// Its header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Its view.
    #[must_use]
    pub const fn view(&self) -> View {
        self.header.view
    }

    /// The message.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// The signature at its end, if its kind has one.
    #[must_use]
    pub fn signature(&self) -> Option<Signature> {
        let signed = self.message.kind().signed();
        let last = self.frame.last_chunk::<SIGNATURE_BYTES>();
        last.filter(|_| signed).map(|bytes| Signature(*bytes))
    }

    /// The bytes that the signature is on.
    #[must_use]
    pub fn signed_bytes(&self) -> &[u8] {
        let end = self.frame.len().saturating_sub(SIGNATURE_BYTES);
        self.frame.get(..end).unwrap_or_default()
    }

    /// A proposal's batch digest, a client request's digest; of anything else, zero.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) const fn digest_ref(&self) -> &Digest {
        &self.digest
    }

    /// The same frame; only the claimed sender is used.
    pub(crate) fn into_stray(self, stray: StrayRequest) -> Self {
        Self {
            message: Message::Stray(stray),
            ..self
        }
    }

    /// The same with fewer bodies, after some could not be verified.
    pub(crate) fn with_bodies(self, requests: Vec<Arc<Self>>) -> Self {
        Self {
            message: Message::Bodies(Bodies { requests }),
            ..self
        }
    }

    /// The batch, if this is a proposal.
    #[must_use]
    pub const fn batch(&self) -> Option<&Batch> {
        match &self.message {
            Message::Proposal(batch) => Some(batch),
            _ => None,
        }
    }

    /// The bytes between header and signature.
    #[must_use]
    pub fn body(&self) -> Bytes {
        body_range(self.message.kind(), &self.frame)
    }
}

fn body_range(kind: Kind, frame: &Bytes) -> Bytes {
    let tail = if kind.signed() { SIGNATURE_BYTES } else { 0 };
    let end = frame.len().saturating_sub(tail);
    if HEADER_BYTES > end {
        Bytes::new()
    } else {
        frame.slice(HEADER_BYTES..end)
    }
}

fn digest_of(kind: Kind, frame: &Bytes) -> Digest {
    match kind {
        Kind::Proposal => batch_digest(&body_range(kind, frame)),
        Kind::Request | Kind::OpenSession | Kind::CloseSession => request_digest(frame),
        _ => Digest::default(),
    }
}

/// An unsigned message as the bytes of a frame.
#[must_use]
pub fn encode(header: Header, message: &Message) -> Bytes {
    Bytes::from(encode_with_room(header, message, 0))
}

/// The same, with capacity for bytes to be appended.
pub(crate) fn encode_with_room(header: Header, message: &Message, room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body::size_hint(message) + room);
    header.encode(message.kind(), &mut bytes);
    body::encode(message, &mut bytes);
    bytes
}

/// A message that still needs its author's signature.
#[derive(Clone, Debug)]
pub struct Unsigned {
    header: Header,
    message: Message,
    bytes: Vec<u8>,
}

impl Unsigned {
    /// Encodes `message` for signing.
    #[must_use]
    pub fn new(header: Header, message: Message) -> Self {
        let bytes = encode_with_room(header, &message, SIGNATURE_BYTES);
        Self {
            header,
            message,
            bytes,
        }
    }

    /// Its header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The message.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// The bytes to sign.
    #[must_use]
    pub fn signed_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The message with a signature that the caller has made and that is not checked.
    #[must_use]
    pub fn with_signature(mut self, signature: Signature) -> super::Verified {
        self.bytes.extend_from_slice(&signature.0);
        let frame = Bytes::from(self.bytes);
        let digest = digest_of(self.message.kind(), &frame);
        super::Verified::trusted(Arc::new(Envelope {
            frame,
            header: self.header,
            message: self.message,
            digest,
        }))
    }

    /// Signs it.
    #[must_use]
    pub fn sign(self, signer: &dyn Signer) -> super::Verified {
        let signature = signer.sign(&self.bytes);
        self.with_signature(signature)
    }
}
