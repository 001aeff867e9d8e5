//! Operations and answers of the key-value service.

use borsh::{BorshDeserialize, BorshSerialize};
use bytes::Bytes;

/// A list that would grow beyond this is emptied first.
pub const LIST_MAX: usize = 24;

/// The commands.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Command {
    /// Reads.
    Get {
        /// The key.
        key: u8,
    },
    /// Replaces the value by one token.
    Put {
        /// The key.
        key: u8,
        /// The token.
        token: u64,
    },
    /// Adds a token at the end.
    Append {
        /// The key.
        key: u8,
        /// The token.
        token: u64,
    },
    /// Replaces the value by one token if it ends in `expected` (`None`: if it is empty).
    CompareAndSet {
        /// The key.
        key: u8,
        /// The last token that must be there.
        expected: Option<u64>,
        /// The token.
        token: u64,
    },
    /// Replaces the value by one token for so many nanoseconds of agreed time.
    Lend {
        /// The key.
        key: u8,
        /// The token.
        token: u64,
        /// How long.
        nanos: u64,
    },
}

impl Command {
    /// The key of the command.
    #[must_use]
    pub const fn key(&self) -> u8 {
        match self {
            Self::Get { key }
            | Self::Put { key, .. }
            | Self::Append { key, .. }
            | Self::CompareAndSet { key, .. }
            | Self::Lend { key, .. } => *key,
        }
    }

    /// The new list, or `None` if the operation changes nothing. The service and the model share
    /// only this; each has its own handling of time, storage and order.
    #[must_use]
    pub fn change(&self, list: &[u64]) -> Option<Vec<u64>> {
        match self {
            Self::Get { .. } => None,
            Self::Put { token, .. } | Self::Lend { token, .. } => Some(vec![*token]),
            Self::Append { token, .. } if list.len() >= LIST_MAX => Some(vec![*token]),
            Self::Append { token, .. } => {
                let mut list = list.to_vec();
                list.push(*token);
                Some(list)
            }
            Self::CompareAndSet {
                expected, token, ..
            } => (list.last() == expected.as_ref()).then(|| vec![*token]),
        }
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct KeyValueAnswer {
    /// The agreed time of the batch that executed the operation; none for an unordered query.
    pub time: Option<u64>,
    /// Whether the operation changed anything.
    pub changed: bool,
    /// The list afterwards.
    pub list: Vec<u64>,
}

/// Encodes a command or an answer.
#[must_use]
pub fn encode<T: BorshSerialize>(value: &T) -> Bytes {
    let mut bytes = Vec::new();
    // Writing to a vector does not fail.
    let _ = value.serialize(&mut bytes);
    Bytes::from(bytes)
}

/// Decodes a command or an answer.
#[must_use]
pub fn decode<T: BorshDeserialize>(bytes: &[u8]) -> Option<T> {
    T::try_from_slice(bytes).ok()
}
