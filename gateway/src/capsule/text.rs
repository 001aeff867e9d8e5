//! The text of a link: one line, to be pasted or kept in a file.
//!
//! ```text
//! quorumfs-capsule-1:  ‖ base64url of ( zstd of Located, Borsh-encoded ‖ 8 bytes of its BLAKE3 )
//! ```
//!
//! The digest finds a link that was cut short or changed by a mail program; it protects nothing.
//! White space within is ignored, because mail programs break lines.

use super::manifest::{Located, ManifestError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use borsh::BorshDeserialize;
use std::io::Read as _;

/// How a link begins.
pub const PREFIX: &str = "quorumfs-capsule-1:";
/// How all links begin, of whatever format.
const ANY_PREFIX: &str = "quorumfs-capsule-";
const DIGEST_BYTES: usize = 8;
/// Characters of a link: it has the URLs of one object.
const TEXT_MAX: usize = 256 << 10;
const LOCATED_BYTES_MAX: u64 = 1 << 20;
const LEVEL: i32 = 19;

/// A text that is no link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LinkTextError {
    /// Something else.
    #[error("this is no link of a capsule: it begins with `{PREFIX}`")]
    Foreign,
    /// Of a later format.
    #[error("this link is of a newer format; use a newer version of quorumfs")]
    Newer,
    /// Not all of it, or changed.
    #[error("the link is cut short or was changed: copy all of it, or pass it on as a file")]
    Cut,
    /// It contradicts itself.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// A link to a capsule. A secret: any party that has it can read what it leads to.
#[derive(Clone, PartialEq, Eq)]
pub struct CapsuleLink(pub(super) Located);

impl std::fmt::Debug for CapsuleLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CapsuleLink(…)")
    }
}

fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let hash = blake3::hash(bytes);
    let mut digest = [0; DIGEST_BYTES];
    for (to, from) in digest.iter_mut().zip(hash.as_bytes()) {
        *to = *from;
    }
    digest
}

impl CapsuleLink {
    /// When the first of its URLs ends by itself, in seconds since 1970.
    #[must_use]
    pub const fn ends(&self) -> u64 {
        self.0.ends
    }

    /// The text.
    ///
    /// # Errors
    /// If memory is short.
    pub fn to_text(&self) -> Result<String, ManifestError> {
        let damaged = |error: std::io::Error| ManifestError::Damaged(error.to_string());
        let plain = borsh::to_vec(&self.0).map_err(damaged)?;
        let mut bytes = zstd::bulk::compress(&plain, LEVEL).map_err(damaged)?;
        bytes.extend_from_slice(&digest(&bytes));
        Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads a text.
    ///
    /// # Errors
    /// If it is no link, or not all of one.
    pub fn parse(text: &str) -> Result<Self, LinkTextError> {
        if text.len() > TEXT_MAX {
            return Err(LinkTextError::Foreign);
        }
        // Some editors begin a file with a mark.
        let text = text.trim_start_matches('\u{feff}');
        let text: String = text.split_ascii_whitespace().collect();
        let rest = match text.strip_prefix(PREFIX) {
            Some(rest) => rest,
            None if text.starts_with(ANY_PREFIX) && text.contains(':') => {
                return Err(LinkTextError::Newer);
            }
            None if text.starts_with(ANY_PREFIX) => return Err(LinkTextError::Cut),
            None => return Err(LinkTextError::Foreign),
        };
        let bytes = URL_SAFE_NO_PAD.decode(rest);
        let bytes = bytes.map_err(|_| LinkTextError::Cut)?;
        let (packed, found) = bytes
            .split_last_chunk::<DIGEST_BYTES>()
            .ok_or(LinkTextError::Cut)?;
        if digest(packed) != *found {
            return Err(LinkTextError::Cut);
        }
        let damaged = |error: std::io::Error| ManifestError::Damaged(error.to_string());
        let mut plain = Vec::new();
        let unpacked = zstd::stream::read::Decoder::with_buffer(packed).map_err(damaged)?;
        let mut unpacked = unpacked.take(LOCATED_BYTES_MAX);
        unpacked.read_to_end(&mut plain).map_err(damaged)?;
        let located = Located::try_from_slice(&plain).map_err(damaged)?;
        located.check()?;
        Ok(Self(located))
    }
}
