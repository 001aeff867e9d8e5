//! Messages as bytes.

use bytes::Bytes;

/// A message that still needs its author's signature.
#[derive(Clone, Debug)]
pub struct Unsigned {}

/// A message whose every signature has been checked, with the bytes that it came in.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The frame as received.
    pub frame: Bytes,
}
