//! From bytes to values and back: a version byte, then borsh.
//!
//! Every row, operation, query, reply and genesis begins with the version of its layout. A newer
//! one is refused, never guessed at, and so are values that exceed their bound or have bytes left
//! over. Decoding allocates no more than a small multiple of its input.

use borsh::{BorshDeserialize, BorshSerialize};

/// The version of every layout in this crate.
pub const VERSION: u8 = 1;

/// Why bytes do not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("there are no bytes")]
    Empty,
    /// There are more bytes than the bound for this kind.
    #[error("{length} bytes are more than the {limit} that are allowed")]
    TooLong {
        /// The number of bytes.
        length: usize,
        /// The bound.
        limit: usize,
    },
    /// A newer program wrote them.
    #[error("layout version {found} is newer than {VERSION}: upgrade this program")]
    Version {
        /// The version found.
        found: u8,
    },
    /// They are not a value of this layout.
    #[error("the bytes do not follow the layout: {reason}")]
    Layout {
        /// The decoder's message.
        reason: String,
    },
}

/// Writes the version and `value`.
pub(crate) fn encode<T: BorshSerialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    // Writing borsh to a Vec fails only for collections beyond u32::MAX entries, which no bound of
    // this crate admits; decoding would then refuse the version byte alone.
    if value.serialize(&mut bytes).is_err() {
        bytes.truncate(1);
    }
    bytes
}

/// Reads what [`encode`] wrote, at most `limit` bytes of it.
pub(crate) fn decode<T: BorshDeserialize>(bytes: &[u8], limit: usize) -> Result<T, DecodeError> {
    if bytes.len() > limit {
        return Err(DecodeError::TooLong {
            length: bytes.len(),
            limit,
        });
    }
    match bytes.split_first() {
        None => Err(DecodeError::Empty),
        Some((&VERSION, body)) => borsh::from_slice(body).map_err(|error| DecodeError::Layout {
            reason: error.to_string(),
        }),
        Some((&found, _)) => Err(DecodeError::Version { found }),
    }
}
