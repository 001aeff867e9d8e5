//! From bytes to values and back: a version byte, then borsh.
//!
//! Every row, operation, query, reply and genesis begins with the version of its layout. A newer
//! one is refused, never guessed at; so is anything that is longer than its bound or has bytes
//! left over. Decoding allocates no more than a small multiple of what it was given.

use borsh::{BorshDeserialize, BorshSerialize};

/// The version of every layout in this crate.
pub const VERSION: u8 = 1;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Nothing at all.
    #[error("there are no bytes")]
    Empty,
    /// More than the bound for this kind.
    #[error("{length} bytes are more than the {limit} that are allowed")]
    TooLong {
        /// How many there are.
        length: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Written by a newer program.
    #[error("layout version {found} is newer than {VERSION}: upgrade this program")]
    Version {
        /// The version that was found.
        found: u8,
    },
    /// Not a value of this layout.
    #[error("the bytes do not follow the layout: {reason}")]
    Layout {
        /// What the decoder said.
        reason: String,
    },
}

/// Writes the version and `value`.
pub(crate) fn encode<T: BorshSerialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    // Writing borsh to a Vec fails only for collections beyond u32::MAX entries, which no bound of
    // this crate admits; the version alone is then refused by whoever decodes it.
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
